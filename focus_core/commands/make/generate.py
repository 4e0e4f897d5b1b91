"""`focus generate`: text from a prompt and a document, as it is written."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_SEED,
    CacheBitsOption,
    FullBelowOption,
    JsonOption,
    ModelOption,
    RoutersOption,
    finite,
    full_below_of,
    print_json,
    refuse_given,
)


def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="Text to continue.")] = "",
    document: Annotated[
        Path | None, typer.Option("--document", "-d", help="A UTF-8 text file that comes before the prompt.")
    ] = None,
    model: ModelOption = "default",
    routers: RoutersOption = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, max=MAX_COUNT, help="New tokens at most.")] = 100,
    temperature: Annotated[
        float, typer.Option(parser=finite(0, 1000), help="0 takes the most likely token each time.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of sampling.")] = 0,
    full_below: FullBelowOption = "measured",
    cache_bits: CacheBitsOption = None,
    chat: Annotated[bool, typer.Option("--chat", help="Use the model's chat template.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Let the untouched model write as well.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Write with sparse attention, with the speed of it.

    The text appears as it is written. Prefill is the time to the first token.
    Full attention is faster in short texts: where it ends to be so is measured
    once on each machine, and earlier tokens attend to everything.

    Example: focus generate "The keeper climbed the stairs, and" --compare
    Example: focus generate --chat -d report.txt "What does it conclude?"
    """
    from focus_core.generation import first_difference, generate_text
    from focus_core.progress import terminal_progress

    if not temperature:
        refuse_given(context, ["seed"], "give a --temperature above 0")

    def show(text: str) -> None:
        if not json_output:
            sys.stdout.write(text)
            sys.stdout.flush()

    def head(mode: str) -> None:
        if compare:
            show(f"[{'untouched' if mode == 'off' else 'sparse'}] ")

    written = []
    with terminal_progress() as progress:
        texts = generate_text(
            prompt,
            document=document,
            model=model,
            routers=routers,
            compare=compare,
            chat=chat,
            max_new_tokens=tokens,
            temperature=temperature,
            seed=seed,
            full_below=full_below_of(full_below),
            cache_bits=cache_bits,
            on_start=head,
            on_text=show,
            progress=progress,
        )
        for found in texts:
            written.append(found)
            show("\n\n")
    place = first_difference(*written) if compare else None
    if json_output:
        print_json({"texts": [asdict(found) for found in written], "first_difference": place})
        return
    for found in written:
        speed = "" if found.tokens_per_second is None else f", {found.tokens_per_second:.1f} tokens/s"
        name = "untouched" if found.routing == "off" else f"sparse, {found.budget}"
        show(f"{name}: {found.prompt_tokens:,} tokens before, prefill {found.prefill_seconds:.1f} s{speed}\n")
    if compare:
        show("All tokens are equal.\n" if place is None else f"The first token that differs is number {place + 1}.\n")
