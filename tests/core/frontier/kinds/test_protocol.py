"""The protocol on a tiny model: cells, order, resuming, growing, refusals, and equality with direct measurements."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from focus_core.cli import app
from focus_core.errors import FocusError
from focus_core.evaluation import evaluate
from focus_core.evaluation.retention import Untouched
from focus_core.frontier.kinds.means import mean_rows
from focus_core.frontier.kinds.protocol import ProtocolSettings, measure_protocol, wanted_lengths
from focus_core.frontier.kinds.timing import Clock, words
from focus_core.frontier.measure import Point
from focus_core.frontier.texts import cut
from focus_core.frontier.tuning import Tuner
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, retrofit


def keys(record):
    return [(point["length"], point["method"], point["text"]) for point in record["points"]]


def test_cells_come_by_length_then_by_method_then_by_kind(measure, folder):
    record, seen = measure()
    methods = ("untouched", "mine", "streaming", "sparq")
    assert keys(record) == [
        (length, name, kind) for length in (32, 64) for name in methods for kind in ("code", "prose")
    ]
    assert seen[0].startswith("untouched model, code, T = 32 (1 of 16; ") and seen[-1].endswith("left)")
    assert record == json.loads((folder / "f.json").read_text(encoding="utf-8"))
    assert all(point["seconds"] >= 0 and len(point["block_kl"]) in (0, 2) for point in record["points"])
    assert record["kinds"]["prose"]["blocks"]["64"]["documents"] == ["0.txt", "2.txt"]
    assert record["ours"] == {"method": "mine", "top_k": 1} and record["routers"]["mine"]["num_groups"] == 4
    assert {point["wanted_share"] for point in record["points"] if point["kind"] == "baseline"} == {0.15}


def test_routers_that_read_a_share_are_measured_at_each_share(measure, folder, tiny_llama):
    config = FocusConfig(
        router="narrow", num_groups=4, top_k=1, window=4, sink_tokens=2, chunk=4, page_size=4, read_share=0.5
    )
    focus = retrofit(tiny_llama.model, config, seed=1)
    focus.save_pretrained(folder / "narrow")
    focus.detach()
    both = {"routers": (str(folder / "narrow"), str(folder / "mine")), "shares": (0.2, 0.6)}
    record, _ = measure(lengths=(64,), baselines=("streaming",), **both)
    assert record["ours"] == {"method": "narrow", "top_k": None, "share": 0.2}
    found = {(p["method"], p["wanted_share"], p["text"]): p for p in record["points"] if p["kind"] == "routers"}
    assert [key[1] for key in found] == [0.2, 0.2, 0.6, 0.6, None, None]
    assert found["narrow", 0.2, "prose"]["kept_share"] < found["narrow", 0.6, "prose"]["kept_share"]
    (shown,) = (each for each in mean_rows(record, 64) if each.ours)
    assert shown.label == "narrow, 20%"


def test_a_cell_is_what_a_direct_evaluation_gives(measure, folder, tiny_llama):
    record, _ = measure(lengths=(64,), baselines=("streaming",))
    blocks = cut(tiny_llama.tokenizer, sorted((folder / "kinds" / "prose").iterdir()), 64, 2).blocks
    focus = FocusModel.from_pretrained(tiny_llama.model, folder / "mine")
    sizes = {"window": 4, "sink_tokens": 2, "balance": "calibrated"}
    row = evaluate(focus, blocks, routing="hard", top_k=1, untouched=Untouched(blocks), **sizes)
    plain = evaluate(focus, blocks, routing="off")
    focus.detach()
    points = {(point["method"], point["text"]): point for point in record["points"]}
    ours, untouched = points["mine", "prose"], points["untouched", "prose"]
    for name in ("kept_share", "causal_kept_share", "largest_group_share", "kl", "kl_last_quarter", "top1_agreement"):
        assert ours[name] == pytest.approx(getattr(row, name)), name
    assert ours["block_nll"] == pytest.approx(row.block_nll)
    assert untouched["block_nll"] == pytest.approx(plain.block_nll)
    (shown,) = (each for each in mean_rows(record, 64) if each.ours)
    assert shown.by_kind["prose"] == pytest.approx(row.kl)


def test_a_stopped_run_resumes_with_the_same_result(measure, folder):
    with pytest.raises(KeyboardInterrupt):
        measure(stop_after=5)
    first = json.loads((folder / "f.json").read_text(encoding="utf-8"))["points"]
    assert len(first) == 5
    assert "streaming" not in (folder / "f.md").read_text() and (folder / "f.svg").exists()
    record, seen = measure()
    assert record["points"][:5] == first and len(seen) == 11
    assert measure() == (record, [])
    (folder / "f.json").unlink()
    again, _ = measure()
    for one, other in zip(record["points"], again["points"], strict=True):
        assert one["block_nll"] == pytest.approx(other["block_nll"]) and one["kept_share"] == other["kept_share"]
        assert one["block_kl"] == pytest.approx(other["block_kl"], abs=1e-6)


def test_settings_are_tuned_once_for_all_texts_and_lengths(measure, monkeypatch):
    record, _ = measure(lengths=(32,))
    (tuned,) = record["tuning"]
    assert (tuned["method"], tuned["share"]) == ("sparq", 0.15) and len(tuned["tried"]) == 4
    monkeypatch.delattr(Tuner, "tune")  # a resumed run must not need it
    record, _ = measure()
    points = [point for point in record["points"] if point["method"] == "sparq"]
    assert {point["length"] for point in points} == {32, 64} and record["tuning"] == [tuned]
    assert all(point["setting"] == tuned["setting"] for point in points)
    assert tuned["seconds"] > 0 and "fitted_on" not in tuned
    with pytest.raises(FocusError, match="other settings"):
        measure(tuned=False)


def test_methods_lengths_kinds_and_shares_are_added_to_a_record(measure, folder):
    first, _ = measure(lengths=(32,), baselines=("streaming",))
    (folder / "kinds" / "web.txt").write_text("Great place! Would go again :) " * 30)
    record, _ = measure(
        lengths=(32, 48),
        baselines=("quest",),
        shares=(0.15, 0.4),
        routers=(str(folder / "second"), str(folder / "mine")),
        top_k=(1, 2),
    )
    assert record["points"][: len(first["points"])] == first["points"]
    assert record["ours"] == {"method": "mine", "top_k": 1}  # as the record began
    assert set(record["kinds"]) == {"prose", "code", "web"} and set(record["routers"]) == {"mine", "second"}
    rows = {row.label: row for row in mean_rows(record, 32)}
    assert {"second, k=2", "block top-k, bounds, 40%", "window + sinks, 15% (2 of 3 kinds)"} <= set(rows)
    assert rows["window + sinks, 15% (2 of 3 kinds)"].against is None
    assert rows["block top-k, bounds, 40%"].against is not None


def test_a_cell_with_fewer_blocks_is_measured_again(measure):
    small, _ = measure(lengths=(32,), baselines=("streaming",))
    with pytest.raises(KeyboardInterrupt):
        measure(lengths=(32,), baselines=("streaming",), blocks=3, stop_after=3)
    record, seen = measure(lengths=(32,), baselines=("streaming",), blocks=3)
    assert len(seen) == 3 and len(record["points"]) == len(small["points"]) == 6
    assert {len(point["block_nll"]) for point in record["points"]} == {3}
    with pytest.raises(FocusError, match="holds 3 blocks of code at 32: repeat with as many --blocks"):
        measure(lengths=(32,), baselines=("streaming",))


def test_points_over_fewer_blocks_are_not_mixed_with_others(measure, folder):
    measure(lengths=(32,), baselines=("streaming",))
    with pytest.raises(KeyboardInterrupt):
        measure(lengths=(32,), baselines=("streaming",), blocks=3, stop_after=3)
    record = json.loads((folder / "f.json").read_text(encoding="utf-8"))
    labels = [row.label for row in mean_rows(record, 32)]
    assert labels == ["untouched model", "mine, k=1 (1 of 2 kinds)"]


def test_a_kind_that_is_too_short_is_named_and_left_out_of_the_mean(measure, folder):
    record, _ = measure(lengths=(64, 448), blocks=3, baselines=("streaming",))
    assert record["kinds"]["prose"]["blocks"]["448"]["used"] == 0
    assert record["kinds"]["code"]["blocks"]["448"]["used"] == 1
    text = (folder / "f.md").read_text()
    assert "Fewer than 3 blocks of 448 tokens: code has 1, prose has none." in text
    assert "code: all blocks come from one document (code.txt)" in text
    assert all(row.complete for row in mean_rows(record, 448))


def test_unusable_inputs_are_refused(measure, folder, tiny_llama):
    with pytest.raises(FocusError, match="tiny has 512 positions, so it cannot read 1,024 tokens at once"):
        measure(lengths=(64, 1024))
    with pytest.raises(FocusError, match=r"No document in .* has 512 tokens"):
        measure(lengths=(512,))
    with pytest.raises(FocusError, match=r"code\.txt of the kind 'code' is training text of --train"):
        measure(train=[folder / "train.txt", folder / "kinds" / "code.txt"])
    with pytest.raises(FocusError, match=r"above 0 and below 1, not 1\.5"):
        ProtocolSettings(shares=(1.5,))
    with pytest.raises(FocusError, match="no baseline 'magic'"):
        ProtocolSettings(baselines=("magic",))
    measure(lengths=(32,), baselines=())
    with pytest.raises(FocusError, match="other settings or inputs"):
        measure(lengths=(32,), baselines=(), window=5)
    with pytest.raises(FocusError, match="other routers of the name mine"):
        measure(lengths=(32,), baselines=(), routers=(str(folder / "other" / "mine"),))
    code = folder / "kinds" / "code.txt"
    code.write_text(code.read_text()[:-1])
    with pytest.raises(FocusError, match="other text of the kind 'code'"):
        measure(lengths=(32,), baselines=())
    with pytest.raises(FocusError, match=r"ends in \.json"):
        measure_protocol(folder / "kinds", [folder / "train.txt"], folder / "g.md", model=tiny_llama)


def test_text_that_routers_were_trained_on_is_refused(measure, folder):
    text = folder / "kinds" / "code.txt"
    data = [{"name": "code.txt", "sha256": hashlib.sha256(text.read_bytes()).hexdigest()}]
    (folder / "mine" / "training.json").write_text(json.dumps({"data": data}))
    with pytest.raises(FocusError, match="training text of the routers mine"):
        measure()


def test_lengths_are_cut_to_the_positions_of_the_model(tiny_llama):
    assert wanted_lengths(tiny_llama, None) == [512]
    assert wanted_lengths(tiny_llama, (64, 32, 64)) == [32, 64]


def test_long_texts_have_few_baselines_unless_they_are_named():
    assert ProtocolSettings().baselines_at(8192) == ["streaming", "sparq", "quest"]
    assert ProtocolSettings().baselines_at(2048)[:3] == ["streaming", "sparq", "quest"]
    assert ProtocolSettings(baselines=("moba", "quest")).baselines_at(8192) == ["quest", "moba"]


def test_table_and_figure_show_every_method_at_every_length(measure, folder):
    measure()
    text = (folder / "f.md").read_text()
    assert text.count("### T = ") == 2 and text.count("| **mine, k=1** |") == 2
    assert "fewer than 16 blocks: not established" in text
    head = next(line for line in text.splitlines() if line.startswith("| method | distant"))
    assert head.index("KL") < head.index("top-1") < head.index("perplexity") < head.index("largest group")
    tree = ElementTree.fromstring((folder / "f.svg").read_text())
    words_of = " ".join(tree.itertext())
    assert "T = 32:" in words_of and "T = 64:" in words_of and "KL from the untouched model" in words_of
    notes = [title.text for title in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(note.startswith("mine, k=1: KL ") for note in notes) == 2


def test_the_time_left_is_that_of_like_cells():
    def point(method, length, seconds):
        return Point(
            method=method, kind="baseline", label=method, source="", top_k=None, wanted_share=None, kept_share=1.0,
            causal_kept_share=1.0, perplexity=1.0, largest_group_share=None, tokens=1, block_nll=(1.0, 1.0),
            length=length, seconds=seconds,
        )  # fmt: skip

    work = [("a", 100, 2), ("a", 100, 2), ("b", 100, 3)]
    clock = Clock(work, [point("b", 100, 400)])
    assert clock.after(point("a", 100, 120)) == "about 12 min left"  # 2 blocks of 60 s and 3 of 200 s
    assert clock.after(point("a", 100, 120)) == "about 10 min left"
    assert clock.after(point("b", 100, 400)) == "less than a minute left"
    longer = Clock([("a", 100, 2), ("a", 400, 2)], [])
    assert longer.after(point("a", 100, 120)) == "about 16 min left"  # four times the length: eight times the time
    assert words(80) == "about 1 h 20 min left"


def test_the_command_measures_kinds_and_refuses_both_forms_at_once(folder, tiny_llama):
    tiny_llama.model.save_pretrained(folder / "model")
    tiny_llama.tokenizer.save_pretrained(folder / "model")
    shared = ["frontier", "--train", str(folder / "train.txt"), "--out", str(folder / "c.json")]
    shared += ["--model", str(folder / "model"), "-r", str(folder / "mine"), "-w", "4"]
    kinds = ["--kinds", str(folder / "kinds"), "--baseline", "streaming", "--length", "32", "--length", "64"]
    result = CliRunner().invoke(app, [*shared, *kinds, "--blocks", "2"])
    assert result.exit_code == 0, result.output
    assert "mean over kinds" in result.output and "keep" in result.output and (folder / "c.md").exists()
    assert json.loads(Path(folder / "c.json").read_text(encoding="utf-8"))["schema"] == "focus-frontier-kinds/1"
    both = CliRunner().invoke(app, [*shared, *kinds, "-d", str(folder / "train.txt")])
    neither = CliRunner().invoke(app, shared)
    assert both.exit_code and neither.exit_code
    several = CliRunner().invoke(app, [*shared, "-d", str(folder / "train.txt"), "--length", "32", "--length", "64"])
    assert several.exit_code and "Several lengths need --kinds" in several.output


def test_learned_baselines_are_trained_once_and_oracles_stand_apart(measure, folder):
    changes = {"baselines": ("sparq", "indexer", "seer", "topk", "best-reading"), "lengths": (64,)}
    record, seen = measure(learned_tokens=4 * 1024, **changes)
    assert sum(message.startswith("Training seer and indexer") for message in seen) == 8  # blocks of 512
    kinds = {point["method"]: point["kind"] for point in record["points"]}
    assert {name for name, kind in kinds.items() if kind == "oracle"} == {"topk", "best-reading"}
    assert set(record["learned"]) == {"seer", "indexer"} and record["learned"]["seer"]["parameters"] > 0
    assert record["learned"]["seer"]["seconds"] == record["learned"]["indexer"]["seconds"] > 0  # one pass for both
    rows = mean_rows(record, 64)
    assert [row.kind for row in rows][-2:] == ["oracle", "oracle"]
    assert {row.series for row in rows if row.against is not None} == {
        "SparQ", "learned block gates", "learned token indexer"
    }  # fmt: skip
    assert len(list((folder / "f-learned").glob("*.safetensors"))) == 1
    again, seen = measure(learned_tokens=4 * 1024, **changes, shares=(0.15, 0.4))
    assert not any(message.startswith("Training") for message in seen)
    assert again["learned"] == record["learned"]
    assert measure(learned_tokens=4 * 1024, **changes, shares=(0.15, 0.4)) == (again, [])
    with pytest.raises(FocusError, match="other settings or inputs"):
        measure(learned_tokens=1024, **changes)
