"""Evaluations, plans, analyses, alignments and reports as plain calls, as a notebook makes them."""

import json

import pytest
import torch

from focus_core import FocusConfig, FocusError, FocusModel, analyze, crossover, load_model, retrofit
from focus_core.analysis.linguistics.run import AlignSettings, align_texts
from focus_core.analysis.run import analyze_text
from focus_core.evaluation.plan import plan_routers
from focus_core.evaluation.run import evaluate_texts
from focus_core.report.corpora.stream import StreamSettings
from focus_core.report.run import write_report
from focus_core.routing.attach import attached

CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=2, route_dim=8)
SENTENCE = "She rowed to the island and the old man was glad of it. "


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(SENTENCE * 30)
    return path


@pytest.fixture
def routers(tiny_llama, tmp_path):
    focus = retrofit(tiny_llama.model, CONFIG)
    focus.save_pretrained(tmp_path / "routers")
    focus.detach()
    return tmp_path / "routers"


def logits(model):
    with torch.inference_mode():
        return model(torch.arange(1, 60)[None], use_cache=False).logits


def test_an_evaluation_returns_what_it_writes_and_leaves_the_model_alone(tiny_llama, text, routers, tmp_path):
    before = logits(tiny_llama.model)
    out = tmp_path / "new" / "eval.json"
    found = evaluate_texts(
        text, model=tiny_llama, routers=routers, length=64, blocks=4, top_k=(1, 4), lengths=(32, 64), out=out
    )
    assert found.record == json.loads(out.read_text())
    assert [row.perplexity for row in found.results] == [row["perplexity"] for row in found.record["results"]]
    assert [leak.top_k for leak in found.leaks] == [1, 4]
    assert {row.length for row in found.lengths} == {32, 64} and found.length_tokens == 2 * 64
    assert found.record["settings"]["routers"] == "routers" and found.record["settings"]["blocks"] == 4
    assert torch.equal(logits(tiny_llama.model), before)


def test_routers_that_are_attached_are_used_and_stay(tiny_llama, text, routers):
    focus = FocusModel.from_pretrained(tiny_llama.model, routers)
    one = evaluate_texts([text], model=tiny_llama, routers=focus, length=64, top_k=(2,), window=8)
    assert one.record["settings"]["config"]["window"] == 8 and focus.config.window == 4
    assert torch.isfinite(logits(focus)).all()
    focus.detach()
    two = evaluate_texts([text], model=tiny_llama, routers=routers, length=64, top_k=(2,), window=8)
    assert one.record["results"] == two.record["results"]
    with pytest.raises(FocusError, match="attached to another model"), attached("default", focus):
        pass


def test_routers_come_off_when_the_work_fails(tiny_llama, tmp_path):
    before = logits(tiny_llama.model)
    (tmp_path / "short.txt").write_text("Too short.")
    with pytest.raises(FocusError, match="fewer than one block"):
        evaluate_texts(tmp_path / "short.txt", model=tiny_llama, untrained=True, length=512)
    assert torch.equal(logits(tiny_llama.model), before)


def test_wrong_arguments_are_named_with_what_to_give(tiny_llama, routers):
    focus = FocusModel.from_pretrained(tiny_llama.model, routers)
    with pytest.raises(FocusError, match="text is a NoneType: give the text itself"):
        analyze(focus, tiny_llama.tokenizer, None)  # type: ignore[arg-type]
    with pytest.raises(FocusError, match="focus is a LlamaForCausalLM: give the model with routers"):
        crossover(tiny_llama.model)
    with (
        pytest.raises(FocusError, match="foo is no setting of FocusConfig: choose one of router, num_groups,"),
        focus.routing("hard", foo=1),
    ):
        pass
    for given in (tiny_llama, focus):
        with pytest.raises(FocusError, match=f"{type(given).__name__} holds a model and is none: give its .model."):
            retrofit(given, CONFIG)  # type: ignore[arg-type]
    focus.detach()
    for dtype in ("int3", torch.int8):
        with pytest.raises(FocusError, match=r"dtype is .*int.*: choose one of torch.float32, torch.bfloat16,"):
            load_model(dtype=dtype)  # type: ignore[arg-type]


def test_a_text_is_analyzed_with_the_groups_of_its_trace(tiny_llama, routers):
    found = analyze_text(SENTENCE, model=tiny_llama, routers=routers, top_k=2)
    assert [token["token"] for token in found.record["tokens"]] == list(found.trace.tokens)
    for index, token in enumerate(found.record["tokens"]):
        assert token["groups"] == [[int(g) for g in range(4) if row[g]] for row in found.trace.membership[:, index]]
    assert found.record["layers"] == [0, 1, 2] and found.record["settings"]["config"]["top_k"] == 2


def test_a_plan_is_written_and_the_routers_at_hand_keep_their_own(tiny_llama, text, routers, tmp_path):
    focus = FocusModel.from_pretrained(tiny_llama.model, routers)
    options = {"model": tiny_llama, "length": 64, "blocks": 2, "top_ks": (0, 1)}
    record = plan_routers(text, tmp_path / "planned", 0.5, routers=focus, **options)
    assert record == json.loads((tmp_path / "planned" / "plan.json").read_text())
    assert focus.config == CONFIG and record["plan"]["kept_share"] <= 0.5
    focus.detach()
    planned = FocusModel.from_pretrained(tiny_llama.model, tmp_path / "planned")
    assert planned.config.layer_top_k == tuple(record["plan"]["layer_top_k"])
    planned.detach()
    costs = tmp_path / "planned" / "plan.json"
    other = plan_routers(text, tmp_path / "other", 1.0, routers=routers, costs=costs, **options)
    assert other["costs"] == record["costs"] and other["plan"]["loss"] <= record["plan"]["loss"]
    with pytest.raises(FocusError, match="between 0 and 1"):
        plan_routers(text, tmp_path / "none", 0.0, model=tiny_llama)


def test_texts_are_aligned_in_one_call(tiny_llama, text, routers, tmp_path):
    settings = AlignSettings(length=100, passages=4, repeats=20, top_k=2)
    found = align_texts(text, model=tiny_llama, routers=routers, settings=settings, out=tmp_path / "a.json")
    assert found.record == json.loads((tmp_path / "a.json").read_text())
    assert len(found.alignments["upos"].layers) == 3 and found.sample.num_documents == 4
    assert found.record["settings"]["config"]["top_k"] == 2
    with pytest.raises(FocusError, match="rule is 'middle'"):
        AlignSettings(rule="middle")


def test_a_report_is_written_in_one_call(tiny_llama, text, routers, tmp_path):
    settings = StreamSettings(top_k=2, block_length=128, layers=(1,))
    written = write_report(text, tmp_path / "out", model=tiny_llama, routers=routers, settings=settings, tags=False)
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(written.record["files"])
    assert {card.layer for card in written.report.cards} == {1}
    assert written.record["origin"]["top_k"] == 2 and written.record["tokens"] == len(SENTENCE) * 30
    assert written.report.title == "Groups in text.txt"
