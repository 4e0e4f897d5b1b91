"""Blocks about several kinds of text: with and without the record of fresh texts, and what they say against ourselves."""

import copy
import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from focus_core.baselines import BASELINES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")

    def module(name):
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found

    return module


@pytest.fixture
def kinds(load):
    return load("frontier_kinds")


@pytest.fixture
def record():
    return json.loads((ROOT / "data" / "results" / "frontier-kinds.json").read_text(encoding="utf-8"))


def block(text, name):
    return text.partition(f"<!-- {name}: ")[2].partition("-->\n")[2].partition(f"\n<!-- end of {name} -->")[0]


@pytest.fixture
def only(record):
    """A record of one length and no books, as fresh texts have, with one KL that no other record has."""
    found = copy.deepcopy(record)
    found["points"] = [each for each in found["points"] if each["length"] == 2048 and each["text"] != "books"]
    del found["kinds"]["books"]
    for point in found["points"]:
        if point["method"] == found["ours"]["method"]:
            point["block_kl"] = [0.4321] * len(point["block_kl"])
    return found


def test_without_a_record_fresh_texts_are_not_measured(kinds, load, record):
    assert kinds.fresh(None) == "Not measured yet."
    assert load("readme_card").texts(record, None).endswith("are unmeasured.")


@pytest.mark.parametrize("there", [True, False])
def test_fresh_texts_fill_their_own_places_alone(load, only, monkeypatch, tmp_path, there):
    for name in ("frontier_card", "readme_card"):
        shutil.copytree(ROOT / "data" / "results", tmp_path, dirs_exist_ok=True)
        fresh = tmp_path / "frontier-fresh.json"
        fresh.write_text(json.dumps(only), encoding="utf-8") if there else fresh.unlink(missing_ok=True)
        tool = load(name)
        monkeypatch.setattr(tool.cards, "RESULTS", tmp_path)
        made = {path.relative_to(ROOT).as_posix(): text for path, text in tool.pages().items()}
        if name == "frontier_card":
            text = made["docs/frontier.md"]
            assert ("docs/tables/frontier-fresh.md" in made) == there == ("(tables/frontier-fresh.md)" in text)
            assert ("0.4321" in block(text, "fresh")) == there == (block(text, "fresh") != "Not measured yet.")
            others = [block(text, other) for other in ("answer", "kinds", "limits")]
        else:
            text = made["README.md"]
            assert ("0.4321" in block(text, "limits")) == there
            others = [block(text, "kinds")]
        assert all(others) and not any("0.4321" in other for other in others)


@pytest.mark.parametrize("there", [True, False])
def test_longer_texts_have_a_record_of_their_own(load, only, monkeypatch, tmp_path, there):
    for point in only["points"]:
        point["length"] = 8192
    for kind in only["kinds"].values():
        kind["blocks"] = {"8192": kind["blocks"]["2048"]}
    shutil.copytree(ROOT / "data" / "results", tmp_path, dirs_exist_ok=True)
    long = tmp_path / "frontier-kinds-8192.json"
    long.write_text(json.dumps(only), encoding="utf-8") if there else long.unlink(missing_ok=True)
    for name, page, blocks in (
        ("frontier_card", "docs/frontier.md", ("answer", "long")),
        ("readme_card", "README.md", ("kinds",)),
    ):
        tool = load(name)
        monkeypatch.setattr(tool.cards, "RESULTS", tmp_path)
        made = {path.relative_to(ROOT).as_posix(): text for path, text in tool.pages().items()}
        assert all(("0.4321" in block(made[page], each)) == there for each in blocks), page
    assert ("| **mean** | **8,192** |" in block(made["README.md"], "kinds")) == there


def test_the_edge_of_a_grid_is_told_from_its_inside(kinds):
    record = json.loads((ROOT / "data" / "results" / "frontier-fresh.json").read_text(encoding="utf-8"))
    edge, tuned = kinds.at_the_edge(record)
    assert set(edge) <= set(tuned) == {name for name, each in BASELINES.items() if each.grid} - {"magicpig"}
    inside = copy.deepcopy(record)
    next(each for each in inside["tuning"] if each["method"] == "sparq")["setting"] = {"components": 0.5}
    assert set(edge) - set(kinds.at_the_edge(inside)[0]) == {"sparq"}
    assert "All" in kinds.limits(record, record) and f"{len(edge) - 1} of {len(tuned)} tuned" in kinds.limits(
        record, inside
    )


