"""Write the table and the figures of README.md.

    python tools/readme_card.py [--check]

Every figure comes from `data/results/frontier-kinds*.json` and `frontier-fresh*.json` (focus frontier),
`bench-*.json` (focus bench), and `retrieval-*.json` (focus harness).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cards
import narrow_speeds
import numpy as np
from benchmark_card import pairs, retrievals
from cards import ROOT, Pages, Record, item, listed, read, read_if_there, table
from frontier_kinds import (
    CANDIDATES,
    FRESH,
    FRESH_LONG,
    GEMMA,
    HEADS,
    LESS,
    LONG,
    QWEN,
    RECORD,
    at_the_edge,
    blocks_at,
    divergence,
    row_of,
    there,
    told_apart,
)
from scipy.stats import ttest_rel

from focus_core.evaluation.compare import MIN_BLOCKS
from focus_core.frontier.kinds.means import MeanRow, kinds_at, lengths_of, mean_rows
from focus_core.frontier.kinds.table import COLUMNS as ALL
from focus_core.frontier.kinds.table import cells
from focus_core.frontier.speeds import recorded_speeds

ABROAD = (
    *("bench-model-narrow-xeon-no-amx.json", "bench-model-narrow-bf16-xeon.json"),
    "bench-model-narrow-epyc-25.json",
)
"""The whole model on CPUs of another name: in float32, in bfloat16 with matrix units, and with narrower vectors."""
MORE = 1.1
"""Ours and another method keep about as many pairs where their shares differ by less than this factor."""
ONE_THRESHOLD = "one-threshold"
"""The default's form with one threshold for all query heads, in the record of candidates."""
BESIDE = {"sparq": "SparQ", "streaming": "the window"}
"""Baselines of the table, and their names there."""
COLUMNS = (
    *("text", "T", "pairs kept"),
    *(f"KL, {name}" for name in ("default", *BESIDE.values())),
    *(f"perplexity, {name}" for name in ("default", *BESIDE.values())),
    *("attention", "model"),
)


def answer(record: Record) -> str:
    """What the table says, in two lines."""
    length = max(each for each in lengths_of(record) if blocks_at(record, each) >= MIN_BLOCKS)
    rows = [row for row in mean_rows(record, length) if row.against is not None and row.kl is not None]
    ours = row_of(record, length)
    if ours is None or ours.kl is None:
        return f"At {length:,} tokens the default is not measured yet."
    closer, farther = told_apart(rows)
    return (
        f"At {length:,} tokens the default, fitted without a training step, reads {ours.kept_share:.0%} of the distant "
        f"pairs. Its predictions are {ours.kl.difference:.4f} nats from the untouched model's.\n"
        f"Of {len(rows)} published methods at that share, {closer or 'none'} {'is' if closer < 2 else 'are'} "
        f"significantly closer, and {farther} are significantly farther ([all of them](docs/frontier.md))."
    )


def late(*found: Record) -> str:
    """KL in the last quarter of a text, at the longest length of each record."""
    lengths = [max(lengths_of(record)) for record in found]
    told = []
    for method, name in ((None, "its KL is"), *((key, f"that of {name}") for key, name in BESIDE.items())):
        rows = [row_of(record, length, method) for record, length in zip(found, lengths)]
        values = [f"{row.kl_last_quarter:.4f}" for row in rows if row is not None and row.kl is not None]
        told += [f"{name} {listed(values)}"] if values else []
    return f"In the last quarter of a text of {listed(f'{each:,}' for each in lengths)} tokens {listed(told)}."


def which_texts(main: Record, record: Record) -> str:
    """Whose texts a record has, beside those of the table."""
    own, others = record["kinds"], main["kinds"]
    shared = all(name in others and entry["documents"] == others[name]["documents"] for name, entry in own.items())
    if not shared:
        return "on the same kinds of text" if own.keys() == others.keys() else "on other texts"
    return "on the same texts" if len(own) == len(others) else f"on {len(own)} of these {len(others)} kinds of text"


