"""CoNLL-U treebanks: gold words and tags, as texts (universaldependencies.org/format)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import numpy as np

from focus_core.analysis.linguistics.corpus.words import TaggedText, Tagger
from focus_core.errors import FocusError
from focus_core.text import read_text

_COLUMNS = 10
SENTENCES_PER_DOCUMENT = 20
"""Sentences that make a document where a treebank names none."""


@dataclass
class _Sentence:
    """A sentence while the file is parsed.

    Attributes:
        document: name of its document; empty where the file has none.
        new_paragraph: whether a paragraph starts here.
        surfaces: (form, [(form of a syntactic word, UPOS)...], space after) of each orthographic word.
    """

    document: str = ""
    new_paragraph: bool = False
    surfaces: list[tuple[str, list[tuple[str, str, str]], bool]] = field(default_factory=list)


def read_conllu(path: str | Path) -> list[TaggedText]:
    """The documents of a treebank in a UTF-8 file, see `treebank`.

    Raises:
        FocusError: no such file, or not CoNLL-U.
    """
    return treebank(read_text(path), str(path))


def treebank(text: str, name: str) -> list[TaggedText]:
    """The documents of a treebank, each as its running text with gold words.

    Sentences are joined by a space, paragraphs by an empty line. Empty nodes are left out. Words of a multiword token
    ("do" and "n't" in "don't") get the characters that they spell; if these do not add up, each gets the whole span. A
    file without `# newdoc` lines is cut into documents of 20 sentences.

    Args:
        text: in CoNLL-U.
        name: of its file.

    Raises:
        FocusError: it is not CoNLL-U.
    """
    documents: dict[str, list[_Sentence]] = {}
    for index, sentence in enumerate(_sentences(text, name)):
        document = sentence.document or f"sentences {index // SENTENCES_PER_DOCUMENT}"
        documents.setdefault(document, []).append(sentence)
    if not documents:
        raise FocusError(f"{name} has no sentences: give a treebank in CoNLL-U format.")
    tagger = Tagger(PurePath(name).name, "", gold=True)
    return [_document(sentences, tagger) for sentences in documents.values()]


def _sentences(text: str, treebank: str) -> Iterator[_Sentence]:
    sentence, document, number = _Sentence(), "", 0
    until, part_of = 0, -1  # last word of the multiword token being read, and its place
    for line in [*text.splitlines(), ""]:
        number += 1
        if not line.strip():
            if sentence.surfaces:
                yield sentence
            sentence, until = _Sentence(document=document), 0
        elif line.startswith("#"):
            key, _, value = line[1:].partition("=")
            words = key.split()
            if words[:1] == ["newdoc"]:
                document = value.strip() or f"document at line {number}"
                sentence.document, sentence.new_paragraph = document, True
            elif words[:1] == ["newpar"]:
                sentence.new_paragraph = True
        else:
            columns = line.split("\t")
            if len(columns) != _COLUMNS:
                raise FocusError(
                    f"{treebank}, line {number}, has {len(columns)} columns instead of 10: it is not CoNLL-U."
                )
            name, form, space = columns[0], columns[1], "SpaceAfter=No" not in columns[9].split("|")
            word = form, columns[3], columns[7]
            if "." in name:
                continue
            if "-" in name:
                until, part_of = _last(name, treebank, number), len(sentence.surfaces)
                sentence.surfaces.append((form, [], space))
            elif _last(name, treebank, number) <= until:
                sentence.surfaces[part_of][1].append(word)
            else:
                sentence.surfaces.append((form, [word], space))


def _last(name: str, treebank: str, number: int) -> int:
    try:
        return int(name.rpartition("-")[2])
    except ValueError as error:
        raise FocusError(f"{treebank}, line {number}, starts with {name[:20]!r} instead of a word number.") from error


def _document(sentences: list[_Sentence], tagger: Tagger) -> TaggedText:
    text, spans, tags, numbers, relations = "", [], [], [], []
    for number, sentence in enumerate(sentences):
        if text:
            text = text.rstrip() + ("\n\n" if sentence.new_paragraph else " ")
        for form, parts, space in sentence.surfaces:
            start = len(text)
            text += form + (" " if space else "")
            spelt = "".join(part for part, *_ in parts) == form
            position = start
            for part, tag, relation in parts:
                end = position + len(part)
                spans.append((position, end) if spelt else (start, start + len(form)))
                tags.append(tag)
                relations.append(relation)
                numbers.append(number)
                position = end
    text = text.rstrip()
    placed = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    return TaggedText(text, placed, tuple(tags), np.asarray(numbers), tagger, tuple(relations))
