"""Traces of narrow groups: the pairs, pages and margins they hold, against the definition over all pairs."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from focus_core import FocusConfig, FocusError, analyze, cli
from focus_core.analysis.families import FAMILIES, group_families
from focus_core.analysis.reading import kept_keys, pair_counts, untouched
from focus_core.analysis.sparsity import mass_by_budget, mass_of_trace, measured_queries, pair_table, pooled_pattern
from focus_core.analysis.statistics.matching import renumbered
from focus_core.analysis.tokens import group_order, margins
from focus_core.commands.look.analyze import _table
from focus_core.routing.layer import LayerRouting
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.narrow.reference import Reference, narrow_reference
from focus_core.routing.rules import AttentionCall, Rule, attend_hard, hard_groups

TEXT = "The ships came back to the harbour of the old town, and the town waited for the ships. " * 3
HEAD, QUERY_HEAD = 1, 1
BUDGETS = [{"read_share": 0.3}, {"read_share": 0.0}, {"top_k": 3}]


def fitted(loaded, **changes):
    config = FocusConfig(
        **{
            **dict(router="narrow", num_groups=6, top_k=1, window=20, sink_tokens=3, chunk=8, page_size=5),
            **dict(read_share=0.3, count_weight=1.0),
            **changes,
        }
    )
    blocks = np.random.default_rng(0).integers(1, 200, (4, 200))
    return fit_narrow(loaded.model, blocks, config)


def by_definition(focus, trace) -> list[Reference]:
    """Attention of every layer from masks over all pairs, with the trace's tokens."""
    found: list[Reference] = []

    def attend(call: AttentionCall):
        groups = call.groups.keys.to(torch.int8).argmax(-1).unflatten(0, (1, -1))
        tensors = (each.double() for each in call.together())
        geometry = {"scale": call.geometry.scale, "softcap": call.geometry.softcap}
        found.append(narrow_reference(*tensors, groups, focus.config.num_groups, call.routing.reading(), **geometry))
        return attend_hard(call)

    with torch.inference_mode(), focus.routing("hard", rule=Rule(attend, hard_groups)):
        focus.model(torch.from_numpy(trace.input_ids)[None], use_cache=False)
    return found


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_pairs_of_a_trace_are_those_of_the_definition(tiny_llama, budget):
    focus = fitted(tiny_llama, **{"read_share": None, **budget})
    trace = analyze(focus, tiny_llama.tokenizer, TEXT, head=HEAD, query_head=QUERY_HEAD)
    length = len(trace.tokens)
    index = np.arange(length)
    distance = index[:, None] - index
    table = pair_table(trace)
    counted: dict[int, list[int]] = {}

    def count(routing: LayerRouting) -> None:
        counted[routing.layer] = routing.pair_counts().distant_kept.unflatten(0, (2, -1))[HEAD].tolist()

    with torch.inference_mode(), focus.observe(count):
        focus.model(torch.from_numpy(trace.input_ids)[None], use_cache=False)
    for row, reference in enumerate(by_definition(focus, trace)):
        exact = reference.exact[0].unflatten(0, (2, -1))[HEAD].numpy()
        # The later tokens apart, every key that a query attends to exactly is local, a sink or kept by routing.
        for query_head in range(2):
            shown = _at(trace, query_head)
            kept = kept_keys(shown, row, index) | (distance <= 20) | (index < 3)
            assert np.array_equal(kept & (distance >= 0), exact[query_head])
            assert int(pair_counts(shown, row).distant_kept) == counted[row][query_head]
            assert int(pair_counts(shown, row).kept) == exact[query_head].sum()
        own = exact[QUERY_HEAD]
        assert table["kept"][row] == pytest.approx(own.sum() / (distance >= 0).sum())
        pattern = pooled_pattern(trace, row, cells=512)
        assert pattern.factor == 1
        assert np.array_equal(np.nan_to_num(pattern.shares[..., 3]) == 1, ~own & (distance >= 0))
        # Groups that a token reads are those with a key of them in its summed part that it attends to.
        borders = np.array([trace.parts[row].reading.border(i) for i in index])
        read = own & (index >= 3) & (index < borders[:, None])
        expected = read.astype(int) @ trace.membership[row].astype(int) > 0
        assert np.array_equal(trace.query_membership[row], expected)


def _at(trace, query_head):
    return dataclasses.replace(trace, query_head=query_head)


