"""Write the figures of docs/linguistics.md from the recorded runs of `focus align`.

    python tools/alignment_card.py

Every figure comes from `data/results/alignment-*.json`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDS = {"books": "alignment-books.json", "treebank": "alignment-ewt-dev.json"}
HEADS = 3
HEAD_RECORDS = {"books": "alignment-books-head{}.json", "treebank": "alignment-ewt-dev-head{}.json"}
BEYOND = {"C": "beyond_chance", "B": "beyond_balance", "I": "beyond_identity", "X": "beyond_context"}


def setting(record: dict[str, Any]) -> str:
    """One sentence: on what, with what, where and when it was measured."""
    settings, sample, made, tagger = record["settings"], record["sample"], record["made"], record["tagger"]
    found = record["alignment"]["upos"]
    blocks = f"{found['num_blocks']} {found['resampled']}"
    tags = f"gold tags of {tagger['name']}" if tagger["gold"] else f"tags by {tagger['name']} {tagger['version']}"
    cut = ""
    if not tagger["gold"]:
        cut = f"{settings['passages']} evenly spaced passages of {settings['length']} tokens from each, "
    libraries = ", ".join(f"{name} {version}" for name, version in record["libraries"].items())
    return (
        f"{record['model']['name']} (revision {record['model']['revision']}), routers {settings['routers']}, states of "
        f"the {settings['states']} model, K = {settings['config']['num_groups']}; "
        f"{' and '.join(item['name'] for item in record['data'])}, {cut}{sample['documents']} documents, "
        f"n = {sample['units']:,} words in every layer ({sample['coverage']:.2%} of all have tokens, "
        f"{sample['exact_borders']:.1%} of them begin and end where tokens do), {tags}, {settings['rule']} subword; "
        f"B = {settings['repeats']}, seed {settings['seed']}, bootstrap over {blocks}; "
        f"{made['device']}, torch {made['versions']['torch']}, transformers {made['versions']['transformers']}, "
        f"{libraries}, {made['date'][:10]}."
    )


def layer_rows(record: dict[str, Any]) -> str:
    """Every layer with its references, as Markdown."""
    found = record["alignment"]["upos"]
    lines = [
        "| layer | AMI [95%] | less token identity [95%] | within-type shuffle | random tag per type | frequency "
        "| untrained | balanced k-means | ARI | V | lift at k = " + str(found["top_k"]) + " | beyond |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for layer in found["layers"]:
        measures, reference, gap = layer["measures"], layer["references"], layer["gaps"]["token identity"]
        lines.append(
            f"| {layer['layer']} | {measures['ami']:.3f} {span(layer['interval'])} "
            f"| {gap_text(measures, reference, gap)} | {layer['within_type'][0]:.3f} "
            f"| {layer['control'][0]:.3f} | {reference['frequency buckets']:.3f} "
            f"| {reference['untrained routers']:.3f} | {reference['balanced k-means']:.3f} | {measures['ari']:.3f} "
            f"| {measures['v_measure']:.3f} | {layer['sharing_lift']:.2f} "
            f"| {''.join(letter for letter, name in BEYOND.items() if layer[name])} |"
        )
    mean = {
        "ami": average(layer["measures"]["ami"] for layer in found["layers"]),
        **{
            name: average(layer["references"][name] for layer in found["layers"])
            for name in ("frequency buckets", "untrained routers", "balanced k-means")
        },
        "within": average(layer["within_type"][0] for layer in found["layers"]),
        "control": average(layer["control"][0] for layer in found["layers"]),
    }
    lines.append(
        f"| mean | {mean['ami']:.3f} | | {mean['within']:.3f} | {mean['control']:.3f} "
        f"| {mean['frequency buckets']:.3f} | {mean['untrained routers']:.3f} | {mean['balanced k-means']:.3f} "
        "| | | | |"
    )
    highest = max(layer["chance"][2] for layer in found["layers"])
    note = (
        f"Chance: 97.5% of shuffles lie below {highest:.4f} in every layer. Balance ceiling: {found['ceiling']:.3f}. "
        f"{found['unseen']:.1%} of the words have a spelling that no other document has."
    )
    return "\n".join(lines) + f"\n\n{note}"


def published_rows(record: dict[str, Any]) -> str:
    """The counterpart of the published group table, as Markdown."""
    lines = [
        "| category | layer, group | purity [95%] | recall [95%] | base rate | group's share | attainable purity "
        "| purity where chosen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record["published"]:
        lines.append(
            f"| {row['category']} ({' '.join(row['tags'])}) | {row['layer']}, {row['group']} "
            f"| {row['purity']:.1%} {share(row['purity_interval'])} "
            f"| {row['recall']:.1%} {share(row['recall_interval'])} "
            f"| {row['base_rate']:.1%} | {row['group_share']:.1%} | {row['attainable']:.1%} "
            f"| {row['purity_chosen_on']:.1%} |"
        )
    first = record["published"][0]
    return "\n".join(lines) + (
        f"\n\nChosen on {first['words_chosen_on']:,} words (every other document), measured on the other "
        f"{first['words']:,}."
    )


def average(values: Any) -> float:
    """Arithmetic mean."""
    numbers = list(values)
    return sum(numbers) / len(numbers)


def span(pair: list[float]) -> str:
    """An interval of scores."""
    return f"[{pair[0]:.3f}, {pair[1]:.3f}]"


def share(pair: list[float]) -> str:
    """An interval of shares, cut at 0 and 100%."""
    return f"[{max(0.0, pair[0]):.1%}, {min(1.0, pair[1]):.1%}]"


def gap_text(measures: dict[str, float], reference: dict[str, float], gap: list[float]) -> str:
    """The distance to the token-identity baseline with its interval."""
    return f"{measures['ami'] - reference['token identity']:+.3f} [{gap[0]:+.3f}, {gap[1]:+.3f}]"


def section(record: dict[str, Any]) -> str:
    """Everything about one record."""
    sentences = [
        "Universal tags:",
        *(f"- {sentence}" for sentence in record["verdicts"]["upos"]),
        "",
        "Five classes:",
        *(f"- {sentence}" for sentence in record["verdicts"]["coarse"]),
    ]
    return "\n\n".join((setting(record), "\n".join(sentences), layer_rows(record), published_rows(record)))


def read(file: str) -> dict[str, Any]:
    """A shipped record."""
    return json.loads((ROOT / "data" / "results" / file).read_text(encoding="utf-8"))


def summary_row(name: str, record: dict[str, Any]) -> str:
    """One router of each layer, all layers in a row."""
    layers = record["alignment"]["upos"]["layers"]
    best = max(layers, key=lambda layer: layer["measures"]["ami"])
    gap = average(layer["measures"]["ami"] - layer["references"]["token identity"] for layer in layers)
    means = [
        average(layer["measures"]["ami"] for layer in layers),
        *(
            average(layer["references"][reference] for layer in layers)
            for reference in ("frequency buckets", "untrained routers", "balanced k-means")
        ),
    ]
    counts = [sum(bool(layer[beyond]) for layer in layers) for beyond in BEYOND.values()]
    return (
        f"| {name} | {means[0]:.3f} | {best['measures']['ami']:.3f} {span(best['interval'])} (layer {best['layer']}) "
        f"| {gap:+.3f} | {means[1]:.3f} | {means[2]:.3f} | {means[3]:.3f} "
        f"| {' '.join(f'{letter} {count}' for letter, count in zip(BEYOND, counts, strict=True))} |"
    )


def heads_section(layer_record: dict[str, Any], head_records: list[dict[str, Any]]) -> str:
    """Routers per head beside those per layer, on the same text: a row each, and the published groups."""
    named = {"per layer": layer_record, **{f"head {head}": record for head, record in enumerate(head_records)}}
    lines = [
        setting(head_records[0]),
        "",
        "| routers | mean AMI | best layer [95%] | mean less token identity | frequency | untrained | balanced k-means "
        f"| layers beyond, of {len(layer_record['alignment']['upos']['layers'])} |",
        "|---|---|---|---|---|---|---|---|",
        *(summary_row(name, record) for name, record in named.items()),
        "",
        "| category | " + " | ".join(f"{name}: purity [95%], recall" for name in named) + " |",
        "|---|" + "---|" * len(named),
    ]
    for rows in zip(*(record["published"] for record in named.values()), strict=True):
        cells = (f"{row['purity']:.1%} {share(row['purity_interval'])}, {row['recall']:.1%}" for row in rows)
        lines.append(f"| {rows[0]['category']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Fill the marked parts of the page."""
    page = ROOT / "docs" / "linguistics.md"
    text = page.read_text(encoding="utf-8")
    blocks: dict[str, str] = {}
    for name, file in RECORDS.items():
        record = read(file)
        blocks[name] = section(record)
        blocks[f"{name} per head"] = heads_section(
            record, [read(HEAD_RECORDS[name].format(head)) for head in range(HEADS)]
        )
    for name, content in blocks.items():
        start, end = f"<!-- {name}: python tools/alignment_card.py -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(start)}.*{re.escape(end)}", re.DOTALL)
        block = f"{start}\n{content}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)
    partial = page.with_suffix(".md.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(page)


if __name__ == "__main__":
    main()
