"""Every generated page and block is as its tool makes it from the shipped records."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
TOOLS = sorted((ROOT / "tools").glob("*_card.py"))


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")

    def module(path):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found

    return module


@pytest.fixture
def cards(load):
    return load(ROOT / "tools" / "cards.py")


@pytest.mark.parametrize("tool", TOOLS, ids=lambda path: path.stem)
def test_the_tree_is_as_the_tool_makes_it(load, cards, tool):
    differing = cards.differing(load(tool).pages())
    assert not differing, f"run python tools/{tool.name}: {[path.name for path in differing]}"


def test_every_table_page_is_made_by_one_tool_and_read_from_some_page(load):
    made = [path for tool in TOOLS for path in load(tool).pages()]
    tables = sorted((ROOT / "docs" / "tables").glob("*.md"))
    assert [made.count(path) for path in tables] == [1] * len(tables)
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert [path.name for path in tables if f"(tables/{path.name})" not in text] == []


def test_check_names_what_differs_and_writes_nothing(cards, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cards, "ROOT", tmp_path)
    path = tmp_path / "docs" / "page.md"
    with pytest.raises(SystemExit) as stop:
        cards.main(lambda: {path: "text\n"}, ["--check"])
    assert stop.value.code == 1 and not path.exists()
    assert "docs/page.md" in capsys.readouterr().out
    cards.main(lambda: {path: "text\n"}, [])
    assert path.read_text() == "text\n" and [each.name for each in path.parent.iterdir()] == ["page.md"]
    cards.main(lambda: {path: "text\n"}, ["--check"])


def test_a_block_is_filled_between_its_marks_only(cards, tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- a: x -->\nold\n<!-- end of a -->\n<!-- b: x -->\n<!-- end of b -->\nafter\n")
    pages = {}
    cards.fill(pages, path, "a", "new \\1")
    cards.fill(pages, path, "b", "also")
    assert pages[path] == (
        "before\n<!-- a: x -->\nnew \\1\n<!-- end of a -->\n<!-- b: x -->\nalso\n<!-- end of b -->\nafter\n"
    )
    with pytest.raises(ValueError, match="'c'"):
        cards.fill(pages, path, "c", "")


def test_every_published_claim_has_a_verdict_with_a_reason(load, cards):
    verdicts = load(ROOT / "tools" / "reproduction_verdicts.py")
    reproduced = load(ROOT / "tools" / "reproduction_card.py").reproduced()
    claims = [claim for each in cards.published().values() for claim in each["claims"]]
    assert len(claims) == len(set(claims)) and set(claims) == set(verdicts.RULES)
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for claim in claims:
        word, because = verdicts.RULES[claim](reproduced)
        assert word in (verdicts.HOLDS, verdicts.FAILS, verdicts.UNTESTED) and because
        assert f"| {word} | {because} |" in text


def test_verdicts_follow_the_interval(load):
    """The same record with its difference moved: below zero, above it, and around it."""
    import copy

    verdicts = load(ROOT / "tools" / "reproduction_verdicts.py")
    found = load(ROOT / "tools" / "reproduction_card.py").reproduced()
    for middle, word in ((-5.0, verdicts.HOLDS), (5.0, verdicts.FAILS), (0.1, verdicts.UNTESTED)):
        changed = copy.deepcopy(found)
        for row in changed["retrofit"][-1]["results"]:
            if row["cell"] == "published recipe":
                row |= {"difference": middle, "low": middle - 1, "high": middle + 1}
        assert verdicts.below_untouched(changed).word == word


def test_percentile_intervals_of_older_records_are_widened_to_those_of_t(load):
    verdicts = load(ROOT / "tools" / "reproduction_verdicts.py")
    old = {"difference": 1.0, "low": 0.1, "high": 1.9}
    low, high = verdicts.ends(old, 8)
    # of 8 values: percentiles reach 1.96 sd sqrt(7/8) / sqrt(8), t reaches 2.365 sd / sqrt(8)
    assert (low, high) == pytest.approx(
        (1 - 0.9 * 2.3646 / 1.96 * (8 / 7) ** 0.5, 1 + 0.9 * 2.3646 / 1.96 * (8 / 7) ** 0.5), rel=1e-3
    )
    assert verdicts.ends({**old, "established": False}, 8) == (0.1, 1.9)


@pytest.mark.parametrize("sizes", [(24, 24), (2, 60), (16, 40, 7)])
def test_intervals_of_parts_make_that_of_all_items(load, sizes):
    pooled = load(ROOT / "tools" / "benchmark_card.py").pooled
    random = np.random.default_rng(0)
    parts = [random.normal(each, 1 + each, size) for each, size in enumerate(sizes)]

    def gap(values):
        interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        return {"difference": values.mean(), "low": interval.low, "high": interval.high}

    found, expected = pooled([gap(part) for part in parts], sizes), gap(np.concatenate(parts))
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["established"] == (expected["low"] > 0 or expected["high"] < 0)
