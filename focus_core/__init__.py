"""Focus: learned sparse attention for pretrained Hugging Face decoders.

Names are loaded on first use, so that ``focus_core.attention`` imports with torch alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from focus_core.analysis import Trace, analyze
    from focus_core.bench.crossover import crossover
    from focus_core.errors import FocusError
    from focus_core.models import load_model
    from focus_core.routing.config import FocusConfig
    from focus_core.routing.model import FocusModel, retrofit

_HOMES = {
    "FocusConfig": "focus_core.routing.config",
    "FocusError": "focus_core.errors",
    "FocusModel": "focus_core.routing.model",
    "Trace": "focus_core.analysis",
    "analyze": "focus_core.analysis",
    "crossover": "focus_core.bench.crossover",
    "load_model": "focus_core.models.loading",
    "retrofit": "focus_core.routing.model",
}

__all__ = ["FocusConfig", "FocusError", "FocusModel", "Trace", "analyze", "crossover", "load_model", "retrofit"]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'focus_core' has no attribute {name!r}")
