"""An evaluation on a real Ray cluster of two workers is that of one process, also one that was stopped.

That a worker which is killed changes nothing is a test of the cluster and of reports, which work in the same way.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from focus_core import FocusError, cli, retrofit
from focus_core.cluster import Cluster
from focus_core.evaluation import evaluate, settings_for
from focus_core.evaluation.measure import joined
from focus_core.evaluation.run import evaluate_texts
from focus_core.evaluation.work import Asked, measurement_key

SIZES = {"length": 64, "stride": 32, "blocks": None, "top_k": (1, 2), "window": 8, "lengths": (32, 128)}


@pytest.fixture
def text(tmp_path):
    """A text of many pieces of work."""
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"Ship {number} sails from port {number * number}." for number in range(60)))
    return path


def evaluated(text, folder, **options):
    return evaluate_texts(text, model=folder, routers=folder / "routers", **SIZES, **options)


def test_what_is_stopped_here_and_on_two_workers_resumes_to_what_one_process_measures(
    text, model_folder, cluster, monkeypatch, tmp_path, stops
):
    runs = tmp_path / "runs"
    monkeypatch.setenv("FOCUS_RUNS", str(runs))
    measured, worked = Asked.measured, []
    monkeypatch.setattr(Asked, "measured", lambda piece, focus: worked.append(piece) or measured(piece, focus))
    one, pieces, stored = evaluated(text, model_folder), len(worked), [0]
    assert len(one.results) == 6 and len(one.results[0].block_nll) > 40 and len(one.lengths) == 6
    assert pieces > 12 and not list(runs.rglob("0???????"))
    for share, options in ((0.1, {}), (0.8, {"cluster": cluster})):
        with pytest.raises(KeyboardInterrupt):
            evaluated(text, model_folder, progress=stops("Evaluating", share), **options)
        stored.append(len(list(runs.rglob("0???????"))))
    assert 0 < stored[1] < stored[2] < pieces
    worked.clear()
    two = evaluated(text, model_folder, out=tmp_path / "record.json")
    assert len(worked) == pieces - stored[2] and not list(runs.rglob("0???????"))
    assert json.loads((tmp_path / "record.json").read_text())["results"] == two.record["results"]
    exact = ("tokens", "kept_share", "causal_kept_share", "largest_group_share", "largest_group_layer")
    for name in ("routing", "top_k", *exact):
        assert [getattr(row, name) for row in two.results] == [getattr(row, name) for row in one.results]
    for name in ("block_nll", "block_kl", "top1_agreement"):
        for ours, theirs in zip(two.results[1:], one.results[1:], strict=True):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-5, abs=1e-7)
    assert two.results[0].block_nll == pytest.approx(one.results[0].block_nll, rel=1e-5)
    for ours, theirs in zip(two.lengths, one.lengths, strict=True):
        assert ours.length == theirs.length
        assert ours.evaluation.perplexity == pytest.approx(theirs.evaluation.perplexity, rel=1e-6)
        assert [each.nll for each in ours.positions] == pytest.approx([each.nll for each in theirs.positions])
    assert two.record["settings"] == one.record["settings"] and two.record["data"] == one.record["data"]


def test_only_the_same_run_resumes(tiny_llama, monkeypatch):
    """Text, weights, configuration and routers decide; so does the code, whose hash is one of the versions."""
    focus, blocks = retrofit(tiny_llama.model, seed=5), np.random.default_rng(0).integers(1, 250, (5, 48))

    def key(blocks=blocks, **asked):
        return measurement_key(focus, [Asked(blocks, settings_for(focus.config, (1,)), **asked)])

    same, other = key(), blocks.copy()
    other[3, 7] += 1
    keys = {same, key(other), key(stride=8), key(changes={"window": 4}), key(losses=True)}
    with torch.no_grad():
        for tensor in (next(focus.model.parameters()), next(focus.routers.parameters())):
            tensor.view(-1)[5] += 1e-3
            keys.add(key())
            tensor.view(-1)[5] -= 1e-3
    focus.model.config.rms_norm_eps *= 2
    keys.add(key())
    focus.config = focus.config.replace(temperature=0.3)
    keys.add(key())
    monkeypatch.setattr("focus_core.routing.portable.versions", lambda: {"focus_core": "another"})
    assert len(keys | {key()}) == 10


def test_pieces_join_to_what_one_call_measures(tiny_llama):
    """Rows of pieces of any size, beside `evaluate` over all blocks at once."""
    focus = retrofit(tiny_llama.model, seed=5)
    blocks = np.random.default_rng(0).integers(1, 250, (7, 48))
    plan = settings_for(focus.config.replace(window=4), (1,))
    asked = Asked(blocks, plan, changes={"window": 4})
    parts = [Asked(part, plan, changes={"window": 4}).measured(focus) for part in (blocks[:1], blocks[1:6], blocks[6:])]
    for row, (mode, top_k, balance) in zip(
        asked.evaluations(focus, [joined(column) for column in zip(*parts)]), plan, strict=True
    ):
        whole = evaluate(focus, blocks, routing=mode, top_k=top_k, balance=balance, window=4)
        assert row.block_nll == pytest.approx(whole.block_nll)
        for name in ("tokens", "kept_share", "causal_kept_share", "largest_group_share", "exposure"):
            assert getattr(row, name) == getattr(whole, name)


def test_faults_are_one_sentence(text, model_folder, tiny_llama, cluster):
    with pytest.raises(FocusError, match="Workers load the model themselves"):
        evaluate_texts(text, model=tiny_llama, untrained=True, length=64, window=8, cluster=Cluster())
    command = ["eval", "--data", str(text), "--model", str(model_folder), "--untrained", "--length", "64"]
    done = CliRunner().invoke(cli.app, [*command, "--window", "8", "--workers", "2"])
    assert (done.exit_code, done.output.count("\n")) == (2, 1) and "--workers belongs to a cluster" in done.output
    done = CliRunner().invoke(cli.app, [*command, "--window", "8", "--ray", "--workers", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["results"]) == 6
