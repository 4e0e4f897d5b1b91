"""Choosing the pairs of content-based baselines as fast as we can, for timing: a tile of queries at a time.

`focus_core.baselines.selection` and `estimates` define each choice over a mask of all pairs. Here blocks and clusters
are ranked as such: no score is repeated for their keys. SparQ scores all distant keys of a tile in one product. Kept
keys are those above the smallest kept score, found by partition rather than by sorting. Margins over it become the
kernel's bias at once, which spares the passes over a mask. The chosen pairs are the defined ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.baselines import estimates, selection
from focus_core.baselines.case import Case
from focus_core.baselines.clusters import segment_clusters
from focus_core.baselines.estimates import Tables
from focus_core.baselines.execution import NEARLY_ALL, Choose, Rows, as_bias, used_keys
from focus_core.baselines.hashing import collisions
from focus_core.baselines.layout import per_query_budget
from focus_core.baselines.learned import BlockGates, Indexer
from focus_core.baselines.learned.indexer import index_keys
from focus_core.baselines.learned.lesson import learner_of
from focus_core.baselines.learned.seer import described

CHUNK = 512
"""Queries for which reference code makes its mask at once."""
SORTED = 1024
"""Scores of a row up to which sorting all is faster than finding one by partition."""

TIE = 1e-20
"""Factor of recency that parts scores of 0, and changes no others."""

STEEP = 1e30
"""Factor from the margin of a pair that is not kept to its bias."""

Distant = Callable[[Rows, int], tuple[Tensor, Tensor]]
"""Of rows and the end of their distant keys: keys (n,), ascending from the sinks on, and margins (r, n) float32.

