"""Write docs/tables/alignment-*.md and the figures of docs/linguistics.md from the recorded runs of `focus align`.

    python tools/alignment_card.py [--check]

Every figure comes from `data/results/alignment-*.json`.
"""

from __future__ import annotations

from typing import Any

import cards
from cards import ROOT, Pages, table

from focus_core.analysis.linguistics.alignment import Alignment
from focus_core.analysis.linguistics.verdicts import verdicts as sentences_of

TOOL = "alignment_card.py"
RECORDS = {"books": "alignment-books.json", "treebank": "alignment-ewt-dev.json"}
HEADS = 3
HEAD_RECORDS = {"books": "alignment-books-head{}.json", "treebank": "alignment-ewt-dev-head{}.json"}
BEYOND = {"C": "beyond_chance", "B": "beyond_balance", "I": "beyond_identity", "X": "beyond_context"}
COMMANDS = {
    "books": "focus align chesterton-thursday.txt austen-persuasion.txt --passages 12",
    "treebank": "focus align en_ewt-ud-dev.conllu --documents 160",
}
REFERENCES = ("frequency buckets", "untrained routers", "balanced k-means")
FILES = {"books": "alignment-books", "treebank": "alignment-ewt-dev"}


def read(name: str) -> dict[str, Any]:
    """A record with the verdicts of today, which are corrected over layers."""
    record = cards.read(name)
    found = {name: Alignment.from_dict(values) for name, values in record["alignment"].items()}
    return record | {
        "alignment": {name: each.to_dict() for name, each in found.items()},
        "verdicts": {name: sentences_of(each) for name, each in found.items()},
    }


def setting(record: dict[str, Any]) -> str:
    """One sentence: on what, with what, where and when it was measured."""
    settings, sample, made, tagger = record["settings"], record["sample"], record["made"], record["tagger"]
    found = record["alignment"]["upos"]
    treebank = tagger["gold"]
    blocks = f"{found['num_blocks']} {found['resampled'] if treebank else 'passages'}"
    tags = f"gold, of {tagger['name']}" if tagger["gold"] else f"by {tagger['name']} {tagger['version']}"
    cut = ""
    if not tagger["gold"]:
        cut = f"{settings['passages']} evenly spaced passages of {settings['length']} tokens from each: "
    libraries = ", ".join(f"{name} {version}" for name, version in record["libraries"].items())
    books = len(record["data"])
    what = f"{sample['documents']} documents"
    if not treebank:
        what = f"{sample['documents']} passages of {books} books, not independent documents"
    return (
        f"{record['model']['name']} (revision {record['model']['revision']}), routers {settings['routers']}, "
        f"K = {settings['config']['num_groups']}, states of the {settings['states']} model. "
        f"Text: {' and '.join(item['name'] for item in record['data'])}, {cut}{what}. "
        f"Words: n = {sample['units']:,} in every layer, by their {settings['rule']} subword. {sample['coverage']:.2%} "
        f"of all words have tokens, and {sample['exact_borders']:.1%} of these begin and end where tokens do. "
        f"Tags: {tags}. "
        f"Bootstrap over {blocks}, B = {settings['repeats']}, seed {settings['seed']}. "
        f"{made['device']}, torch {made['versions']['torch']}, transformers {made['versions']['transformers']}, "
        f"{libraries}, {made['date'][:10]}."
    )


