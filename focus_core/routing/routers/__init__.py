"""The kinds of routers. A new one is a file in this folder and a line in `ROUTERS`."""

from focus_core.routing.routers.base import SCORES, Router
from focus_core.routing.routers.head import HeadRouter
from focus_core.routing.routers.layer import LayerRouter
from focus_core.routing.routers.narrow import NarrowRouter

ROUTERS: dict[str, type[Router]] = {
    "layer": LayerRouter,
    "head": HeadRouter,
    "narrow": NarrowRouter,
}
"""Router classes by their name in `FocusConfig.router`."""

__all__ = ["ROUTERS", "SCORES", "HeadRouter", "LayerRouter", "NarrowRouter", "Router"]
