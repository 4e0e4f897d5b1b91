"""Several sessions at once. `python tests/browser/soak.py` runs more of them for longer."""

from __future__ import annotations

import json

import pytest
from soak import resident_bytes, soak, steadiness

from focus_core.resources import data_dir
from focus_core.shipped import DEFAULT

pytestmark = pytest.mark.browser


def test_sessions_at_once_see_no_error_and_never_each_others_text(browser, app):
    url, server = app
    report = soak(browser, url, sessions=3, seconds=0, memory=lambda: resident_bytes(server.pid), routers="untrained")
    assert report["texts"] == 3
    assert report["errors"] == [] and report["foreign"] == []
    assert len(report["memory"]) >= 2 and all(size > 1e8 for _, size in report["memory"])


def test_the_record_of_ten_sessions_shows_no_error_no_foreign_word_and_flat_memory():
    record = json.loads((data_dir() / "results" / "soak.json").read_text(encoding="utf-8"))
    assert record["settings"] == {"sessions": 10, "minutes": 10.0, "routers": DEFAULT}
    assert record["errors"] == record["foreign"] == [] and record["texts"] == 10 * record["rounds"] > 100
    assert record["memory"][-1][0] >= 600 and record["after_third_minute"] == steadiness(record["memory"])
    late = record["after_third_minute"]
    assert abs(late["mb_per_minute"]) < 2 and abs(late["last_minus_first_minute_mb"]) < 10


def test_memory_is_flat_or_not_as_a_figure():
    def at(seconds: int) -> float:
        return 500e6 * min(seconds / 180, 1)  # grows for three minutes

    found = steadiness([(second, int(at(second))) for second in range(0, 601, 5)])
    assert found == {"low_mb": 500.0, "high_mb": 500.0, "mb_per_minute": 0.0, "last_minus_first_minute_mb": 0.0}
    leak = steadiness([(second, int(at(second) + 1e6 * second / 60)) for second in range(0, 601, 5)])
    assert leak is not None and leak["mb_per_minute"] == 1.0 and leak["last_minus_first_minute_mb"] == 6.1
    assert steadiness([(0, 1), (200, 1)]) is None
