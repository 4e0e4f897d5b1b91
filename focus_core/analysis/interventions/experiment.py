"""Run a text with and without an intervention, and compare the predictions token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from focus_core.analysis.interventions.edits import Intervention
from focus_core.analysis.interventions.links import Links, Site, attend_links
from focus_core.attention import AttentionOutput
from focus_core.errors import FocusError
from focus_core.evaluation.divergence import compare_logits
from focus_core.evaluation.likelihood import chunks, decoded
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule, attend_hard, hard_groups

MAX_TOKENS = 1024
"""Longest text of an experiment: its links are masks over all pairs."""

_OF_ROUTERS = ("router", "num_groups", "route_dim", "score", "layers")


@dataclass(frozen=True)
class Change:
    """The predictions of an intervention minus those of the same routed run without it.

    Attributes:
        loss: (T - 1,) float32, change of the loss in nats; entry t is about the prediction of token t + 1.
        kl: (T - 1,) float32, KL(without || with) in nats.
        links: number of distant links (query head, query, key) whose kind changed.
        untouched_kl: (T - 1,) float32, change of KL(untouched || routed): above 0 the intervention leads away from the
            untouched model; None where it was not asked for.
    """

    loss: np.ndarray
    kl: np.ndarray
    links: int
    untouched_kl: np.ndarray | None = None


@contextmanager
def intervening(focus: FocusModel, layer: int, head: int, intervention: Intervention) -> Iterator[None]:
    """Attend with an intervention inside a `with` block, under the hard routing in force.

    The edited head attends by masks over all pairs; all others attend as always. Calls take one text of up to
    `MAX_TOKENS` tokens and `use_cache=False`.

    Args:
        focus: model with routers.
        layer: a layer with a router.
        head: its key/value head; with routers per layer all heads share the groups, and this one is changed.
        intervention: the changes; none gives the attention of the routing itself.

    Raises:
        FocusError: the layer has no router, or routing is not hard.
    """
    with _attending(focus, layer, head, intervention.apply):
        yield


@contextmanager
def _attending(
    focus: FocusModel, layer: int, head: int, links_of: Callable[[Site], tuple[Site, Links]]
) -> Iterator[None]:
    """Attend in one head by the links that a function gives for its site."""
    check_layer(focus, layer)

    def attend(call: AttentionCall) -> AttentionOutput:
        whole = attend_hard(call)
        if call.layer != layer:
            return whole
        found, places = attend_links(*links_of(Site.of(call, head))), _places(call, head)
        output, logsumexp = whole.output.clone(), whole.logsumexp.clone()
        output[places], logsumexp[places] = found.output, found.logsumexp.to(logsumexp.dtype)
        return AttentionOutput(output, logsumexp)

    with attending(focus, Rule(attend, hard_groups)):
        yield


def check_layer(focus: FocusModel, layer: int) -> None:
    """Refuse a layer without a router.

    Raises:
        FocusError: it is one.
    """
    if layer not in focus.layers:
        raise FocusError(f"Layer {layer} has no router: choose one of {min(focus.layers)} to {max(focus.layers)}.")


class Seen(Exception):
    """Raised by a rule that has seen all it needs, so that nothing after it is run; `attending` ends quietly then."""


@contextmanager
def attending(focus: FocusModel, rule: Rule) -> Iterator[None]:
    """Attend by another rule, under the settings in force; the rule may raise `Seen` to end the block.

    Raises:
        FocusError: routing is not hard.
    """
    current = focus.current
    if current.mode != "hard":
        raise FocusError("Interventions change the links of hard routing: use them inside focus.routing('hard').")
    changes = {
        field.name: getattr(current.config, field.name)
        for field in dataclasses.fields(current.config)
        if field.name not in _OF_ROUTERS
    }
    with suppress(Seen), focus.routing("hard", backend=current.backend, rule=rule, **changes):
        yield


def _places(call: AttentionCall, head: int) -> tuple[int, slice]:
    """Row and query heads of a key/value head in the output of a call."""
    sharing = call.query.shape[1] // call.key.shape[1]
    if call.routing.router.num_heads > 1:
        return head, slice(0, sharing)
    return 0, slice(head * sharing, (head + 1) * sharing)


class Experiment:
    """One text in one key/value head of one layer, ready for any number of interventions.

    The run without intervention is made once. Every later one starts at the layer, from what the layers before it gave.

    Attributes:
        site: of the head, without intervention.
        links: its links.
        losses: (T - 1,) float32, without intervention.

    Args:
        focus: model with routers, in hard routing.
        input_ids: (T,) int64, 2 to `MAX_TOKENS` tokens.
        layer: a layer with a router.
        head: its key/value head.
        untouched: also compare with the untouched model, in `run(..., untouched=True)`.

    Raises:
        FocusError: a text of another length, or no such layer or head.
    """

    site: Site
    links: Links

    def __init__(
        self, focus: FocusModel, input_ids: np.ndarray, layer: int, head: int, *, untouched: bool = False
    ) -> None:
        if not 2 <= len(input_ids) <= MAX_TOKENS:
            raise FocusError(
                f"An experiment takes 2 to {MAX_TOKENS:,} tokens, and this text has {len(input_ids):,}: "
                "shorten or extend it."
            )
        self.focus, self.layer, self.head = focus, layer, head
        self._ids = torch.from_numpy(np.asarray(input_ids, dtype=np.int64))[None].to(focus.model.device)
        self._earlier = [block for number, block in sorted(focus.decoder_layers.items()) if number < layer]
        self._answer: Any = None
        self._untouched_logits: list[Tensor] | None = None
        if untouched:
            with torch.inference_mode(), focus.routing("off"), decoded(focus, self._ids) as (states, to_logits):
                self._untouched_logits = [to_logits(states[:, part]) for part in chunks(self._ids)]
        handle = None
        if self._earlier:
            handle = self._earlier[-1].register_forward_hook(self._keep)
        try:
            with (
                torch.inference_mode(),
                _attending(focus, layer, head, self._found),
                decoded(focus, self._ids) as (states, to_logits),
            ):
                self._logits = [to_logits(states[:, part]) for part in chunks(self._ids)]
        finally:
            if handle is not None:
                handle.remove()
        whole = np.arange(len(input_ids) - 1)
        self.losses = self._compared(self._logits, self._logits, whole)[0]
        self._away = (
            None if self._untouched_logits is None else self._compared(self._logits, self._untouched_logits, whole)[1]
        )

    @property
    def length(self) -> int:
        """T."""
        return self._ids.shape[1]

    def eligible(self) -> np.ndarray:
        """Places of keys that some query may read beyond its window: no sink, and not within the last w tokens."""
        return np.flatnonzero(self.site.distant().any(0).cpu().numpy())

    def members(self, group: int) -> np.ndarray:
        """Places of the eligible keys of a group.

        Raises:
            FocusError: no such group.
        """
        num_groups = self.site.members.shape[1]
        if not 0 <= group < num_groups:
            raise FocusError(f"There is no group {group}: choose 0 to {num_groups - 1}.")
        inside = self.site.members[:, group].cpu().numpy()
        return np.intersect1d(np.flatnonzero(inside), self.eligible())

    def read_links(self) -> np.ndarray:
        """(n, 3) int64: query head, query and key of every distant link that is read exactly."""
        return (self.links.exact & self.site.distant()).nonzero().cpu().numpy()

    def run(self, intervention: Intervention, *, untouched: bool = False) -> Change:
        """The change that an intervention makes.

        Predictions before the first changed link cannot change, so that they are exactly 0.

        Args:
            intervention: the changes.
            untouched: also compare with the untouched model.

        Raises:
            FocusError: a token that is not in the text, or no comparison with the untouched model was prepared.
        """
        if untouched and self._untouched_logits is None:
            raise FocusError("This experiment was made without the untouched model: make it with untouched=True.")
        site, links = intervention.apply(self.site)
        differs = (links.exact != self.links.exact) | (links.summarised != self.links.summarised)
        changed = int(differs.sum())
        where = differs.any(0).any(-1)
        if intervention.swaps:  # summaries of other pages may change too
            where |= (site.pages() != self.site.pages()).cumsum(0) > 0
        loss, kl = np.zeros((2, self.length - 1), dtype=np.float32)
        away = np.zeros_like(loss) if untouched else None
        first = int(where.int().argmax()) if bool(where.any()) else self.length
        if first < self.length - 1:
            places = np.arange(first, self.length - 1)
            with (
                torch.inference_mode(),
                _attending(self.focus, self.layer, self.head, lambda _: (site, links)),
                self._from_layer(),
                decoded(self.focus, self._ids) as (states, to_logits),
            ):
                logits = [to_logits(states[:, part.start + skip : part.stop]) for part, skip in self._parts(first)]
            losses, kl[first:] = self._compared(logits, self._after(self._logits, first), places)
            loss[first:] = losses - self.losses[first:]
            if away is not None and self._untouched_logits is not None and self._away is not None:
                far = self._compared(logits, self._after(self._untouched_logits, first), places)[1]
                away[first:] = far - self._away[first:]
        return Change(loss, kl, changed, away)

    def _parts(self, first: int) -> list[tuple[slice, int]]:
        """Chunks of predictions with some at `first` or later, and how many at their beginning are earlier."""
        return [(part, max(0, first - part.start)) for part in chunks(self._ids) if part.stop > first]

    def _after(self, logits: list[Tensor], first: int) -> list[Tensor]:
        skipped = [max(0, first - part.start) for part in chunks(self._ids)]
        return [each[skip:] for each, skip in zip(logits, skipped) if skip < len(each)]

    def _compared(
        self, ours: Sequence[Tensor], theirs: Sequence[Tensor], places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Losses of our logits, and KL(theirs || ours), (n,) float32 each."""
        targets = self._ids[0, torch.from_numpy(places) + 1]
        found, start = [], 0
        for one, two in zip(ours, theirs, strict=True):
            found.append(compare_logits(one, two, targets[start : start + len(one)]))
            start += len(one)
        losses, kl = (torch.cat([getattr(each, name) for each in found]).cpu().numpy() for name in ("losses", "kl"))
        return losses, kl

    def _found(self, site: Site) -> tuple[Site, Links]:
        self.site, self.links = site, site.links()
        return self.site, self.links

    def _keep(self, module: nn.Module, args: Any, output: Any) -> None:
        self._answer = output

    @contextmanager
    def _from_layer(self) -> Iterator[None]:
        """Let the layers before the intervention answer at once with what the last of them gave."""
        answer = self._answer
        for layer in self._earlier:
            layer.forward = lambda *args, **kwargs: answer  # shadows the class's method until it is deleted below
        try:
            yield
        finally:
            for layer in self._earlier:
                del layer.forward
