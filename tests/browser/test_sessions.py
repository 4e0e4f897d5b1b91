"""Several sessions at once. `python tests/browser/soak.py` runs more of them for longer."""

from __future__ import annotations

import json

import numpy as np
import pytest
import statsmodels.api as sm
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
    assert record["settings"]["sessions"] == 10 and record["settings"]["routers"] == DEFAULT
    assert record["errors"] == record["foreign"] == [] and record["texts"] == 10 * record["rounds"] > 100
    assert record["memory"][-1][0] >= 600
    late = record["after_third_minute"]
    assert late == steadiness(record["memory_at_rest"])
    assert late["from_mb_per_minute"] <= 0 and late["to_mb_per_minute"] < 5, "memory grows, or it cannot be told"


def test_memory_is_flat_or_not_as_a_figure():
    noise = np.random.default_rng(0).normal(0, 5e6, 31)

    def samples(leak: float) -> list[tuple[float, int]]:
        """Grows for three minutes; then by so many MB a minute, with noise."""
        times = range(0, 601, 20)
        return [
            (second, int(500e6 * min(second / 180, 1) + leak * 1e6 * second / 60 + wave))
            for second, wave in zip(times, noise, strict=True)
        ]

    flat, leak = steadiness(samples(0)), steadiness(samples(4))
    assert flat is not None and flat["from_mb_per_minute"] < 0 < flat["to_mb_per_minute"]
    assert leak is not None and 0 < leak["from_mb_per_minute"] < 4 < leak["to_mb_per_minute"]
    late = [(second, size) for second, size in samples(4) if second >= 180]
    line = sm.OLS([size / 1e6 for _, size in late], sm.add_constant([second / 60 for second, _ in late])).fit()
    low, high = line.conf_int()[1]
    assert leak["mb_per_minute"] == pytest.approx(line.params[1], abs=0.01)
    assert (leak["from_mb_per_minute"], leak["to_mb_per_minute"]) == pytest.approx((low, high), abs=0.01)
    assert steadiness([(0, 1), (200, 1)]) is None
