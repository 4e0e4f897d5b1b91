"""Heads that recall: they look for an earlier place of the words at hand, and attend to what followed them there.

A page that holds the one key they look for may have a mean key like any other, so they lose what they look for where
they read by error. There are few of them (Wu et al., "Retrieval Head Mechanistically Explains Long-Context Factuality",
arXiv 2404.15574), and they can read everything (Xiao et al., "DuoAttention", arXiv 2410.10819).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.attention.reference import attention_logits
from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.fitting.passes import FRESH, Kept, measured_calls, reading_layers
from focus_core.routing.rules import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

EXCERPT = 4
"""Tokens that return together. The first of them says nothing yet, and what follows the last one does not return."""
ASKED = 96
"""Tokens at the end of a text that return, at most; a quarter of a short text."""
LEAST = 0.05
"""Mean attention to what is recalled, from which a head recalls."""
PART = 1 / 10
"""Part of the pairs to read that heads which recall may take."""


class Recall(NamedTuple):
    """Texts whose last tokens returned from far back.

    Attributes:
        ids: (N, T) int64.
        queries: (n,) places of tokens that are followed by a token as they were before.
        sources: (N, n) where that token is, before.
    """

    ids: Int[np.ndarray, "N T"]
    queries: Int[np.ndarray, " n"]
    sources: Int[np.ndarray, "N n"]


def recalling_texts(blocks: Int[np.ndarray, "N T"], window: int, seed: int = 0) -> Recall | None:
    """The tokens of some texts in random order, which no language helps to predict; excerpts of it are the end.

    None where texts have no room for an excerpt before the window of the end.

    Args:
        blocks: token ids; the first one of each stays first.
        window: excerpts are from farther back.
        seed: of the order, and of what returns.
    """
    length = blocks.shape[1]
    asked = min(ASKED, length // 4) // EXCERPT * EXCERPT
    first = length - asked
    places = first - window - EXCERPT  # where an excerpt may begin, after the first token
    if asked < EXCERPT or places < 1:
        return None
    generator = np.random.default_rng(seed)
    ids = blocks.copy()
    ids[:, 1:] = generator.permuted(ids[:, 1:], axis=1)
    begins = generator.integers(1, 1 + places, (len(ids), asked // EXCERPT))
    copied = (begins[..., None] + np.arange(EXCERPT)).reshape(len(ids), asked)
    ids[:, first:] = np.take_along_axis(ids, copied, 1)
    inside = np.flatnonzero((np.arange(asked) % EXCERPT > 0) & (np.arange(asked) % EXCERPT < EXCERPT - 1))
    return Recall(ids, first + inside, copied[:, inside] + 1)


def recall_scores(
    focus: FocusModel, blocks: np.ndarray, *, seed: int = 0, kept: Kept = FRESH, progress: Progress = silent
) -> dict[int, Float[np.ndarray, " Hq"]]:
    """How much attention each query head gives to the token that is to be recalled, 0 to 1, by layer.

    A mean over places of the untouched model. Layers with a window of their own are left out; empty where texts are too
    short.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids, see `recalling_texts`.
        seed: likewise.
        kept: what this fit measured before.
        progress: told the share done.
    """
    texts = recalling_texts(blocks, focus.config.window, seed)
    if texts is None:
        return {}
    scores: dict[int, np.ndarray] = dict.fromkeys(reading_layers(focus), np.zeros(()))
    queries = torch.from_numpy(texts.queries)
    for number, sources in enumerate(torch.from_numpy(texts.sources)):

        def measure(call: AttentionCall, full: AttentionOutput, sources: Tensor = sources) -> dict[str, Tensor]:
            return {"attention": _attention(call, full, queries, sources).mean(-1)}

        (found,) = measured_calls(
            focus, texts.ids[number : number + 1], measure, name=f"recall-{number}",
            label="Finding heads that recall", kept=kept,
            progress=lambda label, done, number=number: progress(label, (number + done) / len(texts.ids)),
        )  # fmt: skip
        scores = {
            layer: before + found[layer]["attention"].numpy() / len(texts.ids) for layer, before in scores.items()
        }
    return scores


def _attention(call: AttentionCall, full: AttentionOutput, queries: Tensor, sources: Tensor) -> Tensor:
    """(Hq, n) float64: weight of each source for its query, of one text."""
    query, key, _ = (part[0] for part in call.together())
    key = key.repeat_interleave(len(query) // len(key), 0)
    pairs = query[:, queries, None].double(), key[:, sources, None].double()
    logits = attention_logits(*pairs, call.geometry.scale, call.geometry.softcap)[..., 0, 0]
    return (logits - full.logsumexp.flatten(0, 1)[:, queries]).exp()


def read_all(
    scores: Sequence[Float[np.ndarray, " Hq"]], kv_heads: Sequence[int], share: float, part: float = PART
) -> Bool[np.ndarray, " heads"]:
    """Which query heads read everything at a mean share of the pairs, those of one layer after another.

    Those of the key/value heads that recall most, as many as take a part of the share: what one query head looks up
    there, the others do, too. A key/value head recalls as much as the query head of it that recalls most.

    Args:
        scores: of the query heads of each layer, see `recall_scores`.
        kv_heads: of each layer.
        share: 0 to 1.
        part: of the share, 0 to 1.
    """
    heads = [own.reshape(count, -1) for own, count in zip(scores, kv_heads)]
    best = np.concatenate([own.max(1) for own in heads])
    chosen = np.zeros(best.size, dtype=bool)
    chosen[np.argsort(-best, kind="stable")[: int(part * share * best.size)]] = True
    chosen &= best >= LEAST
    return np.repeat(chosen, np.concatenate([np.full(len(own), own.shape[1]) for own in heads]))