def test_random_groups_keep_the_share_where_the_budget_is_one(tiny_llama):
    focus = fitted(tiny_llama)
    shares = pair_table(analyze(focus, tiny_llama.tokenizer, TEXT))
    assert np.allclose(shares["random kept"], shares["kept"])
    with focus.routing("hard", top_k=3):
        groups = pair_table(analyze(focus, tiny_llama.tokenizer, TEXT))
    assert (groups["random kept"] > groups["local"] + groups["sink"]).all()
    with focus.routing("hard", top_k=6):
        every = pair_table(analyze(focus, tiny_llama.tokenizer, TEXT))
    assert np.allclose(every["kept"], 1) and np.allclose(every["random kept"], 1)


def test_margins_and_order_follow_the_balanced_scores(tiny_llama):
    focus = fitted(tiny_llama)
    trace = analyze(focus, tiny_llama.tokenizer, TEXT, head=HEAD)
    assert trace.query_weights is None and trace.head == HEAD
    for row, layer in enumerate(trace.layers):
        router = focus.router(layer)
        balanced = trace.scores[row] + trace.config.temperature * router.potential[HEAD].numpy()
        ranked = np.sort(balanced, -1)
        assert np.allclose(margins(trace, row), ranked[:, -1] - ranked[:, -2], atol=1e-4)
        order = group_order(trace, row)
        assert np.array_equal(order[:, 0], trace.groups[row])
        assert np.allclose(np.take_along_axis(balanced, order[:, 1:2], -1)[:, 0], ranked[:, -2], atol=1e-4)
    one = renumbered(trace, 1, np.array([5, 4, 3, 2, 1, 0]))
    assert np.array_equal(one.groups[0], 5 - trace.groups[1])
    assert np.allclose(margins(one, 0), margins(trace, 1))
    assert pair_counts(one, 0) == pair_counts(trace, 1)


def test_hidden_states_of_the_untouched_model_give_its_groups(tiny_llama):
    """Groups of the untouched model; what is read follows the settings all the same."""
    focus = fitted(tiny_llama)
    with focus.routing("hard", **untouched(focus.config)):
        trace = analyze(focus, tiny_llama.tokenizer, TEXT, head=HEAD)
    with focus.routing("hard", top_k=6, window=0, sink_tokens=0):
        plain = analyze(focus, tiny_llama.tokenizer, TEXT, head=HEAD)
    assert np.allclose(trace.scores, plain.scores, atol=1e-4)
    assert trace.config == focus.config and pair_table(trace)["kept"].max() < 1
    assert np.allclose(pair_table(plain)["kept"], 1)


def test_attention_on_the_pairs_of_some_budgets_is_that_of_plain_softmax(tiny_llama):
    focus = fitted(tiny_llama)
    budgets = [focus.config, focus.config.replace(read_share=1.0), focus.config.replace(top_k=2)]
    with focus.routing("hard", **untouched(focus.config)):
        traces = [analyze(focus, tiny_llama.tokenizer, TEXT, head=HEAD, query_head=QUERY_HEAD)]
    with focus.routing("hard", **untouched(focus.config), top_k=2):
        traces.append(analyze(focus, tiny_llama.tokenizer, TEXT, head=HEAD, query_head=QUERY_HEAD))
    ids = traces[0].input_ids
    mass, pairs = mass_by_budget(focus, ids, budgets, head=HEAD, query_head=QUERY_HEAD, max_queries=50)
    for place, trace in ((0, traces[0]), (2, traces[1])):
        assert np.allclose(pairs[place], pair_table(trace)["kept"])
        assert np.allclose(mass_of_trace(focus, trace, max_queries=50)[0], mass[place])
    assert np.allclose(mass.sum(-1), 1) and np.allclose(mass[1, :, 3], 0)
    base = focus.detach()
    base.set_attn_implementation("eager")
    with torch.no_grad():
        weights = base(torch.from_numpy(ids)[None], output_attentions=True).attentions
    chosen = measured_queries(len(ids), 50)
    index = np.arange(len(ids))
    far = (chosen[:, None] - index > 20) & (index >= 3)
    for row, weight in enumerate(weights):
        own = weight[0].unflatten(0, (2, -1))[HEAD, QUERY_HEAD].numpy()[chosen]
        for place, trace in ((0, traces[0]), (2, traces[1])):
            expected = (own * far * kept_keys(trace, row, chosen)).sum() / len(chosen)
            assert mass[place, row, 2] == pytest.approx(expected, abs=1e-5)


def test_a_query_head_that_is_not_there_is_refused(tiny_llama):
    focus = fitted(tiny_llama)
    with pytest.raises(FocusError, match="Query head 2 is not there: 2 share a key/value head, choose 0 to 1"):
        analyze(focus, tiny_llama.tokenizer, TEXT, query_head=2)