def kinds_table(*found: Record) -> str:
    """Each kind of text: the default beside SparQ and the window; then the mean over kinds.

    It has the lengths at which the default keeps about as many pairs as they do.
    """
    lines = []
    for record, length in [(each, length) for each in found for length in lengths_of(each)]:
        ours, others = row_of(record, length), [row_of(record, length, name) for name in BESIDE]
        full = row_of(record, length, "untouched")
        if ours is None or full is None or (others[0] is not None and not alike(record, length, others[0])):
            continue
        for kind in kinds_at(record, length):
            points = [None if row is None else row.points.get(kind) for row in (ours, *others)]
            kept = "" if points[0] is None else f"{points[0]['kept_share']:.1%}"
            kls = ["" if point is None else f"{np.mean(point['block_kl']):.4f}" for point in points]
            losses = ["" if point is None else _change(point, full.points[kind]) for point in points]
            lines.append((kind, f"{length:,}", kept, *kls, *losses, "", ""))
        means = [
            None if row is None else dict(zip(ALL, cells(row, recorded_speeds(record["model"]["name"]))))
            for row in (ours, *others)
        ]
        kls, losses = ([each[name] if each else "" for each in means] for name in ("KL", "perplexity"))
        kls[1:] = [kl + " *" * (row is not None and row.established) for kl, row in zip(kls[1:], others)]
        own = means[0] or {}
        speeds = own["attention, choosing included"], own["whole model"]
        lines.append(("**mean**", f"**{length:,}**", own["distant pairs kept"], *kls, *losses, *speeds))
    return table(COLUMNS, lines)


def _change(point: dict[str, Any], full: dict[str, Any]) -> str:
    """The change of perplexity from the untouched model on one kind of text."""
    return f"{np.exp(np.mean(point['block_nll']) - np.mean(full['block_nll'])) - 1:+.1%}"


def decoding(model: Record) -> str:
    """One sentence on the longest cache."""
    speeds = narrow_speeds.by_tokens(model, "decode")
    longest = max(speeds)
    return (
        f"A token after {longest:,} others is decoded {speeds[longest]:.2f} times as fast as untouched "
        "([speed](docs/speed.md))."
    )


def more_positions(speeds: Record | None, quality: Record | None) -> str:
    """Speeds of the model with more positions, at a length whose quality is known; nothing without one."""
    if speeds is None or quality is None:
        return ""
    prefill, window, decode = (
        narrow_speeds.by_tokens(speeds, *each) for each in (("prefill",), ("prefill", "window"), ("decode",))
    )
    known = max(prefill.keys() & set(lengths_of(quality)), default=None)
    if known is None:
        return ""
    cache = max(tokens for tokens in decode if tokens <= known)
    return (
        f"Prefill of {known:,} tokens is {prefill[known]:.2f} times as fast, with a window of the same share "
        f"{window[known]:.2f} times. A token after {cache:,} others is decoded {decode[cache]:.2f} times as fast."
    )


def less(main: Record, record: Record | None) -> str:
    """One sentence on a smaller share of pairs; nothing without a record."""
    if record is None:
        return ""
    length = max(lengths_of(record))
    rows = [row for row in mean_rows(record, length) if row.against is not None and row.kl is not None]
    ours, (closer, farther) = row_of(record, length), told_apart(rows)
    if ours is None or ours.kl is None or not rows:
        return ""
    nearest = rows[0]
    return (
        f"At {ours.wanted_share:.0%}, {which_texts(main, record)}, the default's KL is {ours.kl.difference:.4f}. The "
        f"nearest of {len(rows)} methods, {next(iter(nearest.points.values()))['label']}, is at "
        f"{nearest.kl.difference if nearest.kl else 0:.4f} ([{length:,} tokens](docs/frontier.md)). "
        f"{closer or 'None'} {'is' if closer < 2 else 'are'} significantly closer, {farther} farther."
    )


def limits(
    record: Record,
    long: Record | None,
    fresh: Record | None,
    fresh_long: Record | None,
    model: Record,
    abroad: Sequence[Record],
    retrieval: Sequence[Record],
    cache: Record,
    qwen: Record | None,
    gemma: Record | None,
    candidates: Record | None,
) -> str:
    """What does not hold, as a list."""
    adaptation = "Training on next tokens adapts to the text ([why it is no win](docs/frontier.md))."
    others = {"[Qwen2.5-Coder](docs/frontier.md#on-another-model)": qwen, "Gemma 3 270M": gemma}
    return titled(
        ("Large speed-ups", faster(model)),
        ("[Retrieval](docs/benchmarks.md)", pairs(retrieval, missed=True)),
        ("A gain in perplexity", adaptation),
        ("A wide lead", closest(fresh_long, *there(record, long))),
        ("Trained routers", trained(record)),
        ("Equal terms", terms(fresh or record, candidates)),
        ("Short texts", short(record)),
        ("Fresh texts", texts(record, fresh)),
        ("Other models", other_models(others)),
        ("Less memory", narrow_speeds.cache_size(cache)),
        ("Other machines", narrow_speeds.prefill_elsewhere(abroad)),
    )


def titled(*entries: tuple[str, str]) -> str:
    """A list of titles with what is told under each, without those that nothing is told of."""
    return "\n".join(item(f"**{title}.** {text}") for title, text in entries if text)


