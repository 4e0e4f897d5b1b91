"""Tensor parallelism by Transformers' own plan: two gloo processes give the logits and tokens of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from focus_core import FocusConfig, FocusError, FocusModel, retrofit

ROOT = Path(__file__).parents[3]
SETTINGS = {"num_groups": 4, "top_k": 1, "window": 4, "sink_tokens": 1, "route_dim": 8}
CONFIGS = {
    "layer": FocusConfig(router="layer", **SETTINGS),
    "head": FocusConfig(router="head", **SETTINGS),
    "narrow": FocusConfig(
        router="narrow",
        **SETTINGS,
        read_share=0.3,
        by_error=True,
        count_spread=True,
        spread_directions=2,
        chunk=4,
        page_size=4,
    ),
}
IDS = torch.randint(0, 256, (2, 60), generator=torch.Generator().manual_seed(1))


def measured(model, folder: Path) -> dict[str, torch.Tensor]:
    """Logits and greedy continuations under saved routers of every kind, and without."""
    with torch.no_grad():
        found = {"off": model(IDS, use_cache=False).logits}
    for name in CONFIGS:
        focus = FocusModel.from_pretrained(model, folder / name)
        with torch.no_grad(), focus.routing("hard"):
            found[name] = focus(IDS, use_cache=False).logits
            found[f"{name} tokens"] = focus.generate(IDS[:1], max_new_tokens=6, do_sample=False)
        model = focus.detach()
    return found


def in_two_processes(folder: Path) -> None:
    """Every process has half of the heads; both see all logits."""
    from transformers.distributed.configuration_utils import DistributedConfig

    model = AutoModelForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(tp_size=2, tp_plan="auto")
    ).eval()
    assert model.model.layers[0].self_attn.k_proj.weight.to_local().shape == (8, 32)
    found = measured(model, folder)
    focus = FocusModel.from_pretrained(model, folder / "head")
    assert focus.router(0).num_heads == 1 and len(focus.router(0).centroids) == 1
    with pytest.raises(FocusError, match="routers of its own heads alone"):
        focus.save_pretrained(folder / "again")
    if os.environ["RANK"] == "1":
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / "two.safetensors")


def test_two_processes_give_the_logits_of_one(tiny_llama, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for name, config in CONFIGS.items():
        focus = retrofit(model, config, seed=3)
        for layer in focus.layers:  # of each head its own, which a wrong cut would mix up
            router = focus.router(layer)
            router.potential.copy_(torch.randn(router.potential.shape))
            if name == "narrow":
                router.thresholds.copy_(torch.tensor([-4.0, -2.5, -1.5, 0.0]).expand_as(router.thresholds))
                router.spread.copy_(torch.tensor([0.0, 0.3, 0.6, 0.9]))
        focus.save_pretrained(tmp_path / name)
        model = focus.detach()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *launcher, __file__, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = measured(model, tmp_path), load_file(tmp_path / "two.safetensors")
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.allclose(two[name], tensor, atol=1e-5), name
        if name in CONFIGS:
            assert not torch.allclose(tensor, one["off"], atol=1e-4), name  # routing changes something here


def test_heads_that_cannot_be_shared_are_refused(tiny_llama, monkeypatch):
    monkeypatch.setattr(type(tiny_llama.model), "_tp_size", 4, raising=False)
    with pytest.raises(FocusError, match="4 processes cannot share 2 key/value heads"):
        retrofit(tiny_llama.model, CONFIGS["head"])
    retrofit(tiny_llama.model, CONFIGS["layer"]).detach()


if __name__ == "__main__":
    in_two_processes(Path(sys.argv[1]))
    torch.distributed.barrier()
    os._exit(0)  # all is written; once in many runs PyTorch's threads abort the process while it is torn down
