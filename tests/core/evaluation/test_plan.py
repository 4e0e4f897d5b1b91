"""A k for every layer, and the frontier of routers and baselines."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from focus_core import FocusConfig, FocusError, FocusModel, retrofit
from focus_core.baselines import BASELINES
from focus_core.cli import app
from focus_core.evaluation import evaluate
from focus_core.evaluation.plan import LayerCost, layer_costs, plan_layers, plan_routers
from focus_core.frontier.measure import baseline_point

CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=2, route_dim=8)


def blocks(rows=2, length=48):
    return np.random.default_rng(0).integers(1, 90, (rows, length))


@torch.inference_mode()
def logits(focus, **changes):
    with focus.routing("hard", **changes):
        return focus(torch.from_numpy(blocks()), use_cache=False).logits


def test_a_plan_of_equal_layers_is_that_k_and_k_full_is_the_untouched_model(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG)
    assert torch.equal(logits(focus, layer_top_k=(2, 2, 2)), logits(focus, top_k=2))
    with torch.inference_mode(), focus.routing("off"):
        untouched = focus(torch.from_numpy(blocks()), use_cache=False).logits
    assert torch.allclose(logits(focus, layer_top_k=(4, 4, 4)), untouched, atol=1e-5)
    assert not torch.allclose(logits(focus, layer_top_k=(4, 0, 4)), untouched, atol=1e-5)


def test_one_layer_of_a_plan_is_that_layer_routed_alone(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG)
    mixed = logits(focus, layer_top_k=(4, 1, 4))
    router = focus.router(1).state_dict()
    alone = retrofit(focus.detach(), CONFIG.replace(layers=(1,)))
    alone.router(1).load_state_dict(router)
    assert torch.allclose(mixed, logits(alone, top_k=1), atol=1e-5)


def test_generation_under_a_plan_is_that_without_a_cache(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG.replace(layer_top_k=(0, 1, 4)))
    ids = torch.from_numpy(blocks(1, 20))
    cached = focus.generate(ids, max_new_tokens=8, do_sample=False, use_cache=True)
    assert torch.equal(cached, focus.generate(ids, max_new_tokens=8, do_sample=False, use_cache=False))


def test_a_plan_is_saved_checked_and_set_aside_by_a_k(tiny_llama, tmp_path):
    focus = retrofit(tiny_llama.model, CONFIG.replace(layer_top_k=(0, 1, 4)))
    focus.save_pretrained(tmp_path)
    loaded = FocusModel.from_pretrained(focus.detach(), tmp_path)
    assert loaded.config.layer_top_k == (0, 1, 4)
    assert loaded.config.replace(top_k=2).layer_top_k is None
    with pytest.raises(FocusError, match="2 entries for 3 routed layers"), loaded.routing("hard", layer_top_k=(1, 1)):
        pass
    with pytest.raises(FocusError, match="layer_top_k holds 5"):
        CONFIG.replace(layer_top_k=(5,))


def test_focus_analyze_keeps_a_plan_unless_given_a_k(tiny_llama, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    focus = retrofit(tiny_llama.model, CONFIG.replace(layer_top_k=(0, 1, 4)))
    focus.save_pretrained(tmp_path / "planned")
    focus.detach()
    (tmp_path / "text.txt").write_text("one two three four five six")
    command = [str(tmp_path / "text.txt"), "-m", str(tmp_path / "model"), "-r", str(tmp_path / "planned"), "--json"]

    def groups(*more: str) -> list[int]:
        result = CliRunner().invoke(app, ["analyze", *command, *more])
        assert result.exit_code == 0, result.output
        # The last token: the first ones may be sinks.
        return [len(layer) for layer in json.loads(result.stdout)["tokens"][-1]["groups"]]

    assert groups() == [0, 1, 4]
    assert groups("-k", "2") == [2, 2, 2]


def test_shares_of_a_plan_are_means_over_its_layers(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG)
    one = evaluate(focus, blocks(), routing="hard", layer_top_k=(1, 4, 4)).kept_share
    two = evaluate(focus, blocks(), routing="hard", layer_top_k=(1, 2, 4)).kept_share
    costs = {(row.layer, row.top_k): row for row in layer_costs(focus, blocks(), top_ks=(1, 2))}
    assert costs[0, 1].kept_share == pytest.approx(3 * one - 2)
    assert two == pytest.approx((costs[0, 1].kept_share + costs[1, 2].kept_share + 1) / 3, abs=0.05)
    assert costs[0, 1].loss == pytest.approx(
        np.mean(evaluate(focus, blocks(), routing="hard", layer_top_k=(1, 4, 4)).block_nll)
        - np.mean(evaluate(focus, blocks(), routing="off").block_nll)
    )


tables = st.integers(1, 4).flatmap(
    lambda layers: st.lists(st.tuples(*[st.floats(0, 1) for _ in range(2)]), min_size=layers, max_size=layers)
)


@given(tables, st.floats(0.02, 1.0))
def test_a_plan_keeps_to_its_budget_and_is_best_on_the_hull(losses, budget):
    """Against all plans: none at most as expensive as the chosen one loses less."""
    share = {0: 0.02, 1: 0.3, 8: 1.0}
    costs = [LayerCost(layer, k, loss, share[k]) for layer, row in enumerate(losses) for k, loss in enumerate(row)]
    monotone = [(max(row), row[1], 0.0) for row in losses]
    chosen = plan_layers(costs, budget, 8)
    places = {0: 0, 1: 1, 8: 2}

    def price(plan):
        return sum(share[k] for k in plan) / len(plan)

    def loss(plan):
        return sum(row[places[k]] for row, k in zip(monotone, plan))

    assert price(chosen) <= budget + 1e-9 or set(chosen) == {0}
    for other in itertools.product(share, repeat=len(losses)):
        if price(other) <= price(chosen) + 1e-12:
            assert loss(chosen) <= loss(other) + 1e-9


def test_a_budget_goes_to_the_layers_that_need_it():
    costs = [LayerCost(layer, 0, loss, 0.0) for layer, loss in enumerate([0.1, 0.5, 0.0, 0.3])]
    assert plan_layers(costs, 0.5, 4) == (0, 4, 0, 4)
    assert plan_layers(costs, 1.0, 4) == (4, 4, 0, 4)  # nothing to gain from the third
    assert plan_layers(costs, 0.1, 4) == (0, 0, 0, 0)


def test_window_and_sinks_as_a_baseline_is_routing_at_k_0(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG)
    row = evaluate(focus, blocks(), routing="hard", layer_top_k=(0, 0, 0))
    text = torch.from_numpy(blocks())
    point = baseline_point(focus, "streaming", blocks(), share=row.kept_share, window=4, sinks=2, training_text=text)
    assert point.kept_share == pytest.approx(row.kept_share)
    assert point.perplexity == pytest.approx(row.perplexity, rel=1e-5)
    assert point.block_nll == pytest.approx(row.block_nll, rel=1e-5)


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_every_baseline_runs_in_the_model_and_counts_what_it_kept(tiny_llama, name):
    focus = retrofit(tiny_llama.model, CONFIG)
    text = torch.from_numpy(blocks())
    everything = baseline_point(focus, name, blocks(), share=1.0, window=4, sinks=2, training_text=text)
    if not BASELINES[name].tunable:
        assert everything.kept_share is None
        return
    some = baseline_point(focus, name, blocks(), share=0.4, window=4, sinks=2, training_text=text)
    assert some.kept_share is not None and 0 < some.kept_share <= 1
    assert some.causal_kept_share is not None and some.causal_kept_share >= some.kept_share
    untouched = evaluate(focus, blocks(), routing="off")
    if everything.kept_share == 1:
        assert everything.block_nll == pytest.approx(untouched.block_nll, rel=1e-4)


def test_commands_plan_and_compare_and_go_on(tiny_llama, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    focus = retrofit(tiny_llama.model, CONFIG)
    focus.save_pretrained(tmp_path / "routers")
    (tmp_path / "train.txt").write_text("Jackdaws love my big sphinx of quartz, and a fox does not. " * 40)
    (tmp_path / "other.txt").write_text("Pack my box with five dozen liquor jugs, said the fox. " * 40)
    common = ["--model", str(tmp_path / "model"), "--length", "64", "--blocks", "2"]

    def run(*arguments):
        result = CliRunner().invoke(app, [str(part) for part in arguments])
        assert result.exit_code == 0, result.output

    planned = tmp_path / "planned"
    run(
        "plan",
        *common,
        "-d",
        text,
        "--routers",
        tmp_path / "routers",
        "--budget",
        0.5,
        "-k",
        0,
        "-k",
        1,
        "--out",
        planned,
    )
    record = json.loads((planned / "plan.json").read_text())
    assert len(record["costs"]) == 6
    over = ["plan", *common, "-d", str(text), "--budget", "0.5", "-r", str(planned), "-o", str(planned / ".")]
    refused = CliRunner().invoke(app, over)
    assert refused.exit_code == 2 and "holds the routers to begin with" in refused.stderr
    assert record["plan"]["kept_share"] <= 0.5
    assert FocusModel.from_pretrained(focus.detach(), planned).config.layer_top_k == tuple(
        record["plan"]["layer_top_k"]
    )

    out = tmp_path / "frontier.json"
    arguments = ["frontier", *common, "--train", tmp_path / "train.txt", "-r", planned, "--window", 4, "--out", out]
    refused = CliRunner().invoke(app, [str(part) for part in (*arguments, "-d", text)])
    assert refused.exit_code == 2 and "text.txt is training text of the routers planned" in refused.stderr
    arguments += ["-d", tmp_path / "other.txt"]
    run(*arguments, "--baseline", "streaming", "--baseline", "sparq", "--baseline", "performer")
    points = json.loads(out.read_text())["points"]
    assert {point["method"] for point in points} == {
        "untouched",
        "planned",
        "untrained, K=4",
        "streaming",
        "sparq",
        "performer",
    }
    assert sum(point["method"] == "untrained, K=4" for point in points) == 2
    wanted = [point["kept_share"] for point in points if point["method"] == "planned"]
    assert [point["wanted_share"] for point in points if point["method"] == "sparq"] == wanted
    run(*arguments, "--baseline", "streaming", "--baseline", "sparq", "--baseline", "performer")
    assert json.loads(out.read_text())["points"] == points
    assert "SparQ" in out.with_suffix(".md").read_text() and "SparQ" in out.with_suffix(".svg").read_text()


@pytest.mark.parametrize("damage", ["routers", "old", "null", "a cost", "NaN"])
def test_a_plan_of_other_routers_or_a_damaged_one_is_refused(tiny_llama, tmp_path, damage):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20)
    options = {"model": tiny_llama, "length": 48, "blocks": 1, "top_ks": (1,)}
    focus, path = retrofit(tiny_llama.model, CONFIG), tmp_path / "out" / "plan.json"
    plan_routers(text, tmp_path / "out", 0.5, routers=focus, **options)
    record = json.loads(path.read_text())
    assert plan_routers(text, tmp_path / "out", 0.5, routers=focus, **options)["costs"] == record["costs"]
    if damage == "routers":
        focus = retrofit(focus.detach(), CONFIG, seed=1)
    elif damage == "old":
        del record["routers_hash"]
    elif damage == "null":
        record["costs"] = None
    else:
        record["costs"][1]["loss"] = math.nan if damage == "NaN" else "much"
    path.write_text(json.dumps(record))
    words = {"routers": "other routers", "old": "older version"}.get(damage, "no record of a plan")
    with pytest.raises(FocusError, match=words):
        plan_routers(text, tmp_path / "out", 0.5, routers=focus, **options)


def test_a_plan_refuses_a_budget_that_no_choice_meets_and_values_of_k_that_are_not_there(tiny_llama, tmp_path):
    focus = retrofit(tiny_llama.model, CONFIG)
    focus.save_pretrained(tmp_path / "routers")
    focus.detach()
    (tmp_path / "text.txt").write_text("the cat sat on a mat and saw one dog " * 40)
    common = {"model": tiny_llama, "routers": tmp_path / "routers", "length": 48, "blocks": 1}
    with pytest.raises(FocusError, match="k is 99 and these routers have 4 groups"):
        plan_routers(tmp_path / "text.txt", tmp_path / "plan", 0.5, top_ks=(1, 99), **common)
    assert not (tmp_path / "plan").exists()
    with pytest.raises(FocusError, match=r"the fewest pairs are 100\.0%, more than the budget of 50\.0%"):
        plan_routers(tmp_path / "text.txt", tmp_path / "plan", 0.5, top_ks=(4,), **common)
    assert not (tmp_path / "plan" / "routers.safetensors").exists()
