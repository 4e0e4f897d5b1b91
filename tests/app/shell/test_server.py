"""Names in the Host header, one by one; tests/browser/test_hosts.py asks the running server."""

from __future__ import annotations

import asyncio
import queue
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.engine import access, garbage
from workbench.shell import server
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


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"server.address": "127.0.0.1", "server.port": 8501}, "http://127.0.0.1:8501/"),
        ({"server.address": "::1", "server.port": 1, "server.baseUrlPath": "/focus/"}, "http://[::1]:1/focus"),
        ({"server.address": "0.0.0.0", "server.port": 2}, "http://localhost:2/"),
        ({"server.address": None, "server.port": 2, "server.sslCertFile": "x.pem"}, "https://localhost:2/"),
        ({"server.address": "127.0.0.1", "server.headless": True}, None),
    ],
)
def test_the_start_opens_the_browser_and_records_whom_it_serves(monkeypatch, options, url):
    opened: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(server.st, "get_option", lambda name: options.get(name, "" if "Url" in name else None))
    monkeypatch.setattr(server.webbrowser, "open", opened.put)
    monkeypatch.setenv(access.SERVED_AT, "unknown")

    async def start() -> None:
        async with server.serving(None):
            assert (access.roots() is None) is (options["server.address"] in ("127.0.0.1", "::1"))

    monkeypatch.delenv(access.ROOTS, raising=False)
    with ThreadPoolExecutor(1) as thread:  # tests in a browser leave a running loop in this one
        thread.submit(asyncio.run, start()).result()
    if url is None:
        assert opened.empty()
    else:
        assert opened.get(timeout=10) == url


def test_freed_memory_goes_back_while_the_server_runs_and_no_longer(monkeypatch):
    returned: list[float] = []
    monkeypatch.setattr(server.st, "get_option", {"server.address": "127.0.0.1", "server.headless": True}.get)
    monkeypatch.setenv(access.SERVED_AT, "unknown")
    monkeypatch.setattr(garbage, "RETURN_EVERY_S", 0.01)
    monkeypatch.setattr(garbage, "return_freed", lambda: returned.append(0.0))

    async def run() -> int:
        async with server.serving(None):
            while len(returned) < 3:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # a call that had begun ends
        ended = len(returned)
        await asyncio.sleep(0.1)
        return len(returned) - ended

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, run()).result(timeout=60) == 0
