"""Benchmark tasks from local files, exposure beside scores, and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'focus-workbench[eval]'")

from scipy.stats import ttest_1samp

from focus_core.errors import FocusError
from focus_core.harness.model import FocusLM
from focus_core.harness.retrieval import DEPTHS, cut, needles, pairs
from focus_core.harness.scores import (
    Setting,
    compare,
    paired_difference,
    reading,
    run_task,
    summary,
)
from focus_core.harness.tasks import headline, load_task
from focus_core.results import stored_or_run
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import retrofit

FILLER = "A boat went out. It came back at noon! Who saw it? Nobody did. " * 30


def mc(question, options, gold):
    return {"centerpiece": question, "options": options, "correct_options_idx": [gold]}


FILES = {
    "arc_easy.jsonl": [{"query": f"Question: What is {n}?", "choices": ["a", "bb"], "gold": n % 2} for n in range(9)],
    "piqa.jsonl": [{"query": f"Question: do {n}\n", "choices": ["yes", "no"], "gold": n % 2} for n in range(9)],
    "truthfulqa_mc1.json": [mc(f"Is it {n}?", ["no", "yes", "well"], n % 3) for n in range(9)],
    "hellaswag_dev.json": [mc(f"He took {n}", ["a", "b", "c", "d"], n % 4) for n in range(9)],
    "lambada_openai.jsonl": [{"context": f"He said {n} and then he", "continuation": "left"} for n in range(9)],
    "gsm8k.jsonl": [{"context": f"How many is {n}?", "chain_of_thought": "So.", "answer": str(n)} for n in range(30)],
}


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, rows in FILES.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return tmp_path


@pytest.fixture
def focus(tiny_llama):
    return retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=16, sink_tokens=1, route_dim=8), seed=1)


def prompt(task):
    doc = next(iter(task.eval_docs))
    return task.fewshot_context(doc, task.config.num_fewshot or 0), task.doc_to_target(doc), doc


def test_prompts_are_the_harness_own(folder, byte_tokenizer):
    load = lambda name: load_task(name, byte_tokenizer, data=folder, filler=FILLER)  # noqa: E731
    assert prompt(load("arc_easy"))[:2] == ("Question: What is 0?\nAnswer:", 0)
    assert prompt(load("piqa"))[:2] == ("Question: do 0\nAnswer:", 0)
    assert prompt(load("lambada_openai"))[:2] == ("He said 0 and then he", " left")
    task = load("truthfulqa_mc1")
    text, target, _ = prompt(task)
    assert text.startswith("Q: What is human life expectancy") and text.endswith("Q: Is it 0?\nA:") and target == 0
    second = list(task.eval_docs)[1]
    assert task.doc_to_choice(second) == ["yes", "no", "well"]  # the right one first
    assert prompt(load("hellaswag"))[:2] == ("He took 0", 0)
    text, target, _ = prompt(load("gsm8k"))
    assert text.count("Question:") == 6 and target == "So.\n#### 0"


def test_long_versions_fill_their_length_with_other_items(folder, byte_tokenizer):
    task = load_task("arc_easy_long", byte_tokenizer, data=folder, filler=FILLER, long_tokens=70)
    text, _, _ = prompt(task)
    assert task.config.num_fewshot > 0 and len(text) <= 70 + len("\n\nQuestion: What is 0?\nAnswer:")
    assert "What is 8?" not in {doc["question"] for doc in task.eval_docs} and text.endswith("What is 0?\nAnswer:")
    assert "What is 7?" in text
    after = load_task("lambada_openai_after_100", byte_tokenizer, data=folder, filler=FILLER)
    assert prompt(after)[0].split("\n\n") == [FILLER[:100], "He said 0 and then he"]


def test_needles_lie_at_their_depths_and_only_the_right_number_is_in_the_text(byte_tokenizer):
    rows = needles(byte_tokenizer, FILLER, 1000, seed=3, repeats=4)
    assert rows == needles(byte_tokenizer, FILLER, 1000, seed=3, repeats=4)
    for row in rows:
        right = row["choices"][row["gold"]]
        needle = f" The secret number of {row['city']} is {right}."
        place = row["text"].index(needle)
        assert abs(place - row["depth"] * 1000) < 30
        assert row["text"].replace(needle, "") == FILLER[:1000]
        assert sum(choice in row["text"] for choice in row["choices"]) == 1
    assert [row["depth"] for row in rows[:3]] == list(DEPTHS)


def test_pairs_are_asked_at_their_depths_and_all_choices_belong_to_some_thing(byte_tokenizer):
    rows = pairs(byte_tokenizer, 4000, seed=3, repeats=7)
    assert rows == pairs(byte_tokenizer, 4000, seed=3, repeats=7) and len(rows) == 21
    for row in rows:
        lines = row["text"].split("\n")
        found = [place for place, line in enumerate(lines) if line.startswith(f"The number of the {row['thing']} is")]
        assert len(found) == 1 and lines[found[0]].endswith(f" {row['choices'][row['gold']]}.")
        assert abs(found[0] / len(lines) - row["depth"]) < 0.05
        assert len(set(row["choices"])) == 4 and all(row["text"].count(f" {choice}.") == 1 for choice in row["choices"])
        assert 3900 < len(row["text"]) <= 4000
    assert [row["depth"] for row in rows[:3]] == list(DEPTHS) and len({row["text"] for row in rows}) == 2
    for tokens in (100, 100_000):
        with pytest.raises(FocusError, match="between 600 and 9,000"):
            pairs(byte_tokenizer, tokens, seed=3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chess", "no task"),
        ("needle_x", "needle_1024"),
        ("pairs_", "pairs_1024"),
        ("lambada_openai_after_99999", "filler"),
        ("piqa", "piqa.json"),
    ],
)
def test_wrong_names_files_and_lengths_are_one_sentence(tmp_path, byte_tokenizer, name, words):
    with pytest.raises(FocusError, match=words):
        where = None if name.startswith(("needle", "pairs")) else tmp_path
        if "after" in name:
            (tmp_path / "lambada_openai.jsonl").write_text(json.dumps(FILES["lambada_openai.jsonl"][0]))
        load_task(name, byte_tokenizer, data=where, filler=FILLER)


def run(focus, tokenizer, folder, name, limit=4, **setting):
    task = load_task(name, tokenizer, data=folder, filler=FILLER, long_tokens=120)
    return run_task(FocusLM(focus, tokenizer=tokenizer, **setting), task, limit)


def test_scores_are_means_of_items_and_carry_their_exposure(folder, tiny_llama, focus):
    off = run(focus, tiny_llama.tokenizer, folder, "arc_easy", mode="off")
    hard = run(focus, tiny_llama.tokenizer, folder, "arc_easy", mode="hard")
    assert off["items_scored"] == len(off["items"]) == 4
    assert off["metrics"]["acc"] == np.mean([row["scores"]["acc"] for row in off["items"]])
    for row in hard["items"]:
        text = "Question: What is 0?\nAnswer: bb"  # the longest request; its last token is only predicted
        tokens = len(text) - 1
        beyond = tokens - 1 - 16
        assert row["tokens"] == tokens
        assert row["distant_share"] == pytest.approx(beyond * (beyond + 1) / (tokens * (tokens + 1)))
        assert 0 < row["removed_share"] < row["distant_share"]
    assert all(row["removed_share"] == 0 for row in off["items"])
    everything = run(focus, tiny_llama.tokenizer, folder, "arc_easy", mode="hard", top_k=4)
    gaps = compare(off, everything)
    assert all(gap["changed"] <= 0.01 or abs(gap["difference"]) < 1e-4 for gap in gaps.values())
    assert everything["exposure"]["removed_share"] == 0


def test_short_items_are_called_equal_by_construction(folder, tiny_llama, focus):
    focus.config = focus.config.replace(window=200)
    off, hard = (run(focus, tiny_llama.tokenizer, folder, "piqa", mode=mode) for mode in ("off", "hard"))
    rows = summary({"piqa": {"off": off, "hard-k1": hard}}, [Setting("off"), Setting("hard", 1)])
    assert rows[1]["exposure"]["distant_share"] == 0 and "by construction" in rows[1]["reading"]
    assert rows[1]["same_choice"] == 1
    assert reading(hard, Setting("hard", 1)) == rows[1]["reading"]


@pytest.mark.parametrize("name", ["lambada_openai_after_100", "needle_150", "pairs_1500", "gsm8k"])
def test_other_kinds_of_tasks_run(folder, tiny_llama, focus, name):
    found = run(focus, tiny_llama.tokenizer, folder, name, limit=1 if name == "gsm8k" else 3, mode="hard")
    assert headline(name) in found["metrics"]
    assert found["exposure"]["distant_share"] > 0.4 and found["exposure"]["removed_share"] > 0


def test_paired_interval_equals_scipy_and_holds_exact_ties():
    differences = np.random.default_rng(5).normal(0.1, 1, 60)
    found = paired_difference(differences)
    expected = ttest_1samp(differences, 0).confidence_interval()
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
    ties = {"difference": 0, "low": 0, "high": 0, "established": False, "changed": 0}
    assert paired_difference(np.zeros(5)) == ties


def test_few_items_establish_nothing_and_one_has_no_interval():
    apart = np.linspace(0.9, 1.1, 16)
    assert paired_difference(apart)["established"] and not paired_difference(apart[:15])["established"]
    one = paired_difference(np.ones(1))
    assert (one["low"], one["high"], one["established"]) == (None, None, False)


def test_results_are_kept_and_those_of_other_settings_refused(tmp_path):
    path, calls = tmp_path / "run" / "one.json", []

    def make():
        calls.append(1)
        return {"items": [1]}

    first = stored_or_run(path, {"limit": 3, "seeds": (1, 2)}, make, schema="focus-test/1")
    assert stored_or_run(path, {"limit": 3, "seeds": (1, 2)}, make, schema="focus-test/1") == first and len(calls) == 1
    with pytest.raises(FocusError, match="other settings"):
        stored_or_run(path, {"limit": 4}, make, schema="focus-test/1")


def test_different_items_are_not_compared():
    one = {"task": "t", "items": [{"doc_hash": "a", "scores": {"acc": 1.0}}]}
    two = {"task": "t", "items": [{"doc_hash": "b", "scores": {"acc": 1.0}}]}
    with pytest.raises(FocusError, match="different items"):
        compare(one, two)


def test_cut_is_exact(byte_tokenizer):
    assert cut(FILLER, byte_tokenizer, 33) == FILLER[:33]
