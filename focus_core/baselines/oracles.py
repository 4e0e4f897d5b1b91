"""Oracles: selections that know the attention of the untouched model, to part the loss of the others.

None can be had without computing what it saves. They say how much of a loss comes from the choice of pairs, from the
groups, or from reading them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.baselines.case import Case, Result
from focus_core.baselines.clusters import Clusters, cluster_keys
from focus_core.baselines.compiled.softmax import kept_softmax
from focus_core.errors import FocusError


def best_tokens(case: Case) -> Tensor:
    """The distant keys with the largest logits of each query: no choice of as many keys holds more attention."""
    return case.select(case.logits())


def best_tokens_and_mean(case: Case) -> Result:
    """`best_tokens`, and one estimate for the rest: n unread keys count as n times their mean key and mean value."""
    logits = case.products(case.query.float() * case.scale, case.key)
    kept = case.select(logits)
    rest = (case.distant & ~kept).float()
    number = rest.sum(-1, keepdim=True)
    mean_logit = (logits * rest).sum(-1, keepdim=True) / number.clamp(min=1)
    if case.softcap is not None:
        mean_logit = case.softcap * torch.tanh(mean_logit / case.softcap)
        logits = case.softcap * torch.tanh(logits / case.softcap)
    mean_logit = mean_logit + number.log()  # -inf without a rest
    mean_value = case.mixed(rest, case.value) / number.clamp(min=1)
    exact, exact_logsumexp = case.exactly(kept, logits).attention
    logsumexp = torch.logaddexp(exact_logsumexp[..., None], mean_logit)
    part = torch.exp(mean_logit - logsumexp)
    output = (1 - part) * exact.float() + part * mean_value
    return Result(AttentionOutput(output.to(case.value.dtype), logsumexp[..., 0]), kept)


def best_reading(case: Case) -> Tensor:
    """The routers' groups of keys, read as the attention itself says.

    Every query reads groups in the order of the mean attention of their distant keys, until its budget is used. No
    other order of whole, disjoint groups holds more attention.
    """
    attention = case.logits()
    kept_softmax(attention, case.causal)
    attention *= case.distant
    labels, patterns = case.once(_patterns)
    members = _groups(case)[:, :, : case.key.shape[2]].float()
    mean = case.mixed(attention, members) / (case.distant.float() @ members).clamp(min=1)
    ranks = mean.argsort(-1).argsort(-1).float()
    scores = torch.stack([(ranks * pattern).amax(-1) for pattern in patterns.unbind()], -1)
    return case.select_groups(scores, labels[..., : case.key.shape[2]])[0]


def best_groups(case: Case) -> Tensor:
    """Groups by k-means of the text's own keys, as many as the routers', read by the query's product with mean keys.

    The clusters are those of all keys of the text, later ones included.
    """
    found = case.once(_text_clusters).before(case.key.shape[2])
    return found.best(case, case.products(case.query, found.keys))[0]


def _patterns(case: Case) -> tuple[Tensor, Tensor]:
    """(B, H, T) int64 labels and (P, K) float32: the keys of a label are in the same groups, those of its pattern."""
    groups = _groups(case)[:, :: case.shared]
    patterns, labels = groups.flatten(0, -2).float().unique(dim=0, return_inverse=True)
    return labels.view(groups.shape[:-1]).repeat_interleave(case.shared, 1), patterns


def _text_clusters(case: Case) -> Clusters:
    return cluster_keys(case, case.key.shape[2], _groups(case).shape[-1])


def _groups(case: Case) -> Tensor:
    """(B, H, T, K) bool."""
    if case.groups is None:
        raise FocusError("This oracle reads the groups of routers: measure it on a model with routers.")
    return case.groups.repeat_interleave(case.query.shape[1] // case.groups.shape[1], 1)
