"""`focus bench scale` and `focus scale`: what they write and refuse; no assertion on how fast anything is."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from focus_core import FocusConfig, retrofit
from focus_core.cli import app
from focus_core.errors import FocusError
from focus_core.scale.kernels import Lengths, parted
from focus_core.scale.rates import Rates
from focus_core.scale.record import CONSTANTS, ScaleSettings, record_scale

SETTINGS = ScaleSettings(checked=(40, 80), measured=Lengths(short=64, long=128, cached=16), lm=32, repetitions=1)
NARROW = FocusConfig(
    router="narrow", num_groups=4, top_k=1, window=16, chunk=16, read_share=0.2, score="dot", count_weight=1.0,
    by_error=True, count_spread=True,
)  # fmt: skip


@pytest.fixture
def narrow(tiny_llama, tmp_path):
    focus = retrofit(tiny_llama.model, NARROW, seed=0)
    focus.save_pretrained(tmp_path / "routers")
    focus.detach()
    return tmp_path / "routers"


def test_every_constant_and_every_check_is_recorded(tiny_llama, narrow, tmp_path):
    record = record_scale(tmp_path / "scale.json", model=tiny_llama, routers=narrow, settings=SETTINGS)
    assert record == json.loads((tmp_path / "scale.json").read_text())
    constants = {row["name"]: row for row in record["constants"]}
    assert set(constants) == set(CONSTANTS)
    assert all(row["value"] > 0 or (row["unit"] == "s" and row["value"] == 0) for row in constants.values())
    tasks = [(row["task"], row["routing"]) for row in record["results"] if row["tokens"] == 80]
    assert tasks == [
        ("prefill", "off"), ("decode", "off"), ("prefill", "hard"), ("decode", "hard"), ("trace", "hard"),
        ("fit", "hard"), ("train, mass", "soft"), ("train, lm", "soft"),
    ]  # fmt: skip
    for row in record["results"]:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
    assert constants["read_together"]["value"] <= 1
    assert Rates.of_record(record).matmul == constants["matmul"]["value"]
    assert tiny_llama.model.config._attn_implementation != "focus"

    result = CliRunner().invoke(app, ["scale", "--record", str(tmp_path / "scale.json"), "--tokens", "4096", "--json"])
    told = json.loads(result.output)
    (found,), (limit,) = told["costs"], told["pays"]["at"]
    assert found["tokens"] == 4096 and found["gain"]["decode"] > 0
    # A busy machine may measure nothing beyond prefill.
    beyond = constants["trace_s"]["value"] + constants["trace_page_s"]["value"] > 0
    assert (found["analysing"]["trace_s"] > found["narrow"]["prefill_s"]) == beyond
    assert limit["tokens"] == 4096 and limit["decode_bandwidth"] > 0


def test_what_cannot_be_checked_is_refused_before_anything_is_measured(tiny_llama, narrow, tmp_path):
    with pytest.raises(FocusError, match="1,024 tokens are used to measure"):
        ScaleSettings(checked=(1024,))
    with pytest.raises(FocusError, match="positions of this model"):
        record_scale(tmp_path / "a.json", model=tiny_llama, routers=narrow, settings=ScaleSettings())
    layer = retrofit(tiny_llama.model, FocusConfig(num_groups=4))
    layer.save_pretrained(tmp_path / "layer")
    layer.detach()
    with pytest.raises(FocusError, match="narrow groups with a share"):
        record_scale(tmp_path / "a.json", model=tiny_llama, routers=tmp_path / "layer", settings=SETTINGS)
    assert not (tmp_path / "a.json").exists()
    (tmp_path / "a.json").write_text('{"schema": "focus-frontier/1"}')
    with pytest.raises(FocusError, match=r"a\.json holds the result of another run"):
        record_scale(tmp_path / "a.json", model=tiny_llama, routers=narrow, settings=SETTINGS)


def test_parts_of_several_times_are_found_and_never_negative():
    assert parted([[10, 5], [20, 5]], [25, 35]) == pytest.approx([1, 3])
    assert min(parted([[10, 5], [20, 5]], [35, 25])) > 0
    assert parted([[10, 5], [20, 5]], [0, 0]) == [0, 0]


def test_a_model_of_any_size_is_costed_by_its_data_sheet():
    result = CliRunner().invoke(app, ["scale", "--model", "70b", "--gpus", "8", "--batch", "2", "--json"])
    rows = json.loads(result.output)["costs"]
    assert [row["tokens"] for row in rows] == [8192, 131072, 1048576]
    for row in rows:
        assert row["narrow"]["prefill_flops"] < row["untouched"]["prefill_flops"]
        assert row["narrow"]["cache_bytes"] > row["untouched"]["cache_bytes"]
    slower = CliRunner().invoke(app, ["scale", "--model", "70b", "--flops", "1e12", "--json"])
    assert json.loads(slower.output)["costs"][0]["untouched"]["prefill_s"] > rows[0]["untouched"]["prefill_s"]
    assert "Llama-3.1-8B" in CliRunner().invoke(app, ["scale", "--tokens", "8192"]).output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--sheet", "b900"], "no data sheet 'b900'"),
        (["--flops", "0"], "from"),
        (["--bandwidth", "1e-300"], "from"),
        (["--network", "1e9"], "--network changes nothing here: give --gpus"),
        (["--record", "none.json", "--sheet", "h100"], "--sheet changes nothing here"),
        (["--record", "none.json", "--gpus", "2"], "give the --network"),
        (["--record", "none.json"], "none.json"),
    ],
)
def test_wrong_input_is_one_sentence(options, sentence):
    result = CliRunner().invoke(app, ["scale", *options])
    assert result.exit_code == 2 and sentence in result.output


def test_a_record_without_a_rate_is_refused():
    with pytest.raises(FocusError, match="has no matmul"):
        Rates.of_record({"constants": []})
