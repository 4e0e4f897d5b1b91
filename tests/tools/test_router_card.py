"""The table of earlier records pairs quality with speed at the same length, and says where one of them is missing."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("router_card", ROOT / "tools" / "router_card.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_pairs_speed_and_quality_at_one_length(card: ModuleType):
    """Where no call was timed at a row's own length, groups and share, the row says so."""
    rows = [line.split(" | ") for line in card.summary().splitlines()[2:]]
    assert {"per head", "per layer", "SparQ"} <= {row[0].removeprefix("| ") for row in rows}
    for row in rows:
        speed = row[-1].removesuffix(" |")
        assert speed == card.MISSING or re.fullmatch(r"\d+\.\d\dx", speed)
    timed = {(row[0], row[1], row[3]): row[-1] for row in rows if "x |" in row[-1]}
    assert timed["| per layer", "1", "8,192"].startswith("3.72x")
    assert not any(method == "| per head" and length == "2,048" for method, _, length in timed)


def test_speeds_of_another_share_are_not_taken(card: ModuleType):
    point = {"top_k": 1, "perplexity": 11.0, "kept_share": 0.9, "method": card.NAME, "kind": "routers"}
    untouched = {"perplexity": 10.0, "kind": "untouched", "method": "untouched", "top_k": None}
    record = {"settings": {"length": 2048, "blocks": 4}, "points": [untouched, point]}
    speeds = card.read_speeds(card.EARLIER)
    (line,) = card.frontier_rows(record, card.NAME, "novels", speeds)
    assert line[-1] == card.MISSING and "+10.0%" in line
    (line,) = card.frontier_rows(
        {**record, "points": [untouched, {**point, "kept_share": 0.14}]}, card.NAME, "", speeds
    )
    assert line[-1] == "1.80x"
