"""`focus fit`: what it gives when nothing else is said, and what the options leave out of it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from focus_core import cli

TEXT = "She rowed to the island and the old man was glad of it. Nobody had come since the storm of May. " * 60
SMALL = ("--groups", "8", "--page", "8", "--window", "16", "--tokens", "1024")


@pytest.mark.parametrize(
    ("options", "recall", "own_thresholds"),
    [
        ((), True, True),
        (("--query-power", "0"), True, True),
        (("--no-recall",), False, True),
        (("--one-threshold",), False, False),
    ],
)
def test_heads_that_recall_read_everything_unless_asked_otherwise(
    model_folder, tmp_path, options, recall, own_thresholds
):
    (tmp_path / "text.txt").write_text(TEXT)
    given = ("--data", tmp_path / "text.txt", "--model", model_folder, "--out", tmp_path / "out", *SMALL, *options)
    result = CliRunner().invoke(cli.app, ["fit", *map(str, given)])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert ("recall" in record) == recall and record["settings"].get("recall", False) == recall
    assert ("expected" in record) == own_thresholds
    assert record["settings"]["query_power"] == (0 if "--query-power" in options else 0.25)
    if recall:
        assert [row["layer"] for row in record["recall"]] == [0, 1, 2]
