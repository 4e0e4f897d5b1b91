"""The Write page on the real model, without a browser."""

from __future__ import annotations

import numpy as np
import pytest
from opening import open_page, shown

from focus_core.generation import generate_text
from focus_core.models import default_model
from focus_core.shipped import DEFAULT
from workbench.engine.service import Settings, router_config
from workbench.views.write.pairs import PairRequest, change_chart, compare_prompts, pair_table, pair_verdict
from workbench.views.write.run import Draft, Request, write_pair
from workbench.views.write.show import colors, draft_line, kl_chart, likeliest, token_table, verdict

pytestmark = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")

PROMPT = "The keeper climbed the stairs with a lamp, and the sea was loud. " * 20


def request(prompt: str = PROMPT, new_tokens: int = 6, **changes) -> Request:
    own = router_config(DEFAULT, 8)
    changes = {"read_share": own.read_share, "window": own.window, **changes}
    settings = Settings("default", DEFAULT, own.num_groups, own.top_k, sink_tokens=own.sink_tokens, **changes)
    return Request(prompt, settings, new_tokens, 0.0, 0, False)


def test_both_models_write_what_the_command_writes_and_predictions_are_along_them():
    drafts: list[tuple[str, int]] = []
    pair = write_pair(request(read_share=0.02), lambda draft: drafts.append((draft.mode, len(draft.tokens))))
    expected = {
        w.routing: w.tokens
        for w in generate_text(PROMPT, routers=DEFAULT, compare=True, max_new_tokens=6, full_below=0)
    }
    assert pair.written[0].tokens == expected["off"]
    assert drafts[:3] == [("off", 0), ("off", 1), ("off", 2)] and drafts[-1][0] == "hard"
    for side, written in enumerate(pair.written):
        assert "".join(pair.pieces[side]) == written.text and tuple(pair.along[side].tokens) == written.tokens
        table = token_table(pair, side)
        assert np.allclose(table["change"], table["log-probability, routed"] - table["log-probability, untouched"])
    # At temperature 0 each model's own tokens are its likeliest ones.
    top = likeliest(pair, 0, 0)
    assert top["untouched"][0] == pair.names[pair.written[0].tokens[0]] and len(top) == 10
    along = pair.along[1]
    assert 0 < along.kept_pairs < along.causal_pairs
    assert f"{along.kept_pairs / along.causal_pairs:.0%} of the pairs" in verdict(pair)
    assert len(kl_chart(pair, 1).data[0].y) == 6


def test_an_exception_while_writing_leaves_the_model_as_it_was():
    class Stop(Exception):
        pass

    def stop(draft: Draft) -> None:
        if len(draft.tokens) == 2:
            raise Stop

    with pytest.raises(Stop):
        write_pair(request("A lamp.", new_tokens=3), stop)
    assert [w.routing for w in write_pair(request("A lamp.", new_tokens=2), lambda draft: None).written] == [
        "off",
        "hard",
    ]


def test_tints_grow_with_the_change_and_drafts_say_what_is_read():
    assert colors(0.0) == ("", "") and colors(-5) == ("#D55E00", "#000000") and colors(5)[0] == "#0072B2"
    draft = Draft("hard", 1000, [1, 2, 3], "abc", 0.5)
    assert draft_line(draft, 0.15, 128, 4) == "3 tokens · 4.0 tokens per second · a token reads about 263 of 1,003 keys"
    assert "reads 1,003 of 1,003" in draft_line(Draft("off", 1000, [1, 2, 3]), 0.15, 128, 4)


def test_the_page_writes_and_shows_both():
    app = open_page("write")
    assert "Press Write" in shown(app)
    app.selectbox(key="before").set_value("").run()
    app.number_input(key="new_tokens").set_value(4)
    next(button for button in app.button if button.label == "Write").click()
    app.run()
    said = shown(app)
    assert "Both models write the same 4 tokens" in said and "fits into the window" in said
    app.text_area(key="prompt").set_value("  ")
    next(button for button in app.button if button.label == "Write").click()
    app.run()
    assert "The prompt is empty" in app.error[0].value


def test_two_prompts_that_differ_are_compared():
    app = open_page("write", write_as="compare")
    assert "Press Compare" in shown(app)
    app.selectbox(key="before").set_value("").run()
    next(button for button in app.button if button.label == "Compare").click()
    said = shown(app.run())
    assert "shared tokens after it" in said and "likeliest next token" in said
    assert list(app.dataframe[0].value.columns)[1:] == [
        f"{name}, after the {prompt}" for name in ("untouched", "routed") for prompt in ("first", "second")
    ]
    app.text_area(key="second_prompt").set_value(app.text_area(key="first_prompt").value)
    next(button for button in app.button if button.label == "Compare").click()
    app.run()
    assert "Both prompts are the same" in app.error[0].value


def test_an_edit_moves_only_what_follows_it():
    settings = request().settings
    found = compare_prompts(PairRequest(PROMPT, "He saw a ship at dawn.", "He saw a dog at dawn.", settings))
    table = pair_table(found)
    assert table["first"].tolist()[:5] == ["He", "·saw", "·a", "·ship", "·at"] and table["second"][3] == "·dog"
    edited = table["change, untouched"].isna().to_numpy().tolist()
    assert edited == [False, False, False, True, False, False, False]
    assert table[["change, untouched", "change, routed"]].iloc[:3].abs().to_numpy().max() < 1e-3
    assert len(change_chart(found).data) == 2 and "3 shared tokens" in pair_verdict(found)


@pytest.mark.parametrize("task", ["continue", "compare"])
def test_a_file_can_stand_before_the_prompt(task):
    app = open_page("write", write_as=task)
    app.selectbox(key="before").set_value("file").run()
    assert "Press" in shown(app) and [each.label for each in app.get("file_uploader")] == ["Document"]
