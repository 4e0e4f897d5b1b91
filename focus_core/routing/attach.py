"""Attaching routers to a model: the ones that a caller names, or those shipped for the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from focus_core.errors import FocusError
from focus_core.models import LoadedModel, load_model
from focus_core.progress import Progress
from focus_core.routing.model import FocusModel, retrofit, retrofit_shipped
from focus_core.shipped import shipped_routers


def attach(loaded: LoadedModel, routers: str | Path | None, *, untrained: bool) -> FocusModel:
    """Attach the routers of a folder or a shipped name, untrained ones, or those shipped for the model.

    Raises:
        FocusError: none of these fit the model, or both routers and untrained ones are asked for.
    """
    if untrained and routers is not None:
        raise FocusError(
            f"Routers ({routers}) and untrained ones exclude each other: leave --routers or --untrained out."
        )
    if untrained:
        return retrofit(loaded.model, seed=0)
    if routers is not None:
        return FocusModel.from_pretrained(loaded.model, routers)
    found = retrofit_shipped(loaded.model, shipped_routers())
    if found is not None:
        return found
    raise FocusError(
        f"No shipped routers fit {loaded.info.name}: train some with focus train, name a folder with --routers, "
        "or use --untrained."
    )


@contextmanager
def attached(
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    *,
    untrained: bool = False,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Iterator[tuple[LoadedModel, FocusModel]]:
    """A model with routers for the length of a `with` block; routers that were attached here are detached after it.

    Args:
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` that is attached to the model already; None for those
            shipped for the model.
        untrained: attach untrained routers (seed 0) instead.
        dtype: of the weights, where the model is loaded here.
        progress: see `load_model`.

    Yields:
        The loaded model and the model with routers.

    Raises:
        FocusError: the model cannot be loaded, or none of these routers fit it.
    """
    loaded = model if isinstance(model, LoadedModel) else load_model(model, dtype=dtype, progress=progress)
    if isinstance(routers, FocusModel):
        if routers.model is not loaded.model:
            raise FocusError("These routers are attached to another model: give the loaded model that they belong to.")
        yield loaded, routers
        return
    focus = attach(loaded, routers, untrained=untrained)
    try:
        yield loaded, focus
    finally:
        focus.detach()
