"""How many pairs the default routers keep in texts of other lengths, for tools/frontier_card.py and readme_card.py."""

from __future__ import annotations

from cards import ROOT
from safetensors.torch import load_file

from focus_core.evaluation.exposure import budget_exposure
from focus_core.routing.layer import reading_of
from focus_core.routing.routers.narrow import MEANS
from focus_core.routing.storage import saved_config
from focus_core.shipped import DEFAULT

LENGTHS = (512, 1024, 1536, 2048, 2304, 3072, 4096, 6144, 8192)
BETWEEN = 4096
"""The length between the two planned ones at which the README gives the share."""


def kept_at(length: int) -> float:
    """Share of the distant pairs that a text keeps at the routers' own mean share, without rounding to pages."""
    folder = ROOT / "data" / "routers" / DEFAULT
    config, tensors = saved_config(folder), load_file(folder / "routers.safetensors")
    assert config.read_share is not None
    place = MEANS.index(config.read_share)
    shares = [tensor[:, place].flatten().tolist() for name, tensor in tensors.items() if name.endswith("shares")]
    readings = [reading_of(config, config.top_k, config.read_share, tuple(each)) for each in shares]
    kept = budget_exposure(length, config, readings)
    return 1 - kept.removed / kept.distant


def by_length() -> str:
    """A sentence for the list of docs/frontier.md."""
    told = ", ".join(f"{kept_at(length):.1%} at {length:,}" for length in LENGTHS)
    return f"By length of the text in tokens, the default keeps {told}."