def test_families_are_alike_ordered_and_the_same_for_every_text():
    rng = np.random.default_rng(0)
    middles = rng.normal(size=(FAMILIES, 8)) * 50
    belongs = np.repeat(np.arange(FAMILIES), range(1, FAMILIES + 1))
    found = group_families([middles[belongs] + rng.normal(size=(len(belongs), 8))])
    assert found is not None
    # The largest family is that of the last middle.
    assert np.array_equal(found[0], FAMILIES - 1 - belongs)
    assert group_families([rng.normal(size=(16, 8))]) is None


@pytest.fixture
def saved(tiny_llama, tmp_path):
    """A folder of the model, one of narrow routers with 20 groups, and a text."""
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    focus = fitted(tiny_llama, num_groups=20)
    focus.save_pretrained(tmp_path / "routers")
    focus.detach()
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def run(saved, *arguments: object):
    named = ["--model", saved / "model", "--routers", saved / "routers"]
    return CliRunner().invoke(cli.app, [str(argument) for argument in (*arguments, *named)])


def test_analyze_lists_the_largest_groups_and_the_pairs_kept(saved):
    shown = run(saved, "analyze", saved / "text.txt", "--head", 1, "--query-head", 1)
    assert shown.exit_code == 0, shown.output
    assert "20 groups; query head 1 of key/value head 1" in " ".join(shown.output.split())
    record = json.loads(run(saved, "analyze", saved / "text.txt", "--json").output)
    assert (record["head"], record["query_head"]) == (0, 0)
    assert all(len(token["groups"][0]) == 1 for token in record["tokens"])
    pairs = record["pairs"][2]
    assert 0.2 < pairs["distant_kept"] / pairs["distant"] < 0.4
    refused = run(saved, "analyze", saved / "text.txt", "--query-head", 5)
    assert refused.exit_code != 0 and "Query head 5 is not there" in refused.output


@pytest.mark.parametrize("states", ["untouched", "routed"])
def test_report_has_a_card_for_every_group_with_margins(saved, states):
    out = saved / states
    done = run(saved, "report", saved / "text.txt", "--out", out, "--no-tags", "--block", 120, "--states", states)
    assert done.exit_code == 0, done.output
    report = json.loads((out / "report.json").read_text())
    assert report["origin"]["top_k"] == "budget 30%" and len(report["cards"]) == 3 * 20
    page = (out / "report.html").read_text()
    assert "30% of distant pairs read" in page and "Mean margin to the next group" in page
    assert "Mean weight" not in page and page.count('<details class="fold"') == 3
    sizes = [card["count"] for card in report["cards"] if card["layer"] == 0]
    ordered = sorted(range(20), key=lambda group: (-sizes[group], group))
    fold = page[page.index('<details class="fold" id="layer-0') : page.index('<details class="fold" id="layer-1')]
    links = fold[fold.index('<p class="index">') : fold.index("</p>", fold.index('<p class="index">'))]
    assert [int(part.split('"')[0].rsplit("-", 1)[1]) for part in links.split('href="#group-0-')[1:]] == ordered


def test_align_scores_narrow_groups(saved):
    words = [("the", "DET"), ("cat", "NOUN"), ("saw", "VERB"), ("it", "PRON"), (".", "PUNCT")]
    rng = np.random.default_rng(0)
    lines = []
    for document in range(6):
        lines.append(f"# newdoc id = {document}")
        for number, place in enumerate(rng.integers(0, len(words), 60), 1):
            lines.append(f"{number}\t{words[place][0]}\t_\t{words[place][1]}" + "\t_" * 6)
        lines.append("")
    (saved / "bank.conllu").write_text("\n".join(lines) + "\n")
    for states in ("untouched", "routed"):
        out = saved / f"{states}.json"
        done = run(saved, "align", saved / "bank.conllu", "--repeats", 20, "--states", states, "--out", out)
        assert done.exit_code == 0, done.output
        record = json.loads(out.read_text())
        assert record["settings"]["config"]["read_share"] == 0.3
        assert record["alignment"]["upos"]["num_groups"] == 20 and record["alignment"]["upos"]["top_k"] == 1


def test_the_table_lists_no_empty_group_and_says_fitted(tiny_llama):
    focus = fitted(tiny_llama, num_groups=40)
    focus.trained = True
    trace = analyze(focus, tiny_llama.tokenizer, "The town.")
    focus.detach()
    shown = _table(trace)
    assert "(fitted)" in str(shown.title)
    for row, groups in enumerate(trace.groups):
        listed = str(list(shown.columns[1].cells)[row])
        assert " 0.0%" not in listed and listed.count("%") == min(5, len(set(groups.tolist())))
