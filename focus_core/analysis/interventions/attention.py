"""The attention of one token in one key/value head: what it really reads, beside full attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from focus_core.analysis.interventions.experiment import Seen, attending, check_layer
from focus_core.analysis.interventions.links import Links, Site, check_tokens, link_weights
from focus_core.attention import AttentionOutput
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule, attend_fully, attend_hard, hard_groups


@dataclass(frozen=True)
class TokenAttention:
    """One token as a query, in the G query heads of a key/value head; n keys, the token itself the last.

    Attributes:
        weights: (G, n) float32, of each key under routing; the weight of a summary is spread over its keys.
        full: (G, n) float32, under full attention of the same query and keys.
        exact: (G, n) bool, keys that are attended exactly.
        summarised: (G, n) bool, keys that are known through a summary alone.
        groups: (n,) int64, the first group of each key.
        change: (G,) float32, length of the change of the head's output over the length of its full output.
    """

    weights: np.ndarray
    full: np.ndarray
    exact: np.ndarray
    summarised: np.ndarray
    groups: np.ndarray
    change: np.ndarray

    @property
    def kept(self) -> np.ndarray:
        """(G,) share of full attention on the keys that are attended exactly."""
        return (self.full * self.exact).sum(1)

    @property
    def dropped(self) -> np.ndarray:
        """(G,) share of full attention on keys that are not read, neither exactly nor through a summary."""
        return (self.full * ~(self.exact | self.summarised)).sum(1)


def token_attention(
    focus: FocusModel, input_ids: np.ndarray, layer: int, head: int, token: int, *, routed: bool = True
) -> TokenAttention:
    """The attention of one token, under the hard routing in force.

    Only the text up to the token is run, since nothing later can be read, and only the layers up to the asked one.

    Args:
        focus: model with routers, whose balance does not look ahead.
        input_ids: (T,) int64.
        layer: a layer with a router.
        head: its key/value head.
        token: place of the query.
        routed: whether the layers below it are routed, too. Without, it is in the untouched model's hidden states.

    Raises:
        FocusError: no such layer, head or token, or routing is not hard.
    """
    check_tokens(len(input_ids), token)
    check_layer(focus, layer)
    found: list[Site] = []

    def attend(call: AttentionCall) -> AttentionOutput:
        if call.layer == layer:
            found.append(Site.of(call, head))
            raise Seen
        return attend_hard(call) if routed else attend_fully(call)

    ids = torch.from_numpy(np.asarray(input_ids[: token + 1], dtype=np.int64))[None].to(focus.model.device)
    with torch.inference_mode(), attending(focus, Rule(attend, hard_groups)):
        focus.model.base_model(input_ids=ids, use_cache=False)
    with torch.inference_mode():
        site = found[0]
        query = torch.tensor([token], device=site.key.device)
        links = site.links(query)
        row = replace(site, query=site.query[:, query])
        weights = link_weights(row, links)[0][:, 0]
        everything = torch.ones_like(links.exact)
        if site.sliding_window is not None:
            index = torch.arange(site.length, device=site.key.device)
            everything = everything & (token - index < site.sliding_window)
        full = link_weights(row, Links(everything, torch.zeros_like(everything)))[0][:, 0]
        value = site.value.to(full.dtype)
        ours, theirs = weights @ value, full @ value
        change = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp(min=1e-12)
    return TokenAttention(
        weights=weights.float().cpu().numpy(),
        full=full.float().cpu().numpy(),
        exact=links.exact[:, 0].cpu().numpy(),
        summarised=links.summarised[:, 0].cpu().numpy(),
        groups=site.members.to(torch.int8).argmax(-1).cpu().numpy(),
        change=change.float().cpu().numpy(),
    )
