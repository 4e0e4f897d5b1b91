"""Draws the page again in other colours where the theme of the page is not the one that charts were drawn for."""

from __future__ import annotations

import streamlit as st
from streamlit.components.v2 import component

from workbench.charts.theme import SCHEME, is_dark

_component = component(
    "focus-theme-watch",
    html="<span></span>",
    css=":host { display: none; }",
    js="""
    export default function ({ parentElement, data, setTriggerValue }) {
      const mark = parentElement.querySelector("span");
      let told = data.scheme;
      const timer = setInterval(() => {
        const scheme = getComputedStyle(mark).colorScheme;
        if (scheme === told || !["dark", "light"].includes(scheme)) return;
        told = scheme;
        setTriggerValue("changed", scheme);
      }, 300);
      return () => clearInterval(timer);
    }
    """,
)


def theme_watch(key: str) -> None:
    """Watch the theme; nothing is seen of it.

    Streamlit says which theme the browser asks for. The page has another one where `theme.base` is configured.
    """

    def remember() -> None:
        st.session_state[SCHEME] = st.session_state[key].changed

    drawn = "dark" if is_dark() else "light"
    _component(key=key, data={"scheme": drawn}, on_changed_change=remember, height="content", width="content")
