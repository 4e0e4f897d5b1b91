"""Documents that fail while a corpus is routed: vanished, changed, or the end of every worker. All or nothing counts."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.cluster import LESS, Lost
from focus_core.report.corpora.corpus import cuts, scan, units
from focus_core.report.corpora.stream import BEFORE, STATE, StreamSettings, collect
from focus_core.report.corpora.traces import TraceSettings, write_traces
from focus_core.report.corpora.work import MOST_LOST, CountingJob, alone, bearable

SETTINGS = StreamSettings(top_k=1, block_length=64, examples=3)
LONG = 300  # characters of a section here
NAMES = ("a.txt", "b.txt", "c.txt", "d.txt")
REASON = "A worker has too little memory"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Four texts: two of several sections, one of them with bad words, and two short ones."""
    monkeypatch.setattr("focus_core.report.corpora.corpus.cuts", functools.partial(cuts, longest=LONG))
    monkeypatch.setattr("focus_core.report.corpora.corpus.UNIT_CHARACTERS", 10)
    monkeypatch.setattr("focus_core.report.corpora.stream._TOKENS_BETWEEN_SAVES", 1)
    texts = (
        "The first, of ships. " * 40,
        "The second 我 text. " * 40 + "Bad words. " * 9,
        "Short.",
        "The last of all. " * 3,
    )
    (tmp_path / "texts").mkdir()
    for name, text in zip(NAMES, texts):
        (tmp_path / "texts" / name).write_text(text)
    return tmp_path / "texts"


@pytest.fixture
def focus(tiny_llama):
    return retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=2), seed=0)


def counted(focus, tokenizer, folder, out, **options):
    out.mkdir(exist_ok=True)
    return collect(focus, tokenizer, scan(folder), SETTINGS, out, fingerprint={}, **options)


def losing(focus, tokenizer, bad="Bad", stop=None):
    """Parts as workers make them, without some sections."""

    def parts(rest, settings, shape):
        job = CountingJob(settings, False, shape)
        for unit in rest:
            for one in alone(unit) if any(bad in section.text for section in unit) else [unit]:
                if stop is not None and any(stop in section.text for section in one):
                    raise KeyboardInterrupt
                lost = any(bad in section.text for section in one)
                yield one, Lost(REASON) if lost else job.work(focus, tokenizer, one)

    return parts


def test_a_long_document_whose_last_section_is_lost_is_in_no_sum(focus, tiny_llama, folder, tmp_path):
    found = counted(
        focus, tiny_llama.tokenizer, folder, tmp_path / "out", elsewhere=losing(focus, tiny_llama.tokenizer)
    )
    assert found.failed == {1: f"{REASON}."} and list(found.documents > 0) == [True, False, True, True]
    (folder / "b.txt").unlink()
    without = counted(focus, tiny_llama.tokenizer, folder, tmp_path / "without")
    for name in ("counts", "joint", "members"):
        assert np.array_equal(getattr(found, name), getattr(without, name)), name
    assert np.allclose(found.weight, without.weight, rtol=1e-12)


def test_a_run_that_is_stopped_knows_what_failed(focus, tiny_llama, folder, tmp_path):
    tokenizer, out = tiny_llama.tokenizer, tmp_path / "out"
    whole = counted(focus, tokenizer, folder, tmp_path / "whole", elsewhere=losing(focus, tokenizer))
    for stop in ("last", "second", "first"):  # after the failure, within the document that fails, and before
        for path in out.glob("*"):
            path.unlink()
        with pytest.raises(KeyboardInterrupt):
            counted(focus, tokenizer, folder, out, elsewhere=losing(focus, tokenizer, stop=stop))
        again = counted(focus, tokenizer, folder, out, elsewhere=losing(focus, tokenizer))
        assert again.failed == whole.failed and again.samples() == whole.samples()
        assert all(np.array_equal(array, whole.arrays()[name]) for name, array in again.arrays().items())
    with pytest.raises(KeyboardInterrupt):
        counted(focus, tokenizer, folder, out / "two", elsewhere=losing(focus, tokenizer, stop="Bad"))
    (out / "two" / BEFORE).unlink()
    with pytest.raises(FocusError, match=f"{BEFORE} is missing: delete {STATE} beside it"):
        counted(focus, tokenizer, folder, out / "two", elsewhere=losing(focus, tokenizer))


def fault(path, kind):
    path.unlink() if kind == "vanishes" else path.write_text(path.read_text() + "More.")


@pytest.mark.parametrize(
    "kind, words", [("vanishes", "There is no file b.txt"), ("changes", "b.txt changed after this")]
)
def test_texts_that_vanish_or_change_after_the_scan_are_listed(focus, tiny_llama, folder, tmp_path, kind, words):
    def progress(message, share):
        if "a.txt" in message and (folder / "b.txt").exists() and kind not in seen:
            seen.append(kind)
            fault(folder / "b.txt", kind)

    seen, text = [], (folder / "b.txt").read_text()
    found = counted(focus, tiny_llama.tokenizer, folder, tmp_path / "out", progress=progress)
    assert list(found.failed) == [1] and found.failed[1].startswith(words) and str(tmp_path) not in found.failed[1]
    assert list(found.documents > 0) == [True, False, True, True]
    seen.clear()
    (folder / "b.txt").write_text(text)
    settings = TraceSettings(block_length=64, rows_per_part=300)
    given = {"model": tiny_llama, "routers": focus, "settings": settings, "progress": progress}
    record = write_traces(folder, tmp_path / "t.parquet", **given).record
    assert [each["document"] for each in record["failed"]] == ["b.txt"]
    assert record["failed"][0]["reason"].startswith(words)
    assert set(pd.read_parquet(tmp_path / "t.parquet").document) == {"a.txt", "c.txt", "d.txt"}


def test_a_run_of_no_document_that_can_be_used_says_why(focus, tiny_llama, folder, tmp_path):
    everything = losing(focus, tiny_llama.tokenizer, bad=".")
    with pytest.raises(FocusError, match=f"No document can be used. The first that failed: {REASON}"):
        counted(focus, tiny_llama.tokenizer, folder, tmp_path / "out", elsewhere=everything)


def test_more_documents_in_a_row_than_chance_would_lose_stop_the_run(folder):
    for number in range(MOST_LOST):
        (folder / f"e{number}.txt").write_text("Another.")
    every = [one for unit in units(scan(folder)) for one in alone(unit)]
    some = ((one, Lost(REASON) if one[0].document % 3 else 1) for one in every)
    assert len(list(bearable(some))) == len(every)
    with pytest.raises(FocusError, match=f"^{REASON}, {MOST_LOST + 1} times in a row: {LESS[:20]}"):
        list(bearable((one, Lost(REASON)) for one in every))