def layer_rows(record: dict[str, Any]) -> str:
    """Every layer with its references, as Markdown."""
    found = record["alignment"]["upos"]
    columns = (
        "layer", "AMI [95%]", "less token identity [95%]", "within-type shuffle", "random tag per type", "frequency",
        "untrained", "balanced k-means", "ARI", "V", f"lift at k = {found['top_k']}", "beyond",
    )  # fmt: skip
    rows = []
    for layer in found["layers"]:
        measures, reference, gap = layer["measures"], layer["references"], layer["gaps"]["token identity"]
        rows.append(
            (
                f"{layer['layer']}",
                f"{measures['ami']:.3f} {span(layer['interval'])}",
                gap_text(measures, reference, gap),
                f"{layer['within_type'][0]:.3f}",
                f"{layer['control'][0]:.3f}",
                *(f"{reference[name]:.3f}" for name in REFERENCES),
                f"{measures['ari']:.3f}",
                f"{measures['v_measure']:.3f}",
                f"{layer['sharing_lift']:.2f}",
                "".join(letter for letter, name in BEYOND.items() if layer[name]),
            )
        )
    layers = found["layers"]
    means = [
        average(layer["measures"]["ami"] for layer in layers),
        average(layer["within_type"][0] for layer in layers),
        average(layer["control"][0] for layer in layers),
        *(average(layer["references"][name] for layer in layers) for name in REFERENCES),
    ]
    first, *rest = (f"{mean:.3f}" for mean in means)
    rows.append(("mean", first, "", *rest, "", "", "", ""))
    highest = max(layer["chance"][2] for layer in found["layers"])
    note = (
        f"Chance: 97.5% of shuffles lie below {highest:.4f} in every layer. Balance ceiling: {found['ceiling']:.3f}. "
        f"{found['unseen']:.1%} of the words have a spelling that no other document has."
    )
    return f"{table(columns, rows)}\n\n{note}"


