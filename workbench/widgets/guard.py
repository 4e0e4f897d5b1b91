"""Show every error as a sentence in the page, never as a traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from focus_core.errors import FocusError
from workbench.widgets.page.markup import plain

logger = logging.getLogger(__name__)


@contextmanager
def guarded() -> Iterator[None]:
    """Show an error of the code inside as a box in the page.

    A `FocusError` shows its sentence. Any other error shows an apology with its first line, and its traceback goes to
    the terminal. Streamlit's own control flow (stop, rerun) passes through.
    """
    try:
        yield
    except FocusError as error:
        say(error)
    except Exception as error:
        logger.exception("Unexpected error in a page")
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
        st.error(
            plain(
                f"Sorry, an unexpected error occurred ({reason}). Reload the page, or try another text or model. The "
                "terminal that runs the workbench has the details."
            ),
            icon=":material/bug_report:",
        )


def say(error: FocusError) -> None:
    """Show the sentence of an error in a box."""
    st.error(plain(str(error)), icon=":material/error:")
