"""`focus bench`: how fast the sparse attention is on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from focus_core.commands.options import JsonOption, RoutersOption, print_json

if TYPE_CHECKING:
    from torch import Tensor

    from focus_core.bench.attention import BenchSettings
    from focus_core.bench.heads import Head
    from focus_core.progress import Progress
    from focus_core.routing.model import FocusModel

HEADS = {"small": (9, 3, 64), "gpt2": (12, 12, 64), "llama": (32, 8, 128)}
"""Query heads, key/value heads and head size by name: SmolLM2-135M, GPT-2 124M, Llama 3 8B or Mistral 7B."""

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"sizes": (512, 1024, 2048, 4096), "routings": ((8, 1), (8, 2)), "dtypes": ("float32",)},
    "standard": {"sizes": (512, 1024, 2048, 4096, 8192, 16384, 32768)},
    "published": {
        "sizes": (1024, 4096, 16384, 32768, 65536, 262144, 1048576),
        "routings": ((4, 1), (8, 1), (8, 2), (16, 2)),
        "dtypes": ("bfloat16",),
    },
}


def bench(
    preset: Annotated[
        str, typer.Option(help="What to measure: quick (about a minute on 2 cores), standard, or published (a GPU's).")
    ] = "standard",
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write; repeat the command to go on.")] = Path(
        "bench.json"
    ),
    sizes: Annotated[list[int] | None, typer.Option("--size", help="Tokens; may be repeated.")] = None,
    routings: Annotated[
        list[str] | None, typer.Option("--routing", metavar="K/k", help="Groups and groups a token, as 8/2; repeat.")
    ] = None,
    dtypes: Annotated[list[str] | None, typer.Option("--dtype", help="float32, bfloat16 or float16; repeat.")] = None,
    backends: Annotated[list[str] | None, typer.Option("--backend", help="Backend; repeat. Default: auto.")] = None,
    router: Annotated[
        str, typer.Option(help="layer, or head: groups per key/value head, of which a query reads k.")
    ] = "layer",
    heads: Annotated[str, typer.Option(help="Shape of the heads: small, gpt2, llama, or as 9/3/64.")] = "small",
    window: Annotated[int, typer.Option("--window", "-w", help="Window w.")] = 128,
    sinks: Annotated[int, typer.Option(help="Sink tokens.")] = 4,
    repetitions: Annotated[int, typer.Option(help="Timed runs of a point, after one warm-up.")] = 5,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help="Measure a whole model instead: reading and writing."),
    ] = None,
    routers: RoutersOption = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="With --model: the text to read. Default: the sample story.")
    ] = None,
    baselines: Annotated[
        list[str] | None,
        typer.Option("--baseline", metavar="NAME", help="Measure a published baseline instead; repeat, or all."),
    ] = None,
    model_heads: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            metavar="LAYER/HEAD",
            help="With --baseline and --model: whose queries and keys; repeat. Default: one at each quarter.",
        ),
    ] = None,
    shares: Annotated[
        list[float] | None,
        typer.Option("--share", help="Share of distant pairs, as 0.18: one for each --routing, or baselines'."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU if there is one.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of tensors and routing.")] = 0,
    json_output: JsonOption = False,
) -> None:
    """Time sparse attention against full attention, with exactness and memory.

    Every point alternates the two, and gives the median and spread, the
    share of pairs kept, the bound that share sets on the speed-up, and the
    largest deviation from the definition. Nothing else should run beside it.
    Groups are of equal size; with --share as unequal as that takes.

    The whole published curve on a GPU, for both shapes of heads:
    focus bench --preset published --heads gpt2 --out bench-gpt2.json
    focus bench --preset published --heads llama --out bench-llama.json

    With --model, the model with routers reads 2K to 8K tokens and writes
    after 4K to 32K, against the untouched model: focus bench --model default

    With --baseline, one head of the sparse attentions that focus frontier
    compares with, executed exactly, but by no kernel of their papers. Among
    random tensors neighbours agree on no keys, so give those that choose by
    content a model that reads a text, of which three heads are measured:
    focus bench --baseline quest --model default --data book.txt --size 8192
    """
    import rich
    import torch

    from focus_core.bench.attention import BenchSettings, run_bench
    from focus_core.commands.tables import bench_table
    from focus_core.errors import FocusError
    from focus_core.progress import terminal_progress

    if preset not in PRESETS:
        raise FocusError(f"preset is {preset!r}: choose one of {', '.join(PRESETS)}.")
    chosen: dict[str, Any] = dict(PRESETS[preset])
    given = {"sizes": sizes, "dtypes": dtypes, "backends": backends}
    chosen |= {name: tuple(values) for name, values in given.items() if values}
    if routings:
        chosen["routings"] = tuple(_numbers(text, 2, "routing", "8/2") for text in routings)
    if shares and baselines is None:
        chosen["shares"] = tuple(shares)
    shape = HEADS[heads] if heads in HEADS else _numbers(heads, 3, "heads", "9/3/64")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = BenchSettings(
        **chosen,
        heads=shape[0],
        kv_heads=shape[1],
        head_dim=shape[2],
        window=window,
        sink_tokens=sinks,
        router=router,
        repetitions=repetitions,
        device=device,
        seed=seed,
    )
    if baselines is not None:
        places = tuple(
            (layer, head) for layer, head in (_numbers(each, 2, "head", "15/4") for each in model_heads or ())
        )
        _baselines(settings, baselines, sizes, shares, model, places, data, out, json_output)
        return
    if model is not None:
        _whole_model(model, routers, data, device, dtypes, out, json_output)
        return
    total = len(list(settings.points()))
    with terminal_progress() as progress:
        progress(f"Measuring {total} points on {device} into {out}", 0.0)

        def show(done: int, of: int, point: dict[str, Any]) -> None:
            speed = point.get("failure") or f"{point['speedup']:.2f}x of a possible {point['bound']:.2f}x"
            name = f"{point['tokens']:,} tokens, K={point['num_groups']}, k={point['top_k']}, {point['dtype']}"
            progress(f"{name}: {speed} ({done} of {of})", done / of)

        record = run_bench(settings, out, show)
    if json_output:
        print_json(record)
    else:
        rich.print(bench_table(record))
        rich.print(f"Written to {out}.")


def _baselines(
    common: BenchSettings,
    names: list[str],
    sizes: list[int] | None,
    shares: list[float] | None,
    model: str | None,
    places: tuple[tuple[int, int], ...],
    data: Path | None,
    out: Path,
    json_output: bool,
) -> None:
    import rich

    from focus_core.baselines import BASELINES
    from focus_core.bench.baselines import BaselineBenchSettings, run_baseline_bench
    from focus_core.bench.heads import heads_reading
    from focus_core.commands.tables import baseline_bench_table
    from focus_core.errors import FocusError
    from focus_core.progress import terminal_progress

    lists: dict[str, Any] = {
        "sizes": sizes,
        "shares": shares,
        "baselines": list(BASELINES) if names == ["all"] else names,
    }
    given: dict[str, Any] = {name: tuple(values) for name, values in lists.items() if values}
    with terminal_progress() as progress:
        reading: _Reading | None = None
        if model is not None:
            reading = _reading(model, places, data, common.device, progress)
        elif places or data is not None:
            raise FocusError("--head and --data are read with --model: give the model that reads the text.")
        settings = BaselineBenchSettings(
            **given,
            head_dim=common.head_dim,
            window=common.window,
            sink_tokens=common.sink_tokens,
            repetitions=common.repetitions,
            device=common.device,
            seed=common.seed,
            **({} if reading is None else {"heads": reading.heads, "source": reading.source}),
        )

        def heads_of(tokens: int) -> list[Head]:
            assert reading is not None
            progress(f"Reading {tokens:,} tokens", 0.0)
            return heads_reading(reading.focus, reading.input_ids, reading.heads, tokens, settings.fitted_tokens)

        progress(f"Measuring {len(settings.points())} points on {settings.device} into {out}", 0.0)

        def show(done: int, of: int, point: dict[str, Any]) -> None:
            name = f"{point['tokens']:,} tokens, {BASELINES[point['baseline']].label}"
            name += "" if point["head"] is None else ", head {}/{}".format(*point["head"])
            progress(f"{name}: {point['speedup']:.2f}x ({done} of {of})", done / of)

        record = run_baseline_bench(settings, out, show, None if reading is None else heads_of)
    if json_output:
        print_json(record)
    else:
        rich.print(baseline_bench_table(record))
        rich.print(f"Written to {out}.")


class _Reading(NamedTuple):
    """A model, the text that it reads, the heads to look at, and what the record says of them."""

    focus: FocusModel
    input_ids: Tensor
    heads: tuple[tuple[int, int], ...]
    source: dict[str, Any]


def _reading(
    model: str, places: tuple[tuple[int, int], ...], data: Path | None, device: str, progress: Progress
) -> _Reading:
    import torch

    from focus_core.bench.heads import check_heads, spread_heads
    from focus_core.models import load_model
    from focus_core.resources import data_dir
    from focus_core.results import text_records
    from focus_core.routing.config import FocusConfig
    from focus_core.routing.model import retrofit
    from focus_core.text import encode, find_texts, read_text

    loaded = load_model(model, device=device, progress=progress)
    focus = retrofit(loaded.model, FocusConfig())
    check_heads(focus, places)
    files = [data_dir() / "samples" / "story.txt"] if data is None else find_texts([data])
    text = "\n\n".join(read_text(file) for file in files)
    ids = torch.from_numpy(encode(loaded.tokenizer, text, opening=True).input_ids)
    source = {
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "data": text_records(files),
    }
    return _Reading(focus, ids, places or spread_heads(focus), source)


def _whole_model(
    model: str,
    routers: str | None,
    data: Path | None,
    device: str,
    dtypes: list[str] | None,
    out: Path,
    json_output: bool,
) -> None:
    import rich
    import torch

    from focus_core.bench.attention import DTYPES
    from focus_core.bench.model import ModelBenchSettings, run_model_bench
    from focus_core.bench.timing import describe_machine
    from focus_core.commands.tables import model_bench_table
    from focus_core.errors import FocusError
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.resources import data_dir
    from focus_core.results import record_run, text_records
    from focus_core.routing.attach import attach
    from focus_core.text import encode, find_texts, read_text

    dtype = dtypes[0] if dtypes else "float32"
    if dtype not in DTYPES or len(dtypes or [dtype]) > 1:
        raise FocusError(f"dtype is {' and '.join(dtypes or [])}: choose one of {', '.join(DTYPES)}.")
    settings = ModelBenchSettings()
    with terminal_progress() as progress:
        loaded = load_model(model, dtype=DTYPES[dtype], device=device, progress=progress)
        focus = attach(loaded, routers, untrained=False)
        files = [data_dir() / "samples" / "story.txt"] if data is None else find_texts([data])
        text = "\n\n".join(read_text(file) for file in files)
        ids = torch.from_numpy(encode(loaded.tokenizer, text, opening=True).input_ids)
        rows = run_model_bench(focus, ids, settings, progress)
    report = {
        "schema": "focus-bench-model/1",
        "machine": describe_machine(device),
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "settings": {"measured": settings, "config": focus.config, "routers": focus.name, "dtype": dtype},
        "data": text_records(files),
        "results": rows,
    }
    record = record_run(out, report)
    if json_output:
        print_json(record)
    else:
        rich.print(model_bench_table(record))
        rich.print(f"Written to {out}.")


def _numbers(text: str, count: int, name: str, example: str) -> tuple[int, ...]:
    from focus_core.errors import FocusError

    parts = text.split("/")
    if len(parts) != count or not all(part.isdigit() for part in parts):
        raise FocusError(f"{name} is {text!r}: write it as {example}.")
    return tuple(int(part) for part in parts)