def faster(model: Record) -> str:
    """Prefill beside a window of the same share."""
    speeds = [narrow_speeds.by_tokens(model, "prefill", routing) for routing in ("hard", "window")]
    told, beside = (listed(f"{each[tokens]:.2f}x" for tokens in speeds[0]) for each in speeds)
    lengths = listed(f"{tokens:,}" for tokens in speeds[0])
    return f"Prefill of {lengths} tokens: {told}; a window of the same share: {beside}."


def closest(fresh: Record | None, *found: Record) -> str:
    """How much farther SparQ is than ours at each length, over kinds at the longest, and its speed there."""
    rows = [
        (record, length, row, ours)
        for record in found
        for length in lengths_of(record)
        if (row := row_of(record, length, "sparq")) is not None
        and row.kl is not None
        and (ours := divergence(record, length)) is not None
        and alike(record, length, row)
    ]
    times = " and ".join(f"{row.kl.difference / ours:.1f}" for *_, row, ours in rows if row.kl is not None)
    lengths = " and ".join(f"{length:,}" for _, length, *_ in rows)
    record, longest, last, _ = rows[-1]
    setting = next(iter(last.points.values()))["setting"]
    speed = recorded_speeds().at("sparq", longest, last.kept_share, setting=setting).with_choice
    runs = "has no measured speed" if speed is None else f"is at {speed:.2f}x"
    over = f"p over the {len(kinds_at(record, longest))} kinds is {over_kinds(record, longest)}"
    if fresh is not None and longest in lengths_of(fresh) and len(fresh["kinds"]) < len(record["kinds"]):
        without = " and ".join(kind for kind in record["kinds"] if kind not in fresh["kinds"])
        over += f", and {over_kinds(fresh, longest)} without {without}"
    return (
        f"SparQ has {times} times the KL of the default at {lengths} tokens. At {longest:,} {over}. It reads "
        f"{setting['components']:.0%} of every key to choose; not compiled, it {runs}."
    )


def over_kinds(record: Record, length: int) -> str:
    """p of the comparison with SparQ with kinds of text as units in place of blocks, and where SparQ is closer."""
    ours, sparq = (row_of(record, length, name) for name in (None, "sparq"))
    assert ours is not None and sparq is not None
    kinds = kinds_at(record, length)
    means = [[float(np.mean(row.points[kind]["block_kl"])) for kind in kinds] for row in (ours, sparq)]
    chance = float(ttest_rel(means[0], means[1]).pvalue)
    closer = [kind for kind, one, other in zip(kinds, *means) if other < one]
    named = f" (SparQ closer on {' and '.join(closer)})" if closer else ""
    return f"{chance:.2f}{named}"


def alike(record: Record, length: int, row: MeanRow) -> bool:
    """Whether a method keeps about as many pairs as ours; in short texts ours keeps more."""
    ours = row_of(record, length)
    if ours is None or ours.kept_share is None or row.kept_share is None:
        return False
    return ours.kept_share < MORE * row.kept_share


def short(record: Record) -> str:
    """The lengths at which ours keeps more pairs than others were given; nothing without one."""
    told = [
        f"{ours.kept_share:.0%} of the pairs at {length:,} tokens, others {others.kept_share:.0%}"
        for length in lengths_of(record)
        if (ours := row_of(record, length)) is not None
        and (others := row_of(record, length, "sparq")) is not None
        and not alike(record, length, others)
    ]
    return f"The default keeps {'; '.join(told)}: no comparison there." if told else ""


def trained(record: Record) -> str:
    """How far the trained routers are from the model, beside narrow groups."""
    found = {length: divergence(record, length, HEADS) for length in lengths_of(record)}
    ratios = [f"{far / (divergence(record, length) or 1.0):.0f}" for length, far in found.items() if far is not None]
    lengths = " and ".join(f"{length:,}" for length, far in found.items() if far is not None)
    return f"Those per head (k = 1) have {' and '.join(ratios)} times the KL of the default at {lengths} tokens."


def terms(record: Record, candidates: Record | None) -> str:
    """What ours has and baselines have not."""
    edge, tuned = at_the_edge(record)
    which = "Tuned baselines" if len(edge) == len(tuned) else f"{len(edge)} of {len(tuned)} tuned baselines"
    start = "Each head of ours has a threshold of its own; baselines have one share for every head and query."
    if candidates is not None:
        one, sparq = (divergence(candidates, lengths_of(candidates)[-1], name) for name in (ONE_THRESHOLD, "sparq"))
        if one is not None and sparq is not None:
            start = (
                "Each head of ours has a threshold of its own. With "
                f"[one for all](docs/frontier.md) ours is at {one:.4f}, SparQ at "
                f"{sparq:.4f}: {'a' if _differ(candidates, ONE_THRESHOLD, 'sparq') else 'no'} significant difference."
            )
    return f"{start} {which} chose the edge of their grids."


