"""FSDP2 over gloo: sharded training equals a single process, and resumes at another number of processes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.models import load_model
from focus_core.training.modes import Phase
from focus_core.training.parallel.processes import world_size
from focus_core.training.phases import train_phases
from focus_core.training.stream import TokenStream, find_sources
from focus_core.training.trainer import TrainerSettings, save, train_phase

ROOT = Path(__file__).parents[3]
CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8)
SETTINGS = TrainerSettings(batch_size=4, learning_rate=0.05, base_learning_rate=0.01, save_every=2)
PHASES = {
    "centroids": Phase("centroids", False, "mass", 5),
    "everything": Phase("everything", True, "lm", 5),
}


class Ending(TokenStream):
    """A stream that ends a run early, in all processes at the same step."""

    def __iter__(self):
        for number, block in enumerate(super().__iter__()):
            if number == 4 * SETTINGS.batch_size:
                raise KeyboardInterrupt
            yield block


def run(folder: Path, name: str, out: str, *, ending: bool = False, sharded: bool = True) -> None:
    """One phase on the model in a folder; the rest of one if it was interrupted."""
    loaded = load_model(folder / "model")
    stream = (Ending if ending else TokenStream)(find_sources([folder / "text.txt"]), loaded.tokenizer, 48)
    steps = []
    try:
        focus = retrofit(loaded.model, CONFIG)
        trainer = train_phase(focus, stream, PHASES[name], SETTINGS, folder / out, steps.append, sharded=sharded)
    except KeyboardInterrupt:
        assert ending
        return
    assert not ending
    assert not sharded or not steps or steps[0].step == 3  # after the checkpoint of step 2
    if world_size() > 1:
        trainer.task.reshard()  # what an evaluation gathered
    parts = [(p.to_local() if isinstance(p, DTensor) else p).numel() for p in trainer.task.parameters()]
    assert sum(parts) <= 1.02 * sum(p.numel() for p in trainer.task.parameters()) / (world_size() if sharded else 1)
    save(trainer, folder / out)


def in_two_processes(folder: Path) -> None:
    """Begins what one process finishes, and finishes what one process began."""
    for name in PHASES:
        run(folder, name, f"{name}/two-one", ending=True)
        run(folder, name, f"{name}/one-two")


@pytest.fixture
def folder(tiny_llama, tmp_path):
    """A folder with a model and a text."""
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    words = np.random.default_rng(0).choice(["the", "cat", "sat", "on", "a", "mat", "and", "saw"], 4000)
    (tmp_path / "text.txt").write_text(" ".join(words))
    return tmp_path


@pytest.mark.slow
def test_a_sharded_run_resumes_at_another_number_of_processes(folder):
    for name in PHASES:
        run(folder, name, f"{name}/whole", sharded=False)
        run(folder, name, f"{name}/one-two", ending=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *launcher, __file__, str(folder)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in PHASES:
        shards = list((folder / name / "two-one").rglob("shards/*.safetensors"))
        assert len(shards) == 2
        run(folder, name, f"{name}/two-one")
        files = ["routers.safetensors", *(["model.safetensors"] if name == "everything" else [])]
        for file in files:
            whole = load_file(folder / name / "whole" / file)
            for other in ("two-one", "one-two"):
                found = load_file(folder / name / other / file)
                assert found.keys() == whole.keys()
                for key, tensor in whole.items():
                    assert torch.allclose(found[key], tensor, atol=1e-4), (name, other, key)


@pytest.mark.parametrize("damage", ["cut", "gone", "not finite"])
def test_a_damaged_shard_is_refused(folder, damage):
    run(folder, "centroids", "run", ending=True)
    (shard,) = (folder / "run").rglob("shards/*.safetensors")
    if damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-40])
    elif damage == "gone":
        shard.unlink()
    else:
        tensors = load_file(shard)
        next(tensor for name, tensor in tensors.items() if name.startswith("exp_avg"))[0] = torch.nan
        save_file(tensors, shard)
    with pytest.raises(FocusError, match="is damaged: delete it"):
        run(folder, "centroids", "run")


def test_what_cannot_be_sharded_is_refused(tmp_path):
    with pytest.raises(FocusError, match="two phases cannot be sharded"):
        train_phases(tmp_path, tmp_path / "run", mode="two-phase", sharded=True)


if __name__ == "__main__":
    in_two_processes(Path(sys.argv[1]))
    torch.distributed.barrier()
    os._exit(0)  # all is written; once in many runs PyTorch's threads abort the process while it is torn down
