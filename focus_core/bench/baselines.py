"""Speed of published sparse attentions, executed exactly, against full attention.

The unit is one key/value head with its query heads (`focus_core.bench.heads`), which are folded into one call as in
routed attention: keys and values are not repeated. Timed are the choice of the pairs (`focus_core.baselines.choosing`)
and attention to them by the fastest execution of `focus_core.baselines.execution`. Full attention, and windows in the
project's backend, are timed over one unit per thread and divided by their number, because one unit alone leaves threads
idle. The papers' own kernels and savings in decode are not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.baselines import BASELINES, LEARNED, METHODS, Baseline, Case
from focus_core.baselines.case import Setting
from focus_core.baselines.choosing import fast_choice, reference_choice, repeated
from focus_core.baselines.execution import (
    Choose,
    Part,
    attend_features,
    attend_key_blocks,
    attend_tiles,
    attend_window,
    kept_by,
    key_blocks,
    tiles,
)
from focus_core.bench.heads import Head, random_heads
from focus_core.bench.measures.timing import alternate, spread, synchronize
from focus_core.errors import FocusError
from focus_core.io.locks import claims_file
from focus_core.results import plain, record_run, resume_record

SCHEMA = "focus-bench-baselines/2"
UNFOLDED = "focus-bench-baselines/1"
"""Schema of older records, which timed one query head at a time."""

CHECKED_QUERIES = 64
TRIES = 2  # of each way, before the fastest is timed
TILES = {
    "tiles of 16 queries": (16, True),
    "tiles of 128 queries": (128, True),
    "tiles of 512 queries": (512, True),
    "tiles of 128 queries, each head apart": (128, False),
}
KEY_BLOCK = 16
MOST_PAIRS = 1 << 30
"""Pairs of all query heads, kept or not, up to which blocks of keys are tried; they need a mask of all."""
_LISTS = ("sizes", "shares", "baselines", "heads", "tuned")


@dataclass(frozen=True)
class BaselineBenchSettings:
    """Points to measure: every size with every share and baseline, float32.

    The default sizes are those at which quality is measured, within the positions of the default model.

    Attributes:
        sizes: numbers of tokens T.
        shares: wanted shares of distant pairs, sinks included.
        baselines: keys of `focus_core.baselines.BASELINES`, and of `LEARNED` where the heads have learners.
        heads: (layer, query head) of the model of `source`, each timed with the query heads that share its key/value
            head; None for normal tensors.
        head_dim: size of a head of normal tensors.
        query_heads: query heads of a key/value head of normal tensors.
        window: local window w.
        sink_tokens: tokens that all see.
        repetitions: smallest number of timed runs of a point, after one warm-up.
        fitted_tokens: length of the text that k-means and hash tables are fitted on.
        device: "cpu" or "cuda".
        seed: of tensors and random baselines.
        tuned: setting of a baseline by its name, chosen on training text; the default of the others.
        source: the model and text that heads are from, for the record; None for normal tensors.
    """

    sizes: tuple[int, ...] = (512, 2048, 8192)
    shares: tuple[float, ...] = (0.15,)
    baselines: tuple[str, ...] = tuple(BASELINES)
    heads: tuple[tuple[int, int] | None, ...] = (None,)
    head_dim: int = 64
    query_heads: int = 3
    window: int = 128
    sink_tokens: int = 4
    repetitions: int = 3
    fitted_tokens: int = 2048
    device: str = "cpu"
    seed: int = 0
    tuned: Mapping[str, Setting] = field(default_factory=dict)
    source: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not all(size >= 1 for size in (*self.sizes, *self._counts)):
            raise FocusError("Sizes, repetitions, query heads and the size of a head must be at least 1.")
        if not all(0 < share < 1 for share in self.shares):
            raise FocusError(f"The shares are {', '.join(map(str, self.shares))}: give numbers between 0 and 1.")
        unknown = sorted({*self.baselines, *self.tuned} - {*BASELINES, *LEARNED})
        if unknown:
            raise FocusError(f"There is no baseline {unknown[0]!r}: choose from {', '.join((*BASELINES, *LEARNED))}.")
        for name, setting in self.tuned.items():
            if name not in self.baselines:
                raise FocusError(f"{name} has a setting and is not measured: name it among the baselines.")
            METHODS[name].check_setting(name, setting)

    @property
    def _counts(self) -> tuple[int, ...]:
        return self.head_dim, self.query_heads, self.repetitions, self.fitted_tokens

    def points(self) -> list[dict[str, Any]]:
        """Every combination, short texts first; a baseline without a share once for each size."""
        return [
            {
                "tokens": size,
                "baseline": name,
                "share": share if METHODS[name].tunable else None,
                "head": None if head is None else list(head),
                "setting": dict(self.tuned.get(name, {})),
            }
            for size in self.sizes
            for head in self.heads
            for name in self.baselines
            for share in self.shares[: None if METHODS[name].tunable else 1]
        ]


@claims_file()
def run_baseline_bench(
    settings: BaselineBenchSettings,
    out: str | Path,
    progress: Callable[[int, int, dict[str, Any]], None] | None = None,
    heads_of: Callable[[int, int], list[Head]] | None = None,
) -> dict[str, Any]:
    """Measure every point that ``out`` does not hold yet.

    Args:
        settings: points to measure.
        out: the JSON file, replaced atomically after every point.
        progress: called with points done, points in all, and the point just measured.
        heads_of: called once per length with the numbers of tokens to read and to fit on; returns the heads of the
            settings, in their order. Default: `random_heads`.

    Returns:
        The record: ``schema``, ``made``, ``settings`` and ``points``. A point has ``tokens``, ``baseline``,
        ``share``, ``head``, ``setting`` (empty for the default), the values of `measure_baseline`, and ``date``.

    Raises:
        FocusError: the file holds another run.
        OSError: the file cannot be written.
    """
    path, wanted, device = Path(out), settings.points(), settings.device
    described: dict[str, Any] = plain(asdict(settings))
    report = {"schema": SCHEMA, "settings": described}
    record = resume_record(path, report, free=_LISTS, device=device)
    measured = [{name: point.get(name) for name in wanted[0]} for point in record["points"]] if wanted else []
    if heads_of is None:
        common = {name: described[name] for name in ("head_dim", "device", "seed", "query_heads")}
        heads_of = partial(random_heads, **common)
    heads: list[Head] = []
    size = 0
    for done, point in enumerate(wanted, 1):
        if point not in measured:
            if size != point["tokens"]:
                heads, size = heads_of(point["tokens"], settings.fitted_tokens), point["tokens"]
            place = [None if each is None else list(each) for each in settings.heads].index(point["head"])
            result = point | measure_baseline(settings, heads[place], point["baseline"], point["share"])
            result["date"] = datetime.now(UTC).date().isoformat()
            record = record_run(path, {**record, "points": [*record["points"], result]}, device=device)
            if progress is not None:
                progress(done, len(wanted), result)
    return record


@torch.inference_mode()
def measure_baseline(settings: BaselineBenchSettings, head: Head, baseline: str, share: float | None) -> dict[str, Any]:
    """One point of `run_baseline_bench`.

    Args:
        settings: window, sinks, repetitions, device and seed.
        head: queries, keys and values of one key/value head.
        baseline: key of `BASELINES` or `LEARNED`.
        share: wanted share of its distant pairs; None for random features.

    Returns:
        The values of a point. Seconds are those of one key/value head with its query heads:

        - ``full_s`` and ``attend_s``: full attention, and attention to the chosen pairs, with median, minimum, maximum
          and all runs; ``timed_heads`` has the query and key/value heads that each call computed at once;
        - ``select_s``: median of choosing the pairs, or of making random features; a choice that all heads of a layer
          share counts for each key/value head in equal parts; None for patterns that are known beforehand;
        - ``speedup`` without selection time, and ``speedup_with_choice`` with it;
        - ``way`` and ``way_with_choice``: the fastest executions without selection time and with it, and
          ``attend_with_choice_s``, the attention of the latter;
        - ``kept_share`` of distant and ``causal_kept_share`` of all pairs; None for random features;
        - ``error_output``: largest deviation from the definition in float64, on queries spread over the text.
    """
    method, case, device = METHODS[baseline], _case(settings, head, baseline, share), settings.device
    group, length = case.query.shape[1:3]
    units = torch.get_num_threads() if case.query.device.type == "cpu" else 1
    query, key, value = (part.repeat(1, units, 1, 1) for part in (case.query, case.key, case.value))

    def full() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=case.scale, enable_gqa=group > 1)

    def window() -> _Way:
        attend = partial(attend_window, query, key, value, *_width(case, method), case.scale)
        return _Way("the window's backend", lambda: None, lambda _: attend()[0, :group].flatten(0, 1), units)

    ways = _features(case, method) if method.keep is None else _pair_ways(case, baseline, method)
    serves = head.kv_heads if method.per_layer else 1
    best, quick, parts = _fastest(ways, device, by_itself=not method.fixed, serves=serves)
    if method.window:
        best = quick = min(best, _tried(window(), device, by_itself=False), key=lambda each: each.attend)
    calls: dict[str, Callable[[], Any]] = {"full_s": full, "attend_s": best.call}
    if not method.fixed:
        calls |= {"attend_with_choice_s": quick.call, "select_s": quick.way.plan}
    times = alternate(calls, settings.repetitions, device)
    per_unit = {"full_s": units, "attend_s": best.way.units}
    runs = {name: spread([each / per_unit.get(name, 1) for each in seconds]) for name, seconds in times.items()}
    select = None if method.fixed else runs.pop("select_s")["median"] / serves
    attend = runs.get("attend_with_choice_s", runs["attend_s"])["median"]
    point: dict[str, Any] = {
        "way": best.way.name,
        "way_with_choice": quick.way.name,
        "timed_heads": {name: [group * count, count] for name, count in per_unit.items()},
        "select_s": select,
        **runs,
        "speedup": runs["full_s"]["median"] / runs["attend_s"]["median"],
        "speedup_with_choice": runs["full_s"]["median"] / (attend + (select or 0.0)),
        **(_counted(case, parts) if parts else {"kept_share": None, "causal_kept_share": None}),
    }
    tokens = torch.linspace(0, length - 1, min(CHECKED_QUERIES, length), device=case.query.device).long().unique()
    expected = _expected(case, method, tokens, parts)
    found = best.call().unflatten(0, (group, length))[:, tokens]
    point["error_output"] = float((found.double() - expected).abs().max())
    return point


def _case(settings: BaselineBenchSettings, head: Head, baseline: str, share: float | None) -> Case:
    """The unit, keys and values not repeated, with what the baseline has from other text.

    Raises:
        FocusError: a learned baseline without its learner.
    """
    pairs = {"window": settings.window, "sinks": settings.sink_tokens, "share": share or 0.0}
    own: dict[str, Any] = {"seed": settings.seed, "setting": settings.tuned.get(baseline, {})}
    case = Case(head.query, head.key, head.value, **pairs, scale=head.scale, hidden=head.hidden, **own)
    if baseline in LEARNED:
        if baseline not in head.learners:
            raise FocusError(f"{baseline} is learned: name the model, and a text to train it on.")
        return replace(case, fitted=head.learners[baseline])
    fit = METHODS[baseline].fit
    return case if fit is None else replace(case, fitted=fit(*head.fitted, **own, **pairs))


class _Way(NamedTuple):
    """An execution: its plan, which holds the choice of the pairs, the attention by a plan, and units per call."""

    name: str
    plan: Callable[[], Any]
    attend: Callable[[Any], Tensor]
    units: int = 1


class _Tried(NamedTuple):
    """An execution with its plan, and seconds per unit of planning and of attention."""

    way: _Way
    planned: Any
    choose: float
    attend: float

    def call(self) -> Tensor:
        """Attention by the plan, (G * T, Dv)."""
        return self.way.attend(self.planned)


def _pair_ways(case: Case, name: str, method: Baseline) -> Iterator[_Way]:
    """The executions that allow any pairs."""
    assert method.keep is not None
    keep, (group, length) = method.keep, case.query.shape[1:3]
    tensors = case.query[0].flatten(0, 1), case.key[0, 0], case.value[0, 0]

    def choice() -> Choose:
        return fast_choice(name, case) or reference_choice(case, keep)

    def in_tiles(size: int, folded: bool) -> list[Part]:
        return tiles(choice(), group, length, size, folded=folded)

    def in_blocks() -> list[Part]:
        return key_blocks(in_tiles(128, True), length, KEY_BLOCK)

    for label, (size, folded) in TILES.items():
        if folded or group > 1:
            yield _Way(label, partial(in_tiles, size, folded), lambda parts: attend_tiles(*tensors, parts, case.scale))
    if group * length * length <= MOST_PAIRS:
        label = f"blocks of {KEY_BLOCK} keys"
        yield _Way(label, in_blocks, lambda parts: attend_key_blocks(*tensors, parts, case.scale))


def _features(case: Case, method: Baseline) -> Iterator[_Way]:
    """The execution of a baseline that estimates all pairs."""
    assert method.features is not None
    features, value = method.features, case.value[0, 0]

    def make() -> tuple[Tensor, Tensor]:
        query, key = features(case)
        return query[0], key[0, 0]

    yield _Way("running sums", make, lambda made: attend_features(made[0], made[1], value).flatten(0, 1))


def _tried(way: _Way, device: str, *, by_itself: bool, serves: int = 1) -> _Tried:
    """Run an execution a few times; its choice, which `serves` so many units, once more if it is timed by itself."""
    choose, planned = _timed(way.plan, device)
    if by_itself:
        choose = min(choose, _timed(way.plan, device)[0])
    attend = min(_timed(partial(way.attend, planned), device)[0] for _ in range(TRIES)) / way.units
    return _Tried(way, planned, choose / serves, attend)


def _fastest(ways: Iterator[_Way], device: str, *, by_itself: bool, serves: int) -> tuple[_Tried, _Tried, list[Part]]:
    """The fastest execution without its choice and with it, and the pairs of the first one.

    Where the choice is known beforehand, both are the former.
    """
    best = quick = None
    parts: list[Part] = []
    for way in ways:
        tried = _tried(way, device, by_itself=by_itself, serves=serves)
        if not parts and isinstance(tried.planned, list):
            parts = tried.planned
        best = tried if best is None or tried.attend < best.attend else best
        total = tried.attend + tried.choose
        quick = tried if quick is None or total < quick.attend + quick.choose else quick
    assert best is not None and quick is not None
    return best, quick if by_itself else best, parts


def _timed(call: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds of one call, and its result."""
    synchronize(device)
    started = time.perf_counter()
    result = call()
    synchronize(device)
    return time.perf_counter() - started, result


