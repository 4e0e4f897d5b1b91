"""Published sparse and approximate attentions behind one signature, for comparison at the same kept share.

A new one is one function of `Case` and one line in `BASELINES`; its entry says how `focus bench baseline` executes it.
`LEARNED` ones need training (`focus_core.baselines.learned.train`), `ORACLES` the attention that they save.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from focus_core.baselines.case import Baseline, Case, Result, attend_in_parts
from focus_core.baselines.clusters import CLUSTERS_GRID, clusters, clusters_keys
from focus_core.baselines.estimates import (
    MAGICPIG_GRID,
    fit_tables,
    magicpig,
    magicpig_keys,
    performer,
    performer_features,
)
from focus_core.baselines.learned import indexer_keys, seer_keys
from focus_core.baselines.oracles import best_groups, best_reading, best_tokens, best_tokens_and_mean
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
    "clusters": Baseline(
        "clusters and their means", "RetroInfer, arXiv 2505.02922", clusters, clusters_keys, grid=CLUSTERS_GRID
    ),
    "performer": Baseline("random features", "Performer, arXiv 2009.14794", performer, features=performer_features),
}

LEARNED: dict[str, Baseline] = {
    "seer": exact("learned block gates", "SeerAttention, arXiv 2410.13276", seer_keys),
    "indexer": exact("learned token indexer", "DeepSeek-V3.2, arXiv 2512.02556", indexer_keys, per_layer=True),
}
"""Baselines whose `Case.fitted` is trained beforehand; names as in `focus_core.baselines.learned.LEARNERS`."""

ORACLES: dict[str, Baseline] = {
    "topk": exact("oracle: best tokens", "", best_tokens, oracle=True),
    "topk-mean": Baseline("oracle: best tokens, mean of the rest", "", best_tokens_and_mean, best_tokens, oracle=True),
    "best-reading": exact("oracle: best reading of the routers' groups", "", best_reading, oracle=True),
    "best-groups": exact("oracle: best groups, read by mean key", "", best_groups, oracle=True),
}
"""Bounds that part the loss of the others; the last two need the routers' groups."""

METHODS: Mapping[str, Baseline] = ChainMap(BASELINES, LEARNED, ORACLES)
"""All of them by name."""

__all__ = ["BASELINES", "LEARNED", "METHODS", "ORACLES", "Baseline", "Case", "Result", "attend_in_parts", "exact"]
