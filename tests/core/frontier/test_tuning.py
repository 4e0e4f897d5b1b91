"""Settings of baselines: tuned on training text with equal effort, recorded, and not tuned again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from focus_core import FocusConfig, retrofit
from focus_core.baselines import BASELINES
from focus_core.frontier.measure import baseline_point, fit_baseline, point_of
from focus_core.frontier.tuning import Tuner, chosen, tunable
from focus_core.resources import data_dir
from focus_core.text import read_text, token_blocks

TUNABLE = [name for name in BASELINES if tunable(name)]
BUDGET = {"window": 6, "sinks": 2}


@pytest.fixture
def focus(tiny_llama):
    return retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=6, sink_tokens=2, route_dim=8))


def text(blocks, length=64, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(1, 90, (blocks, length)))


def test_every_grid_has_as_many_settings_and_the_default_first():
    assert TUNABLE == ["kmeans", "lsh", "magicpig", "quest", "moba", "sparq", "clusters"]
    assert len({len(BASELINES[name].grid) for name in TUNABLE}) == 1
    for name in TUNABLE:
        grid = [tuple(sorted(setting.items())) for setting in BASELINES[name].grid]
        assert len(set(grid)) == len(grid)
        assert len({tuple(setting) for setting in BASELINES[name].grid}) == 1  # the same names in each


@pytest.mark.parametrize("name", TUNABLE)
def test_the_setting_with_the_smallest_divergence_on_training_text_is_chosen(focus, name):
    training = text(4)
    found = Tuner(focus, training, **BUDGET).tune(name, 0.4)
    assert found["tokens"] == 2 * 64
    for tried, setting in zip(found["tried"], BASELINES[name].grid, strict=True):
        settings = {"share": 0.4, "setting": setting, "training_text": training[:2], **BUDGET}
        point = baseline_point(focus, name, training[2:].numpy(), **settings)
        assert tried == {"setting": dict(setting), "kl": point.kl}
        assert point.setting == dict(setting) and point_of(point.to_dict()) == point
    assert min(each["kl"] for each in found["tried"]) == next(
        each["kl"] for each in found["tried"] if each["setting"] == found["setting"]
    )
    assert chosen([found], name, 0.4) == found["setting"]
    assert chosen([found], name, 0.3) is None and chosen([], name, 0.4) is None


def test_the_default_setting_is_the_first_of_the_grid(focus):
    ids = text(1, seed=1).numpy()
    for name in TUNABLE:
        settings = {"share": 0.4, "training_text": text(2), **BUDGET}
        default = baseline_point(focus, name, ids, **settings)
        first = baseline_point(focus, name, ids, setting=BASELINES[name].grid[0], **settings)
        assert default.setting is None and default.block_kl == first.block_kl


def test_a_fit_made_before_gives_the_same_point(focus):
    ids, training = text(1, seed=1).numpy(), text(6)
    settings = {"share": 0.4, "setting": {"clusters": 2}, **BUDGET}
    fitted = fit_baseline(focus, "kmeans", training, **settings)
    before = baseline_point(focus, "kmeans", ids, fitted=fitted, training_text=training, **settings)
    assert before == baseline_point(focus, "kmeans", ids, training_text=training, **settings)


def test_kmeans_is_fitted_on_all_of_the_training_text(focus):
    settings = {"share": 0.4, **BUDGET}
    fitted = fit_baseline(focus, "kmeans", text(9), **settings)
    for clusters in fitted.values():
        heads = focus.model.config.num_attention_heads // focus.model.config.num_key_value_heads
        seen = [float(model._counts.sum()) for model in clusters.models]
        assert seen == [9 * 64 * (1 + heads)] * len(seen)
    assert fit_baseline(focus, "quest", text(9), **settings) == {}


def test_a_short_training_text_is_enough(focus):
    for blocks in (1, 2, 3):
        assert Tuner(focus, text(blocks), **BUDGET).tune("magicpig", 0.4)["tokens"] == 64


def test_on_a_real_text_small_pages_keep_more_of_the_model(default_model):
    focus = retrofit(default_model.model, FocusConfig(window=64))
    story = read_text(data_dir() / "samples" / "story.txt")
    ids = torch.from_numpy(token_blocks(default_model.tokenizer, [story], 512, max_blocks=2))
    found = Tuner(focus, ids, window=64, sinks=4, blocks=1).tune("quest", 0.15)
    focus.detach()
    kl = {each["setting"]["page"]: each["kl"] for each in found["tried"]}
    assert kl[4] < 0.9 * kl[16] < 0.9 * kl[32]
    assert found["setting"]["page"] < 16  # the page size that was fixed
