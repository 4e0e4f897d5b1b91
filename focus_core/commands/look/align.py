"""`focus align`: what explains the groups, and do they track parts of speech?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    MAX_SEED,
    MAX_TOKENS,
    HeadOption,
    JsonOption,
    ModelOption,
    RayOption,
    RecordOption,
    RoutersOption,
    UntrainedOption,
    WorkersOption,
    cluster_of,
    print_json,
    results_alone,
    show,
    show_failed,
)

if TYPE_CHECKING:
    from rich.table import Table

    from focus_core.analysis.linguistics.alignment import Alignment
    from focus_core.analysis.linguistics.explain import Explained
    from focus_core.evaluation.compare import Difference

_SHORT = {
    "token identity": "identity",
    "frequency buckets": "frequency",
    "untrained routers": "untrained",
    "balanced k-means": "k-means",
}
_SHORT_FEATURES = {
    "token identity": "identity",
    "previous token": "previous",
    "part of speech": "tag",
    "dependency relation": "relation",
}
_BEYOND = {"C": "chance", "B": "balance", "I": "identity", "X": "context"}


def align(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT-OR-FOLDER...",
            help="UTF-8 text files or folders, tagged by spaCy; or CoNLL-U files with gold tags; s3:// and gs:// too.",
        ),
    ],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: UntrainedOption = False,
    length: Annotated[
        int, typer.Option(min=16, max=MAX_TOKENS, help="Tokens of a passage; passages are the documents.")
    ] = 512,
    passages: Annotated[
        int, typer.Option(min=0, max=MAX_COUNT, help="Evenly spaced passages of each text file; 0 for all.")
    ] = 32,
    documents: Annotated[
        int, typer.Option(min=0, max=MAX_COUNT, help="Evenly spaced documents of each treebank; 0 for all.")
    ] = 0,
    tokens: Annotated[
        int,
        typer.Option(min=1, max=MAX_COUNT, help="Tokens in all; above it passages or documents are drawn at random."),
    ] = 2**17,
    rule: Annotated[str, typer.Option(help="Subword that stands for a word: last, first or all.")] = "last",
    states: Annotated[
        str, typer.Option(help="Hidden states to route: untouched (the model's own) or routed (hard, at --top-k).")
    ] = "untouched",
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", "-k", min=1, max=MAX_GROUPS, help="Groups per token, k. Default: the routers' own."),
    ] = None,
    head: HeadOption = 0,
    repeats: Annotated[int, typer.Option(min=20, max=MAX_COUNT, help="Permutations and bootstrap resamples.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything random.")] = 0,
    out: RecordOption = None,
    ray: RayOption = None,
    workers: WorkersOption = None,
    json_output: JsonOption = False,
) -> None:
    """What explains the groups, and their agreement with parts of speech.

    The share of each layer's groups that spelling, tag, relation, entity,
    frequency and position explain on words held out, and the share that
    each adds to the others. Then the AMI of every layer with intervals over documents. References are chance,
    token identity, context, balance, untrained routers and balanced k-means.
    The record also has the purest group for each published category.

    Example: focus align book.txt --passages 32 --out book.json
    """
    from focus_core.analysis.linguistics.run import AlignSettings, align_texts
    from focus_core.progress import terminal_progress

    settings = AlignSettings(
        length=length,
        passages=passages,
        documents=documents,
        tokens=tokens,
        rule=rule,
        states=states,
        top_k=top_k,
        head=head,
        repeats=repeats,
        seed=seed,
    )
    cluster = cluster_of(ray, workers)
    with results_alone(cluster), terminal_progress() as progress:
        found = align_texts(
            files,
            model=model,
            routers=routers,
            untrained=untrained,
            settings=settings,
            cluster=cluster,
            out=out,
            progress=progress,
        )
    record = found.record
    if json_output:
        print_json(record)
        return
    name, words = record["model"]["name"], record["sample"]["units"]
    title = f"{name}, routers {record['settings']['routers']}, {words:,} words, UPOS"
    if found.explained:
        show(_shares(found.explained, f"{name}: share explained on words held out, alone +beyond all others"))
        for sentence in record["explained"]["verdicts"]:
            print(sentence)
    show(_table(found.alignments["upos"], title))
    for sentence in record["verdicts"]["upos"]:
        print(sentence)
    drawn = record["drawn"]
    if drawn["documents"] < drawn["of"]:
        print(f"{drawn['documents']:,} of {drawn['of']:,} documents were drawn at random: --tokens takes more.")
    show_failed(record["failed"])


def _shares(found: tuple[Explained, ...], title: str) -> Table:
    """One line per layer: the share of all features with its interval, and that of each."""
    from focus_core.analysis.linguistics.features import FEATURES
    from focus_core.commands.tables.plain import plain_table

    names = [each for each in FEATURES if each in {share.feature for share in found[0].features}]
    caption = "Percent of the log-loss. 0 is chance; *: not established above 0."
    table = plain_table(title, "layer", "all", "95%", *(_SHORT_FEATURES.get(name, name) for name in names))
    table.caption, table.box = caption, None  # the rule under the headings would widen every column
    for layer in found:
        shares = {share.feature: share for share in layer.features}
        whole = layer.all_features
        table.add_row(
            str(layer.layer),
            _percent(whole),
            f"{100 * (whole.low or 0):.0f}–{100 * (whole.high or 0):.0f}",
            *(f"{_percent(shares[name].alone)} +{_percent(shares[name].unique)}" for name in names),
        )
    return table


def _percent(share: Difference) -> str:
    return f"{100 * share.difference:.0f}{'' if share.established else '*'}"


def _table(found: Alignment, title: str) -> Table:
    """One line per layer: AMI, that of its references, and the letters of those it exceeds."""
    from focus_core.commands.tables.plain import plain_table

    caption = "Beyond: C chance, B balance, I token identity, X spelling in context."
    names = [name for name in found.layers[0].references if name in _SHORT]
    heads = ("layer", "AMI", "95%", *(_SHORT[name] for name in names), "beyond")
    table = plain_table(title, *heads, left=("beyond",))
    table.caption = caption
    for layer in found.layers:
        table.add_row(
            str(layer.layer),
            f"{layer.measures.ami:.3f}",
            "" if layer.interval is None else f"{layer.interval.low:.2f}–{layer.interval.high:.2f}",
            *(f"{layer.references[name]:.2f}" for name in names),
            "".join(letter for letter, name in _BEYOND.items() if getattr(layer, f"beyond_{name}")),
        )
    return table
