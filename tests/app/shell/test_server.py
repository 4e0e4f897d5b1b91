"""Names in the Host header, one by one; tests/browser/test_server.py asks the running server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.shell.server import LOOPBACK, host_allowed


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8501", "localhost.", "127.0.0.1:1", "[::1]", "[::1]:8501"])
def test_this_machine_is_answered(host):
    assert host_allowed(host, LOOPBACK)


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "evil.example:8501", "localhost.evil.example", "localhost@evil.example", "localhost/x"),
        *("localhost:", "localhost:x", "127.0.0.1.evil.example", "[::1", "::1", "localhost evil.example", "127.1"),
    ],
)
def test_other_names_and_nonsense_are_not(host):
    assert not host_allowed(host, LOOPBACK)


def test_patterns():
    assert host_allowed("a.example.com", ["*.example.com"]) and host_allowed("evil.example", ["*"])
    assert not host_allowed("example.com", ["*.example.com"]) and not host_allowed("badexample.com", ["*.example.com"])
    assert not host_allowed("", ["*"]) and not host_allowed("a b", ["*"])


@given(st.text(max_size=40))
def test_whatever_is_allowed_ends_in_an_allowed_name(host):
    if host_allowed(host, LOOPBACK):
        assert host.strip().lower().split(":")[0].rstrip(".") in ("localhost", "127.0.0.1", "[")
