"""Quality against kept pairs: routings and published baselines on the same text and budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.baselines import METHODS, Baseline, Case, attend_in_parts
from focus_core.baselines.case import Setting
from focus_core.baselines.compiled.tally import Tally
from focus_core.errors import FocusError
from focus_core.evaluation.perplexity import Evaluation
from focus_core.evaluation.retention import (
    RETENTION,
    Retention,
    Untouched,
    compare_tokens,
    joined_retention,
    retention_of,
)
from focus_core.io.schema import array, maybe, number, refused, table, text, whole
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule, attend_fully, hard_groups

SCHEMA = "focus-frontier/1"
FITTED_TOGETHER = 4
"""Blocks of training text in one forward pass."""


@dataclass(frozen=True)
class Point:
    """One attention at one budget.

    Attributes:
        method: key of the method: "untouched", the name of routers, or a key of `focus_core.baselines.METHODS`.
        kind: "untouched", "routers", "baseline" or "oracle".
        label: name in tables.
        source: paper of a baseline; for routers, their origin.
        top_k: k of routers.
        wanted_share: share of distant pairs a baseline was asked to keep; that of the routers it is compared with.
        kept_share: share of distant pairs kept, sinks included, mean over layers and heads; None if none is left out.
        causal_kept_share: share of all causal pairs computed, mean over layers and heads.
        perplexity: exp of the mean negative log-likelihood.
        largest_group_share: of routers: share of tokens in the largest group, worst layer.
        tokens: predicted tokens.
        block_nll: mean negative log-likelihood of every block in nats.
        router: of routers: "layer" or "head", see `FocusConfig`.
        num_groups: of routers: K.
        layer_top_k: of planned routers: k of every layer.
        kl: mean KL(untouched || this) in nats per token, see `Retention`; None for the untouched model.
        kl_last_quarter: the same over the last quarter of positions.
        top1_agreement: share of tokens with the untouched model's most likely token.
        block_kl: `kl` of every block.
        block_kl_last_quarter: `kl_last_quarter` of every block.
        text: kind of text, in records of several kinds; None in those of one.
        length: T in tokens, likewise.
        seconds: time of the measurement, likewise.
        setting: of a baseline, chosen on training text; None for its default.
        made: in records of several kinds: date of the measurement, and device, processor and threads; older points
            lack it.
    """

    method: str
    kind: str
    label: str
    source: str
    top_k: int | None
    wanted_share: float | None
    kept_share: float | None
    causal_kept_share: float | None
    perplexity: float
    largest_group_share: float | None
    tokens: int
    block_nll: tuple[float, ...]
    router: str | None = None
    num_groups: int | None = None
    layer_top_k: tuple[int, ...] | None = None
    kl: float | None = None
    kl_last_quarter: float | None = None
    top1_agreement: float | None = None
    block_kl: tuple[float, ...] = ()
    block_kl_last_quarter: tuple[float, ...] = ()
    text: str | None = None
    length: int | None = None
    seconds: float | None = None
    setting: dict[str, float] | None = None
    made: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The point as plain values."""
        return asdict(self)

    @property
    def key(self) -> tuple[str, int | None, float | None, str | None, int | None]:
        """Identity of the point in its record, for resuming an interrupted run."""
        return self.method, self.top_k, self.wanted_share, self.text, self.length


def check_names(baselines: Iterable[str], shares: Iterable[float], known: Iterable[str] = METHODS) -> None:
    """Refuse baselines that are not among the known ones and shares that are none.

    Raises:
        FocusError: an unknown baseline, or a share that is not above 0 and below 1.
    """
    unknown = sorted(set(baselines) - set(known))
    if unknown and unknown[0] in METHODS:
        raise FocusError(f"{unknown[0]!r} is learned or an oracle: measure it with --kinds.")
    if unknown:
        raise FocusError(f"There is no baseline {unknown[0]!r}: choose from {', '.join(known)}.")
    wrong = [share for share in shares if not 0 < share < 1]
    if wrong:
        raise FocusError(f"A share of pairs is above 0 and below 1, not {wrong[0]:g}: change --share.")


_SHARE, _VALUE, _VALUES, _COUNT = maybe(number(0, 1.0001)), maybe(number()), array(number()), maybe(whole(0))
POINT = table(
    {
        **{name: text() for name in ("method", "kind", "label", "source")},
        **{name: _SHARE for name in ("wanted_share", "kept_share", "causal_kept_share", "largest_group_share")},
        "top_k": _COUNT,
        "perplexity": number(above=0),
        "tokens": whole(1),
        "block_nll": array(number(-1e4, 1e4), least=1),
    },
    {
        "router": maybe(text()),
        "num_groups": _COUNT,
        "layer_top_k": maybe(array(whole(0))),
        **{name: _VALUE for name in ("kl", "kl_last_quarter", "top1_agreement", "seconds")},
        **{name: _VALUES for name in ("block_kl", "block_kl_last_quarter")},
        "text": maybe(text()),
        "length": _COUNT,
        "setting": maybe(table(values=number())),
        "made": maybe(table({"date": text(), "device": text(), "processor": text(), "threads": whole(1)})),
    },
    values=refused,
)
"""Check of a stored `Point`."""


