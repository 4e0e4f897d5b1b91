"""What links and session files name is opened after a question, and never asked twice."""

from __future__ import annotations

import pytest
from opening import TEXT, agreed, open_page, shown

from focus_core.models import default_model
from workbench.engine import service
from workbench.engine.access import ROOTS, SERVED_AT
from workbench.shell import asking, sessions, state

pytestmark = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


@pytest.fixture(autouse=True)
def nothing_known():
    asking._known.clear()


def asked(app) -> str:
    assert not app.exception and not app.error and len(app.warning) == 1
    assert not app.sidebar.selectbox  # nothing is drawn, so nothing is opened
    return app.warning[0].value.replace("\\", "")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "one.txt").write_text(TEXT)
    return tmp_path


@pytest.mark.parametrize("page", ["explore", "quality"])
def test_a_link_that_names_a_model_or_folder_asks_first(folder, monkeypatch, page):
    monkeypatch.setattr(service, "load_base", lambda model: pytest.fail(f"loaded {model}"))
    for query in ({"model": "evil/model"}, {"routers": str(folder)}, {"source": "folder", "folder": str(folder)}):
        said = asked(open_page(page, **query))
        assert "This link opens" in said and list(query.values())[-1] in said
    assert "evil/b" in asked(open_page("compare", b_routers="evil/b"))


def test_what_was_agreed_to_is_opened_and_not_asked_again(folder):
    link = {"source": "folder", "routers": "untrained", "folder": str(folder)}
    app = agreed(open_page("explore", **link))
    assert "In layer" in shown(app) and app.selectbox(key="file").value == "one.txt"
    assert "In layer" in shown(open_page("explore", **link))


def test_what_was_left_out_becomes_the_default(folder):
    app = open_page("explore", model="evil/model", source="sample", sample="news", routers="evil", window="9")
    app.button(key="leave_named").click().run()
    assert "In layer" in shown(app) and app.selectbox(key="model").value == "default"
    assert app.number_input(key="window").value == 9


def test_the_projects_own_names_are_not_asked_about():
    app = open_page("explore", model="default", routers="smollm2-135m-k8", source="sample", sample="news")
    assert "In layer" in shown(app) and not app.warning


def test_a_typed_name_is_not_asked_about(folder):
    app = open_page("explore", source="folder", routers="untrained")
    app.text_input(key="folder").set_value(str(folder)).run()
    assert "In layer" in shown(app) and not app.warning


def test_served_to_others_the_pages_open_no_path(folder, monkeypatch):
    monkeypatch.setenv(SERVED_AT, "0.0.0.0")
    app = open_page("explore", source="folder", routers="untrained")
    app.text_input(key="folder").set_value(str(folder)).run()
    assert "Paths are off" in app.error[0].value
    app = open_page("quality")
    app.text_input(key="quality_folder").set_value(str(folder)).run()
    assert "Paths are off" in app.error[0].value
    app = open_page("train", source="sample", routers="untrained")
    app.segmented_control(key="train_source").set_value("path").run()
    app.text_input(key="train_path").set_value(str(folder / "one.txt"))
    next(button for button in app.button if button.label == "Start fitting").click().run()
    assert "Paths are off" in app.error[0].value
    for model in ("gpt2", str(folder)):
        app = agreed(open_page("train", model=model))
        assert "Paths are off" in app.error[0].value
    monkeypatch.setenv(ROOTS, str(folder))
    app = open_page("explore", source="folder", routers="untrained")
    app.text_input(key="folder").set_value(str(folder)).run()
    assert "In layer" in shown(app)


def test_a_session_file_holds_no_absolute_path(monkeypatch, tmp_path):
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    values = {name: setting.default for name, setting in state.SETTINGS.items()}
    values |= {"model": str(home / "models" / "m"), "b_routers": str(tmp_path / "b"), "folder": str(home / "texts")}
    values |= {"source": "folder", "file": "one.txt", "part": 2, "routers": "runs/mine"}
    monkeypatch.setattr(sessions.st, "session_state", values)
    found = service.analysis(service.Settings("default", "untrained", 8, 2, 128, 4), TEXT)
    kept = sessions.capture(found)
    assert kept.text == TEXT and kept.settings["source"] == "folder"
    assert (kept.settings["model"], kept.settings["b_routers"]) == ("~/models/m", "b")
    assert kept.settings["routers"] == "runs/mine" and not {"folder", "file", "part"} & set(kept.settings)
    assert not any(str(tmp_path) in value or value.startswith("/") for value in kept.settings.values())
