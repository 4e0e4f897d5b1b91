"""The workbench: `streamlit run workbench/app.py`. Navigation, nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import streamlit as st

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:  # Streamlit adds only this file's folder; a bare clone needs the one above
    sys.path.insert(0, ROOT)

# Sessions compute at the same time, and a training may run beside them. OpenMP's threads wait for each other by
# spinning, which on busy cores makes a small operation of PyTorch a hundred times slower; asleep they cost nothing.
# Read when PyTorch is first imported; the processes of runs inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from focus_core.resources import pages_dir  # noqa: E402

PAGES = pages_dir()

st.set_page_config(page_title="Focus workbench", page_icon="🔆", layout="wide", initial_sidebar_state=340)
page = st.navigation(
    [
        st.Page(PAGES / "explore.py", title="Explore", icon=":material/search:", default=True),
        st.Page(PAGES / "layers.py", title="Layers", icon=":material/layers:"),
        st.Page(PAGES / "balance.py", title="Balance", icon=":material/balance:"),
        st.Page(PAGES / "sparsity.py", title="Sparsity", icon=":material/grid_on:"),
        st.Page(PAGES / "linguistics.py", title="Linguistics", icon=":material/translate:"),
        st.Page(PAGES / "speed.py", title="Speed", icon=":material/speed:"),
        st.Page(PAGES / "quality.py", title="Quality", icon=":material/query_stats:"),
        st.Page(PAGES / "train.py", title="Train", icon=":material/model_training:"),
        st.Page(PAGES / "compare.py", title="Compare", icon=":material/compare_arrows:"),
        st.Page(PAGES / "report.py", title="Report", icon=":material/description:"),
    ]
)
if not hasattr(sys.modules.get("workbench.shell.frame"), "open_page"):
    with st.spinner("Starting: loading PyTorch and Transformers …", show_time=True):
        import workbench.shell.frame  # noqa: F401
        from workbench.engine.garbage import freeze_loaded

        freeze_loaded()
page.run()
