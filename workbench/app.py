"""The workbench: `streamlit run workbench/app.py`. Navigation, nothing else.

Streamlit imports this file once and serves `app`; every session then runs it as a script, which draws a page.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:  # Streamlit adds only this file's folder; a bare clone needs the one above
    sys.path.insert(0, ROOT)

# Sessions compute at the same time, and a training may run beside them. OpenMP's threads wait for each other by
# spinning, which on busy cores makes a small operation of PyTorch a hundred times slower; asleep they cost nothing.
# Read when PyTorch is first imported; the processes of runs inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from focus_core.resources import pages_dir  # noqa: E402
from workbench.engine.garbage import share_heaps  # noqa: E402
from workbench.shell.server import HostGuard, serving  # noqa: E402
from workbench.shell.state import is_link  # noqa: E402

STYLE = Path(__file__).with_name("style.css")


def draw() -> None:
    """Draw the page that the session has chosen."""
    st.set_page_config(page_title="Focus workbench", page_icon="🔆", layout="wide", initial_sidebar_state=340)
    st.html(STYLE)
    home, explore = _page("home", "Home", "home", default=True), _page("explore", "Explore", "search")
    page = st.navigation(
        {
            "": [home],
            "Look": [
                explore,
                _page("group", "Group", "workspaces"),
                _page("find", "Find", "manage_search"),
                _page("attention", "Attention", "join_inner"),
                _page("layers", "Layers", "layers"),
                _page("sparsity", "Sparsity", "grid_on"),
                _page("compare", "Compare", "compare_arrows"),
            ],
            "Evidence": [
                _page("quality", "Quality", "query_stats"),
                _page("speed", "Speed", "speed"),
                _page("effects", "Effects", "science"),
                _page("balance", "Balance", "balance"),
                _page("linguistics", "Linguistics", "translate"),
            ],
            "Make": [
                _page("write", "Write", "edit"),
                _page("train", "Train", "model_training"),
                _page("report", "Report", "description"),
            ],
        },
        expanded=True,
    )
    if page is home and is_link():  # Explore was the first page once, and Home has no settings of its own
        st.switch_page(explore, query_params=st.query_params.to_dict())
    if not hasattr(sys.modules.get("workbench.shell.frame"), "open_page"):
        with st.spinner("Starting: loading PyTorch and Transformers …", show_time=True):
            import workbench.shell.frame  # noqa: F401
            from workbench.engine.garbage import freeze_loaded

            freeze_loaded()
    page.run()


def _page(name: str, title: str, icon: str, *, default: bool = False) -> st.Page:
    return st.Page(pages_dir() / f"{name}.py", title=title, icon=f":material/{icon}:", default=default)


if __name__ == "__main__":
    draw()
else:
    share_heaps()
    app = st.App(__file__, middleware=[Middleware(HostGuard)], lifespan=serving)
