"""Bring a place of the page into view."""

from __future__ import annotations

from streamlit.components.v2 import component

_component = component(
    "focus-scroll-here",
    html="<span></span>",
    js="""
    export default function ({ data, parentElement }) {
      const mark = parentElement.querySelector("span");
      if (!data || mark.dataset.seen === data.wish) return;
      mark.dataset.seen = data.wish;
      if (data.wish) requestAnimationFrame(() => parentElement.host.scrollIntoView({ block: "center" }));
    }
    """,
)


def scroll_here(wish: str, *, key: str) -> None:
    """Scroll to this place once for each new wish.

    Args:
        wish: what is to be shown, such as the name of a run; nothing happens while it is empty or stays the same.
        key: of the place.
    """
    _component(key=key, data={"wish": wish})
