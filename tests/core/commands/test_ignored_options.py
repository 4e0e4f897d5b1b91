"""Options that would change nothing are refused before the work, each with what they need."""

from __future__ import annotations

import importlib.util
import shlex

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from focus_core import cli

COMMANDS = get_command(cli.app).commands  # type: ignore[attr-defined]
EVERY = {
    (name, *more): command
    for name, one in COMMANDS.items()
    for more, command in ([((each,), own) for each, own in getattr(one, "commands", {}).items()] or [((), one)])
}
"""Every command, by its words."""


def run(*arguments: str):
    result = CliRunner().invoke(cli.app, [*arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    (tmp_path / "t.txt").write_text("Some text of a few words. " * 20)
    (tmp_path / "b.conllu").write_text("1\tword\tword\tNOUN" + "\t_" * 6 + "\n\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bench attention --router narrow --routing 64/2", "narrow groups have no k"),
        ("bench attention --directions 5", "only narrow groups have them"),
        ("bench baseline quest -m x --query-heads 2", "--query-heads changes nothing here: leave --model out"),
        ("bench baseline quest -m x --head-dim 32", "--head-dim changes nothing here: leave --model out"),
        ("bench baseline performer --share 0.3", "--share changes nothing here"),
        ("fit -d t.txt --one-share --one-threshold", "--one-threshold changes nothing here: leave --one-share out"),
        ("fit -d t.txt --one-share --recall", "--recall changes nothing here: leave --one-share out"),
        ("fit -d t.txt --one-threshold --recall", "--recall changes nothing here: leave --one-threshold out"),
        ("fit -d t.txt --one-share --no-recall", "--recall changes nothing here: leave --one-share out"),
        ("fit -d t.txt --one-share --no-spread --directions 5", "--directions changes nothing here: leave"),
        ("fetch -m x --verify", "--verify changes nothing here"),
        ("frontier -d t.txt --train t.txt -o f.json --learned-tokens 9", "--learned-tokens changes nothing here"),
        ("frontier -d t.txt --train t.txt -o f.json --baseline none --share 0.1", "--share changes nothing here"),
        ("generate hello --seed 3", "--seed changes nothing here: give a --temperature above 0"),
        ("train -d t.txt --eval-blocks 0 --eval-top-k 1", "--eval-top-k changes nothing here: give --eval-blocks"),
        *(
            (f"train -d t.txt --start-from x {option}", f"{option.split()[0]} changes nothing here: leave --start-from")
            for option in ("--groups 4", "--top-k 1", "--window 9", "--sinks 2", "--router head", "--recipe paper")
        ),
        ("train -d t.txt -o new --router narrow", "narrow groups are fitted by focus fit"),
        ("train -d t.txt -o new --trainer --router narrow", "narrow groups are fitted by focus fit"),
        ("train --plan default --router narrow", "narrow groups are fitted by focus fit"),
        ("train -d t.txt -o new --router tree", "--router is 'tree', and layer and head are trained."),
        ("train -d t.txt -o new --start-from smollm2-135m-narrow64", "not trained but fitted to the model's keys: use"),
        ("train -d t.txt -o new --full-steps 3", "--full-steps changes nothing here: give --mode two-phase, or"),
        ("train -d t.txt --trainer --eval-top-k 1", "--eval-top-k changes nothing here: give --held-out"),
        ("train -d t.txt --trainer --eval-blocks 2", "--eval-blocks changes nothing here: give --held-out"),
        ("train -d t.txt --trainer --held-out t.txt --eval-blocks 0", "--held-out changes nothing here"),
        ("train -d t.txt --shard --held-out t.txt", "--held-out changes nothing here: sharded runs are evaluated"),
        ("train -d t.txt --trainer --full-steps 3", "--full-steps changes nothing here: give --mode two-phase"),
        ("train -d t.txt --mode scratch --architecture c --steps 3", "--steps changes nothing here: --full-steps"),
        ("train --plan default --model x", "--model changes nothing here: --plan names the model"),
        ("train --plan default --start-from x", "--start-from changes nothing here"),
        ("train --plan default --held-out t.txt", "--held-out changes nothing here: sharded runs are evaluated"),
        ("reproduce k-sweep --limit 3", "--limit changes nothing in k-sweep here: leave it out, since it belongs to"),
        ("reproduce k-sweep --held-out t.txt --data t.txt", "--data changes nothing in k-sweep here: leave out it or"),
        ("reproduce k-sweep --bench .", "--bench changes nothing in k-sweep"),
        ("reproduce k-sweep -m x -m y", "k-sweep measures one model"),
        ("reproduce speed -m x", "speed measures no model"),
        ("reproduce speed --held-out t.txt", "--held-out changes nothing in speed"),
        ("reproduce retrofit --data t.txt --full-steps 3", "--full-steps changes nothing in retrofit"),
        ("reproduce retrofit --data t.txt --rank 3", "since it belongs to lora"),
        ("reproduce lora --data t.txt --limit 3", "--limit changes nothing in lora here: give --bench"),
        ("reproduce lora --data t.txt -t piqa", "--task changes nothing in lora here: give --bench"),
        ("reproduce groups --treebank b.conllu --held-out t.txt", "--held-out changes nothing in groups"),
        ("scale --network 1e9", "--network changes nothing here: give --gpus"),
    ],
)
def test_an_option_that_changes_nothing_is_refused(texts, tmp_path, line, words):
    before = sorted(tmp_path.rglob("*"))
    result = run(*shlex.split(line))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert words in result.stderr and sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs pip install 'focus-workbench[eval]'")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-t piqa=3 --limit 5", "--limit changes nothing here: every task has a number of its own"),
        ("-t piqa --long-tokens 500", "--long-tokens changes nothing here: name a task NAME_long"),
        ("-t pairs_900 --filler t.txt", "--filler changes nothing here"),
        ("-t piqa -t piqa=5", "The task piqa is named twice"),
        *((f"-t piqa -t {name}", f"There is no task '{name}'") for name in ("chess", "_long", "chess_after_9")),
        *(
            (f"-t piqa -t {name}", f"'{name.partition('=')[0]}' names no number of tokens, from 1 on: write it")
            for name in (
                "pairs_",
                "piqa_after_",
                "needle_0",
                "needle_N=0",
                "needle_²",
                f"needle_{'9' * 5000}",
                "lambada_openai_after_0",
            )
        ),
        ("-t piqa=²", "write NAME or NAME=20"),
        (f"-t piqa={'9' * 5000}", "write NAME or NAME=20"),
    ],
)
def test_tasks_are_refused_before_any_is_measured(texts, tmp_path, options, words):
    before = sorted(tmp_path.rglob("*"))
    result = run("harness", "--hub", "-m", "./nowhere", *options.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert words in result.stderr and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_empty_values_are_refused(texts, tmp_path, words):
    """An unset variable of a shell is no name: `-o ""` would be the current folder."""
    before = sorted(tmp_path.rglob("*"))
    for parameter in EVERY[words].params:
        if getattr(parameter, "is_flag", False) or parameter.name == "prompt":
            continue
        if parameter.param_type_name == "argument":
            before_it = [each for each in EVERY[words].params if each.param_type_name == "argument"]
            given = ["--", *["x"] * before_it.index(parameter), ""]
        else:
            given = [parameter.opts[0], ""]
        result = run(*words, *given)
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name
        assert (result.exit_code, result.stdout) == (2, ""), (parameter.name, result.output)
        assert f"{name} is empty: give a value, or leave it out." in result.stderr, (parameter.name, result.stderr)
    assert sorted(tmp_path.rglob("*")) == before
