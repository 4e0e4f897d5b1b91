"""Candidate changes of the recipe, each a few lines on one training loop.

`focus reproduce recipes` measures all of them. The better ones are options of the package as well (`FocusConfig`,
`focus train`, `focus plan`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional as F

from focus_core.attention import AttentionOutput
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, attend_soft
from focus_core.routing.soft import affinity
from focus_core.training.calibrate import calibrate
from focus_core.training.loop import TrainSettings, calibration_blocks, learning_rate
from focus_core.training.objectives import attention_mass, distant_mass, language_model, layer_by_layer, soft_kept

Objective = Callable[[FocusModel, Tensor], Tensor]
BASE = "heads"
"""The reference recipe: routers per key/value head, trained on attention mass."""


@dataclass(frozen=True)
class Candidate:
    """One change.

    Attributes:
        label: in words.
        settings: of `FocusConfig`, on top of routers per head.
        objective: the training loss.
        then: the training loss in the second half of the steps; the same when None.
        anneal: maps the share of the steps done to settings in force; those of the model when None.
        prepare: called once before training, with the model and the blocks.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    objective: Objective = attention_mass
    then: Objective | None = None
    anneal: Callable[[float], dict[str, Any]] | None = None
    prepare: Callable[[FocusModel, np.ndarray], Any] | None = None


def top_k_mass(focus: FocusModel, input_ids: Tensor) -> Tensor:
    """`attention_mass` with the pairs that hard routing keeps, mean over k = 1 to the configured one.

    The weight of a pair is 1 if it is kept at k groups, else 0: the mask of inference. The gradient is that of the soft
    affinity (straight-through, arXiv 1308.3432).
    """
    return distant_mass(focus, input_ids, _hard_kept)


def _hard_kept(mass: Tensor, routing: LayerRouting) -> Tensor:
    soft = soft_kept(mass, routing)
    kept = []
    for top_k in range(1, routing.config.top_k + 1):
        member = routing.membership(top_k)
        shared = affinity(member.queries.to(soft.dtype), member.keys.to(soft.dtype)).clamp(max=1)
        kept.append((mass * shared).sum((1, 2)) + (soft - soft.detach()))
    return torch.stack(kept)


def attention_outputs(focus: FocusModel, input_ids: Tensor) -> Tensor:
    """Distillation layer by layer: squared error of gated attention outputs, relative to the untouched ones.

    loss = ``sum |o_gated - o|^2 / sum |o|^2``, mean over layers; the gate is that of the settings in force.
    """

    def loss(call: AttentionCall) -> tuple[AttentionOutput, Tensor]:
        with torch.no_grad():
            everything = call.config.replace(window=call.key.shape[2])  # every pair is local
            output = attend_soft(replace(call, config=everything))
        gated = attend_soft(call).output
        true = output.output.float()
        return output, (gated.float() - true).square().sum() / true.square().sum()

    return layer_by_layer(focus, input_ids, loss)


def next_token_logits(focus: FocusModel, input_ids: Tensor) -> Tensor:
    """Distillation from the untouched model: divergence of next-token distributions under the soft gate, in nats."""
    with torch.no_grad(), focus.routing("off"):
        target = focus(input_ids=input_ids, use_cache=False).logits.float().log_softmax(-1)
    with focus.routing("soft", balance="sequence"):
        found = focus(input_ids=input_ids, use_cache=False).logits.float().log_softmax(-1)
    return F.kl_div(found.flatten(0, 1), target.flatten(0, 1), log_target=True, reduction="batchmean")


