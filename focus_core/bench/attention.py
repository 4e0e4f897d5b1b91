"""Speed curves of the attention backends against full attention, measured on this machine.

`run_bench` replaces one JSON file after every measured point, so that an interrupted run resumes. Sparse and full
attention alternate within a point, so that other load on the machine slows both alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from focus_core.attention import focus_attention, kept_pairs
from focus_core.attention.inputs import AttentionInputs
from focus_core.attention.registry import resolve
from focus_core.attention.validate import checked_inputs
from focus_core.bench.measures.memory import working_bytes
from focus_core.bench.measures.timing import alternate, beside_load, spread
from focus_core.bench.routing import choosing_seconds, routing_seconds
from focus_core.bench.settings import DTYPES, BenchSettings
from focus_core.errors import FocusError
from focus_core.io.locks import claims_file
from focus_core.results import record_run, resume_record
from focus_core.routing.routers import ROUTERS

SCHEMA = "focus-bench/1"
CHECKED_QUERIES = 64
SAMPLE = 2048  # tokens, to find groups of a wanted share
STEEPEST = 40.0
_OLDER = {"router": "layer", "beside_load": False, "directions": 0}
"""Settings that earlier records lack."""
_LISTS = ("sizes", "routings", "dtypes", "backends", "shares")


@claims_file()
def run_bench(
    settings: BenchSettings,
    out: str | Path,
    progress: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure every point that ``out`` does not hold yet.

    Args:
        settings: points to measure.
        out: the JSON file, replaced atomically after every point. A file of other settings or of another machine is
            refused.
        progress: called with points done, points in all, and the point just measured.

    Returns:
        The record: ``schema``, ``made``, ``settings`` and ``points``. A point holds:

        - tokens, num_groups, top_k, share, dtype, backend, ``backend_used`` and ``date``;
        - ``full_s`` and ``sparse_s``: median, minimum, maximum and all runs, in seconds;
        - ``speedup`` of the medians, ``kept_share``, ``bound`` (1 / kept share) and ``share_of_bound``;
        - ``working_bytes``: peak memory beyond inputs and output, None where it cannot be read;
        - ``input_bytes`` of query, key and value;
        - ``error_output`` and ``error_logsumexp``: largest deviations from the float32 reference on some queries;
        - ``routing_s``, from `focus_core.bench.routing.routing_seconds`, ``select_s``, its part at inference, and
          ``speedup_with_choice`` with it;
        - ``loaded``, from `focus_core.bench.measures.timing.beside_load`, where the settings ask for it;
        - ``failure``: a sentence, alone, where the point could not be measured.

    Raises:
        FocusError: the file holds another run.
        OSError: the file cannot be written.
    """
    path, device = Path(out), settings.device
    wanted = list(settings.points())
    report = {"schema": SCHEMA, "settings": asdict(settings)}
    record = resume_record(path, report, free=_LISTS, older=_OLDER, device=device)
    measured = {_identity(point) for point in record["points"]}
    for done, point in enumerate(wanted):
        if _identity(point) not in measured:
            result = measure_point(settings, **point) | {"date": datetime.now(UTC).date().isoformat()}
            record = record_run(path, {**record, "points": [*record["points"], result]}, device=device)
            if progress is not None:
                progress(done + 1, len(wanted), result)
    return record


def measure_point(
    settings: BenchSettings,
    *,
    tokens: int,
    num_groups: int,
    top_k: int,
    dtype: str,
    backend: str,
    share: float | None = None,
) -> dict[str, Any]:
    """One point of `run_bench`."""
    point: dict[str, Any] = {
        "tokens": tokens,
        "num_groups": num_groups,
        "top_k": top_k,
        "share": share,
        "dtype": dtype,
        "backend": backend,
    }
    if ROUTERS[settings.router].from_keys:
        # It needs Numba, and the other points need PyTorch alone.
        from focus_core.bench.narrow import measure_narrow, narrow_config

        config = narrow_config(num_groups, share or 0.0, settings.window, settings.sink_tokens, settings.directions)
        with torch.no_grad():
            tensors = _tensors(settings, tokens, DTYPES[dtype])
            try:
                return point | measure_narrow(
                    *tensors,
                    config,
                    repetitions=settings.repetitions,
                    device=settings.device,
                    loaded=settings.beside_load,
                    backend=backend,
                )
            except FocusError as error:
                return point | {"failure": str(error)}
    inputs = _problem(settings, tokens, num_groups, top_k, DTYPES[dtype], share)
    reads = None if inputs.reads_own_groups else inputs.query_membership
    window, sink_tokens = settings.window, settings.sink_tokens
    counts = kept_pairs(inputs.membership, query_membership=reads, window=window, sink_tokens=sink_tokens)
    kept_share = float(counts.kept_share.mean())
    point |= {"kept_share": kept_share, "bound": 1 / kept_share}
    point["input_bytes"] = sum(tensor.nbytes for tensor in (inputs.query, inputs.key, inputs.value))
    with torch.no_grad():
        try:
            point["backend_used"], _ = resolve(backend, inputs)
        except FocusError as error:
            return point | {"failure": str(error)}

        def sparse() -> Any:
            return focus_attention(
                inputs.query,
                inputs.key,
                inputs.value,
                inputs.membership,
                query_membership=reads,
                window=settings.window,
                sink_tokens=settings.sink_tokens,
                backend=backend,
            )

        def full() -> Tensor:
            return F.scaled_dot_product_attention(
                inputs.query, inputs.key, inputs.value, is_causal=True, enable_gqa=inputs.heads_per_key > 1
            )

        calls = {"full_s": full, "sparse_s": sparse}
        runs = alternate(calls, settings.repetitions, settings.device)
        point |= {name: spread(times) for name, times in runs.items()}
        if settings.beside_load:
            point["loaded"] = beside_load(calls, runs, settings.repetitions, settings.device)
        point["speedup"] = point["full_s"]["median"] / point["sparse_s"]["median"]
        point["share_of_bound"] = point["speedup"] * kept_share
        point["working_bytes"] = working_bytes(sparse, settings.device)
        point |= _errors(inputs, sparse())
        point["routing_s"] = routing_seconds(
            settings.config(num_groups, top_k),
            tokens,
            width=settings.width or settings.heads * settings.head_dim,
            kv_heads=settings.kv_heads,
            repetitions=settings.repetitions,
            device=settings.device,
            seed=settings.seed,
        )
        point["select_s"] = choosing_seconds(point["routing_s"])
        point["speedup_with_choice"] = point["full_s"]["median"] / (point["sparse_s"]["median"] + point["select_s"])
    return point


