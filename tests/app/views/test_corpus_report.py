"""Reports on whole corpora as background jobs: arguments, progress, and the page with a real run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from opening import open_page

from focus_core import FocusError
from focus_core.models import default_model
from focus_core.report.corpora.stream import StreamSettings
from focus_core.report.html import summary
from focus_core.report.run import write_report
from workbench.runs import jobs
from workbench.views.report.corpus import CorpusRequest, files_of, out_of, progress_of, saved_report, start, verdict
from workbench.widgets.page.markup import plain

TEXT = "The keeper rowed to the island, and the wind came over the grey water. "
real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def request(place: Path | str, **changes: object) -> CorpusRequest:
    values = dict(model="default", routers="untrained", num_groups=8, top_k=1, head=0, states="untouched")
    return CorpusRequest(**{"place": str(place), **values, "examples": 2, "seed": 3, **changes})


@pytest.fixture
def corpus(tmp_path) -> Path:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "one.txt").write_text(TEXT * 12)
    (folder / "-two.md").write_text("Short and other words. " * 9)
    (folder / "bad.txt").write_bytes(b"\xff\xfe\x00")
    return folder


def shown(app) -> str:
    assert not app.exception
    return "\n".join(element.value for element in [*app.markdown, *app.error, *app.caption])


def past_run(status: int | None, words: str, name: str = "past") -> jobs.Job:
    folder = jobs.new_folder(name)
    content = {"format": 1, "arguments": ["report"], "about": {"corpus": "books"}, "created": "2026-01-01T00:00:00"}
    (folder / "job.json").write_text(json.dumps(content))
    (folder / "log.txt").write_text(words)
    if status is not None:
        (folder / "outcome.json").write_text(json.dumps({"status": status}))
    return jobs.find(folder.name)


def test_arguments_are_those_of_the_command(corpus, tmp_path):
    from typer.main import get_command

    from focus_core.cli import app

    arguments = request(corpus / "-two.md").arguments(tmp_path / "out")
    params = get_command(app).commands["report"].make_context("report", arguments[1:]).params
    assert params["data"] == [str(corpus / "-two.md")] and params["out"] == str(tmp_path / "out")
    assert (params["top_k"], params["head"], params["states"], params["seed"]) == (1, [0], "untouched", 3)
    assert params["untrained"] and params["routers"] is None and params["examples"] == 2
    own = request(corpus, routers="smollm2-135m-k8", top_k=None).arguments(tmp_path)
    params = get_command(app).commands["report"].make_context("report", own[1:]).params
    assert params["top_k"] is None and Path(params["routers"]).name == "smollm2-135m-k8" and not params["untrained"]
    with pytest.raises(FocusError, match="set K to 8"):
        request(corpus, num_groups=4).arguments(tmp_path)


def test_what_cannot_be_reported_leaves_no_run(corpus, monkeypatch, tmp_path):
    for place, sentence in (("  ", "There is no corpus"), (corpus / "nowhere", "no file or folder")):
        with pytest.raises(FocusError, match=sentence):
            start(request(place))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("FOCUS_ALLOWED_ROOTS", str(tmp_path / "elsewhere"))
    with pytest.raises(FocusError, match="not in a folder that this workbench may open"):
        start(request(corpus))
    monkeypatch.setenv("FOCUS_ALLOWED_ROOTS", str(tmp_path))
    (corpus / "link.txt").symlink_to("/etc/hostname")
    assert request(corpus).arguments(Path())[-3:] == [str(corpus / name) for name in ("-two.md", "bad.txt", "one.txt")]
    assert jobs.jobs() == []


def test_progress_and_sentences_are_those_of_the_log():
    running = past_run(None, "Loading the model (0%)\nRouting sub/a (1).txt: 12,345 tokens (34%)\n")
    assert progress_of(running) == (0.34, "sub/a (1).txt: 12,345 tokens so far")
    assert "without a message" in verdict(running)
    assert progress_of(past_run(130, "Loading the model (0%)\n")) == (0.0, "Loading the model")
    assert "Resume goes on with books" in verdict(past_run(130, ""))
    with pytest.raises(FocusError, match="delete the run"):
        saved_report(past_run(0, ""))


def test_runs_that_ended_early_can_be_resumed_or_deleted():
    past_run(1, "books/x is empty: give a file with some text in it.\n")
    app = open_page("report", source="paste")
    assert "ended with an error" in shown(app) and "give a file with some text" in shown(app)
    labels = [button.label for button in app.button]
    assert "Resume" in labels and "Stop" not in labels
    app.button(key="delete_corpus").click().run()
    assert jobs.jobs() == [] and "ended with an error" not in shown(app)


@real_model
@pytest.mark.slow
def test_a_corpus_is_reported_by_the_page_as_by_the_command(corpus, tmp_path):
    app = open_page("report", source="paste", routers="untrained", k="1")
    app.text_input(key="corpus_place").set_value(str(corpus / "nowhere"))
    next(button for button in app.button if button.label == "Start report").click().run()
    assert "no file or folder" in app.error[0].value and jobs.jobs() == []
    app.text_input(key="corpus_place").set_value(str(corpus))
    app.number_input(key="corpus_seed").set_value(3)
    app.number_input(key="corpus_examples").set_value(2)
    next(button for button in app.button if button.label == "Start report").click().run()
    assert any(button.label == "Stop" for button in app.button)
    (job,) = jobs.jobs("report")
    deadline = time.monotonic() + 240
    while (job := jobs.find(job.name)).is_alive and time.monotonic() < deadline:
        time.sleep(0.5)
    assert job.state == jobs.FINISHED, job.last_words
    expected = write_report(
        corpus, tmp_path / "own", untrained=True, settings=StreamSettings(top_k=1, examples=2, seed=3)
    ).report
    report = saved_report(job)
    assert report.cards == expected.cards and report.documents == expected.documents
    assert [each.document for each in report.failed] == ["bad.txt"]
    assert [path.name for path in files_of(job)][:2] == ["report.html", "session.zip"]
    assert (out_of(job.folder) / "report.html").stat().st_size > 10_000
    app.run()
    said = shown(app)
    assert plain(summary(expected)) in said and "2 documents" in said
    preview = next(element.proto.srcdoc for element in app.get("iframe"))
    assert "Layer 15, group 0" in preview and "Layer 14, group 0" not in preview
    assert {button.label for button in app.get("download_button")} >= {"report.html", "session.zip", "cards.csv"}
