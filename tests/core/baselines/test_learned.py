"""Learned selections: what they learn from planted attention, what they may know, and their files."""

import dataclasses

import numpy as np
import pytest
import torch

from focus_core.baselines import LEARNED, ORACLES, Case
from focus_core.baselines.learned import LEARNERS
from focus_core.baselines.learned.lesson import Sizes, divergence, lesson
from focus_core.baselines.learned.train import LearnedSettings, learned, train_learned
from focus_core.errors import FocusError
from focus_core.frontier.measure import baseline_point
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import retrofit

WINDOW, SINKS, LENGTH, BLOCK = 8, 2, 96, 8
SIZES = Sizes(block=BLOCK, index_heads=4, index_size=16)
PAIRS = {"window": WINDOW, "sinks": SINKS, "scale": 1.0}


def planted(seed):
    """Query, key and hidden states (1, ...) where a query attends to tokens of its own kind.

    Half of the keys of a kind are turned round, so that the mean key of a block says nothing; its maximum does.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(8, (LENGTH // BLOCK,), generator=generator).repeat_interleave(BLOCK)
    asked = torch.randint(8, (LENGTH,), generator=generator)
    sign = torch.where(torch.arange(LENGTH) % 2 == 0, 1.0, -1.0)[:, None]
    key, query = 3 * sign * torch.eye(8)[kinds], 3 * torch.eye(8)[asked]
    hidden = torch.cat([torch.eye(8)[kinds], sign, torch.eye(8)[asked]], 1)
    return query.expand(1, 4, -1, -1), key.expand(1, 2, -1, -1), hidden[None]


def learner_of(name, steps=0, seed=0):
    rows = torch.arange(WINDOW + SINKS + 1, LENGTH)
    first = lesson(*planted(1000), rows, **PAIRS)
    torch.manual_seed(seed)
    learner = LEARNERS[name](**LEARNERS[name].arguments(first, SIZES, seed))
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-2)
    for step in range(steps):
        loss = learner.loss(lesson(*planted(step), rows, **PAIRS))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return learner.requires_grad_(False), float(learner.loss(first))


def case_of(learner, share=0.2, seed=1000):
    query, key, hidden = planted(seed)
    key = key.repeat_interleave(2, 1)
    value = torch.randn(1, 4, LENGTH, 8, generator=torch.Generator().manual_seed(0))
    return Case(query, key, value, WINDOW, SINKS, share, scale=1.0, fitted=learner, hidden=hidden)


def mass(case, kept):
    weights = case.logits().masked_fill(~case.causal, float("-inf")).softmax(-1)
    return float((weights * (kept & case.distant)).sum())


@pytest.mark.parametrize("name", list(LEARNED))
def test_training_lowers_the_divergence_and_finds_planted_attention(name):
    before, untrained = learner_of(name)
    after, trained = learner_of(name, steps=150)
    assert trained < 0.3 * untrained
    case = case_of(after)
    best = mass(case, ORACLES["topk"].keep(case))
    if name == "seer":  # no choice of whole blocks holds as much
        weights = case.logits().masked_fill(~case.causal, float("-inf")).softmax(-1) * case.distant
        best = mass(case, case.select_blocks(weights.unflatten(-1, (-1, BLOCK)).sum(-1), BLOCK))
    assert mass(case_of(before), LEARNED[name].keep(case_of(before))) < 0.75 * best
    assert mass(case, LEARNED[name].keep(case)) > 0.93 * best


@pytest.mark.parametrize("name", list(LEARNED))
def test_later_tokens_change_nothing_earlier(name):
    case, other, cut = case_of(learner_of(name, 3)[0]), case_of(None, seed=5), 60
    changed = {
        part: torch.cat([getattr(case, part)[:, :, :cut], getattr(other, part)[:, :, cut:]], 2)
        for part in ("query", "key", "value")
    }
    hidden = torch.cat([case.hidden[:, :cut], other.hidden[:, cut:]], 1)
    after = dataclasses.replace(case, hidden=hidden, **changed)
    assert torch.equal(LEARNED[name].keep(case)[:, :, :cut], LEARNED[name].keep(after)[:, :, :cut])


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
@pytest.mark.parametrize("name", list(LEARNED))
def test_the_share_is_met_and_parts_of_a_text_keep_what_the_whole_keeps(name, share):
    case = case_of(learner_of(name, 3)[0], share)
    kept = LEARNED[name].keep(case)
    counted = (kept & case.distant).sum() / (case.distant.sum() * kept.shape[1])
    assert float(counted) == pytest.approx(share, abs=0.02)
    assert bool(kept[..., case.open].all()) and not bool(kept[..., ~case.causal].any())
    for start, stop in ((0, 16), (16, 70), (70, LENGTH)):
        assert torch.equal(LEARNED[name].keep(case.part(start, stop)), kept[:, :, start:stop, :stop])
    if share == 1.0:
        full = case.exactly(case.causal).attention.output
        assert torch.allclose(LEARNED[name].attend(case).attention.output, full, atol=1e-5)


def test_the_gates_begin_with_the_mean_key():
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 20, 8)
    gates = LEARNERS["seer"](heads=4, kv_heads=2, head_dim=8, scale=0.5, block=10)
    means = key.unflatten(2, (2, 10)).mean(3).repeat_interleave(2, 1)
    assert torch.allclose(gates(query, key), 0.5 * query @ means.mT, atol=1e-5)


def test_the_indexer_is_the_published_sum():
    indexer = LEARNERS["indexer"](hidden=6, heads=3, size=8, seed=0)
    hidden = torch.randn(1, 9, 6)
    rows = torch.tensor([4, 8])
    unit = hidden / hidden.square().mean(-1, keepdim=True).add(1e-7).sqrt()

    def turned(vector, place):
        out = vector.clone()
        for pair, rate in enumerate((1.0, 10_000.0**-0.5)):
            angle = torch.tensor(place * rate)
            out[pair] = vector[pair] * angle.cos() - vector[pair + 2] * angle.sin()
            out[pair + 2] = vector[pair] * angle.sin() + vector[pair + 2] * angle.cos()
        return out

    for n, i in enumerate(rows.tolist()):
        for j in range(9):
            key = turned(indexer.key_norm(unit[0, j] @ indexer.key_map), j)
            queries = (unit[0, i] @ indexer.query_map).view(3, 8)
            weights = unit[0, i] @ indexer.weight_map / 24**0.5
            score = sum(weights[h] * (turned(queries[h], i) @ key).relu() for h in range(3))
            assert torch.allclose(indexer(hidden, rows)[0, n, j], score, atol=1e-4)


def test_the_divergence_is_that_of_the_definition_weighted_by_attention():
    mass = torch.tensor([[0.2, 0.1, 0.0], [0.3, 0.0, 0.0]])
    scores, allowed = torch.randn(2, 3), torch.tensor([[True, True, False], [True, True, True]])
    first = scores[0, :2].softmax(0)
    each = [
        2 / 3 * (2 / 3 / first[0]).log() + 1 / 3 * (1 / 3 / first[1]).log(),
        -scores[1].log_softmax(0)[0],
    ]
    assert torch.allclose(divergence(scores, mass, allowed), (each[0] * 0.3 + each[1] * 0.3) / 0.6, atol=1e-5)


SMALL = LearnedSettings(tokens=12 * 64, queries=32, trial=4, window=WINDOW, sinks=SINKS, sizes=SIZES)


@pytest.fixture(params=["layer", "head"])
def focus(tiny_llama, request):
    with torch.no_grad():  # attention that is worth learning
        for layer in tiny_llama.model.model.layers:
            layer.self_attn.q_proj.weight *= 30
    kind = FocusConfig(router=request.param, num_groups=4, top_k=1, window=WINDOW, sink_tokens=SINKS, route_dim=8)
    return retrofit(tiny_llama.model, kind, seed=1)


def blocks_of(focus, count=4):
    vocabulary = focus.model.config.vocab_size
    return np.random.default_rng(0).integers(0, vocabulary, (count, 64))


def test_training_is_read_again_and_only_for_the_same_text_model_and_settings(focus, tmp_path):
    before = {name: value.clone() for name, value in focus.model.state_dict().items()}
    messages = []
    first = learned(focus, blocks_of(focus), tmp_path, SMALL, lambda message, share: messages.append(share))
    assert len(messages) == 12 and messages[-1] == 1.0
    assert all(torch.equal(value, before[name]) for name, value in focus.model.state_dict().items())
    for name, report in first.report.items():
        assert name == "seer" or report["last_kl"] < report["first_kl"]  # gates begin with a good choice
        assert report["rate"] in LEARNERS[name].rates
        assert report["parameters"] == sum(p.numel() for each in first.layers[name].values() for p in each.parameters())
    again = learned(focus, blocks_of(focus), tmp_path, SMALL, lambda message, share: messages.append(share))
    assert len(messages) == 12 and again.report == first.report and len(list(tmp_path.iterdir())) == 1
    direct = train_learned(focus, blocks_of(focus), SMALL)
    for name, layers in direct.layers.items():
        for layer, learner in layers.items():
            stored = again.layers[name][layer].state_dict()
            assert all(torch.equal(stored[key], value) for key, value in learner.state_dict().items())
    learned(focus, blocks_of(focus)[:3], tmp_path, SMALL)
    learned(focus, blocks_of(focus), tmp_path, dataclasses.replace(SMALL, seed=1, names=("seer",)))
    assert len(list(tmp_path.iterdir())) == 3


def test_trained_ones_and_oracles_are_measured_like_any_baseline(focus):
    trained = train_learned(focus, blocks_of(focus), SMALL)
    text = np.random.default_rng(1).integers(0, focus.model.config.vocab_size, (2, 64))
    common = {"share": 0.3, "window": WINDOW, "sinks": SINKS, "training_text": torch.from_numpy(blocks_of(focus))}
    kl = {}
    for name in (*LEARNED, *ORACLES, "clusters", "kmeans"):
        point = baseline_point(focus, name, text, fitted=trained.layers.get(name), **common)
        assert point.kept_share == pytest.approx(0.3, abs=0.03)
        kl[name] = point.kl
    assert kl["topk"] < min(kl[name] for name in (*LEARNED, "best-reading", "best-groups", "kmeans"))
    with pytest.raises(FocusError, match="is learned: train it first"):
        baseline_point(focus, "seer", text, **common)


def test_what_cannot_be_trained_is_refused(focus):
    with pytest.raises(FocusError, match="no learned baseline 'magic'"):
        LearnedSettings(names=("magic",))
    with pytest.raises(FocusError, match="longer than the window"):
        LearnedSettings(window=3)
    with pytest.raises(FocusError, match="all within the window"):
        train_learned(focus, blocks_of(focus)[:, :10], SMALL)
    with pytest.raises(FocusError, match="does not converge at any rate"):
        train_learned(focus, blocks_of(focus), dataclasses.replace(SMALL, rates={"seer": (1e30,)}, names=("seer",)))
    gates = learner_of("seer")[0]
    with pytest.raises(FocusError, match="blocks of 8 keys"):
        LEARNED["seer"].keep(dataclasses.replace(case_of(gates), window=4))
    with pytest.raises(FocusError, match="reads hidden states"):
        LEARNED["indexer"].keep(dataclasses.replace(case_of(learner_of("indexer")[0]), hidden=None))
