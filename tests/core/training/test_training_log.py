"""The log of a run says what the run did, through stops, repeats and half-written lines."""

import json

import numpy as np
import pytest

from focus_core import FocusConfig, retrofit
from focus_core.training import TrainSettings, train
from focus_core.training.log import LOG, Progress, RunLog, read_log
from focus_core.training.loop import CHECKPOINT, Step


def test_the_log_holds_the_steps_that_training_returned(tiny_llama, tmp_path):
    blocks = np.random.default_rng(0).integers(1, 200, (6, 32))
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=4, route_dim=8))
    log, phases = RunLog(tmp_path, fresh=True), []
    settings = TrainSettings(steps=3, autocast=False)
    steps = train(focus, blocks, settings, tmp_path, log.step, on_phase=phases.append, keep_checkpoint=True)
    assert read_log(tmp_path).steps == tuple(steps) and len(steps) == 3
    assert phases == ["training", "calibrating"]
    assert (tmp_path / CHECKPOINT).is_file()
    routers = focus.routers.state_dict()
    again = retrofit(focus.detach(), focus.config)
    assert train(again, blocks, settings, tmp_path) == []  # every step was done; calibrated again, alike
    assert not (tmp_path / CHECKPOINT).exists()
    for name, tensor in again.routers.state_dict().items():
        assert np.allclose(tensor, routers[name], atol=1e-6)


def test_repeated_steps_count_once_and_half_a_line_not_at_all(tmp_path):
    log = RunLog(tmp_path, fresh=True)
    log.phase("training", 0, 3)
    for number, loss in ((1, 3.0), (2, 2.0), (2, 1.5), (3, 1.0)):  # killed after step 2, resumed at its checkpoint
        log.step(Step(number, loss, 0.2, 100.0))
    log.phase("evaluating", 1, 4)
    with (tmp_path / LOG).open("a") as file:
        file.write(json.dumps({"time": 1.0, "phase": "finished"})[:20])
    found = read_log(tmp_path)
    assert [step.loss for step in found.steps] == [3.0, 1.5, 1.0]
    assert (found.phase, found.done, found.total) == ("evaluating", 1, 4)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe[]", b"[]\n3\nnull\n{}\n", b'{"step": 1}\n'])
def test_a_damaged_log_is_an_empty_one(tmp_path, content):
    (tmp_path / LOG).write_bytes(content)
    assert read_log(tmp_path) == Progress("", 0, 0, ())
    assert read_log(tmp_path / "nowhere") == Progress("", 0, 0, ())


def test_a_fresh_log_forgets_and_a_resumed_one_goes_on(tmp_path):
    RunLog(tmp_path, fresh=True).step(Step(1, 1.0, 0.5, 1.0))
    RunLog(tmp_path, fresh=False).step(Step(2, 1.0, 0.5, 1.0))
    assert len(read_log(tmp_path).steps) == 2
    RunLog(tmp_path, fresh=True)
    assert read_log(tmp_path).steps == ()
