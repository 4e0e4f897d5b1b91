"""Fixtures of the app's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from synthetic import synthetic_trace

from focus_core.analysis import Trace


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """`synthetic_trace`, as a fixture."""
    return synthetic_trace
