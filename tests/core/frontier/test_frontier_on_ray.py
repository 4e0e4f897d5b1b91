"""A frontier on a real Ray cluster is that of one process, also one that was stopped.

That a worker which is killed changes nothing is a test of the cluster and of reports, which work in the same way.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from focus_core import FocusConfig, FocusError, cli, retrofit
from focus_core.cluster import Cluster
from focus_core.frontier.kinds.protocol import ProtocolSettings, measure_protocol
from focus_core.frontier.run import FrontierSettings, measure_frontier
from focus_core.frontier.speeds import Speeds

BASELINES = ("streaming", "sparq", "kmeans", "seer", "best-groups")
EXACT = ("kept_share", "causal_kept_share", "largest_group_share", "tokens", "wanted_share", "layer_top_k", "label")
CLOSE = ("perplexity", "block_nll", "kl", "block_kl", "block_kl_last_quarter", "top1_agreement")


@pytest.fixture
def folder(tmp_path, model_folder, tiny_llama):
    """Two kinds of text of two blocks, training text, and other routers than those beside the model."""
    kinds = tmp_path / "kinds"
    kinds.mkdir()
    (kinds / "prose.txt").write_text("The quick brown fox jumps over the lazy dog, and sleeps. " * 6)
    (kinds / "code.txt").write_text("def add(first, second):\n    return first + second\n\n" * 6)
    (tmp_path / "train.txt").write_text("Once upon a time there was a model of language. " * 60)
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, route_dim=8, router="head"), seed=1)
    focus.save_pretrained(tmp_path / "other")
    focus.detach()
    return tmp_path


def protocol(folder, name, **options):
    routers = (str(folder / "model" / "routers"), str(folder / "other"))
    sizes = {"lengths": (64,), "window": 4, "sink_tokens": 2, "blocks": 2, "learned_tokens": 2048}
    settings = ProtocolSettings(routers=routers, baselines=BASELINES, **sizes)
    train, out = [folder / "train.txt"], folder / name
    model = str(folder / "model")
    return measure_protocol(folder / "kinds", train, out, settings, model=model, speeds=Speeds(), **options)


def assert_same(two, one):
    assert [point["method"] for point in two["points"]] == [point["method"] for point in one["points"]]
    for ours, theirs in zip(two["points"], one["points"], strict=True):
        assert {name: ours[name] for name in EXACT} == {name: theirs[name] for name in EXACT}, ours["method"]
        for name in CLOSE:
            near = theirs[name] and pytest.approx(theirs[name], rel=1e-5, abs=1e-7)  # the untouched model has no KL
            assert ours[name] == near, (ours["method"], name)
        assert ours["setting"] == theirs["setting"] and ours["text"] == theirs["text"]


def points_in(path):
    return json.loads(path.read_text())["points"]


@pytest.mark.slow
def test_what_is_stopped_resumes_on_two_workers_to_what_one_process_measures(folder, cluster, stops):
    one = protocol(folder, "one.json")
    with pytest.raises(KeyboardInterrupt):
        protocol(folder, "two.json", progress=stops("untouched", 0.0))
    stopped = points_in(folder / "two.json")
    assert len(stopped) == 1 and len(one["points"]) == 16
    two = protocol(folder, "two.json", cluster=cluster)
    assert points_in(folder / "two.json")[:1] == stopped
    assert_same(two, one)
    assert all(point["seconds"] >= 0 for point in two["points"])  # rounded


@pytest.mark.slow
def test_one_kind_of_text_that_is_stopped_on_a_worker_resumes_to_what_one_process_measures(folder, cluster, stops):
    sizes = {"length": 64, "window": 4, "sink_tokens": 2, "blocks": 3, "top_k": (1, 2)}
    settings = FrontierSettings(routers=(str(folder / "model" / "routers"),), baselines=("sparq", "kmeans"), **sizes)
    text, train = [folder / "kinds" / "prose.txt"], [folder / "train.txt"]

    def measured(name, **options):
        model = str(folder / "model")
        return measure_frontier(text, train, folder / name, settings, model=model, speeds=Speeds(), **options)

    one = measured("one.json")
    with pytest.raises(KeyboardInterrupt):
        measured("two.json", cluster=replace(cluster, workers=1), progress=stops("SparQ", 0.8))
    stopped = points_in(folder / "two.json")
    assert len(stopped) == 8 and len(one["points"]) == 9
    two = measured("two.json")
    assert points_in(folder / "two.json")[:8] == stopped
    assert_same(two, one)


def test_faults_are_one_sentence(folder, tiny_llama):
    where = {"speeds": Speeds(), "cluster": Cluster()}
    settings = ProtocolSettings(routers=(str(folder / "other"),), baselines=(), lengths=(64,), window=4)
    train = [folder / "train.txt"]
    with pytest.raises(FocusError, match="Workers load the model themselves"):
        measure_protocol(folder / "kinds", train, folder / "f.json", settings, model=tiny_llama, **where)
    command = ["frontier", "--kinds", folder / "kinds", "--train", folder / "train.txt", "--out", folder / "f.json"]
    done = CliRunner().invoke(cli.app, [*map(str, command), "--workers", "2"])
    assert (done.exit_code, done.output.count("\n")) == (2, 1) and "--workers belongs to a cluster" in done.output
