"""`FocusConfig`: what it accepts, what it refuses, and its way through JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focus_core.errors import FocusError
from focus_core.routing.balance import BALANCES
from focus_core.routing.config import FocusConfig
from focus_core.routing.gate import GATES
from focus_core.routing.routers import ROUTERS, SCORES


@st.composite
def configs(draw) -> FocusConfig:
    num_groups = draw(st.integers(2, 256))
    router = draw(st.sampled_from(sorted(ROUTERS)))
    return FocusConfig(
        router=router,
        chunk=draw(st.integers(1, 256)),
        read_share=draw(st.none() | st.floats(0, 1)) if router == "narrow" else None,
        count_weight=draw(st.floats(0, 1)),
        num_groups=num_groups,
        top_k=draw(st.integers(1, num_groups)),
        window=draw(st.integers(0, 4096)),
        sink_tokens=draw(st.integers(0, 16)),
        temperature=draw(st.floats(1e-3, 10)),
        score=draw(st.sampled_from(SCORES)),
        gate=draw(st.sampled_from(sorted(GATES))),
        balance=draw(st.sampled_from(sorted(BALANCES))),
        layers=draw(st.none() | st.lists(st.integers(0, 40), max_size=5).map(tuple)),
    )


@given(config=configs(), other=configs(), share=st.none() | st.floats(0, 1), plan=st.booleans())
def test_changes_from_another_give_these_settings(config, other, share, plan):
    if config.router == other.router == "narrow":
        config, other = config.replace(read_share=share), other.replace(read_share=share)
    elif plan and config.num_groups == other.num_groups:
        config = config.replace(layer_top_k=(config.top_k, config.top_k))
    assert other.replace(**config.changes_from(other)) == config
    assert config.changes_from(config) == {}


@given(config=configs())
def test_json_round_trip(config):
    assert FocusConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    "change",
    [
        {"num_groups": 1, "top_k": 1},
        {"top_k": 0},
        {"top_k": 9},
        {"window": -1},
        {"sink_tokens": -1},
        {"route_dim": 0},
        {"sinkhorn_rounds": 0},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"gate_sharpness": -1.0},
        {"gate": "soft"},
        {"balance": "global"},
        {"score": "l2"},
        {"read_share": 0.2},
        {"router": "narrow", "read_share": -0.1},
        {"chunk": 0},
    ],
)
def test_values_out_of_range(change):
    with pytest.raises(FocusError) as failure:
        FocusConfig().replace(**change)
    message = str(failure.value)
    assert message.endswith(".") and any(name in message for name in change)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"groups": 8}', '{"window": "wide"}', '{"top_k": 9}'])
def test_json_that_is_no_configuration(text):
    with pytest.raises(FocusError):
        FocusConfig.from_json(text)


def test_settings_of_an_earlier_version_still_load():
    values = json.loads(FocusConfig().to_json())
    for name in ("chunk", "read_share", "count_weight"):
        del values[name]
    assert FocusConfig.from_json(json.dumps(values)) == FocusConfig()


def test_layers_are_a_sorted_set():
    assert FocusConfig(layers=(3, 1, 3)).layers == (1, 3)


def test_the_published_recipe():
    paper = FocusConfig.paper(num_groups=8)
    assert (paper.num_groups, paper.window, paper.sink_tokens, paper.sinkhorn_rounds) == (8, 128, 0, 10)
    assert (paper.score, paper.gate, paper.balance, paper.temperature) == ("dot", "paper", "sequence", 0.1)
