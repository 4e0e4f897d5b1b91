"""Shares by need: the plan against linear programming, measured errors against the model's own modules."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from focus_core import FocusConfig, FocusError, FocusModel, retrofit
from focus_core.routing.cache import given_cache
from focus_core.routing.narrow.fit import fit_narrow
from focus_core.routing.narrow.need import MEASURED, head_errors, plan_shares
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reference import narrow_reference
from focus_core.routing.routers.narrow import MEANS
from focus_core.routing.rules import Rule, attend_fully, hard_groups

SMALL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
CONFIG = FocusConfig(
    router="narrow", num_groups=6, top_k=1, window=5, sink_tokens=2, chunk=16, read_share=0.2, page_size=4,
    shares_by_need=True, score="dot",
)  # fmt: skip
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=256)),
}


def model(name="llama"):
    torch.manual_seed(0)
    found = FAMILIES[name]().eval()
    for parameter in found.parameters():
        parameter.data.mul_(4)  # attention that matters
    return found


def blocks(number=2, length=120, seed=1):
    return torch.randint(2, 95, (number, length), generator=torch.Generator().manual_seed(seed)).numpy()


curves = st.integers(1, 6).flatmap(
    lambda heads: st.lists(st.lists(st.floats(0, 10), min_size=5, max_size=5), min_size=heads, max_size=heads)
)


@settings(deadline=None)
@given(curves=curves, mean=st.floats(0, 1))
def test_the_plan_is_the_optimum(curves, mean):
    places = np.array([0.0, 0.1, 0.2, 0.5, 1.0])
    errors = np.minimum.accumulate(np.array(curves), axis=1)
    shares = plan_shares(errors, places, [mean])[0]
    assert shares.mean() == pytest.approx(mean, abs=1e-9)
    assert ((shares >= 0) & (shares <= 1)).all()

    # A head is a mixture of its measured points; the least sum of errors under the mean share, by linear programming.
    heads = len(errors)
    each = np.kron(np.eye(heads), np.ones(5))
    best = linprog(
        errors.ravel(),
        A_eq=np.vstack([each, np.tile(places, heads) / heads]),
        b_eq=np.append(np.ones(heads), mean),
    )
    assert best.success
    hulls = [
        linprog(error, A_eq=np.vstack([np.ones(5), places]), b_eq=[1, share]).fun
        for error, share in zip(errors, shares)
    ]
    assert sum(hulls) == pytest.approx(best.fun, abs=1e-6)


def test_no_head_reads_less_where_the_mean_is_larger():
    errors = np.random.default_rng(0).exponential(size=(30, len(MEASURED)))
    shares = plan_shares(errors, MEASURED, MEANS)
    assert (np.diff(shares, axis=0) >= -1e-12).all()
    assert (shares[0] == 0).all() and np.allclose(shares[-1], 1)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_error_is_the_difference_in_the_stream(name):
    focus, ids = retrofit(model(name), CONFIG, seed=0), torch.from_numpy(blocks(1))
    errors, calls = head_errors(focus, ids.numpy()), {}
    focus_blocks = {
        layer: module for layer, module in focus.model.named_modules() if layer.rpartition(".")[2] in ("0", "1")
    }
    streams, order = [], [module for name, module in focus_blocks.items() if name.split(".")[-2] in ("layers", "h")]
    for block in order:
        block.register_forward_pre_hook(lambda _, args, kwargs: streams.append(args[0]), with_kwargs=True)

    def attend(call):
        calls[call.layer] = call
        return attend_fully(call)

    with torch.no_grad(), focus.routing("hard", rule=Rule(attend, hard_groups)):
        focus.model.base_model(input_ids=ids, use_cache=False)
    for layer, call in calls.items():
        attention = focus.attention_modules[layer]
        project = attention.o_proj if name == "llama" else attention.c_proj
        query, key, value = call.together()
        groups = call.groups.keys.int().argmax(-1)[None]
        lengths = streams[layer].square().sum(-1)
        for place, share in [(0, 0.0), (5, MEASURED[5]), (9, MEASURED[9])]:
            reading = Reading(CONFIG.window, CONFIG.sink_tokens, CONFIG.chunk, share=share, page_size=4)
            geometry = {"scale": call.geometry.scale}
            full = attend_fully(call).output.unflatten(0, (1, -1)).flatten(1, 2)
            sparse = narrow_reference(query, key, value, groups, 6, reading, **geometry).output
            for head in range(4):
                changed = full.clone()
                changed[:, head] = sparse[:, head]
                with torch.no_grad():
                    difference = project(changed.transpose(1, 2).flatten(2)) - project(full.transpose(1, 2).flatten(2))
                expected = (difference.square().sum(-1) / lengths).mean().item()
                assert errors[layer][head, place] == pytest.approx(expected, rel=1e-3, abs=1e-9)
        assert (errors[layer][:, -1] == 0).all()


@pytest.fixture(scope="module")
def fitted():
    return fit_narrow(model(), blocks(6), CONFIG)


def test_shares_by_need_are_stored_and_come_back(fitted, tmp_path):
    fitted.save_pretrained(tmp_path)
    again = FocusModel.from_pretrained(model(), tmp_path)
    assert again.config == fitted.config and again.config.shares_by_need
    stored = torch.stack([fitted.router(layer).shares for layer in fitted.layers])
    assert torch.equal(stored.half(), torch.stack([again.router(layer).shares for layer in again.layers]).half())
    assert stored.shape == (2, len(MEANS), 4)
    assert torch.allclose(stored.mean((0, 2)), torch.tensor(MEANS), atol=1e-6)
    assert stored[:, 5].std() > 0.01
    shares = [again.router(layer).head_shares(0.11) for layer in again.layers]
    assert np.mean(shares) == pytest.approx(0.11, abs=1e-3)


def test_a_share_of_one_is_the_untouched_model(fitted):
    ids = torch.from_numpy(blocks(1, seed=7))
    with torch.no_grad():
        with fitted.routing("off"):
            expected = fitted(ids, use_cache=False).logits
        with fitted.routing("hard", read_share=1.0):
            assert torch.allclose(fitted(ids, use_cache=False).logits, expected, atol=2e-4)
        for settings_ in ({"read_share": 0.2}, {"read_share": 0.2, "shares_by_need": False}):
            with fitted.routing("hard", **settings_):
                assert not torch.allclose(fitted(ids, use_cache=False).logits, expected, atol=2e-4)


def test_padding_and_a_cache_change_nothing(fitted):
    ids = torch.from_numpy(blocks(2, 90, seed=3))
    mask = torch.ones_like(ids)
    mask[0, :17] = 0
    with torch.no_grad():
        expected = fitted(ids[:1, 17:], use_cache=False).logits
        found = fitted(ids, attention_mask=mask, use_cache=False).logits[:1, 17:]
        assert torch.allclose(found, expected, atol=2e-4)
        expected = fitted(ids[1:], use_cache=False).logits[:, -8:]
        first = fitted(ids[1:, :-8], use_cache=True)
        steps = []
        for place in range(82, 90):
            step = fitted(ids[1:, place : place + 1], past_key_values=given_cache(first), use_cache=True)
            steps.append(step.logits)
        assert torch.allclose(torch.cat(steps, 1), expected, atol=2e-4)


def test_less_is_lost_than_with_one_share(fitted):
    errors = head_errors(fitted, blocks(3, seed=9))
    even = sum(error[:, MEASURED.index(0.2)].sum() for error in errors.values())
    planned = sum(
        np.interp(share, MEASURED, error)
        for layer, found in errors.items()
        for share, error in zip(fitted.router(layer).head_shares(0.2), found)
    )
    assert planned < even


def test_layers_with_a_window_of_their_own_are_left_out():
    torch.manual_seed(0)
    own = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=24)).eval()
    focus = fit_narrow(own, blocks(4), CONFIG)
    assert torch.allclose(focus.router(0).shares.mean(1), torch.tensor(MEANS))


def test_what_cannot_be_used_is_refused(tmp_path, fitted):
    with pytest.raises(FocusError, match="shares_by_need needs router='narrow'"):
        FocusConfig(shares_by_need=True)
    plain = retrofit(model(), CONFIG.replace(shares_by_need=False))
    with pytest.raises(FocusError, match="have no shares by need"), plain.routing("hard", shares_by_need=True):
        plain(torch.from_numpy(blocks(1)), use_cache=False)
    with pytest.raises(FocusError, match=r"is 1\.5"):
        Reading(window=1, sink_tokens=0, share=0.1, head_shares=(0.1, 1.5))
    fitted.save_pretrained(tmp_path)
    config = tmp_path / "focus_config.json"
    changed = json.loads(config.read_text())
    changed["routing"]["shares_by_need"] = False
    config.write_text(json.dumps(changed))
    with pytest.raises(FocusError, match=r"do not fit their own configuration at '0\.shares'"):
        FocusModel.from_pretrained(model(), tmp_path)
