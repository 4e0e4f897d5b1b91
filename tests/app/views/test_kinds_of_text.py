"""The Quality page on a record of several kinds of text that a tiny model made."""

import json
import math
import shutil

import pandas as pd
import pytest
import torch
from opening import open_page, shown
from transformers import LlamaConfig, LlamaForCausalLM

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.frontier.kinds.means import mean_rows
from focus_core.frontier.kinds.protocol import ProtocolSettings, measure_protocol
from focus_core.frontier.speeds import Speeds
from focus_core.models import LoadedModel, ModelInfo
from focus_core.resources import data_dir
from workbench.views.home.results import _evidence, _rows
from workbench.views.quality.kinds import (
    CHANGE,
    by_kind,
    kinds_frontier,
    kinds_map,
    kinds_table,
    kinds_verdict,
    usual_length,
)
from workbench.views.quality.records import find_records, read


@pytest.fixture(scope="module")
def measured(tmp_path_factory, byte_tokenizer):
    """A folder of runs with a record of two kinds and two lengths."""
    folder = tmp_path_factory.mktemp("measured")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(byte_tokenizer), max_position_embeddings=512, **shape)).eval()
    tiny = LoadedModel(model, byte_tokenizer, ModelInfo("tiny", "folder", "0" * 12, "LlamaForCausalLM", 0))
    config = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=2, route_dim=8, balance="calibrated")
    focus = retrofit(model, config)
    focus.save_pretrained(folder / "mine")
    focus.detach()
    (folder / "kinds").mkdir()
    (folder / "kinds" / "code.txt").write_text("def add(first, second):\n    return first + second\n" * 20)
    (folder / "kinds" / "*odd* name.txt").write_text("Rain fell on the harbour, and the boats stayed in. " * 20)
    (folder / "train.txt").write_text("Once upon a time there was a model of language. " * 60)
    settings = ProtocolSettings(
        routers=(str(folder / "mine"),),
        baselines=("streaming", "sparq", "performer"),
        lengths=(32, 64),
        blocks=2,
        window=4,
        sink_tokens=2,
    )
    out = folder / "runs" / "kinds" / "result.json"
    measure_protocol(folder / "kinds", [folder / "train.txt"], out, settings, model=tiny, speeds=Speeds())
    return folder / "runs"


@pytest.fixture
def record(measured, tmp_path, monkeypatch):
    """A copy of the record, alone in the folder of runs."""
    shutil.copytree(measured, tmp_path / "runs", dirs_exist_ok=True)
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs" / "kinds" / "result.json"


def test_the_tables_hold_the_rows_of_the_record(record):
    (found,) = find_records([record])
    table = read(found)
    assert found.kind == "kinds" and set(table["T"]) == {32, 64}
    for length in (32, 64):
        rows, kinds = mean_rows(found.content, length), by_kind(found.content, length)
        shown_rows = table.loc[table["T"] == length].to_dict("records")
        for row, line in zip(rows, shown_rows, strict=True):
            tested = {True: "yes", False: "no"}[row.established] if row.against is not None else ""
            assert line["method"] == row.label and (line["significant"] == tested or not tested)
            assert bool(pd.isna(line["significant"])) == (not tested)
            assert math.isnan(line["KL"]) if row.kl is None else line["KL"] == row.kl.difference, row.label
        assert list(kinds.columns) == ["method", "*odd* name", "code"]
        first = next(row for row in rows if row.ours)
        assert kinds.loc[kinds["method"] == first.label, "code"].item() == first.by_kind["code"]
    columns = list(table.columns)
    assert columns.index("distant kept") < columns.index("KL") < columns.index("top-1 same") < columns.index(CHANGE)


def test_the_page_opens_at_the_longest_length_that_establishes_something(record):
    content = json.loads(record.read_text(encoding="utf-8"))
    for kind in content["kinds"].values():
        kind["blocks"] = {"32": {"used": 8}, "64": {"used": 4}}
    assert usual_length(content) == 32
    for kind in content["kinds"].values():
        kind["blocks"]["64"] = {"used": 8}
    assert usual_length(content) == 64
    shipped = json.loads((data_dir() / "results" / "frontier-kinds.json").read_text(encoding="utf-8"))
    assert _evidence(_rows()[0])["kinds_length"] == str(usual_length(shipped))


@pytest.mark.parametrize("dark", [False, True])
def test_the_frontier_has_a_point_for_every_method_that_keeps_a_share(record, dark):
    table = kinds_table(json.loads(record.read_text(encoding="utf-8")))
    here = table.loc[table["T"] == 64]
    figure = kinds_frontier(here, dark=dark)
    drawn = [name for trace in figure.data for name in trace.customdata]
    wanted = here.loc[here["KL"].gt(0) & here["distant kept"].notna() & here["kind"].ne("untouched"), "method"]
    assert sorted(drawn) == sorted(wanted) and "routers" in [trace.name for trace in figure.data]


@pytest.mark.parametrize("dark", [False, True])
def test_the_map_has_a_cell_for_every_method_and_kind(record, dark):
    content = json.loads(record.read_text(encoding="utf-8"))
    table = by_kind(content, 64)
    (heat,) = kinds_map(table, dark=dark).data
    for place, row in enumerate(table.to_dict("records")):
        assert heat.y[place] == row["method"]
        for column, kind in enumerate(("*odd* name", "code")):
            assert heat.text[place][column] == f"{row[kind]:.4f}"
            assert heat.z[place][column] == pytest.approx(math.log10(row[kind]))


def test_the_page_shows_the_length_that_is_chosen(record):
    content = json.loads(record.read_text(encoding="utf-8"))
    app = open_page("quality", evidence="kinds", kinds_length="64")
    said = shown(app).replace("\\", "")
    assert kinds_verdict(content, 64) in said and "fewer than 16 blocks" in said
    assert app.selectbox(key="evidence").value == "kinds"
    first = app.dataframe[0].value
    assert len(first) == 5 and "performer" not in set(first["method"])
    assert first["KL"].dropna().tolist() == [row.kl.difference for row in mean_rows(content, 64) if row.kl is not None]
    app = app.segmented_control(key="kinds_length").set_value(32).run()
    assert kinds_verdict(content, 32) in shown(app).replace("\\", "")


def test_a_damaged_record_is_refused_in_one_sentence(record):
    content = json.loads(record.read_text(encoding="utf-8"))
    del content["points"][-1]["block_kl"]
    record.write_text(json.dumps(content))
    (found,) = find_records([record])
    with pytest.raises(FocusError, match="damaged"):
        read(found)
    assert len(kinds_table({"model": {"name": "tiny"}, "points": []})) == 0
