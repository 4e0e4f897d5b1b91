"""One published table or figure by its name, as `focus reproduce NAME` measures it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.reproduce import registry
from focus_core.reproduce.context import Context
from focus_core.reproduce.runner import run_experiment


def reproduce(
    name: str,
    *,
    scale: dict[str, int] | None = None,
    out: Path | None = None,
    only: list[str] | None = None,
    **inputs: Any,
) -> dict[str, Any]:
    """Measure every cell of an experiment that is not stored yet.

    Args:
        name: key of `focus_core.reproduce.registry.EXPERIMENTS`.
        scale: values of `Scale` in place of the experiment's own.
        out: folder of the run; see `run_experiment`.
        only: names of the cells to run; all when None.
        inputs: values of `Context`, such as `held_out` and `routers`.

    Returns:
        The record; see `run_experiment`.

    Raises:
        FocusError: there is no such experiment; otherwise as `run_experiment`.
    """
    experiment = registry.EXPERIMENTS.get(name)
    if experiment is None:
        raise FocusError(f"There is no experiment {name!r}: choose one of {', '.join(registry.EXPERIMENTS)}.")
    context = Context(scale=replace(experiment.scale, **(scale or {})), folder=Path(), **inputs)
    return run_experiment(name, experiment, context, out=out, only=only)
