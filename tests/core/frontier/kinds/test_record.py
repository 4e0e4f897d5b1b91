"""What a record of the protocol tells of itself: its blocks and lengths, who measured what, and what was tuned on what."""

from __future__ import annotations

import json

import numpy as np
import pytest

from focus_core.errors import FocusError
from focus_core.frontier.kinds import protocol
from focus_core.frontier.kinds.means import mean_rows
from focus_core.frontier.kinds.protocol import ProtocolSettings
from focus_core.frontier.kinds.table import cost
from focus_core.frontier.tuning import Tuner
from focus_core.text import document_blocks

MADE = {"date": "2026-01-03T00:00:00+00:00", "device": "A", "processor": "A", "threads": 7, "system": "Linux"}


def test_text_that_was_left_unused_is_told_from_text_that_is_short(measure, folder):
    measure(lengths=(32,), blocks=3, baselines=())
    record, _ = measure(lengths=(64, 448), blocks=1, baselines=())
    available = {name: record["kinds"][name]["blocks"]["64"]["available"] for name in ("code", "prose")}
    assert min(available.values()) > 3
    text = (folder / "f.md").read_text()
    told = ", ".join(f"{name} used 1 of {count}" for name, count in available.items())
    assert f"Fewer than 3 blocks of 64 tokens: {told}." in text
    assert "Fewer than 3 blocks of 448 tokens: code has 1, prose has none." in text


def test_settings_list_what_the_points_of_all_calls_contain(measure, folder):
    first, _ = measure(lengths=(64,), blocks=2, baselines=("streaming",))
    assert {name: first["settings"][name] for name in ("lengths", "blocks", "shares", "top_k")} == {
        "lengths": [64], "blocks": {"64": 2}, "shares": [0.15], "top_k": [1]
    }  # fmt: skip
    changes = {"lengths": (32,), "blocks": 3, "baselines": ("streaming",), "shares": (0.4,), "top_k": (2,)}
    record, _ = measure(**changes)
    assert {point["length"] for point in record["points"]} == {32, 64}
    for each in (record, measure(**changes)[0], json.loads((folder / "f.json").read_text(encoding="utf-8"))):
        assert {name: each["settings"][name] for name in ("lengths", "blocks", "shares", "top_k")} == {
            "lengths": [32, 64], "blocks": {"32": 3, "64": 2}, "shares": [0.15, 0.4], "top_k": [1, 2]
        }  # fmt: skip


def test_settings_of_an_older_record_are_put_right_by_a_call_that_measures_nothing(measure, folder):
    record, _ = measure(lengths=(32, 64), baselines=())
    older = record | {"settings": record["settings"] | {"lengths": [64], "blocks": 2}}
    (folder / "f.json").write_text(json.dumps(older))
    again, seen = measure(lengths=(64,), baselines=())
    assert seen == [] and again == record == json.loads((folder / "f.json").read_text(encoding="utf-8"))


def test_a_stopped_call_claims_no_length_that_it_did_not_reach(measure, folder):
    with pytest.raises(KeyboardInterrupt):
        measure(stop_after=3)
    assert json.loads((folder / "f.json").read_text(encoding="utf-8"))["settings"]["lengths"] == [32]


