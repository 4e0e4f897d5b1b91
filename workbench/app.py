"""The workbench: `streamlit run workbench/app.py`. Navigation, nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:  # Streamlit adds only this file's folder; a bare clone needs the one above
    sys.path.insert(0, ROOT)

from focus_core.resources import pages_dir  # noqa: E402

PAGES = pages_dir()

st.set_page_config(page_title="Focus workbench", page_icon="🔆", layout="wide")
st.navigation(
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
).run()
