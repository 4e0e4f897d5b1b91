"""Small defects that users met on pages, each with the way to see it."""

from __future__ import annotations

import json
import logging
import re

import pytest
from opening import ROOT, open_page, paste, shown

from focus_core.models import default_model
from focus_core.resources import data_dir
from focus_core.shipped import DEFAULT
from workbench.engine import service
from workbench.shell import texts
from workbench.views.write.show import speed_note

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")
TEXT = "Mara rowed to the island. " + "The water was grey and the wind was cold. " * 30 + "Mara rowed home."


@real_model
def test_effects_starts_with_the_group_of_a_link_without_a_warning(caplog):
    app = paste("effects", TEXT, layer="4", window="16")
    largest = next(each for each in app.selectbox if each.key == "effects_group_page").options[0].split()[1].strip(":")
    with caplog.at_level(logging.WARNING):
        app = paste("effects", TEXT, layer="4", group=largest, window="16")
    shown(app)
    assert app.segmented_control(key="effect_which").value == "chosen"
    assert not [each.value for each in app.warning] and "effect_which" not in caplog.text


@real_model
def test_the_title_of_balance_is_true_of_narrow_groups():
    app = open_page("balance", routers=DEFAULT, sample="news")
    shown(app)
    (title,) = [each.value for each in app.header]
    assert title == "Balance: how evenly do groups fill?" and "Sinkhorn" not in title


def test_hints_of_write_are_gone_before_it_writes():
    """The place of the last hint is emptied above all that takes time."""
    for name, slow in (("main", "_write(request)"), ("_compare", "prepare(")):
        page = (ROOT / "pages" / "write.py").read_text(encoding="utf-8")
        body = page.split(f"def {name}(")[1].split("\n\n\ndef ")[0]
        assert -1 < body.index("below = st.empty()") < body.index(slow) < body.index("with below.container()")


def test_write_says_up_to_which_length_routing_is_not_faster():
    record = json.loads((data_dir() / "results" / "bench-model-narrow.json").read_text(encoding="utf-8"))
    speeds = {r["tokens"]: r["speedup"] for r in record["results"] if (r["task"], r["routing"]) == ("decode", "hard")}
    slow = max(tokens for tokens, speed in speeds.items() if speed <= 1)
    assert f"After {slow:,} tokens or fewer" in speed_note() and record["made"]["device"] in speed_note()
    assert f"Here {slow:,} tokens stand before" in speed_note(slow)
    assert speed_note(min(tokens for tokens in speeds if tokens > slow)) == ""


@real_model
def test_write_begins_with_a_document_longer_than_that():
    app = open_page("write")
    said = shown(app)
    text = texts.samples()[str(app.selectbox(key="before").value)].read()
    slow = re.search(r"After ([\d,]+) tokens or fewer the routed model decodes no faster", said)
    assert slow is not None
    assert len(service.encoding("default", text).input_ids) > max(2048, int(slow[1].replace(",", "")))


def test_the_mark_of_the_figure_covers_no_letter_beside_its_word():
    css = (ROOT / "workbench" / "views" / "home" / "figure.css").read_text(encoding="utf-8")
    (rule,) = re.findall(r"\.asks \{([^}]*)\}", css)
    assert "outline" not in rule and "border" not in rule and "box-shadow: 0 2px 0" in rule


@real_model
def test_partners_show_which_they_are_and_no_empty_column():
    app = open_page("explore", routers=DEFAULT, sample="news", layer="7", token="440")
    shown(app)
    table = next(each.value for each in app.dataframe if "which" in each.value.columns)
    assert set(table["which"]) <= {"nearest", "farthest"} and table["group"].str.contains("/group?", regex=False).all()
