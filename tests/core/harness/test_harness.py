"""The routed model under the evaluation harness, against the harness's own model class."""

from __future__ import annotations

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'focus-workbench[eval]'")

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM

from focus_core.attention import kept_pairs
from focus_core.errors import FocusError
from focus_core.harness.model import FocusLM
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import top_k_membership
from focus_core.routing.model import retrofit

PAIRS = [
    ("The cat sat on the mat and looked at the dog. Then it", " slept"),
    ("The cat sat on the mat and looked at the dog. Then it", " ran away as fast as it could"),
    ("The cat sat on the mat. The dog", " barked"),
    ("One two three four five six seven eight nine ten eleven twelve thirteen", " fourteen"),
    ("A", " B"),
    ("", "no context at all"),
]
CONFIG = FocusConfig(num_groups=4, top_k=1, window=6, sink_tokens=1, route_dim=8)


def requests(pairs=PAIRS):
    return [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]


def generation(text, tokens=8):
    arguments = (text, {"until": ["\0"], "max_gen_toks": tokens, "do_sample": False})
    return Instance("generate_until", {}, arguments, 0)


@pytest.fixture
def focus(tiny_llama):
    model = retrofit(tiny_llama.model, CONFIG, seed=1)
    for layer in model.layers:  # potentials that matter
        model.router(layer).potential.copy_(torch.randn(4, generator=torch.Generator().manual_seed(layer)) * 0.3)
    return model


def scores(lm):
    return torch.tensor([value for value, _ in lm.loglikelihood(requests(), disable_tqdm=True)])


def test_the_harness_knows_the_name():
    assert get_model("focus") is FocusLM


