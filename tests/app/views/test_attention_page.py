"""The Attention page on the real model, and its view models."""

from __future__ import annotations

import re

import numpy as np
import pytest
from opening import TEXT, open_page, paste, shown
from synthetic import synthetic_trace

from focus_core.analysis.interventions.attention import TokenAttention
from focus_core.models import default_model
from workbench.views.attention.charts import weights_chart
from workbench.views.attention.tables import (
    DRAWN,
    head_table,
    key_kinds,
    key_table,
    pooled_sentence,
    start_token,
    verdict,
)

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def found() -> TokenAttention:
    full = np.array([[0.3, 0.1, 0.2, 0.1, 0.1, 0.2]], dtype=np.float32)
    exact = np.array([[True, False, True, False, True, True]])
    summarised = np.array([[False, True, False, False, False, False]])
    weights = full * exact / 0.8
    return TokenAttention(weights, full, exact, summarised, np.arange(6) % 4, np.array([0.25], dtype=np.float32))


@real_model
def test_the_page_says_what_a_token_reads():
    app = paste("attention", TEXT, layer="6", token="100", window="16")
    said = shown(app)
    assert "of its full attention. It drops the others, and the head's output changes by" in said
    assert "All query heads of this key/value head" in said
    next(box for box in app.number_input if box.label == "Token").set_value(3)
    assert "reads all 4 tokens so far" in shown(app.run())
    assert app.query_params["token"] == "3"


@real_model
@pytest.mark.parametrize("states", ["untouched", "routed"])
def test_a_token_reads_as_much_as_on_the_explore_page(states):
    settings = {
        "layer": "17",
        "token": "125",
        "window": "16",
        "share": "6",
        "routers": "smollm2-135m-narrow64",
        "states": states,
    }
    here = shown(paste("attention", TEXT, **settings))
    there = shown(paste("explore", TEXT, **settings))
    read, keys = map(int, re.search(r"reads (\d+) of (\d+) tokens exactly", here).groups())
    before, others = map(int, re.search(r"reads \*\*(\d+) of the (\d+)\*\* tokens before it", there).groups())
    assert (read, keys) == (before + 1, others + 1)  # itself


@real_model
def test_without_a_text_the_page_teaches():
    assert "You will see" in shown(open_page("attention", source="paste"))


def test_keys_are_named_by_how_they_are_read():
    kinds = key_kinds(found(), 0, window=1, sink_tokens=1)
    assert kinds.tolist() == ["sink", "in a summary", "read from afar", "dropped", "window", "window"]


def test_tables_and_sentence_hold_the_numbers():
    trace = synthetic_trace("a b c d e f", window=1, sink_tokens=1)
    table = key_table(trace, found(), 0)
    assert table["token"].tolist()[0] == 0 and table["distance"].tolist()[0] == 5
    heads = head_table(found())
    assert heads["weight read"][0] == pytest.approx(0.8) and heads["dropped"][0] == pytest.approx(0.1)
    said = verdict(trace, found(), 0, 5)
    assert "reads 4 of 6 tokens exactly; they hold 80.0%" in said and "changes by 25.0%" in said


def test_thousands_of_keys_are_pooled_and_counted():
    count = DRAWN + 700
    trace = synthetic_trace("w " * (count - 1) + "w", window=1, sink_tokens=1)
    count = len(trace.tokens)
    full = np.linspace(2, 1, count, dtype=np.float32)[None] / np.linspace(2, 1, count).sum()
    exact = np.arange(count)[None] % 2 == 0
    many = TokenAttention(full * exact, full, exact, ~exact, np.zeros(count, int), np.zeros(1, dtype=np.float32))
    table = key_table(trace, many, 0)
    said = pooled_sentence(table)
    assert f"draw the {DRAWN} tokens with the most weight. The other {count - DRAWN:,} hold" in said
    assert f"{full[0, DRAWN:].sum():.2%} of full attention" in said
    assert f"{(full * exact)[0, DRAWN:].sum():.2%} of what is really read" in said
    figure = weights_chart(table.head(DRAWN), "full", title="Full attention", most=0.3)
    assert sum(len(each.x) for each in figure.data if each.mode == "markers") == DRAWN
    assert pooled_sentence(table.head(DRAWN)) == ""


def test_the_page_starts_with_a_word_in_the_middle():
    trace = synthetic_trace("One little island lies far beyond the grey winter harbour, they said.\n", window=1)
    token = start_token(trace)
    start, end = trace.offsets[token]
    assert trace.text[start:end].strip().isalpha() and abs(token - len(trace.tokens) // 2) < 5
    assert start_token(synthetic_trace(", . ; : ! ? , . ; :", window=1)) < 10


@pytest.mark.parametrize("dark", [False, True])
def test_charts_have_titles(dark):
    table = key_table(synthetic_trace("a b c d e f", window=1), found(), 0)
    figure = weights_chart(table, "full", title="Full attention", most=0.3, dark=dark)
    assert figure.layout.title.text and figure.layout.yaxis.title.text and len(figure.data) > 4
