"""`focus align`: do the groups track parts of speech?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focus_core.commands.options import HeadOption, JsonOption, ModelOption, RoutersOption, print_json

if TYPE_CHECKING:
    from focus_core.analysis.linguistics.alignment import Alignment
    from focus_core.analysis.linguistics.words import TaggedText
    from focus_core.progress import Progress

TREEBANK = ".conllu"
_SHORT = {
    "token identity": "identity",
    "frequency buckets": "frequency",
    "untrained routers": "untrained",
    "balanced k-means": "k-means",
}


def align(
    files: Annotated[
        list[Path], typer.Argument(help="UTF-8 text files or folders, tagged by spaCy; or CoNLL-U files, gold tags.")
    ],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Use untrained routers (seed 0).")] = False,
    length: Annotated[int, typer.Option(min=16, help="Tokens of a passage; passages are the documents.")] = 512,
    passages: Annotated[int, typer.Option(min=0, help="Evenly spaced passages of each text file; 0 for all.")] = 32,
    documents: Annotated[int, typer.Option(min=0, help="Evenly spaced documents of each treebank; 0 for all.")] = 0,
    rule: Annotated[str, typer.Option(help="Subword that stands for a word: last, first or all.")] = "last",
    states: Annotated[
        str, typer.Option(help="Whose hidden states are routed: untouched, or routed (hard, at --top-k).")
    ] = "untouched",
    top_k: Annotated[int | None, typer.Option("--top-k", "-k", help="Groups per token.")] = None,
    head: HeadOption = 0,
    repeats: Annotated[int, typer.Option(min=20, help="Permutations and bootstrap resamples.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the JSON to this file.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Agreement of groups with parts of speech, beside what it has to beat.

    AMI of every layer with chance, token identity, context, balance,
    untrained routers and balanced k-means as references, intervals over
    documents, and the purest group for each published category.

    Example: focus align book.txt --passages 32 --out book.json
    """
    from importlib.metadata import version

    import rich

    from focus_core.analysis.linguistics.alignment import KMEANS, UNTRAINED
    from focus_core.analysis.linguistics.alignment import align as score
    from focus_core.analysis.linguistics.group_profile import published_table
    from focus_core.analysis.linguistics.sample import word_sample
    from focus_core.analysis.linguistics.verdicts import verdicts
    from focus_core.analysis.linguistics.words import SUBWORD_RULES, TAG_SETS
    from focus_core.analysis.states import UNTRAINED_SEEDS, state_groups
    from focus_core.analysis.trace import analyze
    from focus_core.errors import FocusError
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.results import record_run, stamp, text_records
    from focus_core.routing.attach import attach
    from focus_core.text import find_texts

    for name, value, choices in (("rule", rule, SUBWORD_RULES), ("states", states, ("untouched", "routed"))):
        if value not in choices:
            raise FocusError(f"--{name} is {value!r}: choose one of {', '.join(choices)}.")
    paths = find_texts(files)
    with terminal_progress() as progress:
        loaded = load_model(model, progress=progress)
        tagged = _tagged(paths, loaded.tokenizer, length, passages, documents, progress)
        focus = attach(loaded, routers, untrained=untrained)
        k = focus.config.top_k if top_k is None else top_k
        with focus.routing("hard", top_k=k):
            config = focus.current.config
        setting: dict[str, Any] = {"top_k": k}
        if states == "untouched":  # k = K is the untouched model, see docs/method.md
            setting = {"top_k": config.num_groups, "window": 0, "sink_tokens": 0}
        traces = []
        with focus.routing("hard", **setting):
            for index, text in enumerate(tagged):
                progress("Routing documents", 0.3 * index / len(tagged))
                traces.append(_with_top_k(analyze(focus, loaded.tokenizer, text.text, head=head), k))
            sample = word_sample(traces, tagged, rule=rule, special_ids=loaded.tokenizer.all_special_ids)
            chosen = [(trace.input_ids, sample.tokens[sample.documents == index]) for index, trace in enumerate(traces)]
            grouped = state_groups(
                focus, chosen, seed=seed, progress=lambda text, share: progress(text, 0.3 + 0.5 * share)
            )
        found: dict[str, Alignment] = {}
        for number, tag_set in enumerate(TAG_SETS):
            found[tag_set] = score(
                sample,
                tag_set=tag_set,
                more={UNTRAINED: grouped.untrained, KMEANS: grouped.kmeans},
                repeats=repeats,
                seed=seed,
                progress=lambda text, share, start=0.8 + 0.1 * number: progress(text, start + 0.1 * share),
            )
    report = {
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "settings": {
            "config": config,
            "routers": focus.name,
            "head": head if config.router == "head" else None,
            "trained": focus.trained,
            "states": states,
            "rule": rule,
            "length": length,
            "passages": passages,
            "treebank_documents": documents,
            "repeats": repeats,
            "seed": seed,
            "untrained_seeds": UNTRAINED_SEEDS,
        },
        "data": text_records(paths),
        "tagger": sample.tagger,
        "libraries": {name: version(name) for name in ("spacy", "scikit-learn", "scipy")},
        "sample": {
            "words": sample.num_words,
            "units": len(sample),
            "coverage": sample.coverage,
            "exact_borders": sample.exact,
            "documents": sample.num_documents,
        },
        "verdicts": {name: verdicts(each) for name, each in found.items()},
        "published": published_table(sample, repeats=repeats, seed=seed) if sample.num_documents >= 4 else None,
        "alignment": {name: each.to_dict() for name, each in found.items()},
    }
    record = record_run(out, report) if out else stamp(report)
    if json_output:
        print_json(record)
        return
    rich.print(_table(found["upos"], f"{loaded.info.name}, routers {focus.name}, {len(sample):,} words, UPOS"))
    for sentence in record["verdicts"]["upos"]:
        print(sentence)


