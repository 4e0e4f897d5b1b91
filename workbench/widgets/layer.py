"""The slider that chooses a layer."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from focus_core.analysis import Trace
from workbench.shell import state


def layer_slider(
    trace: Trace,
    hint: str,
    *,
    label: str = "Layer",
    key: str = "layer",
    default: int | None = None,
    among: Sequence[int] | None = None,
) -> int:
    """Draw a slider over the layers and return the chosen layer's row in the trace; a single layer has no slider.

    With a plan, the slider shows each layer's k beside its number.

    Args:
        trace: the routing.
        hint: help text, the purpose of the choice.
        label: of the slider.
        key: setting in links that holds the layer's number.
        default: row taken while no valid layer is chosen; the middle one if None.
        among: numbers of the layers to choose from, all of the trace if None.
    """
    layers = list(trace.layers if among is None else among)
    planned = trace.config.layer_top_k is not None

    def named(layer: int) -> str:
        return f"{layer} (k = {trace.config.top_k_of(trace.layers.index(layer))})" if planned else str(layer)

    if len(layers) == 1:
        if planned:
            st.caption(f"{label} {named(layers[0])}")
        return trace.layers.index(layers[0])
    if st.session_state.get(key) not in layers:
        st.session_state[key] = layers[len(layers) // 2 if default is None else default]
        state.refuse(key, f"layer {st.session_state[key]}")
    chosen = st.select_slider(label, layers, key=key, format_func=named, help=hint, persist_state="session")
    return trace.layers.index(chosen)
