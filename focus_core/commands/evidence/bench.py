"""`focus bench`: speed of sparse attention on this machine, of one call, of a whole model, and of baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from focus_core.commands.evidence.bench_cache import cache
from focus_core.commands.options import (
    MAX_COUNT,
    MAX_DIRECTIONS,
    MAX_GROUPS,
    MAX_SEED,
    MAX_TOKENS,
    BenchFullBelowOption,
    DeviceOption,
    FocusCommand,
    JsonOption,
    ModelOption,
    RoutersOption,
    TextOption,
    chosen_device,
    finite,
    full_below_of,
    print_record,
    refuse_given,
    slashed,
)
from focus_core.errors import FocusError

if TYPE_CHECKING:
    from focus_core.bench.heads import Head


class _OldSpelling(TyperGroup):
    """Answers options without a sub-command, as they were spelt once, with the new spelling."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and not {"-h", "--help"} & set(args):
            raise FocusError(_new_spelling(args))
        return super().parse_args(ctx, args)


def _new_spelling(args: list[str]) -> str:
    names = {argument.partition("=")[0] for argument in args}
    if "--baseline" in names:
        return "focus bench --baseline NAME is now: focus bench baseline NAME, with the other options as they were."
    if names & {"--model", "-m"}:
        return "focus bench --model MODEL is now: focus bench model --model MODEL, with the other options as they were."
    return "focus bench with options is now: focus bench attention, with the same options."


bench = typer.Typer(cls=_OldSpelling, no_args_is_help=True)

WindowOption = Annotated[int, typer.Option("--window", "-w", min=0, max=MAX_TOKENS, help="Window w.")]
SinksOption = Annotated[int, typer.Option(min=0, max=MAX_TOKENS, help="Sink tokens.")]
RepetitionsOption = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Timed runs of a point, after one warm-up.")]
SizesOption = Annotated[
    list[int] | None, typer.Option("--size", min=1, max=MAX_TOKENS, help="Tokens; repeat for more.")
]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="File to write; repeat the command to resume.")]


@bench.callback()
def group() -> None:
    """Time sparse attention on this machine.

    attention: one call against full attention, at many lengths.
    model: prefill and decode of a whole model with routers.
    cache: memory and quality of caches of narrow groups, in 8 bits, too.
    baseline: published sparse attentions, executed exactly.
    scale: this machine's rates, and predictions from them against times.

    Nothing else should run beside a measurement.
    """


