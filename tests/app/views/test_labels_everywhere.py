"""Labels of groups and links to their pages, on every page that names groups."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from opening import open_page, shown
from streamlit.testing.v1.local_script_runner import LocalScriptRunner
from synthetic import synthetic_trace

from focus_core.analysis.display.cells import build_cells
from focus_core.models import default_model
from focus_core.shipped import DEFAULT
from workbench.charts.group_sizes import hover_names, layer_sizes
from workbench.engine import labels, service
from workbench.engine.service import Settings
from workbench.runs import notes
from workbench.shell import texts
from workbench.views.explore.token_map import token_map
from workbench.views.layers.charts import flow_map
from workbench.widgets.group_link import called, group_urls
from workbench.widgets.strip import strip_data

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


@pytest.fixture
def tagged() -> dict[int, str]:
    """The labels of layer 7 of the news sample, whose words are then tagged for every page."""
    config = service.router_config(DEFAULT, 8)
    settings = Settings(
        *("default", DEFAULT, config.num_groups, config.top_k, config.window, config.sink_tokens),
        read_share=config.read_share,
    )
    found = service.analysis(settings, texts.samples()["news"].read())
    labels.tags_of(found.trace)
    return labels.labels(found, found.trace.layers.index(7), "default")


@pytest.fixture
def sent(monkeypatch) -> list[list[Any]]:
    """The messages to the browser of each run, of pages whose words seem not to be tagged yet."""
    runs: list[list[Any]] = []
    forward = LocalScriptRunner.forward_msgs

    def record(self: LocalScriptRunner) -> list[Any]:
        runs.append(forward(self))
        return runs[-1]

    monkeypatch.setattr(LocalScriptRunner, "forward_msgs", record)
    monkeypatch.setattr("workbench.widgets.group_link.tags_ready", lambda trace: False)
    return runs


def places(messages: list[Any]) -> dict[str, list[tuple[int, ...]]]:
    """Where each fragment draws, by its id."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for message in messages:
        if message.HasField("delta") and message.delta.fragment_id:
            found.setdefault(message.delta.fragment_id, []).append(tuple(message.metadata.delta_path))
    return found


def test_a_link_names_the_group_at_its_end():
    (url,) = group_urls([5], 7, 1, {5: "nouns & names"})
    parts = urlsplit(url)
    assert parts.path == "/group" and unquote(parts.fragment) == "5: nouns & names"
    query = parse_qs(parts.query)
    assert {name: query[name] for name in ("v", "layer", "head", "group")} == {
        **{"v": ["1"], "layer": ["7"], "head": ["1"], "group": ["5"]}
    }
    assert "head" not in parse_qs(urlsplit(group_urls([5], 7, None, {})[0]).query)
    assert called(5, {}) == "5" and called(5, {5: "nouns"}) == "5: nouns"


def test_the_strip_and_charts_hold_labels_and_visible_text():
    trace = synthetic_trace("the whole sea and the sky", top_k=1)
    names = {int(trace.groups[0, 1]): "<b>nouns</b>"}
    data = strip_data(trace, (), build_cells(trace.text, trace.offsets), 0, names=names)
    assert [each["name"] for each in data["groups"] if each["name"]] == ["<b>nouns</b>"] and data["joins"] == 1
    assert data["cells"][1]["k"][0][1] == "·whole" and trace.tokens[1] == "Ġwhole"
    assert "&lt;b&gt;" in str(hover_names([int(trace.groups[0, 1])], names))
    for figure in (
        layer_sizes(trace, 0, names=names),
        token_map(trace, layer=0, names=names),
        flow_map(trace, 0, 1, names=(names, {})),
    ):
        assert "&lt;b&gt;nouns" in str(figure.to_dict()) and "<b>nouns" not in str(figure.to_dict())


@real_model
@pytest.mark.parametrize("page", ["explore", "attention", "layers", "balance", "group", "effects", "find", "compare"])
def test_pages_name_groups_and_link_to_them(page, tagged, sent):
    assert len(tagged) > 10
    more = {"token": "400"} if page in ("explore", "attention") else {"group": "3"}
    app = open_page(page, routers=DEFAULT, sample="news", layer="7", **more)
    said = shown(app)
    fragments = places(sent[-1])
    for path in [paths[0] for paths in fragments.values()]:
        # A fragment in another draws above all that its parent may lose of what it has drawn; see `labels_place`.
        around = [paths[0] for paths in fragments.values() if paths[0] == path[: len(paths[0])] and paths[0] != path]
        assert all(path[len(outer)] == 0 for outer in around)
    if page != "group":
        assert len(fragments) > 1
    listed = [option for box in app.selectbox for option in box.options]
    if page in ("explore", "attention", "group", "effects"):
        assert sum(f": {name} (" in option for option in listed for name in set(tagged.values())) > 5
    if page == "find":
        assert "All about one group" not in said
        return
    if page in ("effects", "compare"):
        return
    if page == "balance":
        app.session_state["twin_load"] = True
        return
    links = [
        value
        for each in app.dataframe
        for name in each.value.columns
        if name in ("group", "other group", "group in layer 7")
        for value in each.value[name]
    ]
    assert links and all(re.fullmatch(r"/group\?.*layer=\d+&head=0&group=\d+#.+", link) for link in links)
    assert all("sample=news" in link for link in links)
    assert any(": " in unquote(link.partition("#")[2]) for link in links)


@real_model
def test_an_own_name_comes_before_the_guess(tagged):
    group = next(iter(tagged))
    config = service.router_config(DEFAULT, 8)
    settings = Settings(
        *("default", DEFAULT, config.num_groups, config.top_k, config.window, config.sink_tokens),
        read_share=config.read_share,
    )
    found = service.analysis(settings, texts.samples()["news"].read())
    notes.keep(labels.notes_key(found.trace), {f"7/{group}": "# My ships\nof the sea"})
    assert labels.labels(found, found.trace.layers.index(7), "default")[group] == "My ships"
