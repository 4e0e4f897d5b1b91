"""Which routers a model gets when nobody says."""

from __future__ import annotations

from focus_core.errors import FocusError
from focus_core.models import LoadedModel
from focus_core.routing.model import FocusModel, retrofit
from focus_core.shipped import shipped_routers


def attach(loaded: LoadedModel, routers: str | None, *, untrained: bool) -> FocusModel:
    """Attach the routers of a folder or a shipped name, untrained ones, or those shipped for the model.

    Raises:
        FocusError: none of these fit.
    """
    if untrained:
        return retrofit(loaded.model, seed=0)
    if routers is not None:
        return FocusModel.from_pretrained(loaded.model, routers)
    for name in shipped_routers():
        try:
            return FocusModel.from_pretrained(loaded.model, name)
        except FocusError:
            continue
    raise FocusError(
        f"No shipped routers fit {loaded.info.name}: train some with focus train, name a folder with --routers, "
        "or use --untrained."
    )
