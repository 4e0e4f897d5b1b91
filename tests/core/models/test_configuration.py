"""Models of the same weights and another configuration are others: no stored result is used again for them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from focus_core import FocusConfig, retrofit
from focus_core.analysis.interventions.groups import EffectSettings
from focus_core.analysis.interventions.run import effects_of_text
from focus_core.errors import FocusError
from focus_core.evaluation.plan import plan_routers
from focus_core.models import ModelInfo, load_model
from focus_core.models.configuration import folder_configuration
from focus_core.models.loading import revision_of, weights_revision
from focus_core.training import TrainSettings, train

TEXT = "She rowed to the island and the old man was glad of it. "


def change(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.fixture
def other(model_folder, tmp_path):
    """A folder of the same name and weights with another configuration."""
    shutil.copytree(model_folder, tmp_path / "b" / "model")
    change(tmp_path / "b" / "model", rms_norm_eps=0.5)
    return tmp_path / "b" / "model"


def test_the_configuration_is_that_which_decides_results(model_folder, other):
    mine = folder_configuration(model_folder)
    assert weights_revision(other) == weights_revision(model_folder) and folder_configuration(other) != mine
    assert revision_of(str(other)) != revision_of(str(model_folder))
    change(model_folder, transformers_version="0.1", dtype="bfloat16", _name_or_path="elsewhere", use_cache=False)
    assert folder_configuration(model_folder) == mine
    assert load_model(model_folder).info.identity["configuration"] == mine
    tokenizer = model_folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert folder_configuration(model_folder) != mine


def test_the_revision_of_the_default_model_covers_its_configuration():
    assert ModelInfo("n", "default", "r", "c", 1).identity == {"name": "n", "revision": "r"}


def test_records_are_not_resumed_with_another_configuration(model_folder, other, tmp_path):
    routers, chosen = model_folder / "routers", {"layer": 1, "groups": (0,), "settings": EffectSettings(draws=3)}
    out = {"routers": routers, "out": tmp_path / "effects.json", **chosen}
    text = TEXT * 4
    effects_of_text(text, model=model_folder, **out)
    effects_of_text(text, model=model_folder, **out)
    with pytest.raises(FocusError, match="other settings or inputs"):
        effects_of_text(text, model=other, **out)


def test_costs_of_a_plan_are_those_of_one_configuration(model_folder, other, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 20)
    given = {"routers": model_folder / "routers", "length": 64, "blocks": 1, "window": 4, "top_ks": (1,)}
    plan_routers(tmp_path / "text.txt", tmp_path / "plan", 0.9, model=model_folder, **given)
    costs = tmp_path / "plan" / "plan.json"
    with pytest.raises(FocusError, match="other routers, settings or texts"):
        plan_routers(tmp_path / "text.txt", tmp_path / "other", 0.9, model=other, costs=costs, **given)


def test_training_is_not_resumed_with_another_configuration(tiny_llama, tmp_path):
    config = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8)
    blocks = np.random.default_rng(0).integers(1, 200, (4, 32))
    focus = retrofit(tiny_llama.model, config)
    train(focus, blocks, TrainSettings(steps=2), tmp_path, keep_checkpoint=True)
    focus.detach().config.rms_norm_eps = 0.5
    with pytest.raises(FocusError, match="other text, weights or settings"):
        train(retrofit(tiny_llama.model, config), blocks, TrainSettings(steps=2), tmp_path)
