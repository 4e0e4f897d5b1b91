"""`fit_routers`: narrow routers from texts in one pass, recorded; they attach and keep the wanted share."""

import json

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from focus_core import FocusError, FocusModel
from focus_core.evaluation import evaluate
from focus_core.routing.routers.narrow import MEANS
from focus_core.routing.storage import routers_hash
from focus_core.text import token_blocks
from focus_core.training.fit import fit_routers, lengths_at_share, narrow_config, usual_groups

TEXT = "She rowed to the island and the old man was glad of it. Nobody had come since the storm of May. " * 120


@pytest.fixture
def tiny_llama(tiny_llama):
    """With heads that compiled attention takes, which tries thresholds ten times as fast."""
    config = LlamaConfig(**{**tiny_llama.model.config.to_dict(), "head_dim": 16})
    return tiny_llama._replace(model=LlamaForCausalLM(config).eval())


def test_fitted_routers_attach_and_keep_the_share(tiny_llama, tmp_path):
    path = tmp_path / "my-text.txt"
    path.write_text(TEXT)
    # A head of so short a text reads at least the keys between window and border, whatever its threshold.
    config = narrow_config(num_groups=8, window=16, page_size=4, chunk=16, by_error=False, count_spread=False)
    record = fit_routers(path, tmp_path / "out", model=tiny_llama, config=config, tokens=2048)
    assert json.loads((tmp_path / "out" / "training.json").read_text()) == record
    assert [text["name"] for text in record["data"]] == ["my-text.txt"]
    focus = FocusModel.from_pretrained(tiny_llama.model, tmp_path / "out")
    assert focus.config == config and focus.trained
    row = evaluate(focus, token_blocks(tiny_llama.tokenizer, [TEXT], 256, max_blocks=2), routing="hard")
    assert config.budget == "budget 15%" and row.top_k is None
    assert row.kept_share == pytest.approx(0.15, abs=0.03)
    focus.detach()
    with pytest.raises(FocusError, match="out holds the result of another run"):
        fit_routers(path, tmp_path / "out", model=tiny_llama, config=config, tokens=2048, seed=1)
    again = fit_routers(path, tmp_path / "out", model=tiny_llama, config=config, tokens=2048)
    assert {**again, "made": None} == {**record, "made": None}


