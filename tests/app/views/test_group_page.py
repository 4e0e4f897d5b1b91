"""The Group page on the real model, and its view models."""

from __future__ import annotations

import dataclasses
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pandas as pd
import pytest
from opening import TEXT, open_page, paste, shown
from synthetic import synthetic_trace

from focus_core.models import default_model
from focus_core.report.labels import as_note, guess, named
from focus_core.report.model import Card, Interval, TagShare, TokenCount
from focus_core.report.tags import TAGS
from focus_core.resources import runs_dir
from focus_core.shipped import DEFAULT
from workbench.engine import labels, service
from workbench.engine.service import Settings
from workbench.runs import notes
from workbench.shell import handover, texts
from workbench.views.group.tables import matched_rows, neighbour_rows, reading_counts, reading_rows
from workbench.views.report.build import report_of

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def card(count: int = 20, top: int = 2, tags: tuple[TagShare, ...] = ()) -> Card:
    tokens = (TokenCount(" sea", 1, top, 30, 2.0), TokenCount(" sky", 2, 1, 4, 1.0))
    return Card(3, 5, count, Interval(0.1), count, 0.9, frequent=tokens, typical=tokens, tags=tags)


@real_model
def test_the_page_shows_a_group_and_keeps_its_name():
    app = paste("group", TEXT, layer="4", group="3", window="16")
    said = shown(app)
    assert "Group 3 of layer 4" in said and "an even split is 12.5%" in said
    for part in ("Its tokens", "In context", "What reads it", "In the layers beside it", "Nearest groups"):
        assert part in said
    assert app.query_params["group"] == "3"
    name = next(box for box in app.text_input if box.label == "Your name of it")
    name.set_value("sea words")
    assert "Group 3 of layer 4: sea words" in shown(app.run()).replace("\\", "")
    assert "# sea words" in (runs_dir() / notes.NOTES).read_text()
    again = paste("group", TEXT, layer="4", group="3", window="16")
    assert "Group 3 of layer 4: sea words" in shown(again).replace("\\", "")


@real_model
def test_a_link_brings_a_pasted_text_along_in_the_same_browser_alone(monkeypatch):
    monkeypatch.setattr(handover, "_browser", lambda: "mine")
    app = paste("group", TEXT, layer="4", group="3", window="16")
    table = next(frame.value for frame in app.dataframe if "cosine of centroids" in frame.value)
    link = urlsplit(table["group"][0])
    query = dict(parse_qsl(link.query))
    assert "Mara" not in table["group"][0] and query["source"] == "paste"
    tab = open_page("group", **query)
    assert f"Group {query['group']} of layer 4" in shown(tab) and tab.text_area(key="paste").value == TEXT
    assert "text" not in tab.query_params
    monkeypatch.setattr(handover, "_browser", lambda: "another")
    assert "You will see" in shown(open_page("group", **query))


@real_model
def test_without_a_text_the_page_teaches():
    assert "You will see" in shown(open_page("group", source="paste"))


def test_a_guess_comes_with_its_evidence():
    assert guess(card(count=3)).label == ""
    one = guess(card(top=15))
    assert "sea" in one.label and "15 of its 20 tokens" in one.evidence
    tag = TagShare("PROPN", 12, Interval(0.8, 0.6, 0.9), 0.1)
    found = guess(card(tags=(tag,)))
    assert found.label == found.short == "names" and "80% of its words are tagged PROPN" in found.evidence
    weak = TagShare("PROPN", 12, Interval(0.8, 0.12, 0.9), 0.1)
    assert guess(card(tags=(weak,))).label.startswith("tokens such as")


def test_examples_have_the_part_of_speech_and_are_words():
    tag = TagShare("AUX", 12, Interval(0.8, 0.6, 0.9), 0.1)
    words = {"AUX": ("is", "Is", "'", "was", "are", "be", "am"), "VERB": ("kept",)}
    assert guess(card(tags=(tag,)), words).label == "auxiliary verbs, such as is, was, are, be"
    assert guess(card(tags=(tag,)), {"VERB": ("kept",)}).label == "auxiliary verbs"
    marks = (TokenCount(" .", 1, 2, 30, 2.0), TokenCount(" ", 3, 2, 30, 2.0), TokenCount(" sky", 2, 2, 4, 1.0))
    found = guess(dataclasses.replace(card(), frequent=marks, typical=marks))
    assert (found.label, found.short) == ("tokens such as sky", "“sky”")
    assert guess(dataclasses.replace(card(), frequent=marks, typical=marks[:2])).label == ""