@torch.no_grad()
def start_at_means(focus: FocusModel, blocks: np.ndarray) -> None:
    """Put centroids at the k-means centres of the keys' routes on a sample; calibration then balances the groups."""
    states: dict[int, Tensor] = {}

    def note(routing: LayerRouting) -> None:
        states[routing.layer] = routing.hidden_states.flatten(0, 1).float()

    sample = torch.from_numpy(blocks[: max(1, 4096 // blocks.shape[1])]).to(focus.model.device)
    with focus.routing("soft", balance="none"), focus.observe(note):
        focus.model.base_model(input_ids=sample, use_cache=False)
    for layer in focus.layers:
        router = focus.router(layer)
        flat = F.layer_norm(states[layer], states[layer].shape[-1:])
        projections = router.projection.reshape(router.num_heads, *router.projection.shape[-2:])
        centres = [
            KMeans(focus.config.num_groups, random_state=0)
            .fit(F.normalize(flat @ projection, dim=-1).cpu().numpy())
            .cluster_centers_
            for projection in projections.float()
        ]
        router.centroids.copy_(torch.from_numpy(np.stack(centres)).reshape(router.centroids.shape))


def bias_to_recent_and_rare(focus: FocusModel, blocks: np.ndarray) -> None:
    """Add a learned bias of each group of keys towards late or rare tokens, zero at first.

    score_k += b_k1 log(position) + b_k2 log(frequency), both standardised over the training blocks.
    """
    vocabulary = focus.model.config.get_text_config().vocab_size
    counts = torch.from_numpy(np.bincount(blocks.ravel(), minlength=vocabulary)).float()
    frequency = (counts + 1).log()
    tokens = frequency[torch.from_numpy(blocks).flatten()]
    frequency = ((frequency - tokens.mean()) / tokens.std().clamp(min=1e-6)).to(focus.model.device)
    current: dict[str, Tensor] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        current["ids"] = kwargs["input_ids"] if "input_ids" in kwargs else args[0]

    def add(module: nn.Module, args: tuple[Any, ...], scores: Tensor) -> Tensor:
        ids = current["ids"]
        place = torch.arange(1, ids.shape[1] + 1, device=ids.device).float().log()
        place = (place - place.mean()) / place.std().clamp(min=1e-6)
        features = torch.stack([place.expand(ids.shape), frequency[ids]], -1)  # (B, T, 2)
        bias = torch.einsum("btf,hkf->bhtk", features, module.bias)
        return scores + bias.flatten(0, 1)

    focus.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    for layer in focus.layers:
        router = focus.router(layer)
        shape = (router.num_heads, focus.config.num_groups, 2)
        router.register_parameter("bias", nn.Parameter(torch.zeros(shape, device=router.centroids.device)))
        router.register_forward_hook(add)


def sharper_gate(share: float) -> dict[str, Any]:
    """The gate's sharpness from 2 to 30, evenly in its logarithm."""
    return {"gate_sharpness": 2.0 * 15.0**share}


def colder(share: float) -> dict[str, Any]:
    """The temperature from 0.5 to 0.1, evenly in its logarithm."""
    return {"temperature": 0.5 * 0.2**share}


def colder_and_sharper(share: float) -> dict[str, Any]:
    """Both at once."""
    return {**colder(share), **sharper_gate(share)}


CANDIDATES: dict[str, Candidate] = {
    "layer": Candidate("one router per layer", {"router": "layer"}),
    BASE: Candidate("routers per key/value head"),
    "straight-through": Candidate("trained on the pairs that k = 1 and 2 keep", objective=top_k_mass),
    "outputs": Candidate("distillation from attention outputs", objective=attention_outputs),
    "outputs-annealed": Candidate("the same, gate ever sharper", objective=attention_outputs, anneal=sharper_gate),
    "mass-then-outputs": Candidate("attention mass, then attention outputs", then=attention_outputs),
    "colder": Candidate("temperature annealed", anneal=colder),
    "k-means": Candidate("centroids start at k-means centres", prepare=start_at_means),
    "bias": Candidate("learned bias to recent and rare tokens", prepare=bias_to_recent_and_rare),
    "groups-16": Candidate("16 groups", {"num_groups": 16}),
    "groups-4": Candidate("4 groups", {"num_groups": 4}),
    "rounds-100": Candidate("Sinkhorn with 100 rounds", {"sinkhorn_rounds": 100}),
    "route-8": Candidate("routes of 8 numbers", {"route_dim": 8}),
    "lm": Candidate("language-model loss", objective=language_model),
    "logits": Candidate("distillation from logits", objective=next_token_logits),
    "logits-annealed": Candidate("the same, gate ever sharper", objective=next_token_logits, anneal=sharper_gate),
    "k-means-colder": Candidate("k-means start, temperature annealed", anneal=colder, prepare=start_at_means),
    "all-annealed": Candidate(
        "k-means start, attention outputs, temperature and gate annealed",
        objective=attention_outputs,
        anneal=colder_and_sharper,
        prepare=start_at_means,
    ),
}
"""All of them by name; `focus plan` on the base recipe is one more."""


def train_candidate(
    focus: FocusModel,
    blocks: np.ndarray,
    candidate: Candidate,
    settings: TrainSettings,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train and calibrate new routers by a candidate; not resumable, since a run takes minutes.

    Args:
        focus: model with routers made with the candidate's settings.
        blocks: (N, T) int64 training blocks.
        candidate: see `Candidate`.
        settings: steps, batch size, rate, seed and precision; the objective is the candidate's.
        on_step: called with the finished steps and the loss.
    """
    if candidate.prepare is not None:
        candidate.prepare(focus, blocks)
    parameters = list(focus.trainable_parameters())
    optimizer = torch.optim.AdamW(parameters, weight_decay=settings.weight_decay, betas=(0.9, 0.95))
    rng, device, own = np.random.default_rng(settings.seed), focus.model.device, focus.config
    focus.model.eval()
    for step in range(settings.steps):
        share = step / max(1, settings.steps - 1)
        objective = candidate.then if candidate.then is not None and share >= 0.5 else candidate.objective
        rows = torch.from_numpy(blocks[rng.choice(len(blocks), settings.batch_size, replace=False)]).to(device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        try:
            focus.config = own.replace(**candidate.anneal(share)) if candidate.anneal is not None else own
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.autocast):
                loss = objective(focus, rows)
                loss.backward()
        finally:
            focus.config = own
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        on_step(step + 1, float(loss.detach()))
    calibrate(focus, calibration_blocks(blocks, settings.seed))


def candidate_config(candidate: Candidate, window: int) -> FocusConfig:
    """Settings of a candidate's routers."""
    return replace(FocusConfig(router="head", window=window), **candidate.settings)


def at_share(shares: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray | None:
    """Losses of every block at one kept share, by linear interpolation between the measured ones.

    Args:
        shares: (n,) kept shares, one for each k.
        losses: (n, blocks) mean negative log-likelihoods.
        share: the kept share; the result is None outside the measured range.
    """
    order = np.argsort(shares)
    shares, losses = shares[order], losses[order]
    if not shares[0] <= share <= shares[-1]:
        return None
    right = int(np.clip(np.searchsorted(shares, share), 1, len(shares) - 1))
    width = shares[right] - shares[right - 1]
    weight = 0.0 if math.isclose(width, 0.0) else (share - shares[right - 1]) / width
    return (1 - weight) * losses[right - 1] + weight * losses[right]
