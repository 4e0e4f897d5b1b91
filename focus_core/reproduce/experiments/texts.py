"""Experiments that measure given routers on text: domains, length transfer, the k sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from focus_core.evaluation import evaluate, length_transfer
from focus_core.models import check_positions
from focus_core.reproduce.context import Context, row
from focus_core.reproduce.experiments.retrofits import HARD, Plan
from focus_core.resources import data_dir
from focus_core.text import opening_tokens, read_text, token_blocks

BALANCES = ("calibrated", "sequence")


def domain_files(context: Context) -> list[Path]:
    """The held-out texts, each a domain, and the English and code samples that come with the project."""
    samples = [data_dir() / "samples" / name for name in ("story.txt", "news.txt", "dialogue.txt", "code.py.txt")]
    return [*context.held_files, *samples]


def domain_cells(context: Context) -> dict[str, dict[str, Any]]:
    """One cell per text."""
    return {file.name: {"text": file.name, "number": n} for n, file in enumerate(domain_files(context))}


def run_domain(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Measure one text, untouched and routed on the same blocks; a text shorter than a block is one block."""
    text = read_text(domain_files(context)[values["number"]])
    tokenizer = context.loaded.tokenizer
    tokens = len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) + len(opening_tokens(tokenizer))
    length = min(context.scale.length, tokens)
    check_positions(context.loaded, length)
    blocks = token_blocks(tokenizer, [text], length, max_blocks=context.scale.blocks)
    focus = context.attached()
    try:
        untouched = evaluate(focus, blocks, routing="off")
        rows = [row(untouched, None)]
        for mode, top_k, balance in HARD:
            rows.append(row(evaluate(focus, blocks, routing=mode, top_k=top_k, balance=balance), untouched))
    finally:
        focus.detach()
    return {"rows": [{"length": length, "blocks": len(blocks), **each} for each in rows]}


def length_cells(context: Context) -> dict[str, dict[str, Any]]:
    """Lengths that double from 512 to the scale's, which is the longest."""
    lengths = [context.scale.length]
    while lengths[0] > 512 and lengths[0] % 2 == 0:
        lengths.insert(0, lengths[0] // 2)
    return {f"{length}": {"length": length, "shortest": lengths[0]} for length in lengths}


def run_length(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Measure the same tokens cut to one length, with the loss by position."""
    focus = context.attached()
    try:
        settings: Plan = [("off", None, None), *HARD]
        found = length_transfer(
            focus,
            context.held,
            [values["length"]],
            settings,
            piece=values["shortest"],
            opening=opening_tokens(context.loaded.tokenizer),
            progress=context.progress,
        )
    finally:
        focus.detach()
    rows, positions = [], []
    for each in found:
        gap = each.above_untouched
        more = {} if gap is None else gap.to_dict()
        rows.append({"length": each.length, **row(each.evaluation, None), **more})
        positions.append({"routing": each.evaluation.routing, "top_k": each.evaluation.top_k, "bins": each.positions})
    return {"rows": rows, "positions": positions}


def sweep_cells(context: Context) -> dict[str, dict[str, Any]]:
    """The untouched model, and k from 1 to 4 and K."""
    focus = context.attached()
    groups = focus.config.num_groups
    focus.detach()
    return {"untouched": {}} | {f"k={k}": {"top_k": k} for k in sorted({1, 2, 3, 4, groups}) if k <= groups}


def run_sweep(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Measure one k, causal and as published, with the bound on the speed-up from its kept pairs."""
    if cell == "untouched":
        return {"rows": [row(context.untouched, None)]}
    focus = context.attached()
    try:
        rows = context.measure(focus, [("hard", values["top_k"], balance) for balance in BALANCES])
    finally:
        focus.detach()
    return {"rows": [{**each, "speedup_bound": 1 / each["causal_kept_share"]} for each in rows]}
