"""Where errors end: a sentence in the page, never a traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from focus_core.errors import FocusError
from workbench.widgets.markup import plain

logger = logging.getLogger(__name__)


@contextmanager
def guarded() -> Iterator[None]:
    """Show what goes wrong inside as a box in the page.

    A `FocusError` shows its sentence. Anything unexpected shows an apology with the error's first line, and
    its traceback goes to the terminal. Streamlit's own control flow (stop, rerun) passes through.
    """
    try:
        yield
    except FocusError as error:
        st.error(plain(str(error)), icon=":material/error:")
    except Exception as error:
        logger.exception("Unexpected error in a page")
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
        st.error(
            plain(
                f"Sorry, something went wrong that should not have ({reason}). Reload the page, or try "
                "another text"
                " or model; the terminal that runs the workbench has the details."
            ),
            icon=":material/bug_report:",
        )