def point_of(stored: dict[str, Any]) -> Point:
    """The point that a record holds as plain values."""
    frozen: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in stored.items()}
    return Point(**frozen)


def routed_point(
    method: str,
    label: str,
    source: str,
    row: Evaluation,
    router: str | None = None,
    num_groups: int | None = None,
    layer_top_k: tuple[int, ...] | None = None,
) -> Point:
    """The point of an evaluation of the untouched model or of hard routing."""
    off = row.routing == "off"
    return Point(
        method=method,
        kind="untouched" if off else "routers",
        label=label,
        source=source,
        top_k=row.top_k,
        wanted_share=None,
        kept_share=row.kept_share,
        causal_kept_share=row.causal_kept_share,
        perplexity=row.perplexity,
        largest_group_share=row.largest_group_share,
        tokens=row.tokens,
        block_nll=row.block_nll,
        router=router,
        num_groups=num_groups,
        layer_top_k=layer_top_k if row.top_k is None else None,
        **{name: getattr(row, name) for name in RETENTION},
    )


@dataclass(frozen=True)
class Part:
    """One block under a baseline.

    Attributes:
        nll: mean negative log-likelihood in nats.
        predicted: number of predicted tokens.
        retention: beside the untouched model.
        tally: pairs that are kept.
    """

    nll: float
    predicted: int
    retention: Retention
    tally: Tally


def baseline_point(
    focus: FocusModel,
    name: str,
    blocks: np.ndarray,
    *,
    share: float,
    window: int,
    sinks: int,
    training_text: Tensor,
    seed: int = 0,
    setting: Setting | None = None,
    fitted: dict[int, Any] | None = None,
    untouched: Untouched | None = None,
    top_k: int | None = None,
) -> Point:
    """Retention and perplexity with every layer's attention replaced by a baseline at a wanted share of distant pairs.

    Args:
        focus: the model; its routers are used by oracles of groups alone.
        name: key of `focus_core.baselines.METHODS`.
        blocks: (N, T) int64 token ids.
        share: of distant pairs, sinks included.
        window: w, the same as that of the routers it is compared with.
        sinks: number of first tokens that every query keeps, the same as that of these routers.
        training_text: (n, T) int64, other text, for baselines that are fitted.
        seed: of random ones.
        setting: of the baseline, one of its `grid`, see `focus_core.frontier.tuning`; its default when None.
        fitted: result of `fit_baseline` with the same arguments, to save time; from `training_text` when None. Of a
            learned baseline its learner of every layer, see `focus_core.baselines.learned.train`.
        untouched: states of the untouched model for the same blocks, to use and to add to; fresh ones when None.
        top_k: groups that a key is in, for oracles of routers that share them with queries; as trained when None.

    Raises:
        FocusError: a learned baseline without its learners.

    Returns:
        The point. Shares are counted on the text itself. Memory grows with T, since queries are computed in parts.
    """
    settings: dict[str, Any] = {"share": share, "window": window, "sinks": sinks, "seed": seed, "setting": setting}
    if fitted is None:
        fitted = fit_baseline(focus, name, training_text, **settings)
    untouched = Untouched(blocks) if untouched is None else untouched
    parts = measure_blocks(focus, name, untouched, fitted=fitted, top_k=top_k, **settings)
    return point_from(name, parts, share=share, setting=setting)


@torch.inference_mode()
def measure_blocks(
    focus: FocusModel,
    name: str,
    untouched: Untouched,
    *,
    share: float,
    window: int,
    sinks: int,
    fitted: dict[int, Any],
    seed: int = 0,
    setting: Setting | None = None,
    top_k: int | None = None,
) -> list[Part]:
    """Each block of `untouched` with every layer's attention replaced by a baseline, see `baseline_point`."""
    settings: dict[str, Any] = {"share": share, "window": window, "sinks": sinks, "setting": setting or {}}
    parts = []
    for index, block in enumerate(untouched.blocks):
        tally = Tally()
        rows = torch.from_numpy(block)[None].to(focus.model.device)
        states = untouched.states(focus, index, index + 1)
        with _attending(focus, _replacing(METHODS[name], fitted, tally, top_k, seed=seed, **settings)):
            compared = compare_tokens(focus, rows, states)
        nll = float(compared.losses.double().mean())
        parts.append(Part(nll, len(block) - 1, retention_of([compared], len(block)), tally))
    return parts


