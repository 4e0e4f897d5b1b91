"""Which routers a command uses when it was not told."""

from __future__ import annotations

from focus_core.errors import FocusError
from focus_core.models import LoadedModel
from focus_core.resources import data_dir
from focus_core.retrofitting import FocusModel, retrofit


def attach(loaded: LoadedModel, routers: str | None, *, untrained: bool) -> FocusModel:
    """Attach the routers at a folder, untrained ones, or those shipped for the model.

    Raises:
        FocusError: none of these fit.
    """
    if untrained:
        return retrofit(loaded.model, seed=0)
    if routers is not None:
        return FocusModel.from_pretrained(loaded.model, routers)
    for folder in sorted((data_dir() / "routers").glob("*/")):
        try:
            return FocusModel.from_pretrained(loaded.model, folder)
        except FocusError:
            continue
    raise FocusError(
        f"No shipped routers fit {loaded.info.name}: train some with focus train, name a folder with --routers, "
        "or use --untrained."
    )
