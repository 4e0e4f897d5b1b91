"""How much there is to do: FLOPs, bytes and network of prefill, decode and training, as sums over the formulas.

A product of an (n, a) and an (a, b) matrix is 2 n a b FLOPs. Everything smaller (norms, rotary embeddings, softmax) is
left out; docs/scale.md measures it as time per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from focus_core.routing.config import FocusConfig
from focus_core.routing.narrow.cache.text import SPARE as SPARE_NEAR
from focus_core.routing.narrow.compiled.cache.storing import rows_together, without_row
from focus_core.scale.shapes import ModelShape


@dataclass(frozen=True)
class Attended:
    """What one query head attends to, summed over its queries.

    Attributes:
        exact: (query, key) pairs.
        pages: (query, page) pairs: each is scored by the mean key, and weighs the mean value if it is not read.
        distant: keys in pages before the last query.
        pages_held: pages before the last query.
    """

    exact: float
    pages: float
    distant: float
    pages_held: float


@lru_cache(maxsize=4096)
def attended(first: int, stop: int, config: FocusConfig | None) -> Attended:
    """What the queries at the places from `first` on attend to.

    Narrow groups are those of "Narrow groups, chosen by the query" in docs/method.md: borders, budget in pairs, pages.
    Pages are not chosen to the key, so the true number of pairs differs by half a page a query at most.

    Args:
        first: place of the first query, so the number of keys before it.
        stop: place after the last one.
        config: of narrow routers with a `read_share` and pages; None for full attention.
    """
    if config is None:
        keys = (first + stop + 1) / 2 * (stop - first)
        return Attended(keys, 0, 0, 0)
    query = np.arange(first, stop, dtype=np.float64)
    start = query // config.chunk * config.chunk
    border = np.maximum(0, start - config.window) // config.chunk * config.chunk
    border *= start >= config.full_below
    sinks = np.minimum(border, config.sink_tokens)
    distant, already = border - sinks, sinks + np.maximum(0, query - config.window - border)
    share = config.read_share or 0.0
    read = np.clip(share * (distant + already) - already, 0, distant)
    held = pages_of(distant, config)
    exact = query + 1 - distant + read
    return Attended(float(exact.sum()), float(held.sum()), float(distant[-1]), float(held[-1]))


def pages_of(keys: np.ndarray, config: FocusConfig) -> np.ndarray:
    """Pages of some distant keys: each of the K even groups leaves (P - 1) / 2 places free in its last page."""
    size = config.page_size or 1
    return np.minimum(keys, keys / size + config.num_groups * (size - 1) / (2 * size))


@dataclass(frozen=True)
class Flops:
    """FLOPs of a pass over whole texts, by what computes them.

    Attributes:
        matmul: of the weights.
        exact: dot products and weighted values of pairs.
        pages: the same of pages' means.
        assign: dot products of keys and centroids.
    """

    matmul: float
    exact: float
    pages: float
    assign: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.matmul + self.exact + self.pages + self.assign


def prefill_flops(shape: ModelShape, tokens: int, config: FocusConfig | None, *, logits: int = 1) -> Flops:
    """FLOPs of one text.

    ```
    matmul  2 T L (weights of a layer) + 2 (logits) V d
    exact   4 D H L (pairs)                    2 D for q.k, 2 D for the weighted value
    pages   4 D H L (query, page)              the same with means
    assign  2 T K D Hkv L
    ```

    Args:
        shape: of the model.
        tokens: T.
        config: of narrow routers; None for full attention.
        logits: places whose logits are computed.
    """
    found = attended(0, tokens, config)
    per_pair = 4 * shape.head_dim * shape.heads * shape.layers
    groups = 0 if config is None else config.num_groups
    return Flops(
        2 * (tokens * shape.layers * shape.layer_weights + logits * shape.head_weights),
        per_pair * found.exact,
        per_pair * found.pages,
        2 * tokens * groups * shape.head_dim * shape.kv_heads * shape.layers,
    )


def weight_bytes(shape: ModelShape, size: int) -> int:
    """Bytes of the matrices that a decoded token passes through; of the embedding table it reads one row.

    Args:
        shape: of the model.
        size: bytes of a number.
    """
    return (shape.layers * shape.layer_weights + shape.head_weights) * size


def cache_bytes(shape: ModelShape, tokens: int, size: int, config: FocusConfig | None) -> float:
    """Bytes of the keys and values of one text.

    Full attention keeps 2 Hkv D T L numbers. Narrow groups keep as many for sinks, window and 8 free places, and for
    the rows of every page; each of K even groups leaves half of those that a page takes at once free, and the last key
    of a page has no row. For each page they keep 2 D sums, the spread of its keys, r (r + 1) / 2 + 1 numbers, and two
    more, all of 4 bytes, and where its rows begin; for each distant key its group. In 8 bits a key and its value take
    2 D bytes and two scales of 4 bytes in a page, those of the last key, too.

    It is the size right after a prefill. Tokens that follow one by one make buffers of up to 1/128 more room.

    Args:
        shape: of the model.
        tokens: T.
        size: bytes of a number.
        config: of narrow routers; None for full attention.
    """
    pair = 2 * shape.head_dim * size
    heads = shape.kv_heads * shape.layers
    if config is None:
        return heads * tokens * pair
    found = attended(tokens, tokens + 1, config)
    stored = pair if config.cache_bits is None else 2 * shape.head_dim + 8
    size_of_page, spared = config.page_size or 1, without_row(config.cache_bits is not None)
    together = rows_together(size_of_page)
    pieces, r = -(-(size_of_page - spared) // together), config.spread_directions
    page = 4 * (2 * shape.head_dim + r * (r + 1) // 2 + 3 + pieces)
    near = tokens - found.distant + SPARE_NEAR
    rows = found.distant - spared * found.pages_held
    rows += min(config.num_groups, found.pages_held) * (together - 1) / 2
    group = 1 if config.num_groups <= 256 else 4
    return heads * (near * pair + rows * stored + found.pages_held * page + group * found.distant)


@dataclass(frozen=True)
class Step:
    """What one more token of each of several texts needs.

    Attributes:
        flops: of one token of each text.
        weights: bytes, read once for all texts.
        cache: bytes of keys, values and summaries that must come from memory, of all texts.
    """

    flops: Flops
    weights: float
    cache: float


def decode_step(shape: ModelShape, tokens: int, batch: int, size: int, config: FocusConfig | None) -> Step:
    """One more token after T others, for each text of a batch.

    Query heads that share a key/value head choose pages each for itself. A page comes from memory once for all that
    read it. `read_together` bounds how many that are.

    Args:
        shape: of the model.
        tokens: T, in the cache of each text.
        batch: texts.
        size: bytes of a number in weights and cache.
        config: of narrow routers; None for full attention.
    """
    found = attended(tokens, tokens + 1, config)
    per_pair = 4 * shape.head_dim * shape.heads * shape.layers
    groups = 0 if config is None else config.num_groups
    flops = Flops(
        2 * batch * (shape.layers * shape.layer_weights + shape.head_weights),
        batch * per_pair * found.exact,
        batch * per_pair * found.pages,
        batch * 2 * groups * shape.head_dim * shape.kv_heads * shape.layers,
    )
    near, rows = tokens + 1 - found.distant, found.distant
    if config is not None:
        rows -= without_row(config.cache_bits is not None) * found.pages_held
    read = read_together(max(0.0, found.exact - near) / max(1.0, found.distant), shape.sharing) * rows
    keys = 2 * shape.head_dim * size * (near + read)
    sums = 4 * (2 * shape.head_dim + 4) * found.pages
    return Step(flops, weight_bytes(shape, size), batch * shape.kv_heads * shape.layers * (keys + sums))


def read_together(share: float, sharing: int) -> float:
    """Share of the keys that at least one of G query heads reads, if they choose independently: 1 - (1 - p)^G.

    Heads that look for the same pages read less together, and never more than G p.

    Args:
        share: p, of one query head.
        sharing: G.
    """
    return 1 - (1 - share) ** sharing


def training_flops(shape: ModelShape, tokens: int, objective: str) -> Flops:
    """FLOPs of one block in one step that trains routers and leaves the base frozen.

    ```
    mass  2 T L (weights of a layer); 4 D H L T^2          forward, every pair because weights are taken whole
    lm    twice the weights, that of the logits included; 12 D H L T^2      and backward to the hidden states
    ```

    A frozen weight has no gradient of its own, so its backward pass costs as much as its forward pass, not twice.

    Args:
        shape: of the model.
        tokens: T, of the block.
        objective: "mass" or "lm".
    """
    layers, pairs = shape.layers * shape.layer_weights, shape.head_dim * shape.heads * shape.layers * tokens**2
    if objective == "mass":
        return Flops(2 * tokens * layers, 4 * pairs, 0, 0)
    return Flops(4 * tokens * (layers + shape.head_weights), 12 * pairs, 0, 0)


def dense_bytes(shape: ModelShape, tokens: int) -> int:
    """Bytes of the attention weights of one layer and block, which training takes whole: 4 H T^2, in float32."""
    return 4 * shape.heads * tokens**2


def router_parameters(shape: ModelShape, config: FocusConfig) -> int:
    """Trained numbers of the routers, "layer" or "head": L (d + K) d_g, or L Hkv (2 d + K) d_g."""
    if config.router == "layer":
        return shape.layers * (shape.width + config.num_groups) * config.route_dim
    return shape.layers * shape.kv_heads * (2 * shape.width + config.num_groups) * config.route_dim


def tensor_parallel_bytes(shape: ModelShape, tokens: int, size: int, gpus: int) -> float:
    """Bytes that each GPU sends in a pass: two all-reduces of the hidden states a layer, in a ring.

    Narrow groups add nothing: each GPU has the routers, pages and summaries of its own key/value heads.

    Args:
        shape: of the model.
        tokens: of all texts in the pass; one for each text in decode.
        size: bytes of a number.
        gpus: n; a ring sends 2 (n - 1) / n of what it sums.
    """
    return 2 * shape.layers * 2 * (gpus - 1) / gpus * tokens * shape.width * size


def sharded_bytes(shape: ModelShape, trained: int, size: int, gpus: int, objective: str) -> float:
    """Bytes that each GPU sends in a step of sharded training, whatever the length of its block.

    Weights are gathered once for the forward pass, and once more for a backward pass through the model. Gradients of
    the trained parameters, in float32, are summed and scattered.

    Args:
        shape: of the model.
        trained: parameters of the routers.
        size: bytes of a number in the weights.
        gpus: n.
        objective: "mass" or "lm".
    """
    passes = 1 if objective == "mass" else 2
    return (gpus - 1) / gpus * (passes * shape.parameters * size + 4 * trained)
