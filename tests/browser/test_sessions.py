"""Several sessions at once. `python tests/browser/soak.py` runs more of them for longer."""

from __future__ import annotations

import pytest
from soak import resident_bytes, soak

pytestmark = pytest.mark.browser


def test_sessions_at_once_see_no_error_and_never_each_others_text(browser, app):
    url, server = app
    report = soak(browser, url, sessions=3, seconds=0, memory=lambda: resident_bytes(server.pid))
    assert report["texts"] == 3
    assert report["errors"] == [] and report["foreign"] == []
