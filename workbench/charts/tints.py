"""Tints of tokens by a value: from the page's own ground to one strong tone."""

from __future__ import annotations

import math

from focus_core.analysis.display.palette import ink

WORSE, BETTER = ("#D55E00", "#F28E2B"), ("#0072B2", "#56B4E9")
"""Orange and blue, which every eye tells apart; each on light and on dark pages."""
GROUND = ("#FFFFFF", "#171614")
"""Ground of light and dark pages."""
_FAINTEST = 0.05
_ENDS = (1.0, 1.2, 1.6, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)


def tint(weight: float, tone: str, *, dark: bool = False) -> tuple[str, str]:
    """Fill and ink of a token, "#RRGGBB"; empty where the tint would be too faint to see.

    Args:
        weight: 0 for the page's ground to 1 for the tone; more counts as 1.
        tone: "#RRGGBB".
        dark: for a dark page.
    """
    if not weight >= _FAINTEST:  # NaN is no value
        return "", ""
    weight = min(1.0, weight)
    ground = GROUND[dark]
    mixed = "#" + "".join(
        f"{round(int(ground[at : at + 2], 16) * (1 - weight) + int(tone[at : at + 2], 16) * weight):02X}"
        for at in (1, 3, 5)
    )
    return mixed, ink(mixed)


def round_end(value: float) -> float:
    """The end of a scale that reaches a value above 0: a short number whose quarters are short too."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _ENDS if step * power >= value * (1 - 1e-9))
