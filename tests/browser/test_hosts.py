"""Names that the running server answers to: raw requests, because a browser chooses its Host header by itself."""

from __future__ import annotations

import base64
import os
import socket
from urllib.parse import urlsplit

import pytest
from running import running_app

HANDSHAKE = "GET /_stcore/stream HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
KEY = f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with running_app(tmp_path_factory.mktemp("server") / "log.txt") as (url, _):
        yield urlsplit(url).port


def status(port: int, head: str) -> int:
    """The status of the answer to the head of a request."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(head.encode() + b"\r\n")
        return int(connection.recv(100).split()[1])


def websocket(port: int, host: str, origin: str | None) -> int:
    sent = "" if origin is None else f"Origin: {origin}\r\n"
    return status(port, HANDSHAKE.format(host=host) + KEY + sent)


def page(port: int, host: str, path: str = "/") -> int:
    return status(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n")


def test_another_name_gets_no_websocket(port):
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example"):
        assert websocket(port, host, f"http://{host}") == 403
        assert websocket(port, host, None) == 403


def test_another_origin_gets_no_websocket(port):
    assert websocket(port, f"localhost:{port}", "http://evil.example") == 403


@pytest.mark.parametrize("path", ["/", "/_stcore/health", "/_stcore/host-config", "/media/x", "/explore"])
def test_another_name_gets_no_page(port, path):
    assert page(port, "evil.example", path) == 403
    assert page(port, f"evil.example:{port}", path) == 403


def test_two_names_at_once_get_nothing(port):
    assert page(port, "localhost\r\nHost: evil.example") in (400, 403)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]"])
def test_this_machine_is_answered(port, name):
    host = f"{name}:{port}"
    assert page(port, host) == page(port, host, "/_stcore/health") == 200
    assert websocket(port, host, f"http://{host}") == 101


def test_a_configured_name_is_answered(tmp_path):
    with running_app(tmp_path / "log.txt", "--server.allowedHosts=lab.example", "--server.allowedHosts=127.0.0.1") as (
        url,
        _,
    ):
        port = urlsplit(url).port
        assert port is not None
        assert page(port, "lab.example") == 200 and websocket(port, "lab.example", "http://lab.example") == 101
        assert page(port, "evil.example") == websocket(port, "evil.example", "http://evil.example") == 403


@pytest.mark.browser
def test_served_to_others_a_link_opens_no_folder_of_this_machine(tmp_path, browser):
    (tmp_path / "secret.txt").write_text("A secret text. " * 30)
    with running_app(tmp_path / "log.txt", "--server.address=0.0.0.0", FOCUS_ALLOWED_ROOTS="") as (url, _):
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{url}/?v=1&routers=untrained&source=folder&folder={tmp_path}")
        page.get_by_text("This link opens on the machine of the workbench").wait_for()
        page.get_by_role("button", name="Open them").click()
        page.get_by_text("Paths are off").first.wait_for()
        assert "secret" not in page.inner_text("body")
        page.close()