def test_cells_that_stalled_and_time_of_tuning_are_told(kinds, record):
    for point in record["points"]:
        point["seconds"] = 60.0
    for each in (*record["tuning"], *record["learned"].values()):
        each.pop("seconds", None)  # as in older records
    assert "stalled" not in kinds.duration(record) and "are not counted" in kinds.duration(record)
    slow = next(each for each in record["points"] if (each["method"], each["length"]) == ("sparq", 2048))
    slow["seconds"] = 6000.0
    for each in (*record["tuning"], *record["learned"].values()):
        each["seconds"] = 60.0
    told = kinds.duration(record)
    assert f"SparQ on {slow['text']} at 2,048 tokens (100 minutes)" in told
    assert f"took {len(record['tuning']) + 1} minutes more" in told  # learned baselines share their time


def test_caches_are_told_beside_the_untouched_one(load):
    caches = [
        {"tokens": tokens, "routing": routing, "cache_bits": bits, "cache_bytes": held * tokens}
        for tokens, times in ((5, 3), (2000, 1.5), (10, 2))
        for routing, bits, held in (("off", None, 4), ("hard", None, 4 * times), ("hard", 8, times))
    ]
    whole, half = ({"results": caches, "settings": {"dtype": dtype}} for dtype in ("float32", "bfloat16"))
    told = load("narrow_speeds").cache_size(whole, half)
    assert told == (
        "Caches are 3.00, 2.00 and 1.50 times as large at 5, 10 and 2,000 tokens "
        "(float32; 8 bits: 0.38; bfloat16: 3.00, 2.00 and 1.50)."
    )


def test_cards_say_how_far_routers_are_where_that_was_measured(load):
    card = load("router_card")
    assert card.MISSING in card.retention(card.NAME) and card.MISSING not in card.retention(card.HEADS)


def test_texts_of_another_record_are_told_beside_those_of_the_table(load, record, only):
    card = load("readme_card")
    assert card.which_texts(record, only) == f"on {len(only['kinds'])} of these {len(record['kinds'])} kinds of text"
    assert card.which_texts(record, record) == "on the same texts"
    only["kinds"]["code"]["documents"] = []
    assert card.which_texts(record, only) == "on other texts"
    one, other = ({"kinds": {"code": {"documents": [name]}}} for name in "ab")
    assert card.which_texts(one, other) == "on the same kinds of text"


def test_a_smaller_share_names_the_nearest_method_and_who_is_told_apart(load, record, only):
    card = load("readme_card")
    for point in only["points"]:  # every baseline farther by the same in every block, the later ones more
        far = 2.0 if point["method"] == "sparq" else 3.0
        if point["kind"] == "baseline":
            point["block_kl"] = [far + 0.01 * block for block in range(len(point["block_kl"]))]
    told = card.less(record, only)
    baselines = {point["method"] for point in only["points"] if point["kind"] == "baseline"}
    assert f"KL is 0.4321. The nearest of {len(baselines)} methods, SparQ, is at 2.0" in told
    assert f"None is significantly closer, {len(baselines)} farther" in told
    for point in only["points"]:
        if point["method"] == "sparq":
            point["block_kl"] = [0.4321] * len(point["block_kl"])
    assert f"None is significantly closer, {len(baselines) - 1} farther" in card.less(record, only)


def test_rows_where_ours_keeps_more_pairs_compare_no_methods(load, record):
    card = load("readme_card")
    for point in record["points"]:
        share = 0.3 if point["length"] == 512 and point["method"] == record["ours"]["method"] else 0.15
        if point["kept_share"] != 1.0:
            point["kept_share"] = share
    told = card.short(record)
    assert told == "The default keeps 30% of the pairs at 512 tokens, others 15%: no comparison there."
    told = card.closest(None, record)
    assert "512" not in told and "at 2,048 tokens" in told


def test_a_lead_over_kinds_is_told_with_and_without_those_that_served_to_choose(load, record, only):
    card = load("readme_card")
    for point in record["points"]:
        point["kept_share"] = 0.15
    told = card.closest(only, record)
    assert "p over the 6 kinds is" in told and "without books" in told
    assert "without" not in card.closest(None, record) and "without" not in card.closest(record, record)


def test_sparq_says_what_it_reads_to_choose_and_loses_with_less(kinds, record):
    told = kinds.read_to_choose(record)
    tried = next(each for each in record["tuning"] if each["method"] == "sparq")
    assert told.startswith(f"To choose, SparQ reads {tried['setting']['components']:.0%} of the components")
    assert all(f"{each['kl']:.4f}" in told for each in tried["tried"]) and "12.5%" in told and ".0%" not in told
    assert told in " ".join(kinds.limits(record, record).split())
    assert kinds.read_to_choose(record | {"tuning": []}) == ""