def test_a_table_gives_the_routers_of_its_text(tiny_llama, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    config = narrow_config(num_groups=8, window=16, page_size=4, chunk=16)
    found = []
    for name in ("text.txt", "rows.jsonl"):
        fit_routers(tmp_path / name, tmp_path / name[:4], model=tiny_llama, config=config, tokens=2048)
        focus = FocusModel.from_pretrained(tiny_llama.model, tmp_path / name[:4])
        found.append(routers_hash(focus.routers))
        focus.detach()
    assert found[0] == found[1]


@pytest.mark.parametrize("by_spread", [True, False])
@pytest.mark.parametrize("by_error", [True, False])
def test_heads_are_measured_where_it_is_wanted(tiny_llama, tmp_path, by_error, by_spread):
    path = tmp_path / "my-text.txt"
    path.write_text(TEXT)
    wanted = {"by_error": by_error, "count_spread": by_spread}
    config = narrow_config(num_groups=8, window=16, page_size=4, chunk=16, **wanted)
    record = fit_routers(path, tmp_path / "out", model=tiny_llama, config=config, tokens=2048)
    assert record["settings"].get("need") == ([{"length": 512, "blocks": 1}] if by_error or by_spread else None)
    focus = FocusModel.from_pretrained(tiny_llama.model, tmp_path / "out")
    routers = [focus.router(layer) for layer in focus.layers]
    focus.detach()
    assert all((router.thresholds is not None) == by_error for router in routers)
    assert all((router.spread is not None) == by_spread for router in routers)
    assert not by_spread or any(bool((router.spread > 0).any()) for router in routers)
    if by_error:
        (tried,) = record["expected"]
        shares, nats = zip(*tried["kl"])
        assert tried["page_size"] == 4
        assert shares == MEANS and nats[0] > 0 and nats[-1] < 1e-12 and list(nats) == sorted(nats, reverse=True)
    else:
        assert "expected" not in record


def test_a_record_names_the_heads_that_recall(tiny_llama, tmp_path):
    path = tmp_path / "my-text.txt"
    path.write_text(TEXT)
    config = narrow_config(num_groups=8, window=16, page_size=4, chunk=16)
    record = fit_routers(path, tmp_path / "out", model=tiny_llama, config=config, tokens=2048)
    assert record["settings"]["recall"] is True
    heads = tiny_llama.model.config.num_attention_heads
    assert [each["layer"] for each in record["recall"]] == list(range(tiny_llama.model.config.num_hidden_layers))
    assert all(len(each["attention"]) == heads for each in record["recall"])
    assert all(0 <= weight <= 1 for each in record["recall"] for weight in each["attention"])
    assert record["settings"]["query_power"] == 0.25
    fit_routers(path, tmp_path / "out", model=tiny_llama, config=config, tokens=2048, recall=True)  # the same
    with pytest.raises(FocusError, match="another run"):
        fit_routers(path, tmp_path / "out", model=tiny_llama, config=config, tokens=2048, query_power=0.0)
    with pytest.raises(FocusError, match="another run"):
        fit_routers(path, tmp_path / "out", model=tiny_llama, config=config, tokens=2048, recall=False)


def test_need_is_measured_at_every_length_that_model_and_texts_have(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setattr("focus_core.training.fit.NEED_LENGTHS", (128, 400))
    (tmp_path / "long.txt").write_text(TEXT)
    (tmp_path / "short.txt").write_text(TEXT[:1500])
    settings = {"num_groups": 8, "window": 16, "page_size": 4, "chunk": 16}
    record = fit_routers(tmp_path, tmp_path / "out", model=tiny_llama, config=narrow_config(**settings), tokens=1024)
    (tmp_path / "out" / "training.json").unlink()
    assert [(each["length"], each["blocks"]) for each in record["settings"]["need"]] == [(128, 2), (400, 2)]
    assert record["settings"]["config"]["shares_at"] == [128, 160, 384]


@pytest.mark.parametrize(
    ("positions", "lengths", "expected"),
    [
        (2048, [2048], [2048]),
        (8192, [2048, 8192], [2048, 8192]),
        (32768, [2048, 8192, 16384, 32768], [8192, 16384, 32768]),
        (131072, [2048, 8192, 16384, 32768], [8192, 16384, 32768]),
        (None, [2048, 8192], [8192]),
        (32768, [2048], [2048]),  # texts are no longer
        (256, [256], [256]),
    ],
)
def test_texts_of_a_fourth_of_the_positions_keep_the_share(positions, lengths, expected):
    assert lengths_at_share(lengths, positions) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [({"head_dim": 16}, 64), ({"head_dim": 128}, 128), ({"head_dim": 512}, 256), ({"head_dim": None}, 96)],
)
def test_keys_of_more_dimensions_have_more_groups(sizes, expected):
    config = LlamaConfig(vocab_size=8, hidden_size=192, num_hidden_layers=0, num_attention_heads=2, **sizes)
    assert usual_groups(LlamaForCausalLM(config)) == expected


def test_a_short_text_is_refused(tiny_llama, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("Too short.")
    with pytest.raises(FocusError, match=r"short\.txt has \d+ tokens, and groups are fitted on blocks of 512: "):
        fit_routers(path, tmp_path / "out", model=tiny_llama)


@pytest.mark.parametrize("by_error", [True, False])
def test_an_interrupted_fit_goes_on_and_ends_as_one_that_was_not(tiny_llama, tmp_path, monkeypatch, by_error):
    monkeypatch.setattr("focus_core.training.fit.NEED_LENGTHS", (128, 400))
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(TEXT + name)
    texts, config = [tmp_path / "one.txt", tmp_path / "two.txt"], narrow_config(
        num_groups=8, window=16, page_size=4, chunk=16, by_error=by_error
    )  # fmt: skip

    def fit(out, stop=None):
        """The steps that were measured, each with the share done; interrupted at the stop-th."""
        steps = []

        def told(what, share):
            if stop is not None and len(steps) == stop:
                raise KeyboardInterrupt
            steps.append((what, round(share, 3)))

        fit_routers(texts, tmp_path / out, model=tiny_llama, config=config, tokens=1024, progress=told)
        return steps

    whole = fit("whole")
    assert len(set(whole)) == len(whole) > 4
    for stop in (1, 5, 4, 11, 8, 4) if by_error else (1, 5, 4):
        with pytest.raises(KeyboardInterrupt):
            fit("parts", stop)
        assert not (tmp_path / "parts" / "training.json").exists()
    left = fit("parts")
    assert set(left) < set(whole) and left == whole[-len(left) :]
    hashes = []
    for out in ("whole", "parts"):
        focus = FocusModel.from_pretrained(tiny_llama.model, tmp_path / out)
        hashes.append(routers_hash(focus.routers))
        focus.detach()
    assert hashes[0] == hashes[1]
    assert json.loads((tmp_path / "parts" / "training.json").read_text()).get("expected") == json.loads(
        (tmp_path / "whole" / "training.json").read_text()
    ).get("expected")
    assert not list((tmp_path / "runs").glob(".unfinished/*"))
