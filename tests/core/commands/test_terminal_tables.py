"""Tables for the terminal: what the shipped records look like in eighty columns."""

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from focus_core.analysis.linguistics.features import FEATURES
from focus_core.commands.look.align import _SHORT, _shares, _table
from focus_core.commands.tables.bench import baseline_bench_table, bench_table, model_bench_table
from focus_core.commands.tables.evaluation import length_table
from focus_core.commands.tables.frontier import frontier_table
from focus_core.commands.tables.harness import harness_table
from focus_core.frontier.speeds import recorded_speeds
from focus_core.frontier.table import frontier_rows
from focus_core.resources import data_dir


@pytest.mark.parametrize(
    "name, table",
    [
        ("bench-baselines-cpu", baseline_bench_table),
        ("bench-baselines-heads-cpu", baseline_bench_table),
        ("bench-cpu", bench_table),
        ("bench-heads-cpu", bench_table),
        ("bench-model-cpu", model_bench_table),
        ("frontier-2048", lambda record: frontier_table(frontier_rows(record, recorded_speeds()), "title")),
    ],
)
def test_tables_fit_a_narrow_terminal_without_losing_a_word(name, table):
    record = json.loads((data_dir() / "results" / f"{name}.json").read_text(encoding="utf-8"))
    shown = table(record)
    console = Console(width=80, file=io.StringIO())
    console.print(shown)
    text = console.file.getvalue()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    printed = set(text.split())
    for column in shown.columns[1:]:  # long names of the first are folded
        assert {word for cell in (column.header, *column.cells) for word in cell.split()} <= printed, column.header


def share(value):
    return SimpleNamespace(difference=value, established=False, low=0.11, high=0.55)


def length_row():
    evaluation = SimpleNamespace(routing="hard", top_k=2, balance="calibrated", perplexity=123.45, kept_share=0.283)
    gap = SimpleNamespace(difference=-12.3, low=-13.11, high=14.22, mark="")
    last = SimpleNamespace(nll=3.123)
    return SimpleNamespace(length=16384, evaluation=evaluation, above_untouched=gap, positions=[last])


def harness_rows():
    path = data_dir() / "results" / "retrieval-smollm2-135m-narrow64.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]
    longest = "exact_match,flexible-extract"
    return [*rows, rows[-1] | {"task": "lambada_openai_after_2048", "headline": longest, "metrics": {longest: 0.5}}]


def explained():
    features = [SimpleNamespace(feature=name, alone=share(0.45), unique=share(0.12)) for name in FEATURES]
    return SimpleNamespace(layer=29, all_features=share(0.45), features=features)


def alignment():
    beyond = dict.fromkeys(("beyond_chance", "beyond_balance", "beyond_identity", "beyond_context"), True)
    measures, interval = SimpleNamespace(ami=0.123), SimpleNamespace(low=0.1, high=0.2)
    references = dict.fromkeys(_SHORT, 0.12)
    layer = SimpleNamespace(layer=29, measures=measures, interval=interval, references=references, **beyond)
    return SimpleNamespace(layers=[layer])


@pytest.mark.parametrize(
    "table",
    [
        lambda: length_table([length_row()], "title"),
        lambda: harness_table(harness_rows()),
        lambda: _shares((explained(),), "title"),
        lambda: _table(alignment(), "title"),
    ],
    ids=["eval", "harness", "align's shares", "align"],
)
def test_no_word_is_cut_in_a_narrow_terminal(table):
    shown = table()
    console = Console(width=80, file=io.StringIO())
    console.print(shown)
    text = console.file.getvalue()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    printed = set(text.split())
    for column in shown.columns:
        assert {word for cell in (column.header, *column.cells) for word in cell.split()} <= printed, column.header
