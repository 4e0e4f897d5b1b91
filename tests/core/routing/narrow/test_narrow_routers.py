"""Models with narrow routers: fitting, storing, rules, families with and without rotary embedding, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from focus_core import FocusConfig, FocusError, FocusModel, retrofit
from focus_core.attention import focus_attention
from focus_core.evaluation.perplexity import evaluate
from focus_core.evaluation.retention import retention
from focus_core.routing.balance import assign, groups_of
from focus_core.routing.layer import LayerRouting
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.narrow.fitting.groups import even_potentials
from focus_core.routing.narrow.reference import narrow_reference
from focus_core.routing.rules import Rule, attend_hard, hard_groups

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 96,
    "bos_token_id": 1,
}
ROPE = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
NEOX = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}
FAMILIES = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=256)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "yarn": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=ROPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SMALL)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**NEOX, rotary_pct=0.5)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, head_dim=16, layer_types=["full_attention"] * 2)),
    "gpt_oss": lambda: GptOssForCausalLM(
        GptOssConfig(
            **SMALL, head_dim=8, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 2
        )
    ),
}
CONFIG = FocusConfig(router="narrow", num_groups=6, top_k=2, window=5, sink_tokens=2, chunk=4)


@pytest.fixture(params=FAMILIES)
def model(request):
    torch.manual_seed(0)
    model = FAMILIES[request.param]().eval()
    model.set_attn_implementation("eager")
    return model


@pytest.fixture
def llama():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMALL)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)  # attention that matters
    return model


def tokens(batch=2, length=48, seed=1):
    return torch.randint(2, 95, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits(model, ids, **options):
    with torch.no_grad():
        return model(ids, use_cache=False, **options).logits


def text(rows=4, length=200):
    return tokens(rows, length, seed=5).numpy()


def test_keys_are_those_before_rotary_embedding(model):
    keys, seen = {}, {}
    names = {"k_proj", "k_norm"}

    def keep(layer):
        def hook(module, args, output):
            keys[layer] = output

        return hook

    focus = retrofit(model, CONFIG)
    handles = [
        child.register_forward_hook(keep(module.layer_idx))
        for module in model.modules()
        if isinstance(getattr(module, "layer_idx", None), int)
        for name, child in module.named_children()
        if name in names
    ]
    heads = {}

    def observe(routing: LayerRouting) -> None:
        assert routing.vectors is not None
        seen[routing.layer], heads[routing.layer] = routing.vectors.plain_key, routing.vectors.key

    with focus.observe(observe):
        logits(focus, tokens())
    for handle in handles:
        handle.remove()
    assert set(seen) == {0, 1}
    for layer, found in seen.items():
        assert torch.allclose(found[:, :, 0], heads[layer][:, :, 0], atol=1e-5) or "yarn" in str(model.config)
        if layer in keys:  # families without a projection of keys alone have no such hook
            expected = keys[layer]
            if expected.ndim == 3:
                expected = expected.unflatten(-1, (found.shape[1], -1)).transpose(1, 2)
            assert torch.allclose(found, expected, atol=1e-5)
        norms = found.norm(dim=-1)
        ratio = heads[layer].norm(dim=-1) / norms
        assert torch.allclose(ratio, ratio[0, 0, 0].expand_as(ratio), rtol=1e-4)


def test_all_groups_equal_the_untouched_model(model):
    expected = logits(model, tokens())
    focus = retrofit(model, CONFIG)
    for changes in ({"top_k": 6}, {"read_share": 1.0}, {"window": 48}):
        with focus.routing("hard", **changes):
            assert torch.allclose(logits(focus, tokens()), expected, atol=1e-5)
    assert not torch.equal(logits(focus, tokens()), expected)
    assert focus.detach() is model
    assert torch.equal(logits(model, tokens()), expected)


def test_a_layer_computes_the_definition(llama):
    focus = fit_narrow(llama, text(), CONFIG)
    checked = []

    def attend(call):
        found = attend_hard(call)
        vectors = call.routing.vectors
        assert vectors is not None
        groups = call.routing.key_weights.argmax(-1).unflatten(0, (-1, 2))
        value = call.value.unflatten(0, (-1, 2)).flatten(1, 2)
        expected = narrow_reference(
            vectors.query, vectors.key, value, groups, 6, call.routing.reading(), scale=vectors.scale
        )
        difference = found.output.unflatten(0, (-1, 2)).flatten(1, 2) - expected.output
        assert float(difference.abs().max() / expected.output.abs().max()) < 1e-5
        counts = call.routing.pair_counts()
        assert torch.equal(counts.kept, expected.exact.sum((-1, -2)).flatten())
        checked.append(call.layer)
        return found

    for changes in ({}, {"read_share": 0.3, "count_weight": 0.5}):
        with focus.routing("hard", rule=Rule(attend, hard_groups), **changes):
            logits(focus, tokens())
    assert checked == [0, 1, 0, 1]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_has_no_influence(llama, side):
    focus = fit_narrow(llama, text(), CONFIG)
    ids, mask = tokens(3), torch.ones(3, 48, dtype=torch.bool)
    places = torch.arange(48) < 13 if side == "left" else torch.arange(48) >= 35
    mask[0, places] = False
    ids[0, places] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = logits(focus, ids, attention_mask=mask.long(), position_ids=positions)
    alone = logits(focus, ids[:1, mask[0]])
    assert torch.allclose(found[0, mask[0]], alone[0], atol=1e-4)
    assert torch.allclose(found[1:], logits(focus, ids[1:]), atol=1e-4)


def test_later_tokens_have_no_influence(llama):
    focus = fit_narrow(llama, text(), CONFIG.replace(read_share=0.3))
    before, after = tokens(1), tokens(1)
    after[:, 30:] = tokens(1, 18, seed=9)
    assert torch.allclose(logits(focus, before)[:, :30], logits(focus, after)[:, :30], atol=1e-5)


def test_fitted_routers_are_stored_in_half_precision_and_come_back(llama, tmp_path):
    focus = fit_narrow(llama, text(), CONFIG.replace(read_share=0.25, count_weight=0.5))
    expected = logits(focus, tokens())
    focus.save_pretrained(tmp_path)
    values = sum(tensor.numel() for tensor in focus.routers.state_dict().values())
    assert (tmp_path / "routers.safetensors").stat().st_size < 2 * values + 2048
    again = FocusModel.from_pretrained(focus.detach(), tmp_path)
    assert again.config == focus.config and again.trained
    assert torch.equal(logits(again, tokens()), expected)


def test_fitted_groups_are_even_over_the_sample_and_the_same_for_a_seed(llama):
    focus = fit_narrow(llama, text(), CONFIG)
    sizes = []
    with focus.observe(lambda routing: sizes.append(routing.group_sizes())):
        logits(focus, torch.from_numpy(text()))
    share = torch.stack(sizes).double() / text().size
    assert float(share.max()) < 1.3 / 6
    first = {name: value.clone() for name, value in focus.routers.state_dict().items()}
    again = fit_narrow(focus.detach(), text(), CONFIG).routers.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_without_balance_groups_are_those_of_the_nearest_centroid(llama, score):
    focus = fit_narrow(llama, text(), CONFIG.replace(score=score))
    checked = []

    def check(routing: LayerRouting) -> None:
        assert routing.vectors is not None
        key, centroids = routing.vectors.plain_key, routing.router.centroids
        if score == "cosine":
            key, centroids = (part / part.norm(dim=-1, keepdim=True) for part in (key, centroids))
        nearest = torch.cdist(key, centroids.expand(2, -1, -1, -1)).argmin(-1)
        checked.append(bool((routing.key_weights.argmax(-1) == nearest.flatten(0, 1)).all()))

    with focus.routing("hard", balance="none"), focus.observe(check):
        logits(focus, tokens())
    assert checked == [True, True]


@pytest.mark.parametrize("num_groups", [2, 16])
def test_potentials_even_out_lopsided_scores(num_groups):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3000, num_groups, generator=generator) + torch.linspace(-1, 1, num_groups)
    potential = even_potentials(scores)
    for head in range(2):
        before = torch.bincount(scores[head].argmax(-1), minlength=num_groups)
        after = torch.bincount((scores[head] + potential[head]).argmax(-1), minlength=num_groups)
        assert int(before.max()) > 1.4 * 3000 / num_groups
        assert int(after.max()) < 1.05 * 3000 / num_groups
    assert torch.allclose(potential.mean(1), torch.zeros(2), atol=1e-5)


@pytest.mark.parametrize("balance", ["calibrated", "sequence", "none"])
def test_groups_are_those_of_the_largest_weight(balance):
    config = FocusConfig(router="narrow", num_groups=8, balance=balance)
    router = config.new_router(16, 2, torch.Generator().manual_seed(0), 4)
    router.potential.data.normal_(generator=torch.Generator().manual_seed(1))
    scores = torch.randn(4, 60, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(groups_of(router, scores, config), assign(router, scores, config).argmax(-1))


def test_evaluation_counts_the_pairs_that_are_read(llama):
    focus = fit_narrow(llama, text(), CONFIG.replace(read_share=0.25))
    blocks = tokens(3).numpy().astype(np.int64)
    row = evaluate(focus, blocks, routing="hard")
    counts = []
    with focus.observe(lambda routing: counts.append(routing.pair_counts())):
        logits(focus, torch.from_numpy(blocks))
    kept = sum(int(each.distant_kept.sum()) for each in counts) / sum(int(each.distant.sum()) for each in counts)
    assert row.kept_share == pytest.approx(kept)
    assert 0.25 < row.kept_share < 0.5  # sinks and keys up to the border are pairs, too
    assert retention(focus, blocks, top_k=6).kl < 1e-6 < retention(focus, blocks).kl
    assert evaluate(focus, blocks, routing="hard", top_k=6).kept_share == 1


def test_layers_with_a_window_of_their_own_attend_inside_it(llama):
    focus = retrofit(llama, CONFIG)
    seen = []

    def attend(call):
        call = type(call)(**{**vars(call), "geometry": type(call.geometry)(call.geometry.scale, None, 11, 0.0)})
        nothing = torch.zeros(*call.positions.shape, 1, dtype=torch.bool)
        found = attend_hard(call)
        expected = focus_attention(call.query, call.key, call.value, nothing, window=10, scale=call.geometry.scale)
        assert torch.allclose(found.output, expected.output, atol=1e-5)
        seen.append(call.layer)
        return found

    with focus.routing("hard", rule=Rule(attend, hard_groups)):
        logits(focus, tokens())
    assert seen == [0, 1]


def test_generation_is_the_most_likely_token_of_each_text_so_far(llama):
    focus = fit_narrow(llama, text(), CONFIG)
    ids = tokens(1, 20)
    for use_cache in (True, False):
        grown = focus.generate(ids, max_new_tokens=3, do_sample=False, use_cache=use_cache)
        for length in (20, 21, 22):
            assert logits(focus, grown[:, :length])[0, -1].argmax() == grown[0, length]


def test_what_narrow_groups_do_not_have_is_refused(llama):
    focus = retrofit(llama, CONFIG)
    with focus.routing("soft"), pytest.raises(FocusError, match="no soft gate"):
        logits(focus, tokens())
    with pytest.raises(FocusError, match="too few"), torch.no_grad():
        fit_narrow(focus.detach(), text(1, 10), CONFIG)
    with pytest.raises(FocusError, match="router='narrow'"):
        fit_narrow(llama, text(), CONFIG.replace(router="head"))
    with pytest.raises(FocusError, match="read_share"):
        FocusConfig(read_share=0.5)
    with pytest.raises(FocusError, match="read_share"):
        CONFIG.replace(read_share=1.5)
    with pytest.raises(FocusError, match="chunk"):
        CONFIG.replace(chunk=0)
    assert CONFIG.replace(read_share=0.5).replace(top_k=3).read_share is None
