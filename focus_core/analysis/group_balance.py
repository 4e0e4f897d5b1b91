"""Group sizes: loads, the convergence of Sinkhorn, and the tokens that balancing moves.

All from the scores and assignments of a trace. Sequence balance is computed anew from the scores of the whole text.
Calibrated balance is read from the trace, if it was routed that way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from focus_core.analysis.statistics.agreement import entropy
from focus_core.routing.sinkhorn import column_potentials, marginal_error, sinkhorn


def group_counts(groups: np.ndarray, num_groups: int) -> np.ndarray:
    """(..., K) int64 tokens in each group, from (..., T) first groups."""
    return (groups[..., None] == np.arange(num_groups)).sum(axis=-2)


def normalised_entropy(counts: np.ndarray) -> np.ndarray:
    """(...) entropy of (..., K) loads over log K: 1 if all groups are equal, 0 if one holds every token."""
    return entropy(counts) / np.log(counts.shape[-1])


def effective_groups(counts: np.ndarray) -> np.ndarray:
    """(...) exp of the entropy of (..., K) loads: the number of equal groups with the same entropy."""
    return np.exp(entropy(counts))


@dataclass(frozen=True)
class Balancing:
    """First groups and balance errors of one text, before Sinkhorn and after each of its rounds.

    Attributes:
        raw: (L, T) int64 first groups of the scores alone.
        sequence: (L, T) int64 first groups after the last round over the whole text.
        errors: (L, N + 1) float64 largest relative deviation of a group's soft mass from T/K, before the first round
            and after each.
    """

    raw: np.ndarray
    sequence: np.ndarray
    errors: np.ndarray


def balancing(scores: np.ndarray, *, temperature: float, rounds: int) -> Balancing:
    """Balance the scores of a text and keep the error of every round.

    Each round continues from the potentials v of the last one. The rows of softmax(S / tau + v) sum to 1, so one round
    on its logarithm at temperature 1 gives the change of v. The result equals `focus_core.sinkhorn.sinkhorn` with as
    many rounds.

    Args:
        scores: (L, T, K) float router scores.
        temperature: tau.
        rounds: N, at least 1.

    Returns:
        First groups before and after, and the error of every round.
    """
    logits = _by_group(scores) / temperature
    balanced = _normalised(logits)
    raw, errors = balanced.argmax(-1), [marginal_error(balanced.exp())]
    potential = column_potentials(logits, temperature=1.0, rounds=1)
    for done in range(rounds):
        if done:
            potential = potential + column_potentials(balanced, temperature=1.0, rounds=1)
        balanced = _normalised(logits + potential[:, None])
        errors.append(marginal_error(balanced.exp()))
    return Balancing(raw.numpy(), balanced.argmax(-1).numpy(), torch.stack(errors, dim=1).double().numpy())


def flip_rate(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """(...) share of tokens with different first groups, from two arrays (..., T) of groups."""
    return (before != after).mean(axis=-1)


def prefix_lengths(num_tokens: int, count: int = 10) -> np.ndarray:
    """(P,) int64 increasing lengths up to the whole text, evenly spaced in the logarithm."""
    shortest = min(num_tokens, 16)
    return np.unique(np.geomspace(shortest, num_tokens, count).round().astype(np.int64))


def future_flips(scores: np.ndarray, lengths: np.ndarray, *, temperature: float, rounds: int) -> np.ndarray:
    """How often the rest of a text changes the groups of its beginning under sequence balance.

    In a causal model the scores of a prefix do not depend on what follows, but the balance does.

    Args:
        scores: (T, K) float router scores of one layer.
        lengths: (P,) prefix lengths, 1..T.
        temperature: tau.
        rounds: N.

    Returns:
        (P,) float64 share of each prefix's tokens that change their first group when balance is over the whole text
        instead of the prefix alone. 0 for the whole text.
    """
    whole = _by_group(scores[None])

    def groups(part: torch.Tensor) -> np.ndarray:
        return sinkhorn(part, temperature=temperature, rounds=rounds)[0].argmax(-1).numpy()

    final = groups(whole)
    return np.array([flip_rate(groups(whole[:, :length]), final[:length]) for length in lengths.tolist()])


def _by_group(scores: np.ndarray) -> torch.Tensor:
    """(L, T, K) float32, a view of memory in the order (L, K, T): sums over tokens are several times faster."""
    return torch.tensor(np.ascontiguousarray(np.swapaxes(scores, 1, 2)), dtype=torch.float32).transpose(1, 2)


def _normalised(logits: torch.Tensor) -> torch.Tensor:
    """log softmax over groups that keeps the order of the memory."""
    return logits - torch.logsumexp(logits, dim=-1, keepdim=True)