def published_rows(record: dict[str, Any]) -> str:
    """The counterpart of the published group table, as Markdown."""
    columns = (
        "category", "layer, group", "purity [95%]", "recall [95%]", "base rate", "group's share", "attainable purity",
        "purity where chosen",
    )  # fmt: skip
    rows = [
        (
            f"{row['category']} ({' '.join(row['tags'])})",
            f"{row['layer']}, {row['group']}",
            f"{row['purity']:.1%} {share(row['purity_interval'])}",
            f"{row['recall']:.1%} {share(row['recall_interval'])}",
            *(f"{row[name]:.1%}" for name in ("base_rate", "group_share", "attainable", "purity_chosen_on")),
        )
        for row in record["published"]
    ]
    first = record["published"][0]
    return table(columns, rows) + (
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


def verdicts(record: dict[str, Any]) -> str:
    """The sentences that the record counted from its own table."""
    return "\n".join(
        [
            "Universal tags:",
            "",
            *(f"- {sentence}" for sentence in record["verdicts"]["upos"]),
            "",
            "Five classes:",
            "",
            *(f"- {sentence}" for sentence in record["verdicts"]["coarse"]),
        ]
    )


def head_records(text: str) -> dict[str, dict[str, Any]]:
    """Routers per layer and those of each head, on one text."""
    heads = {f"head {head}": read(HEAD_RECORDS[text].format(head)) for head in range(HEADS)}
    return {"per layer": read(RECORDS[text]), **heads}


def summary_row(record: dict[str, Any]) -> list[str]:
    """One router of each layer, all layers in a row."""
    layers = record["alignment"]["upos"]["layers"]
    best = max(layers, key=lambda layer: layer["measures"]["ami"])
    gap = average(layer["measures"]["ami"] - layer["references"]["token identity"] for layer in layers)
    counts = [f"{sum(bool(layer[beyond]) for layer in layers)}" for beyond in BEYOND.values()]
    return [
        f"{average(layer['measures']['ami'] for layer in layers):.3f}",
        f"{best['measures']['ami']:.3f} {span(best['interval'])} (layer {best['layer']})",
        f"{gap:+.3f}",
        *(f"{average(layer['references'][name] for layer in layers):.3f}" for name in REFERENCES),
        *counts,
    ]


def heads_tables(text: str) -> str:
    """Routers per head beside those per layer on one text: a row each, and the published groups."""
    named = head_records(text)
    columns = (
        "routers", "mean AMI", "best layer [95%]", "mean less token identity", "frequency", "untrained",
        "balanced k-means", *BEYOND,
    )  # fmt: skip
    rows = [(name, *summary_row(record)) for name, record in named.items()]
    groups = []
    for found in zip(*(record["published"] for record in named.values()), strict=True):
        cells = (f"{row['purity']:.1%} {share(row['purity_interval'])}, {row['recall']:.1%}" for row in found)
        groups.append((found[0]["category"], *cells))
    return "\n\n".join(
        (
            setting(named["head 0"]),
            table(columns, rows),
            table(("category", *(f"{name}: purity [95%], recall" for name in named)), groups),
        )
    )


def overview() -> str:
    """Both texts and both kinds of routers, a row each."""
    rows = []
    for text in RECORDS:
        for name, record in head_records(text).items():
            layers = record["alignment"]["upos"]["layers"]
            mean, best, *_ = summary_row(record)
            identity = average(layer["references"]["token identity"] for layer in layers)
            means = (average(layer["references"][each] for layer in layers) for each in REFERENCES[::2])
            counts = [f"{sum(bool(layer[beyond]) for layer in layers)}" for beyond in BEYOND.values()]
            rows.append(
                (text, name, mean, best.split(" ")[0], f"{identity:.3f}", *(f"{each:.3f}" for each in means), *counts)
            )
    columns = (
        "text", "routers", "mean AMI", "best layer", "token identity", "frequency", "k-means", "C", "B", "I", "X"
    )  # fmt: skip
    return table(columns, rows)


def groups_overview() -> str:
    """The published groups: purity on both texts, per layer and in the purest head."""
    records = {text: head_records(text) for text in RECORDS}
    rows = []
    for number, first in enumerate(records["books"]["per layer"]["published"]):
        cells = []
        for found in records.values():
            layer, *heads = (record["published"][number]["purity"] for record in found.values())
            cells += [f"{layer:.1%}", f"{max(heads):.1%}"]
        rows.append((first["category"], *cells))
    columns = (
        "category", "books, per layer", "books, purest head", "treebank, per layer", "treebank, purest head"
    )  # fmt: skip
    return table(columns, rows)


def answer() -> str:
    """The first lines of docs/linguistics.md."""
    layers = {text: read(file)["alignment"]["upos"]["layers"] for text, file in RECORDS.items()}
    count, every = len(layers["books"]), [layer for found in layers.values() for layer in found]
    identity = sum(bool(layer["beyond_identity"]) for layer in every)
    chance = "in every layer" if all(layer["beyond_chance"] for layer in every) else "in some layers"
    none = "In no layer do they" if identity == 0 else f"In {identity} of {len(every)} layers they"
    balance = " and ".join(f"{sum(bool(each['beyond_balance']) for each in found)}" for found in layers.values())
    return (
        f"Groups of the routers per layer follow parts of speech beyond chance {chance}.\n"
        f"{none} follow them beyond a table from spelling to group, so most of it is spelling.\n"
        f"They beat balanced groups that know no syntax in {balance} of {count} layers (books and treebank), corrected "
        "for the number of layers."
    )


LEGEND = (
    '"Beyond" lists C chance, B balance, I token identity, X context. All are corrected over layers (false discovery '
    "rate 5%). Passages of one book share its author and subject, so intervals on books are too narrow."
)
ATTAINABLE = (
    '"Attainable purity" is the base rate over the group\'s share: a group larger than its class cannot be pure. Layer '
    "and group of each class are chosen on every other document and measured on the others."
)


def pages() -> Pages:
    """Everything that this tool makes."""
    made: Pages = {}
    for text, file in RECORDS.items():
        record, out = read(file), f"--out data/results/{FILES[text]}"
        cards.page(
            made,
            f"alignment-{text}.md",
            TOOL,
            f"Groups and parts of speech, routers per layer: {text}",
            f"```bash\n{COMMANDS[text]} -r smollm2-135m-k8 {out}.json\n```",
            setting(record),
            verdicts(record),
            LEGEND,
            layer_rows(record),
            ATTAINABLE,
            published_rows(record),
        )
        head = "-r data/routers/smollm2-135m-k8-heads-lm --head 0"
        cards.page(
            made,
            f"alignment-{text}-heads.md",
            TOOL,
            f"Groups and parts of speech, routers per head: {text}",
            f"```bash\n{COMMANDS[text]} {head} {out}-head0.json\n```",
            f'{LEGEND} Here a column each has the number of layers. "Untrained" are routers per layer in every row.',
            heads_tables(text),
        )
    doc = ROOT / "docs" / "linguistics.md"
    cards.fill(made, doc, "answer", answer())
    cards.fill(made, doc, "overview", overview())
    cards.fill(made, doc, "groups", groups_overview())
    return made


if __name__ == "__main__":
    cards.main(pages)
