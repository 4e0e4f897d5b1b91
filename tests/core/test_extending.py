"""docs/extending.md: its code runs from top to bottom, and adds one entry to every registry."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from focus_core.attention.registry import BACKENDS
from focus_core.baselines import BASELINES
from focus_core.routing.balance import BALANCES
from focus_core.routing.gate import GATES
from focus_core.routing.routers import ROUTERS
from focus_core.training.objectives import OBJECTIVES

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
REGISTRIES: dict[str, dict[str, Any]] = {
    "BACKENDS": BACKENDS,
    "BALANCES": BALANCES,
    "BASELINES": BASELINES,
    "GATES": GATES,
    "OBJECTIVES": OBJECTIVES,
    "ROUTERS": ROUTERS,
}


@contextmanager
def restored() -> Iterator[None]:
    """Registries are afterwards what they were before, in the same order."""
    before = {name: dict(registry) for name, registry in REGISTRIES.items()}
    try:
        yield
    finally:
        for name, registry in REGISTRIES.items():
            registry.clear()
            registry.update(before[name])


def test_the_page_adds_one_of_each_and_uses_it():
    text = PAGE.read_text(encoding="utf-8")
    before = {name: list(registry) for name, registry in REGISTRIES.items()}
    names: dict[str, Any] = {}
    with restored():
        for code in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
            line = text.count("\n", 0, code.start(1))
            exec(compile("\n" * line + code.group(1), str(PAGE), "exec"), names)
        added = {name: list(registry)[len(before[name]) :] for name, registry in REGISTRIES.items()}
    assert all(len(new) == 1 for new in added.values()), added
    assert {name: list(registry) for name, registry in REGISTRIES.items()} == before


def test_the_page_names_every_registry():
    table = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    assert set(REGISTRIES) == set(re.findall(r"`([A-Z]+)` in `focus_core/", table))
