"""Compiled code that works with addresses never uses one of an array that is freed already.

Numba frees an array that a function made after the last use of its name, whether or not its address is used later.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "focus_core"
COMPILED = sorted(path for path in CORE.rglob("*.py") if "njit" in path.read_text(encoding="utf-8"))
MAKERS = {"empty", "zeros", "ones", "full", "empty_like", "zeros_like", "full_like", "copy", "astype"}


def own_arrays_with_address(source: str) -> list[str]:
    """Names of arrays that a compiled function makes and takes the address of."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or "njit" not in ast.dump(ast.List(function.decorator_list)):
            continue
        made, addressed = set(), set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and any(
                isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in MAKERS
                for call in ast.walk(node.value)
            ):
                made |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            if isinstance(node, ast.Attribute) and node.attr == "ctypes":
                addressed |= {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
        found += [f"{function.name}: {name}" for name in sorted(made & addressed)]
    return found


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(CORE)))
def test_addresses_are_of_arrays_that_the_caller_holds(path: Path) -> None:
    assert own_arrays_with_address(path.read_text(encoding="utf-8")) == []


def test_such_an_array_would_be_found() -> None:
    source = "@njit(nogil=True)\ndef sums(n):\n    a, b = np.zeros(n), np.empty((n, 2))\n    return b.ctypes.data\n"
    assert own_arrays_with_address(source) == ["sums: b"]


def test_many_groups_are_found_in_memory_that_is_still_there() -> None:
    """Room for as many products is given back to the system when freed, so that its use ends the process."""
    program = """
import torch
from focus_core.routing.narrow.compiled.grouping import group_keys
centroids = torch.nn.functional.normalize(torch.randn(1, 2**17, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
places = torch.tensor([[[0, 5, 2**16, 2**17 - 1]]])
keys = centroids[:, places[0, 0]][None]
print(bool((group_keys(keys, None, None, centroids, torch.zeros(1, 2**17), 1.0, cosine=True) == places).all()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
