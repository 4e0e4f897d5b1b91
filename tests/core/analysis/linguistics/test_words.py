"""Words, tags and their alignment with tokens."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from focus_core.analysis.linguistics.corpus import tagging
from focus_core.analysis.linguistics.corpus.conllu import read_conllu
from focus_core.analysis.linguistics.corpus.tagging import english_share, tag_text
from focus_core.analysis.linguistics.corpus.words import COARSE, UPOS, TaggedText, Tagger, align_words, tag_codes
from focus_core.errors import FocusError
from focus_core.text import encode

TREE = """# newdoc id = one
# sent_id = 1
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tdo\tdo\tAUX\t_\t_\t_\t_\t_\t_
2\tn't\tnot\tPART\t_\t_\t_\t_\t_\t_
3\t!\t!\tPUNCT\t_\t_\t_\t_\t_\t_
3.1\tgone\tgo\tVERB\t_\t_\t_\t_\t_\t_

# newpar
1-2\tau\t_\t_\t_\t_\t_\t_\t_\t_
1\tà\tà\tADP\t_\t_\t_\t_\t_\t_
2\tle\tle\tDET\t_\t_\t_\t_\t_\t_
3\tcafé\tcafé\tNOUN\t_\t_\t_\t_\t_\t_

# newdoc id = two
1\tYes\tyes\tINTJ\t_\t_\t_\t_\t_\t_
"""


def tagged(text: str, words: list[str], tags: list[str] | None = None) -> TaggedText:
    spans, position = [], 0
    for word in words:
        start = text.index(word, position)
        spans.append((start, start + len(word)))
        position = start + len(word)
    return TaggedText(
        text,
        np.asarray(spans).reshape(-1, 2),
        tuple(tags or ["NOUN"] * len(words)),
        np.zeros(len(words), dtype=np.int64),
        Tagger("test", "1"),
    )


def test_a_word_takes_its_last_first_or_all_subwords():
    text = "The unhappiest, don't"
    offsets = np.asarray([(0, 3), (3, 6), (6, 10), (10, 14), (14, 15), (15, 19), (19, 21)])
    words = tagged(text, ["The", "unhappiest", ",", "do", "n't"])
    last = align_words(words, offsets)
    assert last.tokens.tolist() == [0, 3, 4, 5, 6]
    assert align_words(words, offsets, rule="first").tokens.tolist() == [0, 1, 4, 5, 5]
    every = align_words(words, offsets, rule="all")
    assert every.tokens.tolist() == [0, 1, 2, 3, 4, 5, 5, 6]
    assert every.words.tolist() == [0, 1, 1, 1, 2, 3, 4, 4]
    assert (last.first[1], last.last[1]) == (1, 3)
    assert last.coverage == 1.0
    assert last.exact == pytest.approx(3 / 5)  # do|n't is cut elsewhere by the tokenizer


def test_white_space_and_special_tokens_stand_for_no_word():
    text = "a <end>  b"
    offsets = np.asarray([(0, 1), (1, 7), (7, 8), (8, 10)])
    words = tagged(text, ["a", "<end>", "b"])
    found = align_words(words, offsets, special={1})
    assert found.words.tolist() == [0, 2] and found.tokens.tolist() == [0, 3]
    assert found.coverage == pytest.approx(2 / 3)
    assert align_words(tagged("   ", []), np.asarray([(0, 3)])).coverage == 0


def test_unknown_rules_and_tag_sets_are_refused():
    with pytest.raises(FocusError, match="subword rule"):
        align_words(tagged("a", ["a"]), np.asarray([(0, 1)]), rule="middle")
    with pytest.raises(FocusError, match="tag set"):
        tag_codes(("NOUN",), "penn")


def test_the_coarse_set_has_five_classes_and_every_tag():
    assert len(COARSE) == 5 and sorted(sum(COARSE.values(), ())) == sorted(UPOS)
    assert tag_codes(("NOUN", "VERB", "SPACE"), "coarse").tolist() == [0, 1, 4]


def test_alignment_follows_a_real_tokenizer(byte_tokenizer):
    """One token a byte: a word's last token is its last byte, whatever the script."""
    text = "Ünïcode 👍🏽 ok\n\n end"
    words = tagged(text, ["Ünïcode", "👍🏽", "ok", "end"])
    encoding = encode(byte_tokenizer, text)
    found = align_words(words, encoding.offsets)
    ends = [len(text[: int(end)].encode()) - 1 for end in words.spans[:, 1]]
    assert found.tokens.tolist() == ends


