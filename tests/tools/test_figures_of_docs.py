"""Figures in README and docs agree with the records that their section names.

A section (from one heading to the next) names records by links to data/results, to generated tables or to model cards, or
by a command or a guide in a line that starts with "Record". Figures have a decimal point or a per cent sign. Blocks that the card tools
write are checked by the tools themselves and left out here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FIGURE = re.compile(r"(?<![\w.,])[-+]?(\d[\d,]*\.\d+|\d[\d,]*(?:\.\d+)?(?=%))(?![\d.]*\d)")
IDENTIFIER = re.compile(
    r"arXiv \d{4}\.\d{4,5}|https?://\S+|\b[Pp]ython \d\.\d+|version \d+\.\d+(?:\.\d+)?|95%|12\.5% is even"
)
GENERATED = re.compile(r"<!-- ([\w ]+): [^>]*-->\n.*?<!-- end of \1 -->", re.DOTALL)


def sections(path: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", GENERATED.sub("", path.read_text(encoding="utf-8")), flags=re.DOTALL)
    yield from re.split(r"^(?=#{1,3} )", text, flags=re.MULTILINE)


def sources(section: str) -> list[Path]:
    """The records and generated pages that a section names."""
    found = [
        ROOT / "data" / "results" / name for name in re.findall(r"data/results/((?:earlier/)?[\w-]+\.json)", section)
    ]
    made = re.findall(r"routers/([\w.-]+)/README", section)
    found += [ROOT / "data" / "routers" / name / file for name in made for file in ("README.md", "training.json")]
    found += [ROOT / "docs" / "tables" / name for name in re.findall(r"tables/([\w-]+\.md)", section)]
    for line in re.findall(r"^Records?:.*$", section, flags=re.MULTILINE):
        names = re.findall(r"`focus reproduce ([\w-]+)", line)
        found += [path for name in names for path in (ROOT / "data" / "results").glob(f"reproduce-{name}*.json")]
        for page in re.findall(r"\((?:\.\./docs/)?([\w-]+\.md)\)", line):  # its tables, and what they are made of
            text = (ROOT / "docs" / page).read_text(encoding="utf-8")
            found += [ROOT / "docs" / "tables" / name for name in re.findall(r"\(tables/([\w-]+\.md)\)", text)]
            found += [ROOT / "docs" / page]
    return list(dict.fromkeys(found))


def figures(section: str) -> list[str]:
    """The figures of a text, without those in link targets, code and identifiers."""
    text = re.sub(r"\]\([^)]*\)|`[^`]*`|<[^>]*>", " ", section)
    return [match[1] for match in FIGURE.finditer(IDENTIFIER.sub(" ", text))]


def values(path: Path) -> set[float]:
    """Every number that a record holds or that follows from it: itself, in per cent, and relative to untouched."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return {float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*\.?\d*", text) if each.strip(",")}
    record = json.loads(text)
    found: set[float] = set()

    def gather(value: Any) -> None:
        if isinstance(value, bool) or value is None:
            return
        if isinstance(value, (int, float)):
            found.add(abs(float(value)))
        elif isinstance(value, str):
            found.update(float(each) for each in re.findall(r"\d+\.?\d*", value)[:20])
        elif isinstance(value, dict):
            for each in value.values():
                gather(each)
        elif not all(isinstance(each, float) for each in value):  # losses of blocks are no figures of a text
            for each in value:
                gather(each)

    gather(record)
    rows = [row for row in record.get("results", record.get("points", [])) if isinstance(row, dict)]
    perplexities = [row["perplexity"] for row in rows if isinstance(row.get("perplexity"), float)]
    changes = {
        abs(row["perplexity"] / (row["perplexity"] - row["difference"]) - 1) for row in rows if row.get("difference")
    }
    untouched = [
        row["perplexity"] for row in rows if "untouched" in (row.get("cell"), row.get("method"), row.get("kind"))
    ]
    changes |= {abs(each / base - 1) for base in untouched for each in perplexities}
    even = {
        1 / groups for row in [record.get("settings", {}).get("config", {}), *rows] if (groups := row.get("num_groups"))
    }
    return found | changes | {100 * value for value in found | changes | even if value < 100}


def agrees(figure: str, known: set[float]) -> bool:
    """Whether a value rounds to the figure; its sign is the text's own."""
    plain = figure.replace(",", "")
    digits = len(plain.partition(".")[2])
    return any(abs(value - float(plain)) <= 0.5 * 10**-digits + 1e-9 for value in known)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_figures_of_a_section_are_in_the_records_that_it_names(path):
    wrong = []
    for section in sections(path):
        named = sources(section)
        missing = [source.name for source in named if not source.is_file()]
        assert not missing, f"{path.name} names records that are not shipped: {missing}"
        if named:
            known = set().union(*(values(source) for source in named))
            title = section.strip().partition("\n")[0]
            wrong += [f"{title}: {figure}" for figure in figures(section) if not agrees(figure, known)]
    assert not wrong, f"{path.name} has figures that are in none of the records of their section: {wrong}"


def test_a_figure_that_drifted_from_its_record_is_found():
    path = ROOT / "data" / "results" / "reproduce-k-sweep.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]
    row = next(row for row in rows if row["cell"] == "k=2" and row["balance"] == "calibrated")
    change, known = 100 * row["difference"] / (row["perplexity"] - row["difference"]), values(path)
    right = (
        f"k = 2 is at {change:+.2f}% ([record](../data/results/reproduce-k-sweep.json)) with {row['perplexity']:.2f}."
    )
    assert sources(right) == [path] and len(figures(right)) == 2
    assert all(agrees(figure, known) for figure in figures(right))
    drifted = [f"{change + by:.2f}" for by in (0.23, 0.57, 1.31)]
    assert not any(agrees(figure, known) for figure in drifted)


def test_no_page_calls_sparq_an_oracle():
    """SparQ that reads all dimensions to choose still pays for reading them; an oracle is a bound without a cost."""
    for path in (
        *PAGES,
        *ROOT.glob("data/routers/*/README.md"),
        *ROOT.glob("workbench/**/*.py"),
        *ROOT.glob("tools/*.py"),
    ):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"SparQ[^.|\n]*\boracle|\boracle[^.|\n]*SparQ", text, re.IGNORECASE), path.name
