"""How fast a machine is: rates that a command measured here, and those of a data sheet that nobody measured."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from focus_core.errors import FocusError
from focus_core.io.schema import array, number, table, text


@dataclass(frozen=True)
class Rates:
    """Speeds of a machine, and the time that everything else takes.

    FLOP/s of one kind of work each, all without what belongs to another. Times are per layer.

    Attributes:
        matmul: FLOP/s of products with weights.
        attention: FLOP/s of full causal attention in prefill.
        exact: FLOP/s of the pairs that narrow groups attend exactly in prefill.
        pages: FLOP/s of the (query, page) pairs in prefill, the choice of pages included.
        assign: FLOP/s of the assignment of keys to groups.
        step_attention: FLOP/s of full attention of one decoded token, the growing cache included.
        step_exact: FLOP/s of the pairs that narrow groups attend exactly in decode.
        step_pages: FLOP/s of the (query head, page) pairs in decode, the choice of pages included.
        bandwidth: bytes/s from memory.
        network: bytes/s that a device sends to others.
        token_s: seconds of a token in prefill beyond all of this: norms, rotary embeddings, activations.
        routed_token_s: more of them with narrow groups: pages of the cache.
        step_s: seconds of a decoded token beyond all of this.
        routed_step_s: more of them with narrow groups.
    """

    matmul: float
    attention: float
    exact: float
    pages: float
    assign: float
    step_attention: float
    step_exact: float
    step_pages: float
    bandwidth: float
    network: float
    token_s: float = 0.0
    routed_token_s: float = 0.0
    step_s: float = 0.0
    routed_step_s: float = 0.0

    @classmethod
    def of_sheet(cls, flops: float, bandwidth: float, network: float) -> Rates:
        """All work at one speed and nothing besides: the bounds that a data sheet gives.

        Args:
            flops: FLOP/s.
            bandwidth: bytes/s of memory.
            network: bytes/s to other devices.
        """
        return cls(*[flops] * 8, bandwidth=bandwidth, network=network)

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Rates:
        """The rates of a record of `focus bench scale`.

        Raises:
            FocusError: the record lacks one.
        """
        return cls.of_constants({row["name"]: row["value"] for row in record["constants"]})

    @classmethod
    def of_constants(cls, found: dict[str, float]) -> Rates:
        """The rates among measured constants, of one machine without a network."""
        names = [field.name for field in fields(cls) if field.name != "network"]
        least = {name: 0 if name.endswith("_s") else SLOWEST for name in names}
        missing = [name for name in names if not found.get(name, -1) >= least[name]]
        if missing:
            raise FocusError(f"The record has no {missing[0]}: name one that focus bench scale wrote.")
        return cls(**{name: found[name] for name in names}, network=NO_NETWORK)

    def with_kernels_of(self, other: Rates) -> Rates:
        """These rates, with attention to pages as much slower than full attention as it is on another machine.

        Where it is faster for each pair there, which says that full attention is far from that machine's best, it is
        as fast here.

        Args:
            other: rates whose ratios are taken.
        """
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("exact", "pages", "assign"):
            found[name] = self.attention * min(1.0, getattr(other, name) / other.attention)
        return Rates(**found)


SLOWEST, FASTEST = 1e3, 1e30
"""Rates of any device, and far beyond."""
RECORD = table({"constants": array(table({"name": text(), "value": number(0, FASTEST)}))})
"""Check of a record of `focus bench scale`."""

NO_NETWORK = float("inf")
"""One machine sends nothing."""

SHEETS = {
    # https://www.nvidia.com/en-us/data-center/h100/: SXM, bfloat16 without sparsity, HBM3, NVLink in one direction.
    "h100": Rates.of_sheet(989e12, 3.35e12, 450e9),
}
"""Data sheets by name. Nobody measured these values here."""
