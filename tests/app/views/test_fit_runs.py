"""Narrow groups from the Train page: the command, its refusals, and a fit in the background on a real folder."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from opening import open_named, open_page
from streamlit.testing.v1 import AppTest
from typer.main import get_command

from focus_core import FocusModel
from focus_core.cli import app as commands
from focus_core.routing.narrow.fitting.fit import at_share
from workbench.engine import service
from workbench.runs import jobs
from workbench.views.train.fitting import FitRequest, fit_step, fit_verdict

REQUEST = FitRequest("default", 0.2, 2048, 3)


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    yield tmp_path / "runs"
    for job in jobs.jobs():
        if (process := jobs._process(job.folder)) is not None:
            process.kill()
            process.wait(60)


def press(app: AppTest, label: str) -> AppTest:
    next(button for button in app.button if button.label == label).click()
    return app.run()


def past_run(status: int | None, words: str, folder: Path | None = None) -> jobs.Job:
    """A fit whose process has ended."""
    folder = folder or jobs.new_folder("past")
    content = {"format": 1, "arguments": REQUEST.arguments([], folder), "about": REQUEST.about([])}
    (folder / "job.json").write_text(json.dumps({**content, "created": "2026-01-01T00:00:00+00:00"}))
    (folder / "log.txt").write_text(words)
    if status is not None:
        (folder / "outcome.json").write_text(json.dumps({"status": status}))
    found = jobs.find(folder.name)
    assert found is not None
    return found


def test_arguments_are_those_of_the_command():
    arguments = REQUEST.arguments([Path("-odd name.txt"), Path("b.txt")], Path("out"))
    assert arguments[0] == "fit"
    params = get_command(commands).commands["fit"].make_context("fit", arguments[1:]).params
    assert {name: params[name] for name in vars(REQUEST)} == vars(REQUEST)
    assert params["out"] == Path("out") and params["data"] == [Path("-odd name.txt"), Path("b.txt")]


def test_the_step_is_the_last_line_of_the_log():
    told = "Fitting groups of keys (0%)\nMeasuring what each head reads in 2,048 tokens (0%)\n"
    assert fit_step(past_run(130, told)) == "Measuring what each head reads in 2,048 tokens"
    assert fit_step(past_run(130, "", jobs.new_folder("other"))) == "Loading the model and the text"


@pytest.mark.parametrize(
    ("status", "words", "sentence"),
    [
        (130, "Stopped.", "Stopped. Resume continues"),
        (2, "The disk is full: free some space.", "ended with an error"),
        (None, "", "without a message"),
    ],
)
def test_runs_that_ended_early_say_so_and_can_be_resumed(status, words, sentence):
    job = past_run(status, words)
    assert sentence in fit_verdict(job) and jobs.finished_routers() == {}
    app = open_page("train", source="sample", routers="untrained")
    assert not app.exception and sentence in "".join(each.value for each in app.markdown)
    labels = [button.label for button in app.button]
    assert "Resume" in labels and "Stop" not in labels and "Use these routers" not in labels


def test_the_page_fits_narrow_groups_unless_another_form_is_chosen_and_refuses_short_texts():
    app = press(open_page("train", source="sample", routers="untrained"), "Start fitting")
    assert "There is no text to fit to" in app.error[0].value
    app.text_area(key="train_paste").set_value("Three short words")
    app = press(app, "Start fitting")
    assert "pasted.txt has fewer than 1,024 tokens" in app.error[0].value and jobs.jobs() == []


def test_a_fit_in_the_background_gives_routers_for_every_page(tiny_llama, tmp_path):
    folder = tmp_path / "tiny"
    tiny_llama.model.save_pretrained(folder)
    tiny_llama.tokenizer.save_pretrained(folder)
    app = open_named("train", source="sample", routers="untrained", model=str(folder))
    app.text_area(key="train_paste").set_value("The keeper wound the clock, and the wind came over the water. " * 40)
    app.number_input(key="train_share").set_value(0.3)
    app.number_input(key="train_tokens").set_value(1024)
    press(app, "Start fitting")
    (job,) = jobs.jobs("fit")
    assert job.name == "pasted-narrow" and "--share=0.3" in job.arguments
    deadline = time.monotonic() + 300
    while (job := jobs.find(job.name)).is_alive and time.monotonic() < deadline:
        time.sleep(0.2)
    assert job.state == jobs.FINISHED, job.last_words
    assert not (job.folder / "text").exists()
    record = json.loads((job.folder / "training.json").read_text())
    nats = at_share(dict(map(tuple, record["expected"][-1]["kl"])), 0.3)
    assert f"At 30% of the distant pairs, predictions are expected {nats:.4f} nats" in fit_verdict(job)
    app.run()
    assert fit_verdict(job) in "".join(each.value for each in app.markdown)
    press(app, "Use these routers")
    assert app.session_state["routers"] == "run:pasted-narrow"
    assert service.router_folder("run:pasted-narrow") == job.folder
    focus = FocusModel.from_pretrained(tiny_llama.model, job.folder)
    assert (focus.config.router, focus.config.read_share) == ("narrow", 0.3)
