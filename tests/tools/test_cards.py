"""Every generated page and block is as its tool makes it from the shipped records."""

import importlib.util
from pathlib import Path

import pytest

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
