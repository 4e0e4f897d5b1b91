"""Published sparse and approximate attentions behind one signature, for comparison at the same kept share.

A new one is one function of `Case` and one line in `BASELINES`; its entry says how `focus bench baseline` executes it.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from focus_core.baselines.case import Baseline, Case, Result, attend_in_parts
from focus_core.baselines.estimates import (
    MAGICPIG_GRID,
    fit_tables,
    magicpig,
    magicpig_keys,
    performer,
    performer_features,
)
from focus_core.baselines.patterns import random_blocks, sliding_window, strided, window_and_sinks
from focus_core.baselines.selection import (
    KMEANS_GRID,
    LSH_GRID,
    PAGE_GRID,
    SPARQ_GRID,
    fit_kmeans,
    kmeans_routing,
    lsh,
    moba,
    quest,
    sparq,
    sparq_keys,
)


def exact(label: str, source: str, keep: Callable[[Case], Tensor], **more: Any) -> Baseline:
    """A baseline that is exact softmax attention over the pairs it keeps.

    Args:
        label: name in tables.
        source: paper.
        keep: the pairs, bool, broadcastable to (B, H, Tq, T).
        more: other attributes of `Baseline`.
    """
    return Baseline(label, source, lambda case: case.exactly(keep(case)), keep, **more)


BASELINES: dict[str, Baseline] = {
    "sliding": exact(
        "sliding window, no sinks", "Longformer, arXiv 2004.05150", sliding_window, fixed=True, window=True
    ),
    "streaming": exact("window + sinks", "StreamingLLM, arXiv 2309.17453", window_and_sinks, fixed=True, window=True),
    "strided": exact("strided", "Sparse Transformer, arXiv 1904.10509", strided, fixed=True),
    "bigbird": exact("random blocks", "BigBird, arXiv 2007.14062", random_blocks, fixed=True),
    "kmeans": exact(
        "k-means routing", "Routing Transformer, arXiv 2003.05997", kmeans_routing, fit=fit_kmeans, grid=KMEANS_GRID
    ),
    "lsh": exact("LSH", "Reformer, arXiv 2001.04451", lsh, grid=LSH_GRID),
    "magicpig": Baseline(
        "LSH sampling", "MagicPIG, arXiv 2410.16179", magicpig, magicpig_keys, fit_tables, grid=MAGICPIG_GRID
    ),
    "quest": exact("block top-k, bounds", "Quest, arXiv 2406.10774", quest, grid=PAGE_GRID),
    "moba": exact("block top-k, mean key", "MoBA, arXiv 2502.13189", moba, grid=PAGE_GRID),
    "sparq": Baseline("SparQ", "SparQ, arXiv 2312.04985", sparq, sparq_keys, grid=SPARQ_GRID),
    "performer": Baseline("random features", "Performer, arXiv 2009.14794", performer, features=performer_features),
}

__all__ = ["BASELINES", "Baseline", "Case", "Result", "attend_in_parts", "exact"]
