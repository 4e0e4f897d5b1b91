"""Fixtures of the app's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from synthetic import synthetic_trace

from focus_core.analysis import Trace


@pytest.fixture(autouse=True)
def own_runs(tmp_path, monkeypatch) -> None:
    """A folder of runs and notes for each test, never the user's own."""
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """`synthetic_trace`, as a fixture."""
    return synthetic_trace