A distant pair is kept if its margin is at least 0. Margins of other pairs have no influence.
"""


def fast_choice(name: str, case: Case) -> Choose | None:
    """The choice of a baseline, ready to be asked for tiles; None where this module has none.

    The work that is done once for a text (hashes, clusters, bounds of blocks) is done here.

    Args:
        name: key of `focus_core.baselines.METHODS`.
        case: one text and one key/value head: query (1, G, T, D), key and value (1, 1, T, D), not repeated.
    """
    prepare = CHOICES.get(name)
    if prepare is None:
        return None
    distant = prepare(case)
    return lambda rows: _with_open(case, rows, distant)


def reference_choice(case: Case, keep: Callable[[Case], Tensor]) -> Choose:
    """The choice of a baseline by its own function, which masks all pairs; for tiles of a size that divides `CHUNK`.

    Args:
        case: as of `fast_choice`.
        keep: as in `Baseline.keep`.
    """
    whole = repeated(case)

    @lru_cache(maxsize=1)
    def chunk(first: int) -> Tensor:
        mask = keep(whole.part(first, min(first + CHUNK, case.key.shape[2])))
        return mask.reshape(-1, *mask.shape[-2:])

    def choose(rows: Rows) -> tuple[slice | Tensor, Tensor]:
        first = rows.start // CHUNK * CHUNK
        mask = chunk(first)[:, rows.start - first : rows.end - first, : rows.end]
        return used_keys(mask[rows.heads] if len(mask) > 1 else mask, rows.count)

    return choose


def repeated(case: Case) -> Case:
    """The case of one key/value head as baselines are defined: keys and values as views for every query head."""
    group = case.query.shape[1]
    return replace(case, key=case.key.expand(-1, group, -1, -1), value=case.value.expand(-1, group, -1, -1))


def _with_open(case: Case, rows: Rows, distant: Distant) -> tuple[slice | Tensor, Tensor]:
    """The chosen distant pairs of some rows, with local pairs and sinks."""
    sinks = min(case.sinks, rows.end)
    end = max(sinks, rows.end - 1 - case.window)  # of keys that are distant to some row
    place = torch.arange(rows.start, rows.end, device=case.query.device)[:, None]
    ahead, near = (torch.arange(*ends, device=place.device) for ends in ((0, sinks), (end, rows.end)))
    keys, biases = [ahead], [as_bias(ahead <= place).repeat(rows.count, 1)]
    if end > sinks:
        columns, margin = distant(rows, end)
        late = int(torch.searchsorted(columns, rows.start - case.window))  # from there on, local to some rows
        apart = (place - columns[late:]).repeat(rows.count, 1)
        margin[:, late:].masked_fill_(apart <= case.window, 0.0).masked_fill_(apart < 0, float("-inf"))
        bias = margin.clamp_(max=0).mul_(STEEP)
        used = (bias.amax(0) == 0).nonzero()[:, 0]
        if len(used) < NEARLY_ALL * len(columns):
            columns, bias = columns[used], bias.index_select(1, used)
        keys.append(columns)
        biases.append(bias)
    keys.append(near)
    biases.append(as_bias(near <= place).repeat(rows.count, 1))
    found = torch.cat(keys)
    return (slice(0, rows.end) if len(found) == rows.end else found), torch.cat(biases, 1)


def _budget(case: Case) -> int:
    """Distant keys of a query beside the sinks."""
    return max(0, per_query_budget(case.layout.distant_keys, case.share) - case.sinks)


def _largest(scores: Tensor, *ranks: int) -> list[Tensor]:
    """(r, 1) each: the score at some ranks of every row, 1 for the largest; -inf beyond the last."""
    count = scores.shape[1]
    inside = sorted({count - rank for rank in ranks if rank <= count})
    if not inside:
        found = {}
    elif scores.device.type == "cpu":
        values = scores.numpy()
        ordered = np.sort(values, axis=-1) if count <= SORTED else np.partition(values, inside, axis=-1)
        found = {place: torch.from_numpy(ordered[:, place, None]) for place in inside}
    else:
        ordered = scores.topk(count - inside[0], dim=-1).values
        found = {place: ordered[:, count - place - 1, None] for place in inside}
    beyond = torch.full((len(scores), 1), float("-inf"), device=scores.device)
    return [found.get(count - rank, beyond) for rank in ranks]


def _best(case: Case, score: Callable[[Rows, slice], Tensor]) -> Distant:
    """The distant keys with the highest scores; `score` gives those of rows and a slice of keys, (r, n) float32."""
    budget = _budget(case)

    def distant(rows: Rows, end: int) -> tuple[Tensor, Tensor]:
        columns = torch.arange(case.sinks, end, device=case.query.device)
        if budget == 0:
            return columns, torch.full(
                (rows.count * (rows.end - rows.start), len(columns)), -1.0, device=columns.device
            )
        scores = score(rows, slice(case.sinks, end))
        late = max(0, rows.start - case.window - case.sinks)  # from there on, distant to some rows alone
        place = torch.arange(rows.start, rows.end, device=columns.device)[:, None]
        scores[:, late:].masked_fill_((columns[late:] >= place - case.window).repeat(rows.count, 1), float("-inf"))
        return columns, scores.sub_(_largest(scores, budget)[0])

    return distant


def _sparq(case: Case) -> Distant:
    """The products of `selection.sparq` without their positive factors of a query, which change no order."""
    query, key = case.query[0].float(), case.key[0, 0].float()
    count = int((case.setting or selection.SPARQ_GRID[0])["components"] * query.shape[-1])
    largest = query.abs().topk(max(1, count), dim=-1, sorted=False).indices
    part = torch.zeros_like(query).scatter_(-1, largest, query.gather(-1, largest))
    return _best(case, lambda rows, keys: rows.of(part) @ key[keys].T)


def _lsh(case: Case) -> Distant:
    """Collisions of `selection.lsh`, of equal ones later keys first."""
    rotation = selection._rotations(case)
    ours, theirs = (selection._hash(part, rotation) for part in (case.query, case.key))
    return _best(case, lambda rows, keys: _hits(ours, theirs, rows, keys).add_(case.recency[keys]))


def _magicpig(case: Case) -> Distant:
    """The sampled keys of `estimates.magicpig`: two collisions or more."""
    tables: Tables = case.fitted
    ours = theirs = torch.zeros(0)
    if tables.number is not None:
        planes = estimates._own_planes(case)
        ours, theirs = (estimates._codes(part, planes) for part in (case.query, estimates._centred(case, tables)))

    def distant(rows: Rows, end: int) -> tuple[Tensor, Tensor]:
        columns = torch.arange(case.sinks, end, device=case.query.device)
        if tables.number is None:
            return columns, torch.zeros(rows.total, len(columns), device=columns.device)
        return columns, _hits(ours, theirs, rows, slice(case.sinks, end)).sub_(1.5)

    return distant


def _hits(ours: Tensor, theirs: Tensor, rows: Rows, keys: slice) -> Tensor:
    """(r, n) float32: collisions of codes (L, 1, G, T) of queries with those of keys, (L, 1, 1, T)."""
    return collisions(ours[:, :, rows.heads, rows.start : rows.end], theirs[..., keys])[0].flatten(0, 1).float()


def _quest(case: Case) -> Distant:
    """Blocks by their upper bound, in one product."""
    query = case.query[0].float()
    halves = torch.cat([query.clamp(min=0), query.clamp(max=0)], -1)
    low, high = selection._bounds(case)
    return _best_blocks(case, halves, torch.cat([high[0, 0], low[0, 0]], -1), selection._block_size(case))


def _moba(case: Case) -> Distant:
    """Blocks by the product of query and mean key."""
    return _best_blocks(case, case.query[0].float(), selection._means(case)[0, 0], selection._block_size(case))


def _seer(case: Case) -> Distant:
    """Blocks by the product of the mapped query and the described block."""
    gates = learner_of(case, BlockGates)
    return _best_blocks(case, case.query[0].float() @ gates.query_map, described(case)[0, 0], gates.block)


def _indexer(case: Case) -> Distant:
    """Keys by their index scores, of equal ones (often 0) later keys first; one choice for all query heads."""
    indexer, keys = learner_of(case, Indexer), index_keys(case)

    def score(rows: Rows, among: slice) -> Tensor:
        assert case.hidden is not None
        places = torch.arange(rows.start, rows.end, device=keys.device)
        scores = indexer.scores(case.hidden[:, rows.start : rows.end], places, keys[:, among])[0]
        return scores.add_(case.recency[among] * TIE)

    best = _best(case, score)

    def distant(rows: Rows, end: int) -> tuple[Tensor, Tensor]:
        columns, margin = best(replace(rows, heads=slice(0, 1)), end)
        return columns, margin.repeat(rows.count, 1)

    return distant


def _best_blocks(case: Case, query: Tensor, blocks: Tensor, size: int) -> Distant:
    """The blocks (N, D') with the highest products with the query (G, T, D'); of the last one the nearest keys."""
    budget, device = _budget(case), query.device
    start = torch.arange(len(blocks), device=device, dtype=torch.float32) * size
    inner, rank = torch.arange(size, device=device), -(-budget // size)

    def distant(rows: Rows, end: int) -> tuple[Tensor, Tensor]:
        many = -(-end // size)
        place = torch.arange(rows.start, rows.end, device=device)[:, None]
        stop = (place - case.window).minimum(start[:many] + size).repeat(rows.count, 1)  # of distant keys of a block
        able = (stop - start[:many].clamp(min=case.sinks)).clamp(min=0)
        taken = torch.zeros_like(able)
        if budget:
            scores = (rows.of(query) @ blocks[:many].T).masked_fill_(able == 0, float("-inf"))
            # The budget ends in one of these, because blocks with sinks or local keys are short.
            edges = _largest(scores, rank, rank + 1, rank + 2)
            taken = able * (scores > edges[0])
            for edge in edges:
                rest = (budget - taken.sum(1, keepdim=True)).clamp(min=0)
                taken += able.minimum(rest) * (scores == edge)
        wanted = taken.amax(0) > 0
        wanted[max(0, rows.start - case.window) // size :] = True  # local to some row
        wanted = wanted.nonzero()[:, 0]
        first = (stop - taken - start[:many]).index_select(1, wanted)
        columns = (wanted[:, None] * size + inner).flatten()
        inside = slice(*(int(torch.searchsorted(columns, edge)) for edge in (case.sinks, end)))
        return columns[inside], ((inner + 0.5) - first[..., None]).flatten(1)[:, inside]

    return distant


def _kmeans(case: Case) -> Distant:
    """Clusters by the nearness of their centroids."""
    centroids = F.normalize(case.fitted.centroids[0].to(case.query), dim=-1)
    labels = (case.key[0, 0] @ centroids.T).argmax(-1)
    return _best_groups(case, centroids, labels)


def _clusters(case: Case) -> Distant:
    """Clusters of the text's own keys by the product with their mean key."""
    found = segment_clusters(case)
    return _best_groups(case, found.keys[0, 0], found.labels[0, 0])