def _width(case: Case, method: Baseline) -> tuple[int, int]:
    """Window and sinks of a baseline that keeps a window, from the keys of the last query."""
    kept = _kept(case, method, case.key.shape[2] - 1)[0]
    return int(kept.flip(0).long().cumprod(0).sum()) - 1, case.sinks if bool(kept[0]) else 0


def _kept(case: Case, method: Baseline, token: int) -> Tensor:
    """(G or 1, T) bool: the keys that one query of each head keeps, by definition."""
    assert method.keep is not None
    kept = method.keep(repeated(case).part(token, token + 1)).reshape(-1, token + 1)
    return F.pad(kept, (0, case.key.shape[2] - token - 1))


def _counted(case: Case, parts: list[Part]) -> dict[str, float]:
    """Shares of distant pairs and of all pairs, mean over the query heads."""
    group, length = case.query.shape[1:3]
    index = torch.arange(length)
    distant = int((index - case.window).clamp(min=0).sum())
    causal = length * (length + 1) // 2
    kept = sum(int((part.bias == 0).count_nonzero()) for part in parts) / group
    return {"kept_share": (kept - (causal - distant)) / max(1, distant), "causal_kept_share": kept / causal}


def _expected(case: Case, method: Baseline, tokens: Tensor, parts: list[Part]) -> Tensor:
    """(G, n, Dv) float64: attention of some queries straight from the definition.

    Patterns that are known beforehand are taken from their definition as well, chosen pairs from the choice.
    """
    group, length = case.query.shape[1:3]
    query, key, value = case.query[0, :, tokens].double(), case.key[0, 0].double(), case.value[0, 0].double()
    if method.features is not None:
        made, keys = (part.double() for part in method.features(case))
        weights = made[0, :, tokens] @ keys[0, 0].T
        weights = weights * (torch.arange(length, device=tokens.device) <= tokens[:, None])
        return weights @ value / weights.sum(-1, keepdim=True)
    if method.fixed:
        kept = torch.stack([_kept(case, method, token).expand(group, -1) for token in tokens.tolist()], 1)
    else:
        rows = (torch.arange(group, device=tokens.device)[:, None] * length + tokens).flatten()
        kept = kept_by(parts, rows, length).unflatten(0, (group, -1))
    logits = (query @ key.T * case.scale).masked_fill(~kept, float("-inf"))
    return logits.softmax(-1) @ value