def _problem(
    settings: BenchSettings, tokens: int, num_groups: int, top_k: int, dtype: torch.dtype, share: float | None
) -> AttentionInputs:
    """Normal tensors and a random routing: groups equal in expectation, or as unequal as the share requires.

    Heads with routers of their own are rows of the batch, as they are in a model.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    query, key, value = _tensors(settings, tokens, dtype, generator)
    kind = ROUTERS[settings.router]
    if kind.per_head:
        query = query.view(settings.kv_heads, -1, tokens, settings.head_dim)
        key, value = key.transpose(0, 1), value.transpose(0, 1)

    own = kind.key_top_k(top_k)
    tilt = 0.0 if share is None else _tilt(num_groups, top_k, own, share)

    def groups(count: int) -> Tensor:
        return random_groups((len(query), tokens, num_groups), count, tilt, generator).to(settings.device)

    reads = groups(top_k)
    membership = reads if kind.reads_own_groups else groups(own)
    return checked_inputs(
        query,
        key,
        value,
        membership,
        None,
        query_membership=None if kind.reads_own_groups else reads,
        window=settings.window,
        sink_tokens=settings.sink_tokens,
        sliding_window=None,
        scale=None,
        softcap=None,
    )


def _tensors(
    settings: BenchSettings, tokens: int, dtype: torch.dtype, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Normal query, key and value, with the heads of a token side by side, as models give them to attention."""
    generator = generator or torch.Generator().manual_seed(settings.seed)
    query, key, value = (
        torch.randn(1, heads, tokens, settings.head_dim, generator=generator).to(settings.device, dtype)
        for heads in (settings.heads, settings.kv_heads, settings.kv_heads)
    )
    query, key, value = (part.transpose(1, 2).contiguous().transpose(1, 2) for part in (query, key, value))
    return query, key, value


def random_groups(shape: tuple[int, int, int], count: int, tilt: float, generator: torch.Generator) -> Tensor:
    """`count` groups of every token, (B, T, K) bool: group g is drawn with weight e^(-tilt g / (K - 1))."""
    scores = torch.rand(shape, generator=generator)
    if tilt:  # the largest of log weight + Gumbel noise are a draw without replacement
        weights = -tilt * torch.linspace(0, 1, shape[-1])
        scores = weights - torch.log(-torch.log(scores.clamp(1e-7, 1 - 1e-7)))
    chosen = scores.topk(count, dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(2, chosen, True)


def _tilt(num_groups: int, top_k: int, own: int, share: float) -> float:
    """The tilt of `random_groups` at which this share of pairs has a group in common, on a sample of tokens."""

    def common(tilt: float) -> float:
        generator = torch.Generator().manual_seed(0)
        reads, groups = (
            random_groups((1, SAMPLE, num_groups), count, tilt, generator)[0].float() for count in (top_k, own)
        )
        return float((reads @ groups.T > 0).float().mean())

    fewest = common(0.0)
    if share < fewest:
        raise FocusError(
            f"Equal groups keep {fewest:.0%} of the distant pairs with K = {num_groups} and k = {top_k}, and unequal "
            "ones more: ask for a larger share."
        )
    low, high = 0.0, STEEPEST
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if common(middle) < share else (low, middle)
    return high


def _errors(inputs: AttentionInputs, result: Any) -> dict[str, float]:
    """Largest deviations from the definition, in float32, on queries spread over the text."""
    tokens = inputs.num_keys
    chosen = torch.linspace(0, tokens - 1, min(CHECKED_QUERIES, tokens), device=inputs.query.device).long()
    errors = {"error_output": 0.0, "error_logsumexp": 0.0}
    for query in chosen.tolist():
        # A prefix that ends at the query: queries of the reference are the last tokens.
        end = slice(0, query + 1)
        reference = focus_attention(
            inputs.query[:, :, query : query + 1].float(),
            inputs.key[:, :, end].float(),
            inputs.value[:, :, end].float(),
            inputs.membership[:, end],
            query_membership=inputs.query_membership[:, query : query + 1],
            window=inputs.window,
            sink_tokens=inputs.sink_tokens,
            backend="dense",
        )
        for name, ours, theirs in zip(errors, result, reference):
            deviation = (ours[:, :, query : query + 1].float() - theirs).abs().max()
            errors[name] = max(errors[name], float(deviation))
    return errors


def _identity(point: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(point.get(name) for name in ("tokens", "num_groups", "top_k", "share", "dtype", "backend"))
