"""Alignments of texts of any length: documents drawn at random, kept in files, in bounded memory."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.analysis.linguistics.corpus.conllu import treebank
from focus_core.analysis.linguistics.corpus.documents import AlignJob, AlignSettings, Drawn, documents_key
from focus_core.analysis.linguistics.corpus.stored import load_document, save_document
from focus_core.analysis.linguistics.run import align_texts

BANK = """1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tcafé\tcafé\tNOUN\t_\t_\t0\troot\t_\t_
"""


def test_all_documents_are_kept_while_they_fit_and_each_has_the_same_chance_after():
    few = Drawn(most=100, seed=0)
    for number in range(10):
        few.add(str(number), 10)
    assert few.documents == [str(number) for number in range(10)] and few.count == 10
    times = np.zeros(40)
    for seed in range(600):
        drawn = Drawn(most=100, seed=seed)
        for number in range(40):
            drawn.add(str(number), 10)
        chosen = [int(each) for each in drawn.documents]
        assert len(chosen) == 10 and chosen == sorted(chosen) and drawn.count == 40
        times[chosen] += 1
    assert abs(times - 150).max() < 5 * np.sqrt(600 * 0.25 * 0.75)  # five standard deviations of a fair draw
    one = Drawn(most=5, seed=0)
    one.add("longer than all may be", 9)
    assert len(one.documents) == 1


@pytest.mark.parametrize("rule", ["last", "all"])
def test_a_document_comes_back_from_its_file(tiny_llama, tmp_path, rule):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=2), seed=5)
    (gold,) = treebank(BANK, "a.conllu")
    nothing = replace(gold, spans=gold.spans[:0], tags=(), sentences=gold.sentences[:0], relations=())
    for number, document in enumerate(("Ships near London. 我 saw café.", gold, nothing)):
        given = AlignJob(AlignSettings(rule=rule, top_k=1)).work(focus, tiny_llama.tokenizer, document)
        save_document(given, tmp_path / str(number))
        found = load_document(tmp_path / str(number))
        for mine, other in ((found.words, given.words), (found.words.tagged, given.words.tagged)):
            same(mine, other)
        same(found.words.found, given.words.found)
        assert list(found.states) == list(given.states) == [0, 1, 2]
        assert all(torch.equal(found.states[layer], states) for layer, states in given.states.items())


def same(one, two):
    for name in two.__dataclass_fields__:
        mine, other = getattr(one, name), getattr(two, name)
        if isinstance(other, np.ndarray):
            assert np.array_equal(mine, other) and mine.dtype == other.dtype, name
        elif name not in ("tagged", "found"):
            assert mine == other, name


def test_only_the_same_run_finds_its_documents(tiny_llama):
    focus, tokenizer = retrofit(tiny_llama.model, seed=5), tiny_llama.tokenizer

    def key(documents=("One text.", "Another."), **settings):
        return documents_key(focus, tokenizer, documents, AlignSettings(**settings))

    keys = {key(), key(("One text.", "Another")), key(top_k=1), key(states="routed"), key(seed=1)}
    for tensor in (next(focus.model.parameters()), next(focus.routers.parameters())):
        with torch.no_grad():
            tensor.view(-1)[5] += 1e-3
        keys.add(key())
    focus.model.config.rms_norm_eps *= 2
    keys.add(key())
    focus.config = focus.config.replace(temperature=0.3)
    assert len(keys | {key()}) == 9 and key() == key()


def test_a_damaged_file_is_one_sentence(tiny_llama, tmp_path, monkeypatch, stops):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    (tmp_path / "text.txt").write_text("Ships sail near London in the old days of light. " * 20)
    given = {"model": tiny_llama, "untrained": True, "settings": AlignSettings(length=64, repeats=20)}
    with pytest.raises(KeyboardInterrupt):
        align_texts(tmp_path / "text.txt", progress=stops("Tagging", 0.2), **given)
    (file,) = (tmp_path / "runs").rglob("*00000000")
    file.write_bytes(b"{" * 30)
    with pytest.raises(FocusError, match="00000000 is damaged: delete it and repeat the command"):
        align_texts(tmp_path / "text.txt", **given)


def test_memory_does_not_grow_with_the_texts(tiny_llama, tmp_path, monkeypatch):
    """What Python and NumPy hold, and the states of PyTorch, of which the most is one layer's."""
    peaks, words = {2: [], 90: []}, {}
    for run, files in enumerate((1, 2, 90, 2, 90)):  # the first imports what is missing
        monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / f"runs {run}"))
        folder = tmp_path / f"of {files}"
        folder.mkdir(exist_ok=True)
        for number in range(files):
            text = " ".join(f"Ship {number} sails from port {each * each}." for each in range(60))
            (folder / f"{number:02}.txt").write_text(text)
        settings = AlignSettings(length=128, passages=0, tokens=1024, repeats=20, seed=2)
        gc.collect()
        if run:
            tracemalloc.start()
        found = align_texts(folder, model=tiny_llama, untrained=True, settings=settings)
        peaks.setdefault(files, []).append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        words[files] = len(found.sample)
        assert found.record["drawn"]["of"] > 12 * files and found.record["drawn"]["documents"] <= 10
    # The smaller of two: Python's collector comes when it does, and garbage that waits for it is no document.
    assert words[90] == pytest.approx(words[2], rel=0.1) and min(peaks[90]) < 1.15 * min(peaks[2])
