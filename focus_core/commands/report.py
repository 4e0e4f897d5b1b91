"""`focus report`: what is in each group, over a text or a corpus of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import HeadOption, JsonOption, ModelOption, RoutersOption, print_json


def report(
    data: Annotated[list[Path], typer.Argument(metavar="TEXT-OR-FOLDER...", help="Text files, or folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report.")],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Use untrained routers (seed 0).")] = False,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", "-k", help="Groups per token; the routers' own, or their plan, if not given."),
    ] = None,
    head: HeadOption = 0,
    states: Annotated[
        str,
        typer.Option(
            help="Whose hidden states are routed. untouched: the model's own, which no k changes. "
            "routed: what is left when every layer attends sparsely at this k."
        ),
    ] = "untouched",
    layers: Annotated[
        list[int] | None, typer.Option("--layer", "-l", help="Layer to report; may be repeated. Default: all.")
    ] = None,
    block: Annotated[int, typer.Option(help="Tokens routed at once; a token knows nothing from before.")] = 2048,
    batch_size: Annotated[int, typer.Option(help="Blocks in one forward pass.")] = 1,
    examples: Annotated[int, typer.Option(help="Random and strongest examples per group.")] = 5,
    tags: Annotated[bool, typer.Option("--tags/--no-tags", help="Parts of speech of each group, by spaCy.")] = True,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Load the model in bfloat16: half the memory, and a few groups differ.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of random examples and intervals.")] = 0,
    title: Annotated[str | None, typer.Option(help="Title of the report.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Write a report with a card for every group of every layer.

    A card says how large and how sure a group is, which tokens and parts of
    speech it holds, how it looks in context, and whether it persists. The
    folder gets report.html (opens without a network), report.json, tables as
    CSV and Parquet, and session.zip for the Report page of the app.

    Memory does not grow with the corpus. Stop with Ctrl-C and repeat the
    command to go on where it stopped.

    Example: focus report books/ --out runs/books-report
    """
    import dataclasses
    import resource
    import time

    import torch

    from focus_core.analysis.tables import described
    from focus_core.analysis.trace import Provenance
    from focus_core.errors import FocusError
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.report import bundle
    from focus_core.report.build import build_report
    from focus_core.report.corpus import scan
    from focus_core.report.files import report_files, write_files
    from focus_core.report.html import summary
    from focus_core.report.stream import StreamSettings, chosen_layers, collect, forget
    from focus_core.report.tags import TAGS, SectionTagger
    from focus_core.routing.attach import attach
    from focus_core.routing.storage import routers_hash, weights_fingerprint
    from focus_core.text import read_text, token_bytes

    if states not in ("untouched", "routed"):
        raise FocusError(f"states is {states!r}: choose untouched or routed.")
    corpus = scan(data)
    with terminal_progress() as progress:
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        loaded = load_model(model, dtype=dtype, progress=progress)
        focus = attach(loaded, routers, untrained=untrained)
        config = focus.config.replace(**({} if top_k is None else {"top_k": top_k}))
        settings = StreamSettings(
            top_k=top_k,
            head=head,
            states=states,
            block_length=block,
            batch_size=batch_size,
            layers=tuple(layers) if layers else None,
            examples=examples,
            seed=seed,
        )
        provenance = Provenance(
            loaded.info.name,
            weights_fingerprint(focus.model),
            focus.name,
            routers_hash(focus.routers),
            focus.trained,
            focus.base_matches,
        )
        tagger = SectionTagger() if tags else None
        started = time.monotonic()
        statistics = collect(
            focus,
            loaded.tokenizer,
            corpus,
            settings,
            out,
            fingerprint={**dataclasses.asdict(provenance), "dtype": str(dtype)},
            tag=tagger,
            num_tags=len(TAGS) if tagger else 0,
            progress=progress,
        )
        seconds = time.monotonic() - started
        progress("Writing the report", 1.0)
        made = build_report(
            statistics,
            lambda ids: [raw.decode("utf-8", "replace") for raw in token_bytes(loaded.tokenizer, ids)],
            layers=chosen_layers(focus, settings),
            documents=corpus.documents,
            origin={
                **described(provenance, config, f"{states} model", corpus.sha256),
                "dtype": str(dtype),
                "head": head if config.router == "head" else None,
            },
            title=title or f"What the groups are: {data[0].name if len(data) == 1 else f'{len(data)} texts'}",
            block_length=block,
            tag_names=TAGS if tagger else (),
            tagger=str(tagger) if tagger else "not asked for",
        )
        short = len(corpus.files) == 1 and corpus.characters <= bundle.MAX_TEXT
        session = bundle.Session(
            settings={
                "model": model,
                "routers": "untrained" if untrained else routers or focus.name,
                "k": str(config.top_k),
                **({} if top_k is None or focus.config.layer_top_k is None else {"k_from": "one"}),
                "window": str(config.window),
                "sinks": str(config.sink_tokens),
                "states": states,
            },
            choices={"layers": list(made.layers), "sections": list(made.sections), "seed": seed, "examples": examples},
            text=read_text(corpus.files[0]) if short else None,
            text_name=corpus.documents[0].name,
            routers_hash=provenance.routers_hash,
        )
        files = {**report_files(made), "session.zip": bundle.write_bundle(made, session)}
        written = write_files(files, out)
        forget(out)
    if json_output:
        print_json(
            {
                "tokens": made.num_tokens,
                "words": made.num_words,
                "seconds": round(seconds, 3),
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "origin": made.origin,
                "made": made.made,
                "files": [path.name for path in written],
            }
        )
    else:
        print(f"{summary(made)}\n{len(written)} files in {out}; open {out / 'report.html'}")
