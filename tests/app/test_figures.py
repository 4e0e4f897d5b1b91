"""The figures of the app as a notebook draws them: from a real trace and from shipped records, without Streamlit."""

from __future__ import annotations

import subprocess
import sys

import pandas as pd
import plotly.graph_objects as go
import pytest

from focus_core import FocusConfig, analyze, retrofit
from focus_core.analysis.group_balance import balancing
from focus_core.analysis.linguistics.alignment import align
from focus_core.analysis.linguistics.cells import cell_tests
from focus_core.analysis.linguistics.corpus.sample import word_sample
from focus_core.analysis.linguistics.corpus.tagging import tag_text
from focus_core.analysis.linguistics.corpus.words import TAG_SETS
from focus_core.analysis.persistence import churn, layer_agreement
from focus_core.analysis.sparsity import pair_table, pooled_mask
from focus_core.analysis.statistics.agreement import contingency
from focus_core.resources import data_dir
from workbench import figures

TEXT = "The keeper climbed the stairs of the old tower. She lit the lamp, and the light fell on the black sea. " * 3
RESULTS = data_dir() / "results"


@pytest.fixture(params=["layer", "head"])
def trace(request, tiny_llama):
    config = FocusConfig(num_groups=4, top_k=2, window=8, route_dim=8, router=request.param)
    with retrofit(tiny_llama.model, config).routing("hard") as focus:
        return analyze(focus, tiny_llama.tokenizer, TEXT)


def is_drawn(figure: object) -> bool:
    return isinstance(figure, go.Figure) and len(figure.data) > 0


def test_every_figure_of_a_trace(trace):
    groups, settings, row = trace.config.num_groups, trace.config, 1
    layer = trace.layers[row]
    balanced = balancing(trace.scores, temperature=settings.temperature, rounds=settings.sinkhorn_rounds)
    agreement = layer_agreement(trace.groups, groups)
    steps = figures.step_table(trace, churn(trace.groups, groups), agreement)
    mask = pooled_mask(
        trace.membership[row],
        query_membership=trace.query_membership[row],
        window=settings.window,
        sink_tokens=settings.sink_tokens,
    )
    drawn = [
        figures.layer_sizes(trace, row),
        figures.all_sizes(trace),
        figures.token_map(trace),
        figures.pair_bar(figures.pair_shares(trace, row), layer),
        figures.share_bars(pair_table(trace), row, what="causal pairs"),
        figures.mask_image(mask, layer, len(trace.tokens)),
        figures.largest_lines(figures.balance_table(trace, balanced), groups),
        figures.round_lines(balanced.errors, row, layer),
        figures.flip_lines(figures.flip_table(trace, balanced)),
        figures.future_line(figures.future_table(trace, row), layer),
        figures.agreement_map(trace, agreement, row, 0),
        figures.flow_map(trace, row, 0),
        figures.churn_line(steps),
    ]
    assert all(map(is_drawn, drawn))
    assert len(figures.size_table(trace)) == groups * len(trace.layers)


def test_figures_of_parts_of_speech(trace):
    words = word_sample([trace], [tag_text(trace.text)])
    found = align(words, tag_set="coarse", repeats=20)
    tests = cell_tests(contingency(words.codes("coarse"), words.groups, len(TAG_SETS["coarse"]), words.num_groups))
    assert is_drawn(figures.ami_by_layer(found))
    assert is_drawn(figures.residual_map(figures.residual_table(tests, words, 0, "coarse"), tag_set="coarse"))
    assert len(figures.layer_table(found)) == len(trace.layers)


def test_figures_of_speed():
    attention = figures.read_speed((RESULTS / "bench-cpu.json").read_bytes(), "bench-cpu").points
    whole = figures.read_model_speed((RESULTS / "bench-model-cpu.json").read_bytes(), "bench-model-cpu").points
    for draw in (figures.time_curves, figures.speedup_curves, figures.memory_curves, figures.error_curves):
        assert is_drawn(draw(attention))
    assert is_drawn(figures.model_curves(whole, whole["task"].iloc[0]))


def test_figures_of_records():
    def record(name: str, kind: str) -> pd.DataFrame:
        (found,) = [each for each in figures.find_records([RESULTS / f"{name}.json"]) if each.kind == kind]
        return figures.read_record(found)

    evaluated = figures.find_results([RESULTS / "smollm2-135m-k8-trained.json"])
    assert is_drawn(figures.perplexity_frontier(evaluated.table))
    assert is_drawn(figures.frontier_lines(record("frontier-2048", "frontier")))
    assert is_drawn(figures.k_path(record("reproduce-k-sweep", "k-sweep")))
    assert is_drawn(figures.length_lines(record("reproduce-lengths", "lengths")))
    assert is_drawn(figures.difference_chart(record("reproduce-lora", "lora"), metric="perplexity"))


def test_curves_of_a_training():
    history = pd.DataFrame(
        {"step": [1, 2], "loss": [1.0, 0.9], "largest group": [0.3, 0.2], "tokens per second": [9, 9]}
    )
    assert is_drawn(figures.training_curves(history, num_groups=4, steps=2, objective="mass"))


def test_no_page_is_needed():
    code = "import sys, workbench.figures; assert 'streamlit' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
