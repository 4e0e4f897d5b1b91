"""One published table or figure by its name, as `focus reproduce NAME` measures it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.reproduce import registry
from focus_core.reproduce.context import Context
from focus_core.reproduce.runner import Experiment, run_experiment

SPELT = {"tasks": "--task", "ranks": "--rank", "rates": "--learning-rate"}
"""Options of the command that have another name than their input."""
_COMMON = ("models", "device", "seed", "progress")


def reproduce(
    name: str,
    *,
    scale: dict[str, int] | None = None,
    out: Path | None = None,
    only: list[str] | None = None,
    copy: Path | None = None,
    **inputs: Any,
) -> dict[str, Any]:
    """Measure every cell of an experiment that is not stored yet.

    Args:
        name: key of `focus_core.reproduce.registry.EXPERIMENTS`.
        scale: values of `Scale` in place of the experiment's own.
        out: folder of the run; see `run_experiment`.
        only: names of the cells to run; all when None.
        copy: a file that gets the record, too.
        inputs: values of `Context`, such as `held_out` and `routers`.

    Returns:
        The record; see `run_experiment`.

    Raises:
        FocusError: there is no such experiment; otherwise as `run_experiment`.
    """
    experiment = registry.EXPERIMENTS.get(name)
    if experiment is None:
        raise FocusError(f"There is no experiment {name!r}: choose one of {', '.join(registry.EXPERIMENTS)}.")
    given = given_of({**(scale or {}), **inputs})
    for option in given:
        if not experiment.acts(option, given):
            raise FocusError(f"{spelt(option)} changes nothing in {name} here: {_remedy(experiment, option, given)}.")
    context = Context(scale=replace(experiment.scale, **(scale or {})), folder=Path(), **inputs)
    return run_experiment(name, experiment, context, out=out, only=only, copy=copy)


def given_of(inputs: Mapping[str, Any]) -> list[str]:
    """Names of sizes and inputs that have a value, without those that every experiment has."""
    return [name for name, value in inputs.items() if name not in _COMMON and value not in (None, (), [])]


def of_experiment(name: str, scale: dict[str, int], inputs: dict[str, Any]) -> tuple[dict[str, int], dict[str, Any]]:
    """The sizes and inputs that change an experiment, of those for several."""
    experiment, given = registry.EXPERIMENTS[name], given_of({**scale, **inputs})
    kept = {option for option in given if experiment.acts(option, given)} | {"device", "seed"}
    own = {option: value for option, value in inputs.items() if option in kept}
    if "models" in inputs:
        own["models"] = inputs["models"][: max(1, experiment.most_models)]
    return {size: value for size, value in scale.items() if size in kept}, own


def spelt(name: str) -> str:
    """The option of the command for a size or an input."""
    return SPELT.get(name, f"--{name.replace('_', '-')}")


def _remedy(experiment: Experiment, option: str, given: Collection[str]) -> str:
    if option not in experiment.options:
        known = [name for name, each in registry.EXPERIMENTS.items() if option in each.options]
        return f"leave it out, since it belongs to {', '.join(known)}"
    if option in experiment.beside:
        return f"give {spelt(experiment.beside[option])}, or leave it out"
    return f"leave out it or {spelt(experiment.instead[option])}"