def point_from(name: str, parts: Sequence[Part], *, share: float, setting: Setting | None = None) -> Point:
    """The point of a baseline over measured blocks, whose pairs are summed in their order, see `baseline_point`."""
    baseline, tally = METHODS[name], Tally()
    for part in parts:
        tally = tally + part.tally
    block_nll = [part.nll for part in parts]
    retained = joined_retention([part.retention for part in parts])
    return Point(
        method=name,
        kind="oracle" if baseline.oracle else "baseline",
        label=baseline.label,
        source=baseline.source,
        top_k=None,
        wanted_share=share if baseline.tunable else None,
        kept_share=tally.kept / tally.distant if tally.distant else None,
        causal_kept_share=tally.computed / tally.causal if tally.causal else None,
        perplexity=math.exp(sum(block_nll) / len(block_nll)),
        largest_group_share=None,
        tokens=sum(part.predicted for part in parts),
        block_nll=tuple(block_nll),
        setting=dict(setting) if setting else None,
        **{name: getattr(retained, name) for name in RETENTION},
    )


@torch.inference_mode()
def fit_baseline(
    focus: FocusModel,
    name: str,
    training_text: Tensor,
    *,
    share: float,
    window: int,
    sinks: int,
    seed: int = 0,
    setting: Setting | None = None,
) -> dict[int, Any]:
    """What a baseline learns from training text in every layer, `FITTED_TOGETHER` blocks at a time.

    Args:
        focus: the model, which attends fully; its routers are not used.
        name: key of `focus_core.baselines.METHODS`.
        training_text: (n, T) int64.
        share: of distant pairs.
        window: w.
        sinks: number of first tokens that every query keeps.
        seed: of random baselines.
        setting: of the baseline; its default when None.

    Returns:
        `Case.fitted` by layer; empty for a baseline that is not fitted.
    """
    baseline, fitted = METHODS[name], {}
    if baseline.fit is not None:
        settings = {"share": share, "window": window, "sinks": sinks, "setting": setting or {}}
        with _attending(focus, _fitting(baseline, fitted, seed=seed, **settings)):
            for rows in training_text.split(FITTED_TOGETHER):
                focus.model.base_model(input_ids=rows.to(focus.model.device), use_cache=False)
    return fitted


Attend = Callable[[AttentionCall], AttentionOutput]


@contextmanager
def _attending(focus: FocusModel, attend: Attend) -> Iterator[None]:
    """Every routed layer attends with a function of the caller's own."""
    with focus.routing("hard", balance="calibrated", rule=Rule(attend, hard_groups)):
        yield


def _fitting(baseline: Baseline, fitted: dict[int, Any], *, seed: int, **settings: Any) -> Attend:
    """Full attention that shows every layer's queries and keys to the baseline on the way."""

    def attend(call: AttentionCall) -> AttentionOutput:
        assert baseline.fit is not None
        own: dict[str, Any] = {"seed": seed + call.layer, "sliding_window": call.geometry.sliding_window}
        own["before"] = fitted.get(call.layer)
        query, key, _ = call.together()
        fitted[call.layer] = baseline.fit(query, key, **own, **settings)
        return attend_fully(call)

    return attend


def _replacing(
    baseline: Baseline, fitted: dict[int, Any], tally: Tally, top_k: int | None, *, seed: int, **settings: Any
) -> Attend:
    """The baseline in place of attention, its pairs counted."""

    def attend(call: AttentionCall) -> AttentionOutput:
        routing = call.routing
        batch = len(routing.hidden_states)
        groups = routing.key_membership(top_k).unflatten(0, (batch, -1)) if baseline.oracle else None
        own = {"seed": seed + call.layer, "fitted": fitted.get(call.layer), "groups": groups}
        case = _case(call, **own, **settings)
        outputs = []
        for part, result in attend_in_parts(baseline, case):
            outputs.append(result.attention)
            if result.kept is not None:
                tally.add(part, result.kept)
        output, logsumexp = (torch.cat(each, 2) for each in zip(*outputs))
        shape = call.query.shape[:3]  # heads may be in the batch
        return AttentionOutput(output.reshape(*shape, -1), logsumexp.reshape(shape))

    return attend


def _case(call: AttentionCall, **settings: Any) -> Case:
    query, key, value = call.together()
    repeats = query.shape[1] // key.shape[1]
    return Case(
        query,
        key.repeat_interleave(repeats, 1),
        value.repeat_interleave(repeats, 1),
        scale=call.geometry.scale,
        softcap=call.geometry.softcap,
        sliding_window=call.geometry.sliding_window,
        hidden=call.routing.hidden_states,
        shared=repeats,
        **settings,
    )
