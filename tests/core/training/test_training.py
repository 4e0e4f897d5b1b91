"""Centroid-only training: what changes, what must not, and resuming."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from focus_core import FocusConfig, FocusError, FocusModel, analyze, cli, load_model, retrofit
from focus_core.evaluation import evaluate
from focus_core.io.reading import read_tensors
from focus_core.reproduce.studies.candidates import top_k_mass
from focus_core.routing.storage import routers_hash
from focus_core.training import TrainSettings, train
from focus_core.training.objectives import attention_mass

CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8)


def blocks(rows=12, length=48):
    return np.random.default_rng(0).integers(1, 200, (rows, length))


@pytest.mark.parametrize("router", ["layer", "head"])
@pytest.mark.parametrize("objective", ["mass", "lm"])
def test_training_lowers_the_loss_and_leaves_the_base_alone(tiny_llama, tmp_path, objective, router):
    before = {name: tensor.clone() for name, tensor in tiny_llama.model.state_dict().items()}
    focus = retrofit(tiny_llama.model, CONFIG.replace(router=router))
    settings = TrainSettings(steps=30, objective=objective, batch_size=12, learning_rate=0.05, autocast=False)
    history = train(focus, blocks(), settings, tmp_path)
    assert history[-1].loss < history[0].loss
    for name, tensor in focus.detach().state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("router", ["layer", "head"])
@pytest.mark.parametrize("objective", [attention_mass, top_k_mass])
def test_kept_mass_is_that_of_the_attention_weights(tiny_llama, objective, router):
    """Against the weights that the untouched model reports, pair by pair."""
    ids = torch.randint(1, 200, (2, 40), generator=torch.Generator().manual_seed(0))
    tiny_llama.model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = tiny_llama.model(ids, output_attentions=True, use_cache=False).attentions
    focus = retrofit(tiny_llama.model, CONFIG.replace(top_k=2, router=router))
    seen = []

    def keep(routing):
        assignment, reading = routing.key_weights.detach(), routing.query_weights.detach()
        seen.append((assignment, None if router == "layer" else reading))

    with focus.observe(keep):
        loss = objective(focus, ids)
    distance = torch.arange(40)[:, None] - torch.arange(40)
    counted = (distance > CONFIG.window) & (torch.arange(40) >= CONFIG.sink_tokens)
    logs = []
    for weight, (assignment, reading) in zip(weights, seen):
        num_heads = len(assignment) // 2
        mass = (weight.unflatten(1, (num_heads, -1)).mean(2) * counted).flatten(0, 1)
        assert router == "layer" or num_heads == tiny_llama.model.config.num_key_value_heads > 1
        if objective is attention_mass:
            reads = assignment if reading is None else reading
            masks = [torch.einsum("btk,bsk->bts", reads, assignment)]
        else:
            ranks, wanted = (
                None if part is None else (-part).argsort(-1).argsort(-1) for part in (assignment, reading)
            )
            masks = [
                ((ranks < k)[:, :, None] & (ranks < k)[:, None]).any(-1)
                if wanted is None
                else ((wanted < k)[:, :, None] & (ranks < 1)[:, None]).any(-1)
                for k in (1, 2)
            ]
        logs += [((mass * mask).sum((1, 2)) / mass.sum((1, 2))).log() for mask in masks]
    assert float(loss.detach()) == pytest.approx(-float(torch.stack(logs).mean()), rel=1e-4)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in focus.trainable_parameters())


def test_an_interrupted_run_resumes_to_the_same_routers(tiny_llama, tmp_path):
    settings = TrainSettings(steps=9, save_every=4)
    whole = retrofit(tiny_llama.model, CONFIG)
    train(whole, blocks(), settings, tmp_path / "whole")
    expected = routers_hash(whole.routers)
    base = whole.detach()

    def stop(step):
        if step.step == 6:
            raise KeyboardInterrupt

    focus = retrofit(base, CONFIG)
    with pytest.raises(KeyboardInterrupt):
        train(focus, blocks(), settings, tmp_path / "parts", stop)
    with pytest.raises(FocusError, match="other text, weights or settings"):
        train(focus, blocks(), TrainSettings(steps=10, save_every=4), tmp_path / "parts")
    focus = retrofit(focus.detach(), CONFIG)
    assert train(focus, blocks(), settings, tmp_path / "parts")[0].step == 7
    assert routers_hash(focus.routers) == expected
    assert FocusModel.from_pretrained(focus.detach(), tmp_path / "parts").trained


def test_too_little_text_is_refused(tiny_llama, tmp_path):
    with pytest.raises(FocusError, match="fewer than one batch"):
        train(retrofit(tiny_llama.model, CONFIG), blocks(1), TrainSettings(), tmp_path)


def test_evaluation_counts_what_a_dense_mask_keeps(tiny_llama, byte_tokenizer):
    focus = retrofit(tiny_llama.model, CONFIG)
    text = "".join(chr(97 + int(c) % 26) for c in blocks(1, 64)[0])
    trace = analyze(focus, byte_tokenizer, text)
    row = evaluate(focus, trace.input_ids[None], routing="hard")
    distance = np.arange(64)[:, None] - np.arange(64)
    distant = distance > CONFIG.window
    shared = trace.membership[:, :, None] & trace.membership[:, None]
    kept = (shared.any(-1) | (np.arange(64) < CONFIG.sink_tokens)) & distant
    assert row.kept_share == pytest.approx(kept.sum() / (distant.sum() * len(trace.layers)))
    assert row.exposure == pytest.approx(distant.sum() / (distance >= 0).sum())
    shares = [np.bincount(groups, minlength=4).max() / 64 for groups in trace.groups]
    assert row.largest_group_share == pytest.approx(max(shares))
    off = evaluate(focus, trace.input_ids[None], routing="off")
    everything = evaluate(focus, trace.input_ids[None], routing="hard", top_k=4)
    assert everything.perplexity == pytest.approx(off.perplexity, rel=1e-5)
    assert everything.kept_share == 1.0


def test_evaluation_of_routers_per_head_counts_their_masks(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG.replace(router="head"))
    ids = blocks(1, 64)
    seen = []

    def keep(routing):
        seen.append((routing.key_weights.argmax(-1), routing.query_weights.topk(2).indices))

    with focus.routing("hard", top_k=2), focus.observe(keep), torch.no_grad():
        focus(input_ids=torch.from_numpy(ids))
    row = evaluate(focus, ids, routing="hard", top_k=2)
    distance = torch.arange(64)[:, None] - torch.arange(64)
    distant = distance > CONFIG.window
    kept = [((wanted[:, :, None] == group[:, None, :, None]).any(-1)) for group, wanted in seen]
    kept = (torch.cat(kept) | (torch.arange(64) < CONFIG.sink_tokens)) & distant
    assert row.kept_share == pytest.approx(float(kept.sum()) / (int(distant.sum()) * len(kept)))
    sizes = [torch.bincount(groups, minlength=4).max() / 64 for group, _ in seen for groups in group]
    assert row.largest_group_share == pytest.approx(float(max(sizes)))
    everything = evaluate(focus, ids, routing="hard", top_k=4)
    assert everything.perplexity == pytest.approx(evaluate(focus, ids, routing="off").perplexity, rel=1e-5)


def test_the_default_model_end_to_end(default_model):
    """The real 135M model: k = K and a wide window are the untouched model; a k of 1 is not."""
    focus = retrofit(default_model.model, FocusConfig(window=16))
    try:
        ids = torch.tensor([default_model.tokenizer("The cat sat on the mat. " * 12)["input_ids"]])
        with torch.inference_mode():
            with focus.routing("off"):
                expected = focus(ids, use_cache=False).logits
            with focus.routing("hard", top_k=8):
                assert torch.allclose(focus(ids, use_cache=False).logits, expected, atol=1e-4)
            with focus.routing("hard", window=ids.shape[1]):
                assert torch.allclose(focus(ids, use_cache=False).logits, expected, atol=1e-4)
            with focus.routing("hard", top_k=1):
                assert not torch.allclose(focus(ids, use_cache=False).logits, expected, atol=1e-2)
    finally:
        focus.detach()


def test_training_goes_on_with_routers_that_were_trained_before(tiny_llama, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("She rowed to the island and the old man was glad of it. " * 30)

    def command(out, *more):
        common = ["train", "-d", str(tmp_path / "text.txt"), "-m", str(tmp_path / "model"), "--length", "64"]
        return CliRunner().invoke(cli.app, [*common, "--steps", "2", "--eval-blocks", "0", "-o", str(out), *more])

    first, second = tmp_path / "first", tmp_path / "second"
    result = command(first, "--router", "head", "-K", "4", "-w", "8")
    assert result.exit_code == 0, result.output
    result = command(tmp_path / "model")
    assert result.exit_code == 2 and "holds a model" in result.output
    result = command(first, "--start-from", str(first))
    assert result.exit_code == 2 and "holds the routers to begin with" in result.output
    result = command(second, "--start-from", str(first), "--objective", "lm", "--learning-rate", "1e-12")
    assert result.exit_code == 0, result.output
    ours, theirs = (FocusModel.from_pretrained(load_model(tmp_path / "model").model, each) for each in (second, first))
    assert ours.config == theirs.config and ours.config.router == "head" and ours.config.window == 8
    for name, value in theirs.routers.state_dict().items():
        assert torch.allclose(ours.routers.state_dict()[name], value, atol=1e-6), name
    record = json.loads((second / "training.json").read_text())
    earlier, before = record["started_from"], json.loads((first / "training.json").read_text())
    assert earlier["routers"] == routers_hash(theirs.routers) and before["started_from"] is None
    for name in ("settings", "data", "final_loss", "step_seconds", "made"):
        assert earlier[name] == before[name], name
    assert earlier["settings"]["training"]["objective"] == "mass"
    assert record["settings"]["training"]["objective"] == "lm" and record["step_seconds"] > 0
    result = command(tmp_path / "published", "--recipe", "paper", "-K", "4", "-w", "8")
    assert result.exit_code == 0, result.output
    settings = json.loads((tmp_path / "published" / "training.json").read_text())["settings"]
    assert settings["training"]["objective"] == "lm" and settings["config"]["score"] == "dot"
    (first / "training.json").unlink()
    result = command(tmp_path / "unknown", "--start-from", str(first))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "unknown" / "training.json").read_text())["started_from"]
    assert found == {"routers": routers_hash(theirs.routers)}
    result = command(tmp_path / "third", "--start-from", str(first), "--trainer")
    assert result.exit_code == 2 and "leave one out" in result.output


def stopped(focus, folder):
    """Train to step 3 and leave a checkpoint."""

    def stop(step):
        if step.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(focus, blocks(), TrainSettings(steps=4, save_every=2), folder, stop)


@pytest.mark.parametrize("other", ["text", "weights", "seed of routers"])
def test_a_checkpoint_of_other_text_weights_or_routers_is_refused(tiny_llama, tmp_path, other):
    focus = retrofit(tiny_llama.model, CONFIG)
    stopped(focus, tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    model, rows = focus.detach(), blocks()
    if other == "text":
        rows[5, 7] += 1
    if other == "weights":
        with torch.no_grad():
            next(model.parameters())[17, 3] += 0.5
    focus = retrofit(model, CONFIG, seed=int(other == "seed of routers"))
    with pytest.raises(FocusError, match="other text, weights or settings"):
        train(focus, rows, TrainSettings(steps=4, save_every=2), tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize("damage", ["old", "no metadata", "other tensors", "other moments", "no step", "cut"])
def test_a_checkpoint_that_is_damaged_or_old_is_refused_in_one_sentence(tiny_llama, tmp_path, damage):
    focus = retrofit(tiny_llama.model, CONFIG)
    stopped(focus, tmp_path)
    model, path = focus.detach(), tmp_path / "checkpoint.safetensors"
    metadata, tensors = read_tensors(path)
    if damage == "old":
        metadata = {"run": metadata.pop("key"), "step": "3"}
    elif damage == "no metadata":
        metadata = {}
    elif damage == "other tensors":
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("router.")}
    elif damage == "other moments":
        tensors["optimizer.0.exp_avg"] = torch.zeros(3)
    elif damage == "no step":
        del metadata["step"]
    save_file(tensors, path, metadata=metadata)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    words = {"old": "older version", "no metadata": "other text"}.get(damage, "is damaged")
    with pytest.raises(FocusError, match=f"checkpoint.safetensors .*{words}"):
        train(retrofit(model, CONFIG), blocks(), TrainSettings(steps=4, save_every=2), tmp_path)


def test_routers_that_are_not_finite_are_not_written(tiny_llama, tmp_path):
    focus = retrofit(tiny_llama.model, CONFIG)
    with torch.no_grad():
        next(iter(focus.trainable_parameters()))[0, 0] = float("inf")
    with pytest.raises(FocusError, match="not finite"):
        focus.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []
    for rate in (float("inf"), float("nan"), -1.0, 0.0):
        with pytest.raises(FocusError, match="learning rate"):
            TrainSettings(learning_rate=rate)
