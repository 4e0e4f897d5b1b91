from __future__ import annotations

import csv
import io

import pandas as pd
import pytest

from focus_core.analysis.tables import stamped, to_csv, to_parquet


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\n=2"])
def test_csv_cells_that_would_run_as_formulas_are_defused(text):
    rows = list(csv.reader(io.StringIO(to_csv(pd.DataFrame({"text": [text]})).decode("utf-8-sig"), newline="")))
    assert rows[1] == ["'" + text]


def test_csv_survives_quotes_commas_emoji_and_null_bytes():
    data = to_csv(pd.DataFrame({"text": ['a,"b"\n', "🥖", "nul\x00", "<script>"], "n": [-1, 2, 3, 4]}))
    rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    assert [row[0] for row in rows[1:]] == ['a,"b"\n', "🥖", "nul␀", "<script>"]
    assert rows[1][1] == "-1"


def test_parquet_keeps_values_as_they_are():
    table = pd.DataFrame({"text": ["=1+1", "🥖\x00"], "n": [1.5, 2.0]})
    pd.testing.assert_frame_equal(pd.read_parquet(io.BytesIO(to_parquet(table))), table)


def test_the_origin_goes_beside_columns_of_the_same_name():
    table = stamped(pd.DataFrame({"model": ["mine"], "n": [1]}), {"model": "theirs", "top_k": 2})
    assert table.to_dict("records") == [{"model": "mine", "n": 1, "origin_model": "theirs", "top_k": 2}]
