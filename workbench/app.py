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
from workbench.shell.server import HostGuard, serving  # noqa: E402


def draw() -> None:
    """Draw the page that the session has chosen."""
    pages = pages_dir()
    st.set_page_config(page_title="Focus workbench", page_icon="🔆", layout="wide", initial_sidebar_state=340)
    page = st.navigation(
        [
            st.Page(pages / "explore.py", title="Explore", icon=":material/search:", default=True),
            st.Page(pages / "layers.py", title="Layers", icon=":material/layers:"),
            st.Page(pages / "balance.py", title="Balance", icon=":material/balance:"),
            st.Page(pages / "sparsity.py", title="Sparsity", icon=":material/grid_on:"),
            st.Page(pages / "linguistics.py", title="Linguistics", icon=":material/translate:"),
            st.Page(pages / "group.py", title="Group", icon=":material/workspaces:"),
            st.Page(pages / "effects.py", title="Effects", icon=":material/science:"),
            st.Page(pages / "attention.py", title="Attention", icon=":material/join_inner:"),
            st.Page(pages / "speed.py", title="Speed", icon=":material/speed:"),
            st.Page(pages / "quality.py", title="Quality", icon=":material/query_stats:"),
            st.Page(pages / "train.py", title="Train", icon=":material/model_training:"),
            st.Page(pages / "compare.py", title="Compare", icon=":material/compare_arrows:"),
            st.Page(pages / "report.py", title="Report", icon=":material/description:"),
        ]
    )
    if not hasattr(sys.modules.get("workbench.shell.frame"), "open_page"):
        with st.spinner("Starting: loading PyTorch and Transformers …", show_time=True):
            import workbench.shell.frame  # noqa: F401
            from workbench.engine.garbage import freeze_loaded

            freeze_loaded()
    page.run()


if __name__ == "__main__":
    draw()
else:
    app = st.App(__file__, middleware=[Middleware(HostGuard)], lifespan=serving)
