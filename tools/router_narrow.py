"""The model cards of routers of narrow groups, as Markdown; tools/router_card.py writes them."""

from __future__ import annotations

from typing import Any

import narrow_speeds
from benchmark_card import pairs, retrievals
from cards import listed, read, read_if_there, table
from frontier_kinds import LONG, RECORD, blocks_at, there
from frontier_kinds import QWEN as QWEN_RECORD
from router_texts import ROUTERS, Row, base, beside, book_table, facts
from safetensors.numpy import load_file

from focus_core.frontier.kinds.means import blocks_of, lengths_of
from focus_core.routing.routers.narrow import ALL, MEANS

NARROW = "smollm2-135m-narrow64"
QWEN = "qwen2.5-coder-0.5b-narrow64"
AS_BEFORE = " --query-power 0"
"""`focus fit` compared keys as they are when the default was made."""


def narrow_card() -> str:
    """The card of the default routers, whose groups are fitted and not trained."""
    return _card(NARROW, "The default. ", (AS_BEFORE, "--kinds held-out/"), measured(), limits())


def qwen_card() -> str:
    """The card of the routers of a second model, made by the same command."""
    model = " --model qwen2.5-coder-0.5b-instruct.gguf"
    record = read(QWEN_RECORD)
    used = {blocks_of(record, kind, length) for length in lengths_of(record) for kind in record["kinds"]}
    blocks = f"{max(used)}" if len(used) == 1 else f"{min(used)} to {max(used)}"
    unmeasured = "" if 32768 in lengths_of(record) else ", and texts of that length were not measured"
    return _card(
        QWEN,
        "For Qwen2.5-Coder-0.5B-Instruct, made as the default is. Pages of 8 keys are what `focus fit` chooses\n"
        "here. No head reads everything: a tenth of the share is less than one key/value head. ",
        (f" --page 8{model}", f"--kinds books-and-code/{model}"),
        [record],
        f"""- Few blocks: {blocks} of a kind at each length. Nothing is established by so few.
- Texts shorter than 8,192 tokens keep more pairs than the share, and their quality was not measured.
- The weights are those of a GGUF file, rounded to four to eight bits. On the hub's
  `Qwen/Qwen2.5-Coder-0.5B-Instruct`, and on other models of this architecture, they were not measured.
- The thresholds for texts of 32,768 tokens are from one text{unmeasured}.
- Speeds are on [docs/speed.md](../../../docs/speed.md). They were timed with earlier routers of the same settings,
  whose heads were measured in 2,048 tokens.""",
    )


def _card(name: str, opening: str, options: tuple[str, str], records: list[dict[str, Any]], limits_of_it: str) -> str:
    """The card of one kind of routers.

    Args:
        name: of the shipped routers.
        opening: what they are, before what all narrow groups do.
        options: of the commands that made and measured them.
        records: of `focus frontier` over kinds of text.
        limits_of_it: a list, of these routers alone.
    """
    training = beside(name, "training.json")
    settings, config = training["settings"], beside(name, "focus_config.json")["routing"]
    rows = [
        *base(name, training),
        ("groups", f"{config['num_groups']} for each key/value head, read in pages of {config['page_size']} keys"),
        ("share read", f"{config['read_share']:.0%} of the keys beyond the window of {config['window']}"),
        ("fitted on", f"{settings['blocks']} blocks of {settings['length']:,} tokens, one forward pass"),
        (
            "heads measured on",
            listed([counted(each["blocks"], each["length"]) for each in settings["need"]]),
        ),
        *recalling(name, config["read_share"]),
        ("keys compared", "as queries see them" if settings.get("query_power") else "as they are"),
        ("seed", str(settings["seed"])),
    ]
    return f"""# Routers {name}

{opening}Groups of keys are fitted to the model, and nothing is trained. A query reads a summary of each page of
keys, which counts how far they are spread. Where the summary is likely to err by more than a threshold of the head, it
reads the keys themselves: in all, about 15% of the distant pairs of a text.
[docs/method.md](../../../docs/method.md) has the formulas.
`python tools/router_card.py` writes this page from the recorded runs.

{facts(*rows)}

```bash
focus fit --data training-texts/{options[0]} --out data/routers/{name}
focus frontier {options[1]} --train training-texts/ -r data/routers/{name} --baseline none --out frontier.json
```

## Measured

{narrow_table(*records)}

KL is the divergence of next-token distributions from the untouched model's, in nats per token.
[docs/frontier.md](../../../docs/frontier.md) has the mean over kinds with its interval, beside other methods.

## Limits

{limits_of_it}
- On GPUs plain PyTorch computes the same result. Variable-length calls are written, but no GPU has run them.
- Groups are not learned from a loss, so they say what keys are alike, and not what the model needs.

## Text that the groups are fitted on

{book_table(training)}
"""


