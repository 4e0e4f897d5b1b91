"""The Report page on the real model, without a browser."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from pathlib import Path

import pytest
from opening import TEXT, open_page

from focus_core.models import default_model
from focus_core.report.bundle import Session, read_bundle, write_bundle
from focus_core.report.html import summary
from workbench.engine import service
from workbench.engine.service import Settings, analysis
from workbench.shell import sessions
from workbench.views.report.build import report_of
from workbench.widgets.page.markup import plain

pytestmark = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")

HOSTILE = "<script>alert(1)</script> **bold** =1+1 \u202eabc\u202c $x$ :red[y] " + "The old man rowed home. " * 20


def pasted(text: str, **query: str):
    app = open_page("report", source="paste", routers="untrained", **query)
    app.text_area(key="paste").set_value(text)
    next(button for button in app.button if button.label == "Show groups").click()
    return app.run()


def made(text: str, k: int = 2):
    """The report of the engine, not through the page."""
    found = dataclasses.replace(analysis(Settings("default", "untrained", 8, k, 64, 4), text), text_name="pasted text")
    return report_of(found, model="default", examples=5, seed=0)


def shown(app) -> str:
    assert not app.exception
    return "\n".join(element.value for element in [*app.markdown, *app.error, *app.info, *app.success, *app.warning])


def preview(app) -> str:
    return next(element.proto.srcdoc for element in app.get("iframe"))


def test_without_a_text_the_page_says_what_it_would_make():
    app = open_page("report", source="paste")
    assert "A card for every group" in shown(app) and "focus report" in app.code[0].value
    assert not app.error and len(app.file_uploader) == 1


def test_the_page_answers_with_the_reports_own_sentence_at_every_k():
    app = pasted(TEXT, k="1", layer="7")
    assert plain(summary(made(TEXT, 1))) in shown(app)
    assert "Layer 7, group 0" in preview(app) and "UNTRAINED" in shown(app)
    app.slider(key="k").set_value(3)
    app.run()
    members = made(TEXT, 3).of_layer(7)[0].members
    assert f"{members} with it among their 3 groups" in " ".join(preview(app).split())
    assert members > made(TEXT, 1).of_layer(7)[0].members


def test_sections_layers_and_seed_are_those_chosen():
    app = pasted(TEXT, layer="7")
    assert "Random examples" in preview(app) and "Parts of speech of its words" in preview(app)
    before = preview(app)
    app.number_input(key="report_seed").set_value(3)
    app.run()
    assert preview(app) != before
    app.pills(key="report_sections").set_value(["tokens"])
    app.multiselect(key="report_layers").set_value([2, 7])
    app.run()
    assert "Most frequent tokens" in preview(app) and "Random examples" not in preview(app)
    assert "16 groups in 2 layers" in shown(app)
    assert not app.text_area(key="paste").disabled and len(app.text_area) == 1  # no notes either
    app.multiselect(key="report_layers").set_value([])
    app.run()
    assert "Choose at least one layer" in shown(app)


def test_hostile_text_reaches_the_preview_escaped():
    app = pasted(HOSTILE, layer="7")
    page = preview(app)
    assert (
        "<script" not in page
        and "\u202e" not in page
        and "&lt;script&gt;" in page.replace("</mark>", "").replace("<mark>", "")
    )
    assert all("<script" not in element.value.replace("\\<", "") for element in app.markdown)


def run_unfolded(app) -> None:
    """Run with the notes unfolded, which AppTest has no click for."""
    app.session_state["notes_box"] = True
    app.run()


def test_notes_stay_with_their_group():
    app = pasted(TEXT, layer="7")
    assert len(app.text_area) == 1  # folded away, they are not made
    run_unfolded(app)
    box = next(area for area in app.text_area if str(area.key).endswith("_7_2"))
    box.set_value("A note with <b>markup</b>")
    run_unfolded(app)
    assert "A note with &lt;b&gt;markup&lt;/b&gt;" in preview(app)
    app.select_slider(key="layer").set_value(8)
    app.run()
    assert "A note with" not in preview(app)
    app.select_slider(key="layer").set_value(7)
    run_unfolded(app)
    assert "A note with" in preview(app)
    assert next(area for area in app.text_area if str(area.key).endswith("_7_2")).value == "A note with <b>markup</b>"


def session_file(text: str | None = HOSTILE, **changes: object) -> bytes:
    report = made(TEXT)
    values: dict = {
        "settings": {"k": "1", "window": "8", "layer": "3", "routers": "untrained", "states": "untouched"},
        "choices": {"layers": [3, 4], "sections": ["tokens", "notes"], "seed": 9, "examples": 2},
        "notes": {report.origin["routers_hash"]: {"3/5": "remember me"}},
        "text": text,
        "text_name": "old.txt",
        "routers_hash": report.origin["routers_hash"],
    }
    return write_bundle(report.only([3], ["tokens"]), Session(**{**values, **changes}))


def opened(app, data: bytes):
    app.file_uploader(key="session_file").set_value(("session.zip", data, "application/zip"))
    return app.run()


def test_a_session_file_brings_text_settings_and_notes_back():
    app = opened(open_page("report", source="paste"), session_file())
    assert "Opened the session of" in shown(app) and "old.txt" in shown(app)
    assert app.text_area(key="paste").value == HOSTILE
    assert app.slider(key="k").value == 1 and app.number_input(key="window").value == 8
    assert app.select_slider(key="layer").value == 3
    assert app.number_input(key="report_seed").value == 9
    assert app.multiselect(key="report_layers").value == [3, 4]
    assert "remember me" in preview(app)
    assert plain(summary(made(HOSTILE, 1).only([3, 4], ["tokens"]))) in shown(app)
    app.run()
    assert not app.success  # said once


def test_a_session_file_that_names_a_model_asks_first(monkeypatch):
    started, given = (
        open_page("report", source="paste"),
        session_file(settings={"routers": "untrained", "model": "evil/model"}),
    )
    monkeypatch.setattr(service, "load_base", lambda model: pytest.fail(f"loaded {model}"))
    app = opened(started, given)
    assert not app.exception and "This session file opens" in app.warning[0].value
    assert "evil/model" in app.warning[0].value.replace("\\", "")
    monkeypatch.undo()
    app.button(key="leave_named").click().run()
    assert app.selectbox(key="model").value == "default" and app.text_area(key="paste").value == HOSTILE


def test_another_session_sees_its_notes_and_never_its_text():
    opened(open_page("report", source="paste"), session_file())
    other = pasted(TEXT, layer="3")
    assert "remember me" in preview(other)  # notes are the user's own, kept on this machine
    assert "old man" not in preview(other) and other.text_area(key="paste").value == TEXT


def test_a_session_file_without_text_keeps_the_text():
    app = opened(pasted(TEXT), session_file(None))
    assert "it holds no text" in shown(app)
    assert app.text_area(key="paste").value == TEXT


def test_a_session_of_other_routers_says_so():
    app = opened(open_page("report", source="paste"), session_file(routers_hash="f" * 12))
    assert "belong to those other routers" in shown(app)


@pytest.mark.parametrize("settings", [{"k": "99", "layer": "77"}, {"k": "x"}, {"source": "<b>"}, {}])
def test_settings_in_a_session_file_are_checked_like_those_of_a_link(settings):
    app = opened(
        open_page("report", source="paste"),
        session_file(settings={"routers": "untrained", **settings}, choices={"layers": [1, 500], "sections": ["no"]}),
    )
    assert not app.exception and not app.error
    assert app.multiselect(key="report_layers").value == [1]


@pytest.mark.parametrize("harm", ["no zip", "traversal", "hash"])
def test_a_bad_session_file_is_refused_and_changes_nothing(harm):
    good = session_file()
    files = {}
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    if harm == "traversal":
        files["../../evil.txt"] = b"x"
    if harm == "hash":
        files["session.json"] = json.dumps({**json.loads(files["session.json"]), "text_name": "changed"}).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    app = pasted(TEXT)
    before = preview(app)
    app = opened(app, b"PK nonsense" if harm == "no zip" else buffer.getvalue())
    assert not app.exception and len(app.error) == 1
    assert preview(app) == before and app.text_area(key="paste").value == TEXT


def test_what_is_captured_comes_back(monkeypatch):
    """`capture` and `apply` through a file, on a plain dictionary in place of the session state."""
    from workbench.shell import state

    first: dict = {name: setting.default for name, setting in state.SETTINGS.items()}
    first |= {"k": 3, "layer": 4, "source": "paste", "routers": "untrained", "report_layers": [4], "report_seed": 7}
    first |= {"report_sections": ["tokens"], "report_examples": 1, "model": str(Path.home() / "models" / "mine")}
    monkeypatch.setattr(sessions.st, "session_state", first)
    found = analysis(Settings("default", "untrained", 8, 3, 64, 4), HOSTILE)
    routers = found.trace.provenance.routers_hash
    sessions.take_note(routers, 4, 1, "a note")
    sessions.take_note(routers, 4, 2, "  ")
    sessions.take_note("others", 4, 2, "stays here")
    data = write_bundle(made(HOSTILE, 3), sessions.capture(dataclasses.replace(found, text_name="mine")))
    assert b"~/models/mine" not in data and read_bundle(data).settings["model"] == "~/models/mine"
    assert read_bundle(data).notes == {routers: {"4/1": "a note"}}
    second: dict = {"note_abc_4_1": "old"}
    monkeypatch.setattr(sessions.st, "session_state", second)
    sessions.take_note(routers, 4, 1, "changed")
    sessions.take_note(routers, 5, 1, "mine")
    sessions.apply(read_bundle(data))
    assert second["paste"] == HOSTILE and sessions.notes(routers) == {(4, 1): "a note", (5, 1): "mine"}
    assert Path(second["model"]).expanduser() == Path(first["model"])
    assert {key: second[key] for key in first if key != "model"} == {k: v for k, v in first.items() if k != "model"}
    assert "note_abc_4_1" not in second
