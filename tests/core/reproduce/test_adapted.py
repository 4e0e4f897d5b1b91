"""The model adapted to the training text: as many parameters, the same batches, and two references for every row."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

pytest.importorskip("peft", reason="peft is not installed: pip install 'focus-workbench[eval]'")
pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'focus-workbench[eval]'")

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.reproduce.context import Context, Scale
from focus_core.reproduce.experiments.adapted import BOTH, GIVEN, GIVEN_BOTH, LORA, NARROW, NARROW_BOTH, ROUTERS
from focus_core.reproduce.registry import EXPERIMENTS
from focus_core.reproduce.runner import run_experiment
from focus_core.reproduce.studies.adapted import TrainingBlocks, adapt, rank_for
from focus_core.reproduce.studies.rates import search_rate
from focus_core.training.loop import TrainSettings, train

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog", "run", "past", "it", "then", "slept"]
SCALE = Scale(steps=4, full_steps=2, length=64, batch_size=2, blocks=3, window=8, limit=2)


@pytest.fixture
def context(tmp_path, tiny_llama, monkeypatch):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    for number, name in enumerate(("train", "held", "choose")):
        (tmp_path / f"{name}.txt").write_text(" ".join(np.random.default_rng(number).choice(WORDS, 900)))
    return Context(
        SCALE,
        tmp_path,
        data=[tmp_path / "train.txt"],
        held_out=[tmp_path / "held.txt"],
        choose=[tmp_path / "choose.txt"],
        models=[str(tmp_path / "model")],
        rates=(1e-2,),
    )


def test_adapters_get_about_as_many_parameters_as_asked_for(tiny_llama):
    of_one = 3 * ((32 + 32) + 2 * (32 + 16))  # q: 32 to 32, k and v: 32 to 16, in 3 layers
    assert [rank_for(tiny_llama.model, wanted) for wanted in (1, of_one, 5 * of_one + 9)] == [1, 1, 5]


def test_adapters_see_the_batches_that_routers_see(tmp_path, tiny_llama):
    blocks = np.random.default_rng(0).integers(1, 200, (7, 16))
    settings = TrainSettings(steps=5, batch_size=2, seed=3)
    seen = []
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, window=4, route_dim=8))
    hook = focus.model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].clone()), with_kwargs=True
    )
    train(focus, blocks, settings, tmp_path)
    hook.remove()
    rows = [row["input_ids"] for row in TrainingBlocks(blocks, settings)]
    assert len(rows) == 10
    for step in range(5):
        assert any(torch.equal(batch, torch.stack(rows[2 * step : 2 * step + 2])) for batch in seen), step


def test_an_adapter_is_trained_once_and_then_read(tmp_path, tiny_llama):
    blocks = np.random.default_rng(0).integers(1, 200, (8, 32))
    steps = []

    def once(rate=1e-2, **more):
        loaded = tiny_llama._replace(model=copy.deepcopy(tiny_llama.model))
        settings = {"parameters": 2000, "steps": 6, "learning_rate": rate, **more}
        return adapt(loaded, blocks, out=tmp_path, on_step=lambda step, loss: steps.append(step), **settings)

    first, again = once(), once()
    assert steps == [1, 2, 3, 4, 5, 6] and again.folder == first.folder and again.losses == first.losses
    assert again.parameters == first.parameters == first.rank * 480
    assert (first.folder / "adapter" / "adapter_model.safetensors").is_file()
    ids = torch.from_numpy(blocks[:2])
    with torch.no_grad():
        one, two, base = (
            found(input_ids=ids).logits for found in (first.loaded.model, again.loaded.model, tiny_llama.model)
        )
    torch.testing.assert_close(one, two)
    assert (one - base).abs().max() > 1e-3
    assert once(rate=2e-2).folder != first.folder and len(steps) == 12


def test_rows_have_two_references_and_baselines_the_share_of_narrow_groups(context):
    chosen = ["untouched", ROUTERS, LORA, BOTH, NARROW, NARROW_BOTH, "baseline streaming", "baseline quest"]
    record = run_experiment("adapted", EXPERIMENTS["adapted"], context, only=chosen)
    rows = {cell: [row for row in record["results"] if row["cell"] == cell] for cell in chosen}
    (adapted,) = rows[LORA]
    assert adapted["learning_rate"] == record["rates"][LORA]["best"] and "from_full" not in adapted
    assert record["rates"][LORA]["chosen_on"] == "choose.txt" and adapted["kl"] > 0
    assert adapted["parameters"] == pytest.approx(rows[ROUTERS][0]["parameters"], rel=0.2)
    assert len(rows[ROUTERS]) == 2 and len(rows[NARROW]) == len(rows[NARROW_BOTH]) == 1
    for row in rows[ROUTERS] + rows[NARROW]:
        assert row["from_full"] == pytest.approx(row["difference"]) and row["kl"] == pytest.approx(row["kl_from_full"])
    for cell in (BOTH, NARROW_BOTH, "baseline streaming", "baseline quest"):
        for row in rows[cell]:
            assert row["perplexity"] - row["difference"] == pytest.approx(context.untouched.perplexity, rel=1e-5)
            assert row["perplexity"] - row["from_full"] == pytest.approx(adapted["perplexity"], rel=1e-5)
            assert row["kl_from_full"] < row["kl"]
    tuning = record["tuning"]
    assert set(tuning) == {"baseline quest"}  # a window has no setting
    tried = {str(each["setting"]): each["kl"] for each in tuning["baseline quest"]["tried"]}
    assert tried[str(tuning["baseline quest"]["setting"])] == min(tried.values()) and len(tried) > 1
    assert rows["baseline quest"][0]["kept_share"] == pytest.approx(0.15, abs=0.1)
    trials = sorted((context.folder).rglob("loss.json"))
    before = [path.stat().st_mtime_ns for path in trials]
    again = run_experiment("adapted", EXPERIMENTS["adapted"], context, only=chosen)
    assert again["results"] == record["results"] and [path.stat().st_mtime_ns for path in trials] == before


def test_learned_baselines_are_trained_on_the_adapted_model_once(context, monkeypatch):
    monkeypatch.setattr("focus_core.reproduce.experiments.adapted.TAUGHT", 2048)
    chosen = ["untouched", LORA, "baseline seer", "baseline indexer"]
    record = run_experiment("adapted", EXPERIMENTS["adapted"], context, only=chosen)
    (adapted,) = (row for row in record["results"] if row["cell"] == LORA)
    rows = [row for row in record["results"] if row["cell"] in chosen[2:]]
    for row in rows:
        assert row["parameters"] > 0 and row["learning_rate"] > 0
        assert row["kl_from_full"] < row["kl"] and row["kept_share"] == pytest.approx(0.15, abs=0.1)
        assert row["perplexity"] - row["from_full"] == pytest.approx(adapted["perplexity"], rel=1e-5)
    (trained,) = (context.folder / "learned").glob("*.safetensors")  # both in one training
    names = {name.split(".")[0] for name in load_file(trained)}
    assert len(rows) == 2 and names == {"seer", "indexer"}


def test_given_routers_are_measured_on_both_models_and_identify_the_run(context):
    focus = retrofit(context.load().model, FocusConfig(num_groups=4, window=8, route_dim=8))
    focus.save_pretrained(context.folder / "routers")
    context.routers = str(context.folder / "routers")
    cells = EXPERIMENTS["adapted"].cells(context)
    assert cells[GIVEN]["routers"] == cells[GIVEN_BOTH]["routers"] == context.attached_hash()
    record = run_experiment("adapted", EXPERIMENTS["adapted"], context, only=["untouched", LORA, GIVEN, GIVEN_BOTH])
    alone, both = ([row for row in record["results"] if row["cell"] == cell] for cell in (GIVEN, GIVEN_BOTH))
    assert [row["top_k"] for row in alone] == [row["top_k"] for row in both] == [1, 2]
    assert all(row["kl"] == pytest.approx(row["kl_from_full"]) for row in alone)
    assert all(row["kl_from_full"] != row["kl"] for row in both)


def test_the_divergence_of_the_adapted_model_is_that_of_its_logits(context):
    record = run_experiment("adapted", EXPERIMENTS["adapted"], context, only=["untouched", ROUTERS, LORA])
    (row,) = (row for row in record["results"] if row["cell"] == LORA)
    from peft import PeftModel

    (folder,) = (
        path for path in (context.folder / "adapters").iterdir() if f"lr{row['learning_rate']:g}-" in path.name
    )
    base = context.load().model
    ids = torch.from_numpy(context.held)
    with torch.no_grad():
        before = base(input_ids=ids).logits[:, :-1].log_softmax(-1)
        after = PeftModel.from_pretrained(base, folder / "adapter")(input_ids=ids).logits[:, :-1].log_softmax(-1)
    assert row["kl"] == pytest.approx(
        float(F.kl_div(after, before, reduction="none", log_target=True).sum(-1).mean()), rel=1e-3
    )


def test_cells_that_build_on_others_name_them(context):
    with pytest.raises(FocusError, match="builds on 'LoRA, full attention'"):
        run_experiment("adapted", EXPERIMENTS["adapted"], context, only=["baseline quest"])


def test_the_lora_table_has_the_best_rate_of_every_method(context):
    """Losses of the tiny model are close together, so only the bookkeeping is checked here."""
    wide = replace(context, ranks=(2,), rates=(1e-3, 1e-2, 1e-1))
    record = run_experiment("lora", EXPERIMENTS["lora"], wide, only=["untouched", "our recipe", "LoRA r2"])
    for cell in ("our recipe", "LoRA r2"):
        rates = record["rates"][cell]
        losses = {trial["rate"]: trial["loss"] for trial in rates["trials"]}
        assert rates["best"] == min(losses, key=lambda rate: losses[rate])
        inside = min(losses) < rates["best"] < max(losses)
        rows = [row for row in record["results"] if row["cell"] == cell]
        assert rates["bracketed"] == inside and len(rows) == (3 if cell == "our recipe" else 1)
        for row in rows:
            assert row["learning_rate"] == rates["best"]
            assert row["rate_grid"].startswith("bracketed by" if inside else "grid not bracketed")
    assert {text["name"] for text in record["settings"]["choose"]} == {"choose.txt"}
    stored = search_rate(
        lambda rate: json.loads((wide.folder / "rates" / "LoRA r2" / f"{rate:g}" / "loss.json").read_text())["loss"],
        wide.rates,
    )
    assert stored.best == record["rates"]["LoRA r2"]["best"]
