"""`focus app`: open the workbench."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from focus_core.errors import FocusError


def app(
    port: Annotated[int, typer.Option(help="Port of the local web server.", min=1, max=65535)] = 8501,
    browser: Annotated[bool, typer.Option(help="Open a browser window.")] = True,
) -> None:
    """Open the workbench in the browser. It is served to this machine only; stop it with Ctrl-C."""
    from focus_core import resources
    from focus_core.models import default_model
    from focus_core.progress import terminal_progress

    script = resources.app_path()
    if not script.is_file() or importlib.util.find_spec("streamlit") is None:
        raise FocusError("The app is not installed here: run pip install focus-workbench.")
    with terminal_progress() as progress:
        default_model.fetch_default_model(progress)
    headless = [] if browser else ["--server.headless", "true"]
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.port", str(port), *headless]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