@bench.command(cls=FocusCommand)
def attention(
    preset: Annotated[
        str, typer.Option(help="Points: quick (a minute on 2 cores), standard, or published (for a GPU).")
    ] = "standard",
    out: OutOption = Path("bench.json"),
    sizes: SizesOption = None,
    routings: Annotated[
        list[str] | None, typer.Option("--routing", metavar="K/k", help="Groups and groups a token, as 8/2; repeat.")
    ] = None,
    shares: Annotated[
        list[float] | None,
        typer.Option("--share", parser=finite(0, 1), help="Share of distant pairs, as 0.18; one for each --routing."),
    ] = None,
    dtypes: Annotated[list[str] | None, typer.Option("--dtype", help="float32, bfloat16 or float16; repeat.")] = None,
    backends: Annotated[list[str] | None, typer.Option("--backend", help="Backend; repeat. Default: auto.")] = None,
    router: Annotated[
        str,
        typer.Option(help="layer; head: groups per key/value head, of which a query reads k; narrow: 64/1, --share."),
    ] = "layer",
    heads: Annotated[str, typer.Option(help="Shape of the heads: small, gpt2, llama, or as 9/3/64.")] = "small",
    window: WindowOption = 128,
    sinks: SinksOption = 4,
    repetitions: RepetitionsOption = 5,
    device: DeviceOption = "auto",
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of tensors and routing.")] = 0,
    beside_load: Annotated[
        bool, typer.Option("--beside-load", help="Time every point once more while another process is busy.")
    ] = False,
    directions: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_DIRECTIONS, help="Directions of spread, with --router narrow. Default: 5 there."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Time one attention call, sparse against full.

    Every point alternates the two. It gives median and spread, the share
    of pairs kept, the bound of that share on the speed-up, the largest
    deviation from the definition, and memory. Groups are of equal size;
    with --share they are unequal, to keep that share of distant pairs.

    The published curve on a GPU, for both shapes of heads:
    focus bench attention --preset published --heads gpt2 --out gpt2.json
    focus bench attention --preset published --heads llama --out llama.json
    """
    from focus_core.bench.attention import run_bench
    from focus_core.bench.settings import HEADS, PRESETS, BenchSettings
    from focus_core.commands.tables.bench import bench_table
    from focus_core.progress import terminal_progress
    from focus_core.routing.narrow.directions import DIRECTIONS

    if preset not in PRESETS:
        raise FocusError(f"preset is {preset!r}: choose one of {', '.join(PRESETS)}.")
    given = {"sizes": sizes, "dtypes": dtypes, "backends": backends, "shares": shares}
    chosen: dict[str, Any] = PRESETS[preset] | {name: tuple(values) for name, values in given.items() if values}
    if router == "narrow":
        chosen = {**chosen, "routings": ((64, 1),), "shares": chosen.get("shares", (0.15,))}
        directions = DIRECTIONS if directions is None else directions
    if routings:
        chosen["routings"] = tuple(slashed(text, 2, "routing", "8/2") for text in routings)
    query_heads, kv_heads, head_dim = HEADS[heads] if heads in HEADS else slashed(heads, 3, "heads", "9/3/64")
    settings = BenchSettings(
        **chosen,
        heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        sink_tokens=sinks,
        router=router,
        repetitions=repetitions,
        device=chosen_device(device),
        seed=seed,
        beside_load=beside_load,
        directions=directions or 0,
    )
    with terminal_progress() as progress:
        progress(f"Measuring {len(list(settings.points()))} points on {settings.device} into {out}", 0.0)

        def show(done: int, of: int, point: dict[str, Any]) -> None:
            speed = point.get("failure") or f"{point['speedup']:.2f}x, {point['bound']:.2f}x by its pairs"
            name = f"{point['tokens']:,} tokens, K={point['num_groups']}, k={point['top_k']}, {point['dtype']}"
            progress(f"{name}: {speed} ({done} of {of})", done / of)

        record = run_bench(settings, out, show)
    print_record(record, bench_table, out, json_output)


@bench.command(cls=FocusCommand)
def model(
    model: ModelOption = "default",
    routers: RoutersOption = None,
    data: TextOption = None,
    sizes: Annotated[
        list[int] | None,
        typer.Option("--size", min=1, max=MAX_TOKENS, help="Tokens of prefill; repeat. Default: 512, 2048, 8192."),
    ] = None,
    decode: Annotated[
        list[int] | None,
        typer.Option(min=1, max=MAX_TOKENS, help="Tokens before decode; repeat. Default: 512, 2048, 8000."),
    ] = None,
    top_k: Annotated[
        list[int] | None, typer.Option("--k", min=1, max=MAX_GROUPS, help="k; repeat. Default: 1 and 2.")
    ] = None,
    shares: Annotated[
        list[float] | None,
        typer.Option(
            "--share",
            parser=finite(0, 1),
            help="Share of distant pairs in a window with sinks; repeat. Default: as each k.",
        ),
    ] = None,
    repetitions: Annotated[
        int, typer.Option(min=1, max=MAX_COUNT, help="Timed runs of prefill, after one warm-up.")
    ] = 3,
    full_below: BenchFullBelowOption = "measured",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write; repeat the command to resume.")] = Path(
        "bench-model.json"
    ),
    json_output: JsonOption = False,
) -> None:
    """Time prefill and decode of a model with routers.

    Each routing is timed against the untouched model. In prefill a window
    with sinks, in the backend of the routers, keeps as many pairs.

    Example: focus bench model --model default --data book.txt
    """
    from focus_core.bench.model import ModelBenchSettings, record_model_bench
    from focus_core.commands.tables.bench import model_bench_table
    from focus_core.progress import terminal_progress

    given = {"prefill": sizes, "decode": decode, "top_k": top_k, "shares": shares}
    chosen: dict[str, Any] = {name: tuple(values) for name, values in given.items() if values}
    settings = ModelBenchSettings(**chosen, repetitions=repetitions, full_below=full_below_of(full_below))
    options: dict[str, Any] = {"data": data, "dtype": dtype, "device": chosen_device(device), "settings": settings}
    with terminal_progress() as progress:
        record = record_model_bench(model, out, routers=routers, **options, progress=progress)
    print_record(record, model_bench_table, out, json_output)


bench.command(cls=FocusCommand)(cache)


@bench.command(cls=FocusCommand)
def baseline(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Baselines. Default: all; learned ones only with --train."),
    ] = None,
    out: OutOption = Path("bench-baselines.json"),
    sizes: SizesOption = None,
    shares: Annotated[
        list[float] | None,
        typer.Option("--share", parser=finite(0, 1), help="Share of distant pairs; repeat. Default: 0.15."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help="Model that reads a text. Default: normal tensors."),
    ] = None,
    data: TextOption = None,
    model_heads: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            metavar="LAYER/HEAD",
            help="Query head of the model, timed with those that share its key/value head; repeat. Default: one at "
            "each quarter of it.",
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(help="Text file or folder that learned baselines (seer, indexer) are trained on first."),
    ] = None,
    learned_tokens: Annotated[
        int | None,
        typer.Option(min=1024, max=MAX_TOKENS, help="Tokens to train them on. Default: 307200, as for quality."),
    ] = None,
    tuned: Annotated[
        list[str] | None,
        typer.Option("--setting", metavar="NAME:KEY=VALUE", help="Setting of a baseline, as quest:page=4; repeat."),
    ] = None,
    query_heads: Annotated[
        int, typer.Option(min=1, max=MAX_GROUPS, help="Query heads of a key/value head of normal tensors.")
    ] = 3,
    head_dim: Annotated[int, typer.Option(min=1, max=MAX_GROUPS, help="Size of a head of normal tensors.")] = 64,
    window: WindowOption = 128,
    sinks: SinksOption = 4,
    repetitions: RepetitionsOption = 5,
    device: DeviceOption = "auto",
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of tensors and random baselines.")] = 0,
    json_output: JsonOption = False,
) -> None:
    """Time published sparse attentions, one key/value head with its query heads.

    They are executed exactly, without the kernels of their papers. Speed-ups
    are given for attention alone and with the choice of pairs included.
    Normal tensors suit fixed patterns alone: their neighbouring queries
    select different keys. Content-based baselines need heads of a model with
    a text as input:
    focus bench baseline quest --model default --data book.txt --size 8192
    """
    from focus_core.baselines import BASELINES, LEARNED, METHODS
    from focus_core.bench.baselines import BaselineBenchSettings, run_baseline_bench
    from focus_core.commands.tables.bench import baseline_bench_table
    from focus_core.io.locks import claim_file
    from focus_core.progress import terminal_progress

    if model is None and (model_heads or data is not None):
        raise FocusError("--head and --data belong to a model that reads a text: name it with --model.")
    if model is not None:
        refuse_given(context, ["query_heads", "head_dim"], "leave --model out")
    if names in (None, [], ["all"]):
        names = [*BASELINES, *(LEARNED if train else ())]
    taught = tuple(name for name in names or () if name in LEARNED)
    if bool(taught) != (train is not None) or (taught and model is None) or (learned_tokens and not taught):
        raise FocusError("Learned baselines (seer, indexer), --train and --model belong together: give all or none.")
    given: dict[str, Any] = {"sizes": sizes, "shares": shares, "baselines": names}
    chosen: dict[str, Any] = {name: tuple(values) for name, values in given.items() if values}
    chosen |= {
        "head_dim": head_dim,
        "query_heads": query_heads,
        "window": window,
        "sink_tokens": sinks,
        "repetitions": repetitions,
        "tuned": _settings(tuned or ()),
    }
    settings = BaselineBenchSettings(**chosen, device=chosen_device(device), seed=seed)
    if not any(METHODS[name].tunable for name in settings.baselines):
        refuse_given(context, ["shares"], "name a baseline whose share can be set")
    with terminal_progress() as progress:
        heads_of: Callable[[int, int], list[Head]] | None = None
        if model is not None:
            from focus_core.bench.reading import read_text_with

            with claim_file(out):
                pass  # tried before the text is read, and held below
            places = [slashed(each, 2, "head", "15/4") for each in model_heads or ()]
            how: dict[str, Any] = {"data": data, "sizes": settings.sizes, "device": settings.device}
            reading = read_text_with(model, heads=places, **how, progress=progress)
            fitted = min(BaselineBenchSettings.fitted_tokens, reading.positions or MAX_TOKENS)
            if taught and train is not None:
                reading = reading.taught(
                    train,
                    out.with_name(f"{out.stem}-learned"),
                    _learned(taught, learned_tokens, chosen, seed),
                    progress,
                )
            settings = replace(settings, heads=reading.heads, source=reading.source, fitted_tokens=fitted)
            heads_of = reading.heads_at
        progress(f"Measuring {len(settings.points())} points on {settings.device} into {out}", 0.0)

        def show(done: int, of: int, point: dict[str, Any]) -> None:
            name = f"{point['tokens']:,} tokens, {METHODS[point['baseline']].label}"
            name += "" if point["head"] is None else ", head {}/{}".format(*point["head"])
            progress(f"{name}: {point['speedup']:.2f}x ({done} of {of})", done / of)

        record = run_baseline_bench(settings, out, show, heads_of)
    print_record(record, baseline_bench_table, out, json_output)


@bench.command(cls=FocusCommand)
def scale(
    model: ModelOption = "default",
    routers: RoutersOption = None,
    sizes: Annotated[
        list[int] | None,
        typer.Option("--size", min=1, max=MAX_TOKENS, help="Tokens to check; repeat. Default: 512, 2048, 8192."),
    ] = None,
    repetitions: RepetitionsOption = 5,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("scale.json"),
    json_output: JsonOption = False,
) -> None:
    """Measure the constants of docs/scale.md, and check what they predict.

    Constants come from lengths of their own. Then prefill, decode, traces,
    focus fit and training are predicted at others, and measured. It takes
    some minutes, on a CPU in float32.

    Example: focus bench scale --out scale.json
    """
    from focus_core.commands.tables.bench import scale_table
    from focus_core.progress import terminal_progress
    from focus_core.scale.record import ScaleSettings, record_scale

    chosen: dict[str, Any] = {"checked": tuple(sizes)} if sizes else {}
    settings = ScaleSettings(**chosen, repetitions=repetitions)
    with terminal_progress() as progress:
        record = record_scale(out, model=model, routers=routers, settings=settings, progress=progress)
    print_record(record, scale_table, out, json_output)


def _learned(names: tuple[str, ...], tokens: int | None, chosen: dict[str, Any], seed: int) -> Any:
    """Settings of the training of learned baselines, as for their quality."""
    from focus_core.baselines.learned.lesson import Sizes
    from focus_core.baselines.learned.train import LearnedSettings

    sizes = Sizes.within(chosen["window"])
    pairs = {"window": chosen["window"], "sinks": chosen["sink_tokens"]}
    return LearnedSettings(names=names, tokens=tokens or LearnedSettings.tokens, **pairs, sizes=sizes, seed=seed)


def _settings(texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Settings by name of their baseline, from texts such as "quest:page=4"."""
    found: dict[str, dict[str, float]] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        key, _, value = rest.partition("=")
        if key in found.get(name, ()):
            raise FocusError(f"{key} of {name} is given twice: leave one --setting out.")
        try:
            found.setdefault(name, {})[key] = float(value)
        except ValueError:
            raise FocusError(f"setting is {text!r}: write it as quest:page=4.") from None
    return found