def recalling(name: str, share: float) -> list[Row]:
    """Heads that recall, and so read everything at this share; no row where there are none."""
    stored = load_file(ROUTERS / name / "routers.safetensors")
    heads, found = 0, []
    for layer in sorted(int(key.partition(".")[0]) for key in stored if key.endswith(".thresholds")):
        own = len(stored[f"{layer}.centroids"])
        everything = stored[f"{layer}.thresholds"][-1, MEANS.index(share)].reshape(own, -1) == ALL
        found += [f"head {head} of layer {layer}" for head in range(own) if everything[head].all()]
        heads += own
    return [("read everything, since they recall", f"{listed(found)}, of {heads} key/value heads")] if found else []


def counted(blocks: int, length: int) -> str:
    """Blocks of a length, in words."""
    return f"{blocks} block{'' if blocks == 1 else 's'} of {length:,} tokens"


def measured() -> list[dict[str, Any]]:
    """The records over kinds of text, the shorter texts first."""
    return there(read(RECORD), read_if_there(LONG))


def limits() -> str:
    """What the records say against these routers, as a list."""
    kernel, model = (read(name) for name in ("bench-narrow.json", "bench-model-narrow.json"))
    prefill = narrow_speeds.by_tokens(model, "prefill")
    even = narrow_speeds.even(kernel)
    at = [(record, length) for record in measured() for length in lengths_of(record)]
    blocks = max(blocks_of(record, kind, length) for record, length in at for kind in record["kinds"])
    told = ", ".join(f"{blocks_at(record, length)} at {length:,} tokens" for record, length in at)
    return "\n".join(
        (
            f"- Few blocks: {blocks} of a kind at most say nothing about it. The mean over kinds has {told}.",
            "- The form of these routers was chosen on texts of the table, too.",
            f"- The attention call breaks even at {even:,} tokens, in float32 on one CPU. Prefill of the whole model "
            f"runs at {_each(prefill)} ([docs/speed.md](../../../docs/speed.md)).",
            "- Retrieval of one of many pairs ([docs/benchmarks.md](../../../docs/benchmarks.md)): "
            f"{pairs(retrievals())}",
        )
    )


def _each(speeds: dict[int, float]) -> str:
    """Speed-ups by number of tokens, in words."""
    return ", ".join(f"{speed:.2f}x at {tokens:,} tokens" for tokens, speed in speeds.items())


def narrow_table(*found: dict[str, Any]) -> str:
    """Each length and kind of the records over kinds, for the default routers."""
    columns = (
        *("text", "T", "blocks", "pairs kept", "KL", "KL, last quarter"),
        *("top-1 same", "perplexity", "largest group"),
    )
    return table(columns, [row for record in found for row in _rows(record)])


def _rows(record: dict[str, Any]) -> list[Row]:
    name = next(name for name, entry in record["routers"].items() if entry["router"] == "narrow")
    before = {(p["text"], p["length"]): p["perplexity"] for p in record["points"] if p["kind"] == "untouched"}
    rows: list[Row] = []
    for point in sorted(record["points"], key=lambda point: (point["length"], point["text"])):
        if point["method"] != name or point["wanted_share"] != record["ours"].get("share"):
            continue
        change = point["perplexity"] / before[point["text"], point["length"]] - 1
        rows.append(
            (
                point["text"],
                f"{point['length']:,}",
                str(len(point["block_kl"])),
                f"{point['kept_share']:.1%}",
                f"{point['kl']:.4f}",
                f"{point['kl_last_quarter']:.4f}",
                f"{point['top1_agreement']:.1%}",
                f"{change:+.1%}",
                f"{point['largest_group_share']:.1%}",
            )
        )
    return rows
