"""A frontier on a real Ray cluster of two workers, one of which is killed, is that of one process."""

from __future__ import annotations

import json

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


def stop_at(method):
    def progress(message: str, share: float) -> None:
        if message.startswith(method) and share:
            raise KeyboardInterrupt

    return progress


@pytest.mark.slow
def test_two_workers_measure_what_one_process_measures_though_one_is_killed(folder, cluster, killing):
    one = protocol(folder, "one.json")
    kill = killing("SparQ")
    with pytest.raises(KeyboardInterrupt):
        protocol(folder, "two.json", cluster=cluster, progress=stop_at("window + sinks"))
    stopped = json.loads((folder / "two.json").read_text())["points"]
    assert 0 < len(stopped) < len(one["points"]) == 16
    two = protocol(folder, "two.json", cluster=cluster, progress=kill)
    assert len(kill.killed) == 1 and not kill.killed[0].is_running()
    assert json.loads((folder / "two.json").read_text())["points"][: len(stopped)] == stopped
    assert_same(two, one)
    assert all(point["seconds"] >= 0 for point in two["points"])  # rounded


@pytest.mark.slow
def test_one_kind_of_text_is_that_of_one_process(folder, cluster):
    sizes = {"length": 64, "window": 4, "sink_tokens": 2, "blocks": 3, "top_k": (1, 2)}
    settings = FrontierSettings(routers=(str(folder / "model" / "routers"),), baselines=("sparq", "kmeans"), **sizes)
    text, train = [folder / "kinds" / "prose.txt"], [folder / "train.txt"]

    def measured(name, **options):
        model = str(folder / "model")
        return measure_frontier(text, train, folder / name, settings, model=model, speeds=Speeds(), **options)

    one, two = measured("one.json"), measured("two.json", cluster=cluster)
    assert len(one["points"]) == 9
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
