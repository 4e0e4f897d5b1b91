"""README and docs: short sentences, a README of two screens, links and module paths that lead somewhere."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from focus_core.cli import app

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
WRITTEN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *DOCS,
    ROOT / "examples" / "README.md",
    ROOT / "notebooks" / "README.md",
    *sorted((ROOT / "data" / "routers").glob("*/README.md")),
]
NOT_PROSE = r"```.*?```|<!--.*?-->|^\|[^\n]*$|^#[^\n]*$|!\[[^]]*\]\([^)]*\)"
PAGES = [*WRITTEN, *sorted((ROOT / "docs" / "tables").glob("*.md"))]


def sentences(text: str) -> list[int]:
    """Words of each sentence, without tables, code, comments, headings and pictures."""
    prose = re.sub(NOT_PROSE, "", text, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"(?<=[.!?])\s+|\n\s*\n|\n- ", prose)
    return [len(part.split()) for part in parts if len(part.split()) > 3]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_sentences_have_twenty_words_or_fewer_on_average(path: Path):
    words = sentences(path.read_text(encoding="utf-8"))
    if words:
        assert sum(words) / len(words) <= 20


def test_the_readme_fits_two_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_relative_links_lead_to_files(path: Path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_paths_in_code_spans_exist(path: Path):
    named = re.findall(
        r"`((?:focus_core|workbench|pages|tools|tests|docs)/[\w./-]*)`", path.read_text(encoding="utf-8")
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_exist_with_these_options(path: Path):
    blocks = re.findall(r"```bash\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    for line in (line for line in lines if line.startswith("focus ")):
        words, command = shlex.split(line, comments=True)[1:], typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not getattr(command, "commands", {}), line
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= known, line


EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "using.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize("code", EXAMPLES)
def test_python_examples_run_and_give_the_model_back(code: str):
    names: dict[str, Any] = {}
    exec(compile(code, "docs/using.md", "exec"), names)
    assert names["base"] is names["model"]
