"""What a page shows while a text is routed: how many layers are known by now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import streamlit as st

from focus_core.analysis.trace import RoutedLayer


@contextmanager
def routing_progress(text: str) -> Iterator[Callable[[RoutedLayer], None]]:
    """Show that a text is routed; gives a function to be told of every layer, and leaves nothing behind.

    Args:
        text: says what is routed, such as "Routing the text".
    """
    place = st.empty()
    try:
        with place.container(), st.spinner(f"{text} …", show_time=True):
            bar = st.empty()

            def tell(part: RoutedLayer) -> None:
                bar.progress(part.done / part.count, text=f"Layer {part.done} of {part.count}")

            yield tell
    finally:
        place.empty()
