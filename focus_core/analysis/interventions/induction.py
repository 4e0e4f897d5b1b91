"""Does routing keep induction? The key after an earlier occurrence of the token is read, or not, against chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from focus_core.analysis.reading import PartsRead
from focus_core.errors import FocusError
from focus_core.evaluation.compare import MIN_BLOCKS, holm, mean_difference
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel

BLOCKS = 32
"""Stretches of pairs that the intervals are over, at most."""
_NO_GAP: dict[str, object] = {"difference": None, "low": None, "high": None, "established": False, "p": None}


@dataclass(frozen=True, eq=False)
class Induction:
    """How often distant induction keys are read.

    Attributes:
        heads: one row per layer and head: layer, head (query head with narrow groups, else that of the router), pairs
            (distant induction pairs), read (share of them that is read), chance (share of all distant keys that the
            same queries read), difference, low, high (mean and 95% interval over stretches of pairs), p (Holm over the
            rows; None under 2 stretches), established.
        groups: one row per layer, head and group of an induction key: layer, head, group, pairs, read, chance (share
            of the group's distant keys that queries read whose induction key is in another group), and, over
            `MIN_BLOCKS` pairs or more, difference (read less chance), low, high, p (Holm over these rows), established.
    """

    heads: pd.DataFrame
    groups: pd.DataFrame

    @property
    def most_pairs(self) -> int:
        """Distant induction pairs of the head that has most."""
        return int(self.heads["pairs"].to_numpy().max())


def planted_repeat(length: int, vocabulary: int, seed: int = 0) -> np.ndarray:
    """(2 * length,) int64: random tokens, twice. Every induction pair of the second copy lies length - 1 apart."""
    return np.tile(np.random.default_rng(seed).integers(0, vocabulary, length), 2)


def induction_pairs(input_ids: np.ndarray) -> np.ndarray:
    """(n, 2) int64: queries, and the keys that copying needs.

    The key stands after the last earlier occurrence of the query's token, and is the token that follows the query too.

    Args:
        input_ids: (T,) int64.
    """
    last: dict[int, int] = {}
    pairs = []
    ids = np.asarray(input_ids).tolist()
    for place, token in enumerate(ids[:-1]):
        before = last.get(token)
        if before is not None and before + 1 < place and ids[before + 1] == ids[place + 1]:
            pairs.append((place, before + 1))
        last[token] = place
    return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)


def induction(focus: FocusModel, input_ids: np.ndarray) -> Induction:
    """Run a text once under the hard routing in force, and count the distant induction keys that each head reads.

    Layers with a window of the model's own are left out with narrow groups, where they attend to all of it.

    Args:
        focus: model with routers.
        input_ids: (T,) int64, with repeats: a natural text, or `planted_repeat`.

    Raises:
        FocusError: routing is not hard, or no induction pair is distant in any layer.
    """
    if focus.current.mode != "hard":
        raise FocusError("Induction is counted over the links of hard routing: use focus.routing('hard').")
    pairs = induction_pairs(input_ids)
    heads: list[dict[str, object]] = []
    groups: list[pd.DataFrame] = []

    def record(routing: LayerRouting) -> None:
        for head, kept, distant, own in _heads(routing, pairs[:, 0], len(input_ids)):
            used = distant[np.arange(len(pairs)), pairs[:, 1]]
            if not used.any():
                continue
            far, keys = distant[used], pairs[used, 1]
            links = kept[used] & far
            read, chance = links[np.arange(len(keys)), keys], links.sum(1) / far.sum(1)
            place = {"layer": routing.layer, "head": head}
            heads.append(
                {**place, "pairs": len(keys), "read": read.mean(), "chance": chance.mean(), **_gap(read - chance)}
            )
            groups.append(_by_group(place, links, far, keys, read, own))

    ids = torch.tensor(np.asarray(input_ids))[None].to(focus.model.device)
    with torch.inference_mode(), focus.observe(record):
        focus.model.base_model(input_ids=ids, use_cache=False)
    if not heads:
        raise FocusError("No token is repeated beyond the window: give a longer text with repeats.")
    table = pd.DataFrame(heads).sort_values(["layer", "head"], ignore_index=True)
    by_group = pd.concat(groups).sort_values(["layer", "head", "group"], ignore_index=True)
    return Induction(_corrected(table), _corrected(by_group))


def _corrected(table: pd.DataFrame) -> pd.DataFrame:
    """The table with p-values for the number of its rows."""
    return table.assign(p=holm([None if pd.isna(value) else value for value in table["p"]]))


def _heads(
    routing: LayerRouting, queries: np.ndarray, length: int
) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Of each head: its number, (n, T) bool keys that are kept, (n, T) bool distant keys, (T,) group of each key."""
    keys, config, found = np.arange(length), routing.config, []
    narrow = routing.router.from_keys
    if narrow and routing.sliding_window is not None:
        return []
    membership = None if narrow else routing.membership()
    for row in range(routing.router.num_heads):
        own = routing.key_groups[row].cpu().numpy()
        if membership is None:
            parts = PartsRead.of(*routing.narrow_reads(row), routing.reading())
            distant = (keys >= config.sink_tokens) & (keys < parts.borders(queries)[:, None])
            sharing = len(parts.packed)
            found += [(row * sharing + at, parts.keys_kept(at, queries), distant, own) for at in range(sharing)]
            continue
        sets = membership.queries[row].float().cpu().numpy()[queries]
        kept = sets @ membership.keys[row].float().cpu().numpy().T > 0
        back = queries[:, None] - keys
        distant = (keys >= config.sink_tokens) & (back > config.window)
        if routing.sliding_window is not None:
            distant &= back < routing.sliding_window
        found.append((row, kept, distant, own))
    return found


def _gap(differences: np.ndarray) -> dict[str, object]:
    """Mean difference with its interval over stretches of neighbouring pairs, which are alike."""
    blocks = np.array_split(differences, min(BLOCKS, len(differences)))
    found = mean_difference([block.mean() for block in blocks])
    return {**found.to_dict(), "p": found.p_value}


def _by_group(
    place: dict[str, int], kept: np.ndarray, distant: np.ndarray, keys: np.ndarray, read: np.ndarray, own: np.ndarray
) -> pd.DataFrame:
    rows = []
    for group in np.unique(own[keys]):
        inside, members = own[keys] == group, own == group
        others = distant[~inside][:, members].sum()
        chance = float(kept[~inside][:, members].sum() / others) if others else np.nan
        known = inside.sum() >= MIN_BLOCKS and others
        rows.append(
            {
                **place,
                "group": int(group),
                "pairs": int(inside.sum()),
                "read": float(read[inside].mean()),
                "chance": chance,
                **(_gap(read[inside] - chance) if known else _NO_GAP),
            }
        )
    return pd.DataFrame(rows)