@pytest.mark.parametrize("batch_size", [1, 3])
def test_off_and_all_groups_equal_the_plain_model_class(tiny_llama, focus, batch_size):
    off = FocusLM(focus, tokenizer=tiny_llama.tokenizer, mode="off", batch_size=batch_size)
    whole = FocusLM(focus, tokenizer=tiny_llama.tokenizer, top_k=4, batch_size=batch_size)
    found, complete = scores(off), scores(whole)
    texts = [lm.generate_until([generation(PAIRS[0][0])], disable_tqdm=True) for lm in (off, whole)]
    model = focus.detach()
    plain = HFLM(pretrained=model, tokenizer=tiny_llama.tokenizer, backend="causal", batch_size=1)
    expected = plain.loglikelihood(requests(), disable_tqdm=True)
    torch.testing.assert_close(found, torch.tensor([value for value, _ in expected]), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(complete, found, rtol=1e-5, atol=1e-4)
    assert texts[0] == texts[1] == plain.generate_until([generation(PAIRS[0][0])], disable_tqdm=True)


@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("balance", ["calibrated", "sequence"])
def test_batches_of_unequal_lengths_equal_one_whole_text_at_a_time(tiny_llama, focus, mode, balance):
    settings = {"tokenizer": tiny_llama.tokenizer, "mode": mode, "balance": balance}
    singly, batched = (scores(FocusLM(focus, batch_size=size, **settings)) for size in (1, 4))
    expected = []
    for context, continuation in PAIRS:
        ids = torch.tensor([tiny_llama.tokenizer(context + continuation)["input_ids"]])
        if not context:
            ids = torch.cat([torch.tensor([[tiny_llama.tokenizer.bos_token_id]]), ids], 1)
        size = len(tiny_llama.tokenizer(continuation)["input_ids"])
        with focus.routing(mode, balance=balance), torch.no_grad():
            logits = focus(input_ids=ids[:, :-1]).logits.log_softmax(-1)[0, -size:]
        expected.append(logits.gather(1, ids[0, -size:, None]).sum())
    torch.testing.assert_close(singly, torch.stack(expected), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(batched, singly, rtol=1e-5, atol=1e-4)


def test_hard_routing_is_felt_and_leaves_no_trace(tiny_llama, focus):
    hard, off = (FocusLM(focus, tokenizer=tiny_llama.tokenizer, mode=mode) for mode in ("hard", "off"))
    first = scores(hard)
    assert (scores(off) - first).abs().max() > 1e-4
    assert torch.equal(scores(hard), first)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_exposure_counts_the_pairs_of_the_longest_request(tiny_llama, focus, batch_size):
    lm = FocusLM(focus, tokenizer=tiny_llama.tokenizer, batch_size=batch_size)
    lm.loglikelihood(requests(), disable_tqdm=True)
    found = lm.exposures[PAIRS[0][0]]
    ids = torch.tensor([tiny_llama.tokenizer("".join(PAIRS[1]))["input_ids"]])[:, :-1]
    memberships = []

    def keep(routing):
        memberships.append(top_k_membership(routing.key_weights, 1))

    with focus.observe(keep), torch.no_grad():
        focus(input_ids=ids)
    counts = kept_pairs(torch.cat(memberships), window=6, sink_tokens=1)
    assert found.tokens == ids.shape[1]
    assert found.causal == int(counts.causal[0])
    assert found.distant == int(counts.distant[0])
    assert found.removed == pytest.approx(float((counts.distant - counts.distant_kept).double().mean()))
    assert found.removed > 0
    assert lm.exposures["A"].distant == 0


def test_generation_under_hard_routing_is_that_of_the_model(tiny_llama, focus):
    lm = FocusLM(focus, tokenizer=tiny_llama.tokenizer)
    text = PAIRS[3][0]
    (found,) = lm.generate_until([generation(text)], disable_tqdm=True)
    ids = torch.tensor([tiny_llama.tokenizer(text)["input_ids"]])
    output = focus.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert found == tiny_llama.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
    assert lm.exposures[text].tokens in range(ids.shape[1], output.shape[1] + 1)
    assert lm.exposures[text].removed > 0


NARROW = FocusConfig(
    router="narrow", num_groups=6, top_k=1, window=6, sink_tokens=2, chunk=4, read_share=0.3, page_size=4,
    count_weight=1.0, score="dot",
)  # fmt: skip
TEXT = "".join(f"The {number} cats sat on the {number * number} mats. " for number in range(12)).strip()


@pytest.mark.parametrize("batch_size", [1, 2])
def test_narrow_groups_score_as_whole_texts_do_and_count_pairs_by_their_budget(tiny_llama, batch_size):
    focus = retrofit(tiny_llama.model, NARROW, seed=1)
    lm = FocusLM(focus, tokenizer=tiny_llama.tokenizer, batch_size=batch_size)
    pairs = [
        (TEXT, " Then"),
        (TEXT, " And so"),
        (TEXT[:300].strip(), " it"),
    ]  # the second context is cropped to the third
    found = torch.tensor([value for value, _ in lm.loglikelihood(requests(pairs), disable_tqdm=True)])
    expected, counts = [], []

    def count(routing):
        counts.append(routing.pair_counts())

    for context, continuation in pairs:
        ids = torch.tensor([tiny_llama.tokenizer(context + continuation)["input_ids"]])[:, :-1]
        target = torch.tensor(tiny_llama.tokenizer(continuation)["input_ids"])
        counts.clear()
        with focus.observe(count), torch.no_grad():
            logits = focus(input_ids=ids).logits.log_softmax(-1)[0, -len(target) :]
        expected.append(logits.gather(1, target[:, None]).sum())
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-4)
    exposure = lm.exposures[TEXT[:300].strip()]
    assert exposure.distant == float(counts[0].distant[0])
    removed = float(torch.stack([each.distant - each.distant_kept for each in counts]).double().mean())
    assert exposure.removed == pytest.approx(removed, rel=0.05) and removed > 0
    focus.config = NARROW.replace(read_share=None)
    with pytest.raises(FocusError, match="read_share"):
        FocusLM(focus, tokenizer=tiny_llama.tokenizer).loglikelihood(requests(pairs), disable_tqdm=True)
