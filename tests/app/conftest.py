"""Fixtures of the app's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from streamlit.components.v2 import manifest_scanner
from synthetic import synthetic_trace

from focus_core.analysis import Trace


@pytest.fixture(autouse=True)
def own_runs(tmp_path, monkeypatch) -> None:
    """A folder of runs and notes for each test, never the user's own."""
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))


@pytest.fixture(autouse=True, scope="session")
def components_of_packages() -> Iterator[None]:
    """Look for Streamlit's components in the installed packages once, and not again for each page."""
    found = manifest_scanner.scan_component_manifests()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", lambda *limits: found)
        yield


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """`synthetic_trace`, as a fixture."""
    return synthetic_trace
