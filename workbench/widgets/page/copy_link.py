"""A button that copies the page's link."""

from __future__ import annotations

from streamlit.components.v2 import component

_component = component(
    "focus-copy-link",
    html='<button type="button" title="Copy the link of this view. It holds the settings, never a text.">'
    "Copy link</button>",
    css="""
    :host { display: block; }
    button {
      font: inherit; font-size: .85rem; padding: .3rem .7rem; border-radius: 8px; cursor: pointer; white-space: nowrap;
      color: var(--st-text-color); background: none; border: 1px solid var(--st-border-color);
    }
    button:hover { border-color: var(--st-primary-color); }
    button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 1px; }
    """,
    js="""
    export default function ({ parentElement }) {
      const button = parentElement.querySelector("button");
      const say = (text) => {
        button.textContent = text;
        clearTimeout(button.later);
        button.later = setTimeout(() => { button.textContent = "Copy link"; }, 2000);
      };
      button.onclick = async () => {
        const link = window.location.href;
        try {
          await navigator.clipboard.writeText(link);
          say("Link copied");
        } catch {  // a page without permission, or not from this machine
          window.prompt("Copy this link:", link);
        }
      };
    }
    """,
)


def copy_link(key: str) -> None:
    """Draw the button; it copies the address of the moment it is pressed."""
    _component(key=key, data={}, height="content", width="content")