@real_model
def test_every_example_of_a_real_text_has_its_tag():
    settings = Settings("default", DEFAULT, 64, 1, 128, 4, read_share=0.15)
    found = service.analysis(settings, texts.samples()["news"].read())
    row = 7
    tags, words = labels.tags_of(found.trace), labels.words_of(found.trace, row)
    tagged = {(int(found.trace.groups[row][t]), TAGS[c], w) for t, c, w in zip(tags.tokens, tags.codes, tags.words)}
    assert sum(len(each) for own in words.values() for each in own.values()) > 100
    for group, own in words.items():
        for tag, each in own.items():
            assert all((group, tag, word) in tagged for word in each)
    said = [guess(each, words.get(each.group)) for each in report_of(found, model="default", examples=0, seed=0).cards]
    named_by_tag = [(each.label, each.evidence) for each in said if ", such as" in each.label]
    assert named_by_tag
    for label, evidence in named_by_tag:
        tag = evidence.split("tagged ")[1].split()[0].rstrip(",")
        have = {word for _, its, word in tagged if its == tag}
        assert set(label.split(", such as ")[1].split(", ")) <= have
    shown_names = labels.labels(found, row, "default")
    assert shown_names and not any("such as" in name for name in shown_names.values())


@pytest.mark.parametrize("note", [("", ""), ("", "a\nb"), ("ships", ""), ("ships", "they sail\n\nfar")])
def test_names_and_notes_share_one_text(note):
    assert named(as_note(*note)) == note


def test_reading_is_counted_over_distant_pairs():
    trace = synthetic_trace("w " * 40 + "w", top_k=1)
    read, pairs = reading_counts(trace, 1)
    distant = [(q, k) for q in range(41) for k in range(1, q - 2)]
    assert pairs.sum() == len(distant)
    groups = trace.groups[1]
    assert read.sum() == sum(groups[q] == groups[k] for q, k in distant)
    assert np.array_equal(read.sum(0), np.diag(np.diag(read.sum(0)))) and (read <= pairs).all()
    table = reading_rows(read * 10, pairs * 10, 2, of="readers")
    assert table["group"].tolist()[0] == 2 and table["read"].tolist()[0] == 1


def test_intervals_of_reading_are_over_stretches_of_the_queries():
    trace = synthetic_trace("w " * 639 + "w", top_k=1)
    read, pairs = reading_counts(trace, 0)
    assert len(read) == 16 and pairs.sum((1, 2)).tolist() == [
        sum(max(0, query - 3) for query in range(start, start + 40)) for start in range(0, 640, 40)
    ]
    # A rate of one in four, drawn for each pair: almost every interval holds it, and they are not wide.
    drawn = np.random.default_rng(0).binomial(pairs.astype(int), 0.25)
    rows = pd.concat([reading_rows(drawn, pairs, group, of=of) for group in range(4) for of in ("readers", "read")])
    assert len(rows) == 32 and (rows["high"] - rows["low"]).max() < 0.05
    assert ((rows["low"] < 0.25) & (rows["high"] > 0.25)).mean() > 0.85
    short = reading_counts(synthetic_trace("w " * 40 + "w", top_k=1), 0)
    assert reading_rows(*(each * 10 for each in short), 2, of="read")["low"].isna().all()


def test_a_partner_is_shown_beside_the_best_match_by_chance():
    trace = synthetic_trace("w " * 639 + "w", num_layers=3)
    same = np.stack([trace.assignment[0], trace.assignment[0], trace.assignment[2]])
    found = matched_rows(dataclasses.replace(trace, assignment=same), 1, 2).set_index("layer")
    assert found.loc[0, ["of this group", "low", "high"]].tolist() == [1, 1, 1]
    assert 0.25 < found.loc[0, "by chance"] < 0.4  # the best of four groups holds somewhat more than a quarter
    assert abs(found.loc[2, "of this group"] - found.loc[2, "by chance"]) < 0.1
    assert found.loc[2, "low"] < found.loc[2, "by chance"] < found.loc[2, "high"]


def test_partners_and_neighbours():
    trace = synthetic_trace("w " * 60 + "w", num_layers=3)
    assert matched_rows(trace, 0, 1)["layer"].tolist() == [1]
    found = matched_rows(trace, 1, 1)
    assert found["layer"].tolist() == [0, 2] and found["of this group"].between(0, 1).all()
    centroids = np.array([[1.0, 0], [0.9, 0.1], [0, 1]])
    assert neighbour_rows(centroids, 0)["group"].tolist() == [1, 2]
