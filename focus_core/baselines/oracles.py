"""Oracles: selections that know the attention of the untouched model, to part the loss of the others.

None can be had without computing what it saves. They say how much of a loss comes from the choice of pairs, from the
groups, or from reading them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.attention.reference import attention_logits
from focus_core.baselines.case import Case, Result
from focus_core.baselines.clusters import Clusters, cluster_keys
from focus_core.baselines.ranking import only
from focus_core.errors import FocusError


def best_tokens(case: Case) -> Tensor:
    """The distant keys with the largest logits of each query: no choice of as many keys holds more attention."""
    return case.select(case.logits())


def best_tokens_and_mean(case: Case) -> Result:
    """`best_tokens`, and one estimate for the rest: n unread keys count as n times their mean key and mean value."""
    kept = best_tokens(case)
    rest = case.distant & ~kept
    number = rest.sum(-1)
    share = rest / number.clamp(min=1)[..., None]
    mean_logit = (attention_logits(case.query.float(), case.key.float(), case.scale, None) * share).sum(-1)
    if case.softcap is not None:
        mean_logit = case.softcap * torch.tanh(mean_logit / case.softcap)
    mean_logit = mean_logit + number.float().log()  # -inf without a rest
    exact, exact_logsumexp = case.exactly(kept).attention
    logsumexp = torch.logaddexp(exact_logsumexp, mean_logit)
    part = torch.exp(mean_logit - logsumexp)[..., None]
    output = (1 - part) * exact.float() + part * (share @ case.value.float())
    return Result(AttentionOutput(output.to(case.value.dtype), logsumexp), kept)


def best_reading(case: Case) -> Tensor:
    """The routers' groups of keys, read as the attention itself says.

    Every query reads groups in the order of the mean attention of their distant keys, until its budget is used. No
    other order of whole, disjoint groups holds more attention.
    """
    members = _groups(case)[:, :, : case.key.shape[2]].float()
    attention = case.logits().add_(only(case.causal)).softmax(-1).mul_(case.distant)
    mean = (attention @ members) / (case.distant.float() @ members).clamp(min=1)
    ranks = mean.argsort(-1).argsort(-1).float()
    scores = torch.zeros_like(attention)
    for group, rank in enumerate(ranks.unbind(-1)):
        scores = torch.maximum(scores, rank[..., None] * members[:, :, None, :, group])
    return case.select(scores.add_(case.recency))


def best_groups(case: Case) -> Tensor:
    """Groups by k-means of the text's own keys, as many as the routers', read by the query's product with mean keys.

    The clusters are those of all keys of the text, later ones included.
    """
    found = case.once(_text_clusters).before(case.key.shape[2])
    return found.best(case, case.query.float() @ found.keys.mT)


def _text_clusters(case: Case) -> Clusters:
    return cluster_keys(case, case.key.shape[2], _groups(case).shape[-1])


def _groups(case: Case) -> Tensor:
    """(B, H, T, K) bool."""
    if case.groups is None:
        raise FocusError("This oracle reads the groups of routers: measure it on a model with routers.")
    return case.groups.repeat_interleave(case.query.shape[1] // case.groups.shape[1], 1)