def _best_groups(case: Case, means: Tensor, labels: Tensor) -> Distant:
    """The groups with the highest products of query and mean (C, D); of the last one the nearest keys.

    Args:
        case: one key/value head.
        means: of the groups.
        labels: (T,) int64, the group of each key.
    """
    budget, query = _budget(case), case.query[0].float()
    members = F.one_hot(labels, len(means)).float()
    members[: case.sinks] = 0
    before = F.pad(members.cumsum(0), (0, 0, 1, 0))  # members among the first so many keys
    place = before[1:].gather(1, labels[:, None])[:, 0] - 0.5  # of a key in its group

    def distant(rows: Rows, end: int) -> tuple[Tensor, Tensor]:
        columns = torch.arange(case.sinks, end, device=labels.device)
        groups = labels[columns]
        many = int(groups.max()) + 1  # a text's own groups that begin later are not looked at
        index = torch.arange(rows.start, rows.end, device=labels.device)
        able = before[(index - case.window).clamp(min=0), :many].repeat(rows.count, 1)
        scores = (rows.of(query) @ means[:many].T).masked_fill_(able == 0, float("-inf"))
        order = scores.argsort(-1, descending=True)
        sizes = able.gather(1, order)
        taken = (budget - (sizes.cumsum(1) - sizes)).clamp(min=0).minimum(sizes)
        first = torch.zeros_like(able).scatter_(1, order, sizes - taken)
        return columns, place[columns] - first.index_select(1, groups)

    return distant


CHOICES: dict[str, Callable[[Case], Distant]] = {
    "clusters": _clusters,
    "indexer": _indexer,
    "kmeans": _kmeans,
    "lsh": _lsh,
    "magicpig": _magicpig,
    "moba": _moba,
    "quest": _quest,
    "seer": _seer,
    "sparq": _sparq,
}
"""Choices by the name of their baseline; any other baseline is asked for its mask of all pairs."""
