"""What pages show of a text while it is routed: its groups in one layer, as soon as they are known."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from focus_core.analysis.trace import RoutedLayer
from workbench.engine import service
from workbench.tokens import previews
from workbench.widgets.strip import token_strip


def arriving_layer(
    settings: service.Settings,
    text: str,
    part: RoutedLayer,
    place: DeltaGenerator,
    *,
    layer: int = -1,
    key: str = "arriving",
    height: int = 640,
    on_pick: Callable[[int], None] | None = None,
) -> None:
    """Draw the first layer that is known, then the chosen one; nothing for the others.

    Args:
        settings: of the text.
        text: the text.
        part: the layer that is known by now.
        place: where to draw, in place of what is there.
        layer: number of the chosen layer, -1 for the middle one.
        key: of the strip, unique on the page.
        height: pixels of the box around it.
        on_pick: told of a token that is clicked; the selected token is framed where there is one.
    """
    wanted = part.done - 1 == part.count // 2 if layer == -1 else part.layer == layer
    if not (wanted or part.done == 1):
        return
    offsets = service.encoding(settings.model, text).offsets
    selected = None if on_pick is None else st.session_state.get("token", -1)
    preview = previews.of_layer(text, offsets, part)
    data = previews.preview_strip(preview, part.layer, None if selected == -1 else selected)
    rest = "" if wanted else f" Layer {layer} follows." if layer != -1 else " The middle one follows."
    with place.container():
        st.caption(f"Groups of layer {part.layer}.{rest} Details follow when all layers are known.")
        with st.container(height=height, border=True):
            token_strip(data, key=f"{key}_{part.layer}", on_pick=on_pick or _nothing)


def _nothing(token: int) -> None:
    """What a click does where the page selects no token."""
