"""The frontier as a function: one record, resumed where it stopped, with a table and a figure beside it."""

from __future__ import annotations

import copy
import hashlib
import json

import pytest

from focus_core.baselines import BASELINES
from focus_core.errors import FocusError
from focus_core.frontier.run import FrontierSettings, measure_frontier
from focus_core.frontier.speeds import Speeds
from focus_core.frontier.table import frontier_rows
from focus_core.frontier.tuning import Tuner
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import retrofit


@pytest.fixture
def folder(tmp_path, tiny_llama):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    config = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=2, route_dim=8)
    focus = retrofit(tiny_llama.model, config, seed=1)
    focus.save_pretrained(tmp_path / "mine")
    focus.detach()
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 40)
    (tmp_path / "train.txt").write_text("Pack my box with five dozen liquor jugs, said the fox. " * 40)
    return tmp_path


def measure(folder, stop_after=None, **changes):
    seen = []

    def show(message, share):
        if "(" in message:
            seen.append(message)
            if len(seen) == stop_after:
                raise KeyboardInterrupt

    values = {"routers": (str(folder / "mine"),), "top_k": (1,), "baselines": ("sparq",), "length": 64, "window": 4}
    settings = FrontierSettings(**{**values, "blocks": 2, **changes})
    text, train, model = [folder / "text.txt"], [folder / "train.txt"], str(folder / "model")
    record = measure_frontier(text, train, folder / "f.json", settings, model=model, speeds=Speeds(), progress=show)
    return record, seen


def test_a_stopped_run_resumes_and_returns_the_record(folder):
    with pytest.raises(KeyboardInterrupt):
        measure(folder, stop_after=2)
    first = json.loads((folder / "f.json").read_text(encoding="utf-8"))["points"]
    assert [point["method"] for point in first] == ["untouched", "mine"]
    record, seen = measure(folder)
    assert record["points"][:2] == first and len(seen) == 2
    assert [point["method"] for point in record["points"][2:]] == ["untrained, K=4", "sparq"]
    assert record["points"][3]["wanted_share"] == record["points"][1]["kept_share"]
    assert record == json.loads((folder / "f.json").read_text(encoding="utf-8"))
    tried = record["tuning"][0]["tried"]
    assert [each["setting"] for each in tried] == [dict(each) for each in BASELINES["sparq"].grid]
    assert record["points"][3]["setting"] == min(tried, key=lambda each: each["kl"])["setting"]
    assert "SparQ" in (folder / "f.md").read_text() and "SparQ" in (folder / "f.svg").read_text()
    assert measure(folder) == (record, [])


def test_settings_are_tuned_once_and_only_if_wanted(folder, monkeypatch):
    first, _ = measure(folder)
    monkeypatch.delattr(Tuner, "tune")  # a resumed run must not need it
    more, _ = measure(folder, baselines=("sparq", "streaming"))
    assert more["points"][:4] == first["points"] and more["tuning"] == first["tuning"]
    with pytest.raises(FocusError, match="other settings or inputs"):
        measure(folder, tuned=False)
    (folder / "f.json").unlink()
    record, _ = measure(folder, tuned=False)
    assert record["tuning"] == [] and record["points"][3]["setting"] is None


def test_other_settings_and_names_are_refused(folder):
    measure(folder, baselines=())
    with pytest.raises(FocusError, match="other settings or inputs"):
        measure(folder, window=5)
    with pytest.raises(FocusError, match="no baseline 'magic'"):
        FrontierSettings(baselines=("magic",))
    with pytest.raises(FocusError, match="'topk' is learned or an oracle: measure it with --kinds"):
        FrontierSettings(baselines=("topk",))
    (folder / "f.json").unlink()
    (folder / "f.md").write_text("# My notes")
    with pytest.raises(FocusError, match=r"f\.md is another file and would be replaced"):
        measure(folder, baselines=())
    assert (folder / "f.md").read_text() == "# My notes" and not (folder / "f.json").exists()
    with pytest.raises(FocusError, match=r"ends in \.json"):
        measure_frontier([folder / "text.txt"], [folder / "text.txt"], folder / "g.md")


def test_routers_are_known_by_their_values_not_by_their_folder(folder, tiny_llama):
    record, _ = measure(folder, baselines=())
    assert list(record["routers"]) == ["mine"] and len(record["routers"]["mine"]) == 12
    config = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=2, route_dim=8)
    focus = retrofit(copy.deepcopy(tiny_llama.model), config, seed=2)
    focus.save_pretrained(folder / "mine")
    focus.save_pretrained(folder / "other" / "mine")
    before = (folder / "f.json").read_bytes()
    with pytest.raises(FocusError, match="other routers of the name mine"):
        measure(folder, baselines=())
    retrofit(focus.detach(), config, seed=3).save_pretrained(folder / "other" / "mine")
    with pytest.raises(FocusError, match="Two folders of routers are called mine"):
        measure(folder, routers=(str(folder / "mine"), str(folder / "other" / "mine")))
    assert (folder / "f.json").read_bytes() == before


def test_text_that_routers_or_baselines_learnt_is_refused(folder):
    digest = hashlib.sha256((folder / "text.txt").read_bytes()).hexdigest()
    earlier = {"data": [{"name": "text.txt", "sha256": digest}], "started_from": None}
    stages = {"data": [{"name": "x", "sha256": "0"}], "started_from": {"data": [], "started_from": earlier}}
    (folder / "mine" / "training.json").write_text(json.dumps(stages))
    with pytest.raises(FocusError, match=r"^text\.txt is training text of the routers mine: take it out of --data"):
        measure(folder)
    (folder / "mine" / "training.json").write_text("[" * 100_000)  # damaged: nothing is known of them
    (folder / "train.txt").write_bytes((folder / "text.txt").read_bytes())
    with pytest.raises(FocusError, match=r"^text\.txt is training text of --train: take it out of --data"):
        measure(folder)
    assert not (folder / "f.json").exists()


def test_a_record_that_does_not_know_its_routers_is_read_but_not_resumed(folder):
    record, _ = measure(folder, baselines=())
    del record["routers"]
    (folder / "f.json").write_text(json.dumps(record))
    with pytest.raises(FocusError, match="older version, which did not store which routers mine were"):
        measure(folder, baselines=())
    assert frontier_rows(record, Speeds())