def _tagged(
    paths: list[Path], tokenizer: Any, length: int, passages: int, documents: int, progress: Progress
) -> list[TaggedText]:
    """Documents with words: those of treebanks, or passages of texts."""
    from focus_core.analysis.linguistics.conllu import read_conllu
    from focus_core.analysis.linguistics.passages import passages as cut
    from focus_core.analysis.linguistics.tagging import tag_text
    from focus_core.errors import FocusError
    from focus_core.text import read_text

    kinds = {path.suffix.lower() == TREEBANK for path in paths}
    if len(kinds) > 1:
        raise FocusError("Gold tags and predicted ones do not mix: give either treebanks (.conllu) or texts.")
    if kinds == {True}:
        return [text for path in paths for text in _evenly(read_conllu(path), documents)]
    found = []
    for index, path in enumerate(paths):
        progress("Tagging words", 0.0)
        found += [tag_text(piece) for piece in cut(tokenizer, read_text(path), length, passages)]
        progress("Tagging words", (index + 1) / len(paths))
    return found


def _evenly(texts: list[TaggedText], count: int) -> list[TaggedText]:
    """Some of the texts, evenly spaced; all of them for a count of 0."""
    if not count or count >= len(texts):
        return texts
    return [texts[index * len(texts) // count] for index in range(count)]


def _with_top_k(trace: Any, top_k: int) -> Any:
    """The trace with the memberships of another k, from the same assignments."""
    import dataclasses

    from focus_core.analysis.trace import memberships

    config = trace.config.replace(top_k=top_k)
    return dataclasses.replace(trace, membership=memberships(trace.assignment, config), config=config)


def _table(found: Alignment, title: str) -> Any:
    from rich.box import SIMPLE
    from rich.table import Table

    beyond = {"C": "chance", "B": "balance", "I": "identity", "X": "context"}
    table = Table(
        title=title, box=SIMPLE, caption="Beyond: C chance, B balance, I token identity, X spelling in context."
    )
    names = [name for name in found.layers[0].references if name in _SHORT]
    for name in ("layer", "AMI", "95%", *(_SHORT[name] for name in names), "beyond"):
        table.add_column(name, justify="left" if name == "beyond" else "right", no_wrap=True)
    for layer in found.layers:
        table.add_row(
            str(layer.layer),
            f"{layer.measures.ami:.3f}",
            "" if layer.interval is None else f"{layer.interval.low:.2f}–{layer.interval.high:.2f}",
            *(f"{layer.references[name]:.2f}" for name in names),
            "".join(letter for letter, name in beyond.items() if getattr(layer, f"beyond_{name}")),
        )
    return table