def test_a_treebank_becomes_texts_with_gold_words(tmp_path):
    path = tmp_path / "tiny.conllu"
    path.write_text(TREE, encoding="utf-8")
    first, second = read_conllu(path)
    assert first.text == "don't!\n\nau café" and second.text == "Yes"
    assert list(zip(first.words, first.tags)) == [
        *(("do", "AUX"), ("n't", "PART"), ("!", "PUNCT"), ("au", "ADP"), ("au", "DET"), ("café", "NOUN"))
    ]
    assert first.sentences.tolist() == [0, 0, 0, 1, 1, 1]
    assert first.tagger.gold and "tiny.conllu" in str(first.tagger)


@pytest.mark.parametrize("content", ["a plain text\n", "x\ta\ta\tNOUN\t_\t_\t_\t_\t_\t_\n", "# only a comment\n"])
def test_other_files_are_refused_with_a_sentence(tmp_path, content):
    path = tmp_path / "bad.conllu"
    path.write_text(content)
    with pytest.raises(FocusError):
        read_conllu(path)


def test_spacy_tags_words_and_leaves_white_space_out():
    found = tag_text("The  cat\n\nsat. \t It slept.")
    assert found.words == ("The", "cat", "sat", ".", "It", "slept", ".")
    assert found.tags[:4] == ("DET", "NOUN", "VERB", "PUNCT")
    assert found.sentences[-1] > found.sentences[0]
    assert found.tagger.version and not found.tagger.gold
    assert english_share(found) > 0.3
    assert english_share(tag_text("Der Hund schläft unter dem Tisch und träumt von Knochen.")) < 0.2
    assert tag_text(" \n").words == ()


@pytest.mark.shared
def test_spacy_agrees_with_the_gold_tags_of_the_treebank(shared_data):
    documents = read_conllu(shared_data / "ud" / "en_ewt-ud-dev.conllu")
    assert len(documents) == 318
    assert sum(len(document.tags) for document in documents) == 25_147
    right = compared = 0
    for document in documents[:30]:
        gold = dict(zip(map(tuple, document.spans.tolist()), document.tags))
        found = tag_text(document.text)
        both = [(tag, gold[span]) for span, tag in zip(map(tuple, found.spans.tolist()), found.tags) if span in gold]
        compared += len(both)
        right += sum(a == b for a, b in both)
    assert compared > 0.95 * sum(len(document.tags) for document in documents[:30])
    assert right / compared > 0.9


@pytest.fixture
def fresh_tagger(monkeypatch):
    monkeypatch.setattr(tagging, "MODELS", (tagging.REPUBLISHED,))
    tagging.load_tagger.cache_clear()
    yield
    tagging.load_tagger.cache_clear()


def republished(tmp_path, monkeypatch) -> Path:
    """A copy of the republished model, found in place of the installed one; its code must not run."""
    spec = importlib.util.find_spec(tagging.REPUBLISHED)
    if spec is None or spec.origin is None:
        pytest.skip("the republished model is not installed")
    package = tmp_path / tagging.REPUBLISHED
    shutil.copytree(Path(spec.origin).parent, package)
    (package / "__init__.py").write_text("raise SystemExit('code of the package was run')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, tagging.REPUBLISHED, raising=False)
    return package / tagging.REPUBLISHED_FOLDER


@pytest.mark.parametrize("change", ["none", "weights", "more", "less", "renamed"])
def test_the_republished_model_is_compared_with_its_hash_before_it_is_loaded(
    tmp_path, monkeypatch, fresh_tagger, change
):
    folder = republished(tmp_path, monkeypatch)
    weights = folder / "tagger" / "model"
    if change == "weights":
        weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    elif change == "more":
        (folder / "more.py").write_text("")
    elif change == "less":
        (folder / "LICENSE").unlink()
    elif change == "renamed":
        weights.rename(folder / "tagger" / "model2")
    if change == "none":
        pipeline, tagger = tagging.load_tagger()
        assert tagger == Tagger(tagging.REPUBLISHED, "3.8.0") and pipeline("It runs.")[1].pos_ == "VERB"
        return
    with pytest.raises(FocusError, match="not those that were published"):
        tagging.load_tagger()


def test_the_official_model_comes_first(tmp_path, monkeypatch):
    assert tagging.MODELS == ("en_core_web_sm", tagging.REPUBLISHED)
    (tmp_path / "en_core_web_sm.py").write_text(
        "import spacy\n\ndef load(exclude):\n    made = spacy.blank('en')\n    made.meta['version'] = '9'\n    return made\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tagging.load_tagger.cache_clear()
    try:
        assert tagging.load_tagger()[1] == Tagger("en_core_web_sm", "9")
    finally:
        tagging.load_tagger.cache_clear()
        sys.modules.pop("en_core_web_sm", None)