def _differ(record: Record, one: str, other: str) -> bool:
    """Whether the KL of two rows differs over blocks, by a paired t-test without correction."""
    rows = [row_of(record, lengths_of(record)[-1], name) for name in (one, other)]
    blocks = [
        np.concatenate([np.ravel(row.points[kind]["block_kl"]) for kind in sorted(row.points)])
        for row in rows
        if row is not None
    ]
    return bool(ttest_rel(blocks[0], blocks[1]).pvalue < 0.05)


def texts(record: Record, fresh: Record | None) -> str:
    """Some texts of the table served to choose the form; what is known on the others."""
    place = "docs/frontier.md"
    if fresh is None:
        return f"The default's form was chosen on these texts, too. [Others]({place}) are unmeasured."
    without = " and ".join(kind for kind in record["kinds"] if kind not in fresh["kinds"])
    start = "Books, web and wiki served to choose the default's form."
    length = max(lengths_of(fresh))
    ours, sparq = divergence(fresh, length), divergence(fresh, length, "sparq")
    if ours is None:
        return f"{start} [Others]({place}) are unmeasured."
    told = "" if sparq is None else f", SparQ's {sparq:.4f}"
    rows = [row for row in mean_rows(fresh, length) if row.against is not None]
    closer, farther = told_apart(rows)
    return (
        f"{start} [Without {without or 'any'}]({place}) its KL is {ours:.4f}{told} (T = {length:,}). "
        f"Of {len(rows)} methods {closer or 'none'} {'is' if closer < 2 else 'are'} significantly closer, "
        f"{farther} farther."
    )


def other_models(records: dict[str, Record | None]) -> str:
    """The same form beside SparQ on models of more positions, a sentence for each."""
    told = [beside_sparq(place, record) for place, record in records.items() if record is not None]
    return " ".join(told) or "The default's form is measured on one model alone."


def beside_sparq(place: str, record: Record) -> str:
    """KL of ours and of SparQ on one model, at the longest length that has both."""
    found = {length: (divergence(record, length), divergence(record, length, "sparq")) for length in lengths_of(record)}
    length = max(length for length, both in found.items() if None not in both)
    ours, sparq = (f"{each:.4f}" for each in found[length])
    own, other = row_of(record, length), row_of(record, length, "sparq")
    if own is not None and other is not None and not alike(record, length, other):
        ours += f" ({own.kept_share:.0%} kept)"
    told, longest = f"On {place} KL is {ours}, SparQ's {sparq} (T = {length:,}).", max(found)
    if longest == length or found[longest][0] is None:
        return told
    return f"{told} At {longest:,} ours is {found[longest][0]:.4f}, SparQ's unknown."


def pages() -> Pages:
    """README.md with its blocks."""
    record, long, model = read(RECORD), read_if_there(LONG), read("bench-model-narrow.json")
    sentences = f"{answer(record)}\n{late(*there(record, long))}"
    lists = retrievals()
    held = pairs(lists, missed=False)
    found = held and f"{held[:-1]} ([retrieval](docs/benchmarks.md))."
    halves, more = read_if_there("bench-model-narrow-bf16.json"), read_if_there("bench-model-qwen.json")
    beneath = titled(
        ("Decoding", decoding(model)),
        ("bfloat16", "" if halves is None else narrow_speeds.in_halves(halves, model)),
        ("Qwen2.5-Coder", more_positions(more, read_if_there(QWEN))),
        ("Fewer pairs", less(record, read_if_there(LESS))),
        ("Retrieval", found),
    )
    made: Pages = {}
    readme = ROOT / "README.md"
    cards.fill(
        made,
        readme,
        "kinds",
        f"{sentences}\n\n{kinds_table(*there(record, long))}",
    )
    cards.fill(made, readme, "more", beneath)
    abroad = [read(name) for name in ABROAD]
    fresh = read_if_there(FRESH), read_if_there(FRESH_LONG)
    speeds = abroad, lists, read("bench-cache.json")
    measured = *speeds, read_if_there(QWEN), read_if_there(GEMMA), read_if_there(CANDIDATES)
    cards.fill(made, readme, "limits", limits(record, long, *fresh, model, *measured))
    return made


if __name__ == "__main__":
    cards.main(pages)
