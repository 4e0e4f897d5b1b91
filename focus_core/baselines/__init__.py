"""Published sparse and approximate attentions behind one signature, for comparison at the same kept share.

A new one is one function of `Case` and one line in `BASELINES`.
"""

from focus_core.baselines.case import Baseline, Case, Result
from focus_core.baselines.estimates import fit_tables, magicpig, performer
from focus_core.baselines.patterns import random_blocks, sliding_window, strided, window_and_sinks
from focus_core.baselines.selection import fit_kmeans, kmeans_routing, lsh, moba, quest, sparq

BASELINES: dict[str, Baseline] = {
    "sliding": Baseline("sliding window, no sinks", "Longformer, arXiv 2004.05150", sliding_window),
    "streaming": Baseline("window + sinks", "StreamingLLM, arXiv 2309.17453", window_and_sinks),
    "strided": Baseline("strided", "Sparse Transformer, arXiv 1904.10509", strided),
    "bigbird": Baseline("random blocks", "BigBird, arXiv 2007.14062", random_blocks),
    "kmeans": Baseline("k-means routing", "Routing Transformer, arXiv 2003.05997", kmeans_routing, fit_kmeans),
    "lsh": Baseline("LSH", "Reformer, arXiv 2001.04451", lsh),
    "magicpig": Baseline("LSH sampling", "MagicPIG, arXiv 2410.16179", magicpig, fit_tables),
    "quest": Baseline("block top-k, bounds", "Quest, arXiv 2406.10774", quest),
    "moba": Baseline("block top-k, mean key", "MoBA, arXiv 2502.13189", moba),
    "sparq": Baseline("SparQ", "SparQ, arXiv 2312.04985", sparq),
    "performer": Baseline("random features", "Performer, arXiv 2009.14794", performer, tunable=False),
}

__all__ = ["BASELINES", "Baseline", "Case", "Result"]
