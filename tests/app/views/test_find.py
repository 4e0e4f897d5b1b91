"""The Find page on the real model, and its view models."""

from __future__ import annotations

import numpy as np
import pytest
from opening import open_page, paste, shown

from focus_core.analysis.search.gathering import HeadGroups, gathering
from focus_core.models import default_model
from focus_core.report.model import Card, Interval, TokenCount
from workbench.views.find.cached import Search
from workbench.views.find.show import label_rows, lift_chart, link_of, own_names, place_of, row_sentence, verdict

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")

TEXT = (
    "Nora Finch rowed to Corrie Point. The wind was cold, and the water was grey. Her brother sold rope in Scotland. "
    "Old Mr Hale waited at the gate with two lamps and a dog. Nobody saw the Finch boat return before May. "
)


def made_search(p: float = 0.001) -> Search:
    groups = np.random.default_rng(0).integers(0, 4, (2, 3, 200)).astype(np.int16)
    matches = groups[1, 2] == 3
    found = gathering(HeadGroups((5, 6), groups, 4), matches)
    table = found.table.assign(p=np.where(np.arange(24) == 0, p, 1.0))
    listed = table.head(9).assign(low=2.0, high=12.34)
    return Search(type(found)(table, found.matching, found.tokens), listed, 40, matches, 24)


def test_sentences_and_chart_name_the_surest_group():
    found = made_search()
    said = verdict(found, heads=True, what="Names")
    assert said.startswith("Names: 100% are in layer 6, head 2, group 3, ")
    assert "(95% interval 2.0 to 12)" in said and "\n\n1 of the 24 groups" in said
    first = found.listed.iloc[0].to_dict()
    assert row_sentence(first).replace("\N{NO-BREAK SPACE}", " ").endswith("p = 0.001.") and "group 3" in place_of(
        first, heads=False
    )
    assert link_of(first, heads=True) == {"v": "1", "layer": "6", "head": "2", "group": "3"}
    assert "head" not in link_of(first, heads=False)
    assert "no group holds significantly more" in verdict(made_search(p=0.4), heads=False, what="Names")
    assert [trace.name for trace in lift_chart(found, heads=True).data] == [
        f"head {head}" for head in sorted(found.listed["head"].unique())
    ]
    marks = [str(trace.marker.symbol[0]).removesuffix("-open") for trace in lift_chart(found, heads=True).data]
    assert len(set(marks)) == len(marks) > 1  # heads differ by more than colour


def test_labels_are_found_in_own_names_notes_and_guesses():
    token = (TokenCount(" sea", 1, 15, 30, 2.0),)
    cards = tuple(Card(3, group, 20, Interval(0.1), 20, 0.9, frequent=token, typical=token) for group in (5, 6))
    names = own_names({"ab12": {"4/1": "# Sea words\nof ships"}, "ab12/head-2": {"3/6": "no name, but SEAS"}})
    assert names == {(4, 0, 1): ("Sea words", "of ships"), (3, 2, 6): ("", "no name, but SEAS")}
    table = label_rows(cards, 1, names, "sea")
    assert table[["layer", "head", "group", "by"]].to_numpy().tolist() == [
        [3, 2, 6, "your own"],
        [4, 0, 1, "your own"],
        [3, 1, 5, "a guess"],
        [3, 1, 6, "a guess"],
    ]
    assert label_rows(cards, 1, names, "lamp").empty


@real_model
def test_the_page_ranks_groups_and_its_link_holds_the_search():
    app = paste("find", TEXT, window="16")
    said = shown(app)
    assert "groups of all layers" in said and "of the text." in said and "The matches in context" in said
    assert (app.query_params["find_by"], app.query_params["find_tag"]) == ("tag", "PROPN")
    contexts = " ".join(app.dataframe[-1].value["in context"])
    assert "[May]" in contexts and "[grey]" not in contexts
    app.segmented_control(key="find_by").set_value("word").run()
    assert "Type a word or phrase" in shown(app)
    app.text_input(key="find").set_value("finch").run()
    assert "2 places" in shown(app) and app.query_params["find"] == "finch"
    app.text_input(key="find").set_value("submarine").run()
    assert "Nothing in this text matches submarine" in shown(app)
    app.segmented_control(key="find_by").set_value("entity").run()
    assert "The matches in context" in shown(app)


@real_model
def test_a_pattern_from_a_link_and_one_that_cannot_be_read():
    app = paste("find", TEXT, find_by="pattern", find=r"\b[A-Z]\w+")
    assert "of the matches" in shown(app) and app.text_input(key="find").value == r"\b[A-Z]\w+"
    app.text_input(key="find").set_value("(").run()
    assert "The pattern cannot be read" in app.error[0].value


@real_model
def test_labels_and_the_empty_page():
    assert "You will see" in shown(open_page("find", source="paste"))
    app = paste("find", TEXT, find_by="label", find="no such label")
    assert "0 groups with" in shown(app)
