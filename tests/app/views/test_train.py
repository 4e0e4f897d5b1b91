"""The Train page: its view models against what they are made from, and the page with real folders of runs."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from opening import open_page
from streamlit.testing.v1 import AppTest

from focus_core import FocusConfig, FocusError
from focus_core.training.log import Progress, RunLog, read_log
from focus_core.training.loop import Step
from workbench.engine import service
from workbench.runs import jobs
from workbench.views.quality.tables import find_results
from workbench.views.train.charts import training_curves
from workbench.views.train.form import NEW
from workbench.views.train.tables import TrainRequest, duration, history_table, seconds_left, share_done, text_record
from workbench.views.train.verdicts import finished_verdict, training_verdict

HEADS = "smollm2-135m-k8-heads-lm"
REQUEST = TrainRequest("default", 8, 2, 8, 4, 20, 64, 2, 0.01, "mass", 0, 2)


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def open_train(**query) -> AppTest:
    return open_page("train", source="sample", routers="untrained", **query)


def open_training() -> AppTest:
    """The page with the form of a training."""
    app = open_train()
    return app.selectbox(key="train_start").set_value("layer").run()


def shown(app: AppTest) -> str:
    assert not app.exception
    return "\n".join(element.value for element in [*app.markdown, *app.error, *app.info]).replace("\\", "")


def past_run(name="past", status=130, steps=5, words="Stopped."):
    """A run whose process has ended."""
    folder = jobs.new_folder(name)
    about = REQUEST.about([text_record("pasted.txt", b"a secret text")])
    arguments = REQUEST.arguments([folder / "text" / "pasted.txt"], folder)
    content = {"format": 1, "arguments": arguments, "about": about, "created": "2026-01-01T00:00:00+00:00"}
    (folder / "job.json").write_text(json.dumps(content))
    if status is not None:
        (folder / "outcome.json").write_text(json.dumps({"status": status}))
    (folder / "log.txt").write_text(f"Training: 10%\rTraining: 20%\n{words}\n")
    jobs.store_texts(folder, [("pasted.txt", b"a secret text")])
    log = RunLog(folder, fresh=True)
    log.phase("training", 0, 20)
    for number in range(1, steps + 1):
        log.step(Step(number, 2 - number / 10, 0.2, 100.0))
    return jobs.find(folder.name)


def measured(perplexity: float) -> dict:
    """A perplexity over two blocks, one 2% above and one 2% below."""
    return {"perplexity": perplexity, "block_nll": [math.log(perplexity) + 0.02, math.log(perplexity) - 0.02]}


def finish(job, perplexity=50.0, untrained=55.0):
    row = dict(causal_kept_share=0.6, exposure=0.7, tokens=100, largest_group_layer=1)
    hard = dict(routing="hard", top_k=2, balance="calibrated", kept_share=0.47, largest_group_share=0.16, **row)
    off = dict(routing="off", top_k=None, balance="none", kept_share=1.0, largest_group_share=None, **row)
    record = {
        "model": {"name": "m", "revision": "abc"},
        "settings": {"config": json.loads(FocusConfig().to_json()), "training": {}, "length": 64},
        "data": job.about["texts"],
        "held_out": [],
        "results": [off | measured(40.0), hard | measured(perplexity)],
        "untrained": [hard | measured(untrained)],
        "made": {"date": "2026-01-01T00:00:00", "device": "CPU"},
    }
    (job.folder / "training.json").write_text(json.dumps(record))
    (job.folder / "focus_config.json").write_text("{}")
    (job.folder / "outcome.json").write_text('{"status": 0}')
    RunLog(job.folder, fresh=False).phase("finished")
    return jobs.find(job.name)


def test_arguments_are_those_of_the_command():
    from typer.main import get_command

    from focus_core.cli import app

    arguments = REQUEST.arguments([Path("-odd name.txt")], Path("out"))
    command = get_command(app).commands["train"]
    context = command.make_context("train", arguments[1:])
    for name, value in vars(REQUEST).items():
        option = {"num_groups": "groups", "sink_tokens": "sinks"}.get(name, name)
        assert context.params[option] == value
    assert [str(path) for path in context.params["data"]] == ["-odd name.txt"]
    assert context.params["eval_top_k"] == [1, 2, 3]
    going_on = replace(REQUEST, router="head", start_from=HEADS).arguments([Path("text.txt")], Path("out"))
    params = command.make_context("train", going_on[1:]).params
    assert "--router" not in going_on  # routers to start from keep their own settings
    assert Path(params["start_from"]) == service.router_folder(HEADS).resolve()
    with pytest.raises(FocusError, match="no finished run 'gone'"):
        replace(REQUEST, start_from="run:gone").arguments([], Path("out"))


def test_the_time_left_is_measured_and_not_invented():
    about = REQUEST.about([])
    steps = tuple(Step(number, 1.0, 0.2, pace) for number, pace in ((1, 1.0), (2, 64.0), (3, 64.0)))
    assert seconds_left(Progress("training", 0, 20, steps[:1]), about) is None
    assert seconds_left(Progress("training", 0, 20, steps), about) == pytest.approx(17 * 2 * 64 / 64)
    assert [duration(s) for s in (0.2, 45, 600, 9000)] == ["1 s", "45 s", "10 min", "2.5 h"]


def test_curves_draw_every_step_and_the_even_split():
    history = history_table([Step(n, 2 / n, 0.3 / n, 100 + n) for n in range(1, 6)])
    figure = training_curves(history, num_groups=8, steps=20, objective="mass", dark=True)
    drawn = {trace.name: list(trace.y) for trace in figure.data[:3]}
    assert drawn == {name: history[name].tolist() for name in ("loss", "largest group", "tokens per second")}
    assert list(figure.data[3].y) == [1 / 8, 1 / 8]


@pytest.mark.parametrize(
    ("status", "words", "sentence"),
    [
        (130, "Stopped.", "Stopped at step 5 of 20"),
        (2, "The disk is full: free some space.", "The disk is full"),
        (1, "The memory ran out: take shorter blocks.", "The memory ran out"),
        (None, "", "without a message"),
    ],
)
def test_runs_that_ended_early_say_so_and_can_be_resumed(status, words, sentence):
    past_run(status=status, words=words)
    app = open_train()
    assert sentence in shown(app)
    assert "secret" not in shown(app)
    labels = [button.label for button in app.button]
    assert "Resume" in labels and "Stop" not in labels and "Use these routers" not in labels


def test_a_finished_run_shows_what_it_brought_and_its_routers_are_listed():
    job = finish(past_run())
    results = find_results([job.folder / "training.json"]).table
    verdict = training_verdict(job, read_log(job.folder), results)
    assert (
        "47%" in verdict
        and "changes perplexity by +25.0%" in verdict
        and "Perplexity is 50.00" in verdict
        and "55.00, +37.5% (95% interval" in verdict
    )
    assert "has not helped" not in verdict and "fewer than 16" in verdict and "next tokens" not in verdict
    assert share_done(job, read_log(job.folder)) == 1.0
    app = open_train()
    assert verdict in shown(app)
    assert "run:past" in open_page("write").sidebar.selectbox(key="routers").options
    next(button for button in app.button if button.label == "Use these routers").click()
    app.run()
    assert app.session_state["routers"] == "run:past"
    assert service.router_folder("run:past") == job.folder


def test_training_that_did_not_help_is_called_that():
    job = finish(past_run(), perplexity=50.0, untrained=49.0)
    results = find_results([job.folder / "training.json"]).table
    assert "this training has not helped" in finished_verdict(results, 2)
    assert finished_verdict(results, 3) == "Finished, without an evaluation on held-out text."


def test_the_page_without_runs_teaches_and_wrong_input_is_refused_with_a_sentence():
    app = open_training()
    assert "No run yet" in shown(app)
    start = next(button for button in app.button if button.label == "Start training")
    start.click().run()
    assert "There is no text to train on" in shown(app)
    app.text_area(key="train_paste").set_value("words " * 50)
    app.number_input(key="train_k").set_value(9)
    next(button for button in app.button if button.label == "Start training").click().run()
    assert "k is 9 with K = 8" in shown(app)
    assert jobs.jobs() == []


def test_runs_of_other_kinds_and_lost_links_do_not_matter():
    past_run("one")
    app = open_train(run="nowhere")
    assert app.session_state["run"] == "one"


def test_a_link_to_routers_of_no_run_is_refused():
    with pytest.raises(Exception, match="no finished run 'gone'"):
        service.router_folder("run:gone")


def test_text_records_hold_no_text():
    record = text_record("a.txt", b"secret")
    assert record == {"name": "a.txt", "bytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    assert "secret" not in json.dumps(REQUEST.about([record]))
    assert not math.isnan(share_done(past_run(), Progress("", 0, 0, ())))


def kill_all():
    for job in jobs.jobs():
        if (process := jobs._process(job.folder)) is not None:
            process.kill()
            process.wait(60)  # while it ends, the page starts no other run


def press_start(app: AppTest) -> AppTest:
    next(button for button in app.button if button.label == "Start training").click()
    return app.run()


def test_a_run_starts_with_routers_per_head_or_goes_on_with_others():
    app = open_train()
    start = app.selectbox(key="train_start")
    assert [*start.options][: len(NEW)] == [*NEW.values()] and f"continue {HEADS}" in start.options
    start.set_value("head").run()
    app.text_area(key="train_paste").set_value("words " * 1700)
    try:
        press_start(app)
        (job,) = jobs.jobs()
        assert "--router=head" in job.arguments and not [each for each in job.arguments if "--start-from" in each]
        kill_all()
        app.selectbox(key="train_start").set_value(HEADS).run()
        assert "K 8, k 2, w 64, 4 sinks" in "".join(each.value for each in app.caption)
        assert "train_groups" not in [each.key for each in app.number_input]
        press_start(app)
        last = jobs.jobs()[0]
        assert f"--start-from={service.router_folder(HEADS).resolve()}" in last.arguments
        assert last.about["start_from"] == HEADS and last.about["num_groups"] == 8
    finally:
        kill_all()


def test_uploads_and_folders_start_a_run_and_hostile_ones_do_not(tmp_path):
    app = open_training()
    app.session_state["train_source"] = "upload"
    app.run()
    app.get("file_uploader")[-1].set_value([("a.txt", b"\xff\xfe\x00", "text/plain")])
    press_start(app)
    assert "a.txt is UTF-16" in shown(app) and jobs.jobs() == []
    files = [("../evil.txt", b"some words " * 900, "text/plain"), ("evil.txt", b"others " * 500, "text/plain")]
    app.get("file_uploader")[-1].set_value(files)
    try:
        press_start(app)
        (job,) = jobs.jobs()
        assert job.is_alive and app.session_state["run"] == job.name
        stored = sorted((job.folder / "text").iterdir())
        assert [path.read_bytes()[:4] for path in stored] == [b"othe", b"some"]
        assert [f"--data={path}" in job.arguments for path in stored] == [True, True]
        assert "Loading the model and the text." in shown(app)
        app.session_state["train_source"] = "path"
        app.run()
        books = tmp_path / "books"
        books.mkdir()
        app.text_input(key="train_path").set_value(str(books))
        press_start(app)
        assert "has no .txt or .md files" in shown(app)
        (books / "book.txt").write_text("words " * 1700)
        press_start(app)
        assert "is still running" in shown(app) and len(jobs.jobs()) == 1
    finally:
        kill_all()