def test_points_tell_who_measured_them_and_when_and_older_ones_stay(measure, folder, monkeypatch):
    monkeypatch.setattr(protocol, "made_now", lambda device: MADE | {"date": "2026-01-01T00:00:00+00:00"})
    first, _ = measure(lengths=(32,), baselines=())
    for point in first["points"]:
        assert point["made"] == {"date": "2026-01-01T00:00:00+00:00", "device": "A", "processor": "A", "threads": 7}
    older = json.loads((folder / "f.json").read_text(encoding="utf-8"))
    for point in older["points"]:
        del point["made"]
    older["settings"] |= {"lengths": [64], "blocks": 2}  # as earlier versions wrote them
    (folder / "f.json").write_text(json.dumps(older))
    monkeypatch.setattr(
        protocol, "made_now", lambda device: MADE | {"device": "B", "date": "2026-01-02T00:00:00+00:00"}
    )
    record, _ = measure(lengths=(32,), baselines=("streaming",))
    made = {point["method"]: point["made"] for point in record["points"]}
    assert made["mine"] is None and (made["streaming"]["device"], made["streaming"]["date"][:10]) == ("B", "2026-01-02")
    assert record["settings"]["lengths"] == [32] and record["settings"]["blocks"] == {"32": 2}
    assert all(row.complete for row in mean_rows(record, 32))
    monkeypatch.setattr(protocol, "made_now", lambda device: MADE)
    measure(lengths=(32, 64), baselines=())
    assert (
        "tiny; B and A, python" in (folder / "f.md").read_text()
        and "tiny; B and A, 20" in (folder / "f.svg").read_text()
    )


def test_the_blocks_that_settings_are_tuned_on_are_named(measure, folder, tiny_llama, monkeypatch):
    (folder / "short.txt").write_text("Too short for a block. ")
    (folder / "more.txt").write_text("".join(f"Line {number} of another story. " for number in range(90)))
    files = [folder / "train.txt", folder / "short.txt", folder / "more.txt"]
    seen = {}
    tune = Tuner.tune

    def watched(tuner, name, share):
        seen[name] = tuner.held, tuner.fitted_on.numpy()
        return tune(tuner, name, share)

    monkeypatch.setattr(Tuner, "tune", watched)
    record, _ = measure(lengths=(32,), baselines=("sparq", "kmeans"), train=files)
    tuned = {entry["method"]: entry for entry in record["tuning"]}

    def blocks(places):
        named = {file.name: document_blocks(tiny_llama.tokenizer, [file.read_text()], 512)[0] for file in files}
        return np.stack([named[place["document"]][place["block"]] for place in places])

    for name in ("sparq", "kmeans"):
        assert np.array_equal(blocks(tuned[name]["tuned_on"]), seen[name][0])
    assert np.array_equal(blocks(tuned["kmeans"]["fitted_on"]), seen["kmeans"][1])
    places = [
        (place["document"], place["block"]) for key in ("fitted_on", "tuned_on") for place in tuned["kmeans"][key]
    ]
    assert len(set(places)) == len(places) and {document for document, _ in places} == {"train.txt", "more.txt"}


def test_training_text_without_a_block_is_refused(measure, folder):
    (folder / "short.txt").write_text("Too short for a block. ")
    with pytest.raises(FocusError, match=r"No training text has 512 tokens: give a longer one with --train\."):
        measure(train=[folder / "short.txt"])


def test_by_default_long_texts_have_one_block_of_each_kind():
    assert [ProtocolSettings().blocks_at(length) for length in (512, 2048, 2049, 8192)] == [3, 3, 1, 1]
    assert [ProtocolSettings(blocks=5).blocks_at(length) for length in (512, 8192)] == [5, 5]


def test_default_blocks_are_cut_at_each_length(measure, monkeypatch):
    monkeypatch.setattr(protocol, "LONG", 32)
    record, _ = measure(blocks=None, baselines=())
    assert {(point["length"], len(point["block_nll"])) for point in record["points"]} == {(32, 3), (64, 1)}


def test_the_time_that_a_record_took_is_told():
    points = [{"seconds": 90.0}, {"seconds": None}, {}, {"seconds": 30.0}]
    record = {"points": points, "tuning": [{}], "learned": {"seer": {}}}
    assert cost(record) == "Time in minutes: points 2.0."
    assert cost({"points": [{}]}) == ""
    record |= {"tuning": [{"seconds": 30.0}, {"seconds": 60.0}, {}]}
    record |= {"learned": {"seer": {"seconds": 4500.0}, "indexer": {"seconds": 4500.0}}}  # one training of both
    assert cost(record) == "Time in minutes: points 2.0, settings of baselines 1.5, learned baselines 75.0."
