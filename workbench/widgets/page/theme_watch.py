"""Draws the page again when the browser's theme changes, since charts are drawn in the colours of one theme."""

from __future__ import annotations

from streamlit.components.v2 import component

_component = component(
    "focus-theme-watch",
    html="<span></span>",
    css=":host { display: none; }",
    js="""
    export default function ({ parentElement, setTriggerValue }) {
      const mark = parentElement.querySelector("span");
      const color = () => getComputedStyle(mark).getPropertyValue("--st-background-color").trim();
      mark.dataset.seen ??= color();
      const timer = setInterval(() => {
        if (mark.dataset.seen === color()) return;
        mark.dataset.seen = color();
        setTriggerValue("changed", color());
      }, 300);
      return () => clearInterval(timer);
    }
    """,
)


def theme_watch(key: str) -> None:
    """Watch the theme; nothing is seen of it."""
    _component(key=key, on_changed_change=lambda: None, height="content", width="content")
