"""Checks of values from files: types, ranges, and the entries that a table must have.

A check is a function of a value and its place, which raises `Wrong`. They are put together like the values:
`table({"points": array(table({"tokens": whole(1)}))})`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection, Mapping
from typing import Any

Check = Callable[[Any, str], None]
"""Called with a value and its place, such as "points[3].tokens"; raises `Wrong` for another value."""


class Wrong(ValueError):
    """A value that a check refuses; the message is a part of a sentence."""


def anything(value: Any, where: str) -> None:
    """Accept any value."""


def refused(value: Any, where: str) -> None:
    """Refuse any value: for entries that a table must not have."""
    raise Wrong(f"{where} is not known here")


def whole(low: int, high: int | None = None) -> Check:
    """A whole number from `low` to `high`; True and False are none."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not _inside(int(value), low, high):
            raise _wrong(value, where, f"a whole number {_range(low, high)}")

    return check


def number(low: float | None = None, high: float | None = None, *, above: float | None = None) -> Check:
    """A finite number from `low` to `high`, or above a bound."""

    def check(value: Any, where: str) -> None:
        real: Any = value if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
        if not abs(real) <= 1e300 or not _inside(real, low, high) or (above is not None and not real > above):
            raise _wrong(value, where, f"a finite number {_range(low, high, above)}".rstrip())

    return check


def text(choices: Collection[str] | None = None) -> Check:
    """A string, one of the choices if there are any."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str):
            raise _wrong(value, where, "text")
        if choices is not None and value not in choices:
            raise _wrong(value, where, f"one of {', '.join(sorted(choices))}")

    return check


def flag(value: Any, where: str) -> None:
    """Accept true and false."""
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")


def maybe(check: Check) -> Check:
    """A value that may also be null."""

    def either(value: Any, where: str) -> None:
        if value is not None:
            check(value, where)

    return either


def array(check: Check = anything, *, longest: int | None = None, least: int = 0) -> Check:
    """A list or tuple of values that each pass a check."""

    def each(value: Any, where: str) -> None:
        if not isinstance(value, (list, tuple)):
            raise _wrong(value, where, "a list")
        if len(value) < least or (longest is not None and len(value) > longest):
            raise Wrong(f"{where or 'it'} has {len(value):,} entries and must have {_range(least, longest)}")
        for index, entry in enumerate(value):
            check(entry, f"{where}[{index}]")

    return each


def table(required: Mapping[str, Check] = {}, optional: Mapping[str, Check] = {}, *, values: Check = anything) -> Check:
    """An object with these entries; other entries pass the check `values`."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        for name in required:
            if name not in value:
                raise Wrong(f"{_inner(where, name)} is missing")
        for name, entry in value.items():
            (required.get(name) or optional.get(name) or values)(entry, _inner(where, name))

    return check


def _inner(where: str, name: str) -> str:
    return f"{where}.{name}" if where else str(name)


def _inside(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _range(low: float | None, high: float | None, above: float | None = None) -> str:
    if above is not None:
        return f"above {above:,}" + ("" if high is None else f", at most {high:,}")
    if low is None:
        return "" if high is None else f"of at most {high:,}"
    return f"of at least {low:,}" if high is None else f"from {low:,} to {high:,}"


def _wrong(value: Any, where: str, wanted: str) -> Wrong:
    spelt = "null" if value is None else repr(value)
    return Wrong(f"{where or 'it'} is {spelt if len(spelt) <= 40 else spelt[:40] + '…'} and must be {wanted}")
