"""Choose a layer."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st


def layer_slider(
    layers: Sequence[int], hint: str, *, label: str = "Layer", key: str = "layer", default: int | None = None
) -> int:
    """Draw a slider over the layers and return the chosen one's row; a single layer needs no slider.

    Args:
        layers: numbers of the layers in the model.
        hint: help text: what the layer is chosen for.
        label: of the slider.
        key: setting in links that holds the layer's number.
        default: row taken while nothing usable is chosen; the middle one if None.
    """
    if len(layers) == 1:
        return 0
    if st.session_state.get(key) not in layers:
        st.session_state[key] = layers[len(layers) // 2 if default is None else default]
    return layers.index(st.select_slider(label, layers, key=key, help=hint, persist_state="session"))
