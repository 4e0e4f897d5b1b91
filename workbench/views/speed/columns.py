"""How tables of the Speed page show their columns."""

from __future__ import annotations

import streamlit as st

TIME = st.column_config.NumberColumn(format="%.5f")
RATIO = st.column_config.NumberColumn(format="%.2f")
PERCENT = st.column_config.NumberColumn(format="percent")
ERROR = st.column_config.NumberColumn(format="%.1e")
COLUMNS = {
    **{f"{which}{part} s": TIME for which in ("full", "sparse") for part in ("", " min", " max")},
    "routing s": TIME,
    **{name: RATIO for name in ("speedup", "bound", "attention only", "choosing included")},
    **{name: RATIO for name in ("best speed-up", "bound there")},
    "k": st.column_config.NumberColumn(format="%d"),
    "routed": None,
    **{name: TIME for name in ("attention s", "choosing s")},
    **{name: PERCENT for name in ("share of bound", "kept share")},
    **{name: ERROR for name in ("error output", "error logsumexp", "largest error", "largest logit error")},
    **{name: TIME for name in ("seconds", "min s", "max s")},
    "tokens per second": st.column_config.NumberColumn(format="%.4g"),
    **{name: st.column_config.NumberColumn(format="bytes") for name in ("working bytes", "input bytes", "cache bytes")},
}
ATTENTION_COLUMNS = COLUMNS | {
    "speedup": st.column_config.NumberColumn("attention only", format="%.2f"),
    "speedup with routing": st.column_config.NumberColumn("choosing included", format="%.2f"),
}
# Columns of the open tables with headers and widths that fit a window of 1,200; folded tables have all columns.
MODEL_COLUMNS = {
    "task": ("task", 64),
    "tokens": ("tokens", 64),
    "routing": ("routing", 226),
    "kept share": ("kept", 66),
    "seconds": ("seconds", 78),
    "tokens per second": ("tokens/s", 74),
    "speedup": ("× untouched", 94),
}
CROSSOVER_COLUMNS = {
    "series": ("series", 190),
    "faster from": ("faster from", 84),
    "choosing included, from": ("incl. from", 76),
    "slower at": ("slower at", 74),
    "best speed-up": ("best", 50),
    "choosing included": ("incl.", 50),
    "bound there": ("bound", 56),
    "at tokens": ("at", 56),
    "largest error": ("error", 62),
}
BASELINE_COLUMNS = {
    "tokens": ("tokens", 62),
    "baseline": ("baseline", 156),
    "head": ("head", 50),
    "kept share": ("kept", 66),
    "attention s": ("attention s", 84),
    "choosing s": ("choosing s", 82),
    "attention only": ("alone", 56),
    "choosing included": ("incl.", 56),
    "error output": ("error", 66),
}
