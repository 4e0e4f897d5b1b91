"""Tables for the terminal: what the shipped records look like in eighty columns."""

import io
import json

import pytest
from rich.console import Console

from focus_core.commands.tables.bench import baseline_bench_table, bench_table, model_bench_table
from focus_core.commands.tables.frontier import frontier_table
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
