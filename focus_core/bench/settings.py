"""What a benchmark of attention calls measures: its points, and the settings that they share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from focus_core.attention.registry import BACKENDS
from focus_core.errors import FocusError
from focus_core.routing.config import FocusConfig
from focus_core.routing.routers import ROUTERS

HEADS = {"small": (9, 3, 64), "gpt2": (12, 12, 64), "llama": (32, 8, 128)}
"""Query heads, key/value heads and head size by name: SmolLM2-135M, GPT-2 124M, Llama 3 8B or Mistral 7B."""

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"sizes": (512, 1024, 2048, 4096), "routings": ((8, 1), (8, 2)), "dtypes": ("float32",)},
    "standard": {"sizes": (512, 1024, 2048, 4096, 8192, 16384, 32768)},
    "published": {
        "sizes": (1024, 4096, 16384, 32768, 65536, 262144, 1048576),
        "routings": ((4, 1), (8, 1), (8, 2), (16, 2)),
        "dtypes": ("bfloat16",),
    },
}
"""Points by name: a minute on 2 cores, up to 32K tokens, and the published curve for a GPU."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class BenchSettings:
    """Points to measure: every size with every (num_groups, top_k), dtype and backend.

    Attributes:
        sizes: numbers of tokens T.
        routings: pairs (K, k) of groups and groups per token; routing is random.
        shares: share of distant pairs that each routing keeps, with unequal groups; empty for equal groups.
        dtypes: "float32", "bfloat16" or "float16".
        router: "layer", or "head" for one routing per key/value head: a key is in one group, a query reads k; "narrow"
            for narrow groups, which need a share and have no k.
        backends: names of `focus_core.attention.BACKENDS`, or "auto"; narrow groups have some of them.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: size of a head.
        window: local window w.
        sink_tokens: number of tokens at the start that all later ones see.
        repetitions: smallest number of timed runs of a point, after one warm-up; short runs are repeated for a second.
        route_dim: width of the routing space, for the routing cost.
        width: width of the hidden states, for the routing cost; default heads * head_dim.
        device: "cpu" or "cuda".
        seed: of tensors and routing.
        beside_load: measure every point once more while another process is busy.
        directions: r, in which narrow groups tell the spread of keys apart.
    """

    sizes: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768)
    routings: tuple[tuple[int, int], ...] = ((8, 1), (8, 2), (16, 2))
    shares: tuple[float, ...] = ()
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    backends: tuple[str, ...] = ("auto",)
    router: str = "layer"
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    window: int = 128
    sink_tokens: int = 4
    repetitions: int = 5
    route_dim: int = 16
    width: int | None = None
    device: str = "cpu"
    seed: int = 0
    beside_load: bool = False
    directions: int = 0

    def __post_init__(self) -> None:
        for name in ("sizes", "heads", "kv_heads", "head_dim", "repetitions", "route_dim"):
            values = getattr(self, name)
            if not all(value >= 1 for value in (values if isinstance(values, tuple) else (values,))):
                raise FocusError(f"{name} is {values}: give numbers of at least 1.")
        if not all(0 <= share <= 1 for share in self.shares or ()):
            raise FocusError(f"The shares are {', '.join(map(str, self.shares or ()))}: give numbers from 0 to 1.")
        self._check_routings()
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise FocusError(f"dtype is {dtype!r}: choose one of {', '.join(DTYPES)}.")
        for backend in self.backends:
            if backend != "auto" and backend not in BACKENDS:
                raise FocusError(f"backend is {backend!r}: choose auto or one of {', '.join(BACKENDS)}.")
        if self.device.split(":")[0] == "cuda" and not torch.cuda.is_available():
            raise FocusError("device is 'cuda' and this machine has no CUDA device: choose cpu.")

    def _check_routings(self) -> None:
        if self.router in ROUTERS and ROUTERS[self.router].from_keys and self.routings and not self.shares:
            raise FocusError("Narrow groups read a share of the pairs: give one with --share, such as 0.15.")
        for num_groups, top_k in self.routings:
            self.config(num_groups, top_k)
            if self.router == "narrow" and top_k != 1:
                raise FocusError(
                    f"The routing is {num_groups}/{top_k}, and narrow groups have no k: write it as {num_groups}/1."
                )
        if self.shares and len(self.shares) != len(self.routings):
            raise FocusError(
                f"{len(self.shares)} shares for {len(self.routings)} routings: give one for each, or none."
            )
        if self.directions and (self.router != "narrow" or self.directions > self.head_dim):
            raise FocusError(
                f"directions is {self.directions}: only narrow groups have them, and at most head_dim, {self.head_dim}."
            )

    def config(self, num_groups: int, top_k: int) -> FocusConfig:
        """The settings of one routing.

        Raises:
            FocusError: they are out of range.
        """
        return FocusConfig(
            router=self.router,
            num_groups=num_groups,
            top_k=top_k,
            window=self.window,
            sink_tokens=self.sink_tokens,
            route_dim=self.route_dim,
        )

    def points(self) -> Iterable[dict[str, Any]]:
        """Every combination, short texts first."""
        for size in self.sizes:
            for (num_groups, top_k), share in zip(self.routings, self.shares or (None,) * len(self.routings)):
                for dtype in self.dtypes:
                    for backend in self.backends:
                        yield {
                            "tokens": size,
                            "num_groups": num_groups,
                            "top_k": top_k,
                            "share": share,
                            "dtype": dtype,
                            "backend": backend,
                        }
