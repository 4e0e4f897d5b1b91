"""The web server around the app: which names it answers to, and to whom it is served.

A page of another site can give its own name the address of this machine, and then talk to a local server as its own
(DNS rebinding). It cannot choose the Host header, which holds the name. So only names of `server.allowedHosts` are
answered, for pages, files and WebSockets alike; Streamlit checks WebSockets alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import webbrowser
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import streamlit as st
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from workbench.engine.access import SERVED_AT, is_loopback
from workbench.engine.garbage import return_freed_regularly

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names that are answered where no others are configured."""

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?")


class HostGuard:
    """Middleware that refuses requests under names that are not allowed.

    Args:
        app: the server behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with status 403."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) == 1 and host_allowed(hosts[0], st.get_option("server.allowedHosts") or LOOPBACK):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            message = "This name is not one of the workbench: name it with --server.allowedHosts at its start.\n"
            await PlainTextResponse(message, status_code=403)(scope, receive, send)


def host_allowed(host: str, names: Iterable[str]) -> bool:
    """Whether a Host header has one of some names; ports do not matter.

    Args:
        host: value of the header.
        names: allowed ones; "*.example.com" stands for all names below example.com, "*" for any.
    """
    found = _HOST.fullmatch(host.strip().lower())
    if found is None:
        return False
    name = (found[1] or found[2]).rstrip(".")
    for each in names:
        allowed = each.strip().lower().rstrip(".")
        if allowed in ("*", name) or (allowed.startswith("*.") and name.endswith(allowed[1:])):
            return True
    return False


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[None]:
    """Record whom the app is served to, open the browser, and give freed memory back while the server runs."""
    os.environ[SERVED_AT] = address = st.get_option("server.address") or "every address"
    if not st.get_option("server.headless"):
        host = address if is_loopback(address) else "localhost"
        path = st.get_option("server.baseUrlPath").strip("/")
        scheme = "https" if st.get_option("server.sslCertFile") else "http"
        shown = f"[{host}]" if ":" in host else host
        url = f"{scheme}://{shown}:{st.get_option('server.port')}/{path}"
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    returning = asyncio.create_task(return_freed_regularly())
    try:
        yield
    finally:
        returning.cancel()
