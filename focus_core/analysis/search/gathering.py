"""Groups that hold more of some tokens than chance: lift with interval, and p-values over all groups at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import xlogy

from focus_core.analysis.routed_text import RoutedText
from focus_core.analysis.statistics.intervals import LEVEL, bootstrap_weights
from focus_core.errors import FocusError
from focus_core.evaluation.compare import MIN_BLOCKS

BLOCKS = 32
"""Stretches of the text that the intervals draw from, at most."""
MIN_BLOCK_TOKENS = 32
RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class HeadGroups:
    """First groups of T tokens.

    Attributes:
        layers: (L,) index of each layer in the model.
        groups: (L, H, T) int; H is 1 where all heads of a layer share their groups.
        num_groups: K.
    """

    layers: tuple[int, ...]
    groups: np.ndarray
    num_groups: int

    @property
    def searched(self) -> int:
        """L * H * K, the groups of all layers and heads."""
        return self.groups.shape[0] * self.groups.shape[1] * self.num_groups


@dataclass(frozen=True, eq=False)
class Gathering:
    """The groups of all layers and heads, those that most surely hold more of the matching tokens first.

    Attributes:
        table: one row per group: layer, head, group; matching (its matching tokens), size (its tokens); of the matches
            (share of all matching tokens), of the text (share of all tokens), inside (share of the group that
            matches); lift (of the matches / of the text); p (by circular shifts, over all groups searched).
        matching: matching tokens.
        tokens: tokens of the text.
    """

    table: pd.DataFrame
    matching: int
    tokens: int


def groups_of(trace: RoutedText) -> HeadGroups:
    """The groups of a trace in all its heads, or of its own head where no others were recorded."""
    groups = trace.groups[:, None] if trace.head_groups is None else trace.head_groups
    return HeadGroups(trace.layers, groups, trace.config.num_groups)


def gathering(found: HeadGroups, matches: np.ndarray, counted: np.ndarray | None = None) -> Gathering:
    """Rank the groups of all layers and heads by how surely they hold more of the matching tokens than chance.

    Chance is the same matches moved along the text as a whole, by every possible distance; tokens that leave at its end
    enter at its beginning. That keeps which matches stand together, and that neighbouring tokens share groups. The
    score of a group is the log-likelihood ratio of its rate of matches against that of the text. p is the share of the
    distances at which the best score of all groups reaches the group's own, so it holds for all groups together
    (Westfall and Young 1993). The distance 0 counts, so that the smallest p is 1 / T.

    Args:
        found: first groups of the T tokens.
        matches: (T,) bool.
        counted: (T,) bool, tokens of the text; the others, such as the tokenizer's own opening, are left out. All when
            None.

    Raises:
        FocusError: no token matches, or every one does.
    """
    groups = found.groups if counted is None else found.groups[..., counted]
    matches = np.asarray(matches, dtype=bool) if counted is None else matches[counted]
    total, matching = len(matches), int(matches.sum())
    if not matching:
        raise FocusError("No token matches: look for something else.")
    if matching == total:
        raise FocusError("Every token matches, so they cannot gather: look for something rarer.")
    spectrum = np.fft.rfft(matches.astype(np.float32))
    best = np.zeros(total)
    parts = []
    for row, layer in enumerate(found.layers):
        for head in range(groups.shape[1]):
            inside = np.arange(found.num_groups)[:, None] == groups[row, head]
            sizes, counts = inside.sum(1), inside[:, matches].sum(1)
            scores = _scores(sizes, matching, total)
            moved = np.fft.irfft(np.conj(np.fft.rfft(inside.astype(np.float32))) * spectrum, n=total)
            moved = np.clip(np.rint(moved).astype(np.int64), 0, scores.shape[1] - 1)
            best = np.maximum(best, np.take_along_axis(scores, moved, axis=1).max(0))
            score = np.take_along_axis(scores, counts[:, None], axis=1)[:, 0]
            parts.append((np.full(len(sizes), layer), np.full(len(sizes), head), sizes, counts, score))
    layer, head, size, count, score = (np.concatenate(each) for each in zip(*parts))
    of_matches, of_text = count / matching, size / total
    with np.errstate(invalid="ignore"):
        lift = of_matches / of_text
        inside_share = count / size
    table = pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "group": np.tile(np.arange(found.num_groups), len(parts)),
            "matching": count,
            "size": size,
            "of the matches": of_matches,
            "of the text": of_text,
            "inside": inside_share,
            "lift": lift,
            "p": (total - np.searchsorted(np.sort(best), score * (1 - 1e-9))) / total,
        }
    )
    order = np.lexsort((table["group"], table["head"], table["layer"], -score))
    return Gathering(table.iloc[order].reset_index(drop=True), matching, total)


def lift_intervals(
    found: HeadGroups,
    matches: np.ndarray,
    table: pd.DataFrame,
    counted: np.ndarray | None = None,
    *,
    repeats: int = RESAMPLES,
    seed: int = 0,
) -> pd.DataFrame:
    """The rows with columns low and high: 95% intervals of the lift, by a bootstrap over stretches of the text.

    Texts of fewer than `MIN_BLOCKS` stretches of `MIN_BLOCK_TOKENS` tokens have none (NaN).

    Args:
        found: as in `gathering`.
        matches: likewise.
        table: R rows of its table.
        counted: likewise.
        repeats: B.
        seed: of the bootstrap.
    """
    groups = found.groups if counted is None else found.groups[..., counted]
    matches = np.asarray(matches, dtype=bool) if counted is None else matches[counted]
    number = min(BLOCKS, len(matches) // MIN_BLOCK_TOKENS)
    if number < MIN_BLOCKS or table.empty:
        return table.assign(low=np.nan, high=np.nan)
    starts = np.arange(number) * len(matches) // number
    rows = {layer: row for row, layer in enumerate(found.layers)}
    own = np.stack(
        [groups[rows[layer], head] == group for layer, head, group in table[["layer", "head", "group"]].to_numpy()]
    )
    weights = bootstrap_weights(number, repeats, np.random.default_rng(seed)).astype(float)

    def drawn(marks: np.ndarray) -> np.ndarray:
        return weights @ np.add.reduceat(marks.astype(np.int64), starts, axis=-1).T

    with np.errstate(divide="ignore", invalid="ignore"):
        shares = drawn(own & matches) / drawn(matches)[:, None]
        lifts = shares / (drawn(own) / drawn(np.ones_like(matches))[:, None])
    lifts[~np.isfinite(lifts)] = np.nan
    low, high = np.nanquantile(lifts, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return table.assign(low=low, high=high)


def _scores(sizes: np.ndarray, matching: int, total: int) -> np.ndarray:
    """(K, n) log-likelihood ratio of groups of these sizes for every count of matches; 0 up to the text's rate."""
    rate = matching / total
    counts = np.arange(min(int(sizes.max()), matching) + 1)
    size = np.maximum(sizes, 1)[:, None]
    held = np.minimum(counts, size)
    ratio = xlogy(held, held / (size * rate)) + xlogy(size - held, (size - held) / (size * (1 - rate)))
    return np.where(held > size * rate, ratio, 0.0)
