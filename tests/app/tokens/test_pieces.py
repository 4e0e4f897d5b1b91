"""Tokens that hold a part of a character are spelled by their bytes; short texts are called short."""

import pytest
from opening import paste, shown
from synthetic import synthetic_trace

from focus_core.analysis.tokens import spelled
from focus_core.models import default_model
from focus_core.text import token_bytes
from workbench.tokens.pieces import token_names
from workbench.widgets.short_text import too_short

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def test_bytes_of_a_cut_character_are_spelled():
    whole = "钟 é\n"
    assert spelled(whole.encode()) == whole
    assert spelled("钟".encode()[:2]) == "<0xE9><0x92>" and spelled(b"a\xff") == "a<0xFF>"


@real_model
def test_no_token_is_a_replacement_character():
    from workbench.engine import service

    tokenizer = service.load_base("default").tokenizer
    ids = tokenizer("港口的钟停了。")["input_ids"]
    names = token_names(tokenizer, ids)
    assert set(names) == set(ids) and not any("\N{REPLACEMENT CHARACTER}" in name for name in names.values())
    cut = [name for name in names.values() if name.startswith("<0x")]
    assert cut and len(set(cut)) == len(cut) and b"".join(token_bytes(tokenizer, ids)).decode() == "港口的钟停了。"


def test_a_short_text_is_called_short_and_a_long_one_is_not():
    assert "31 tokens, too few" in too_short(synthetic_trace("w " * 30 + "w"))
    assert not too_short(synthetic_trace("w " * 300 + "w"))


@real_model
def test_the_pages_of_groups_say_that_a_text_is_too_short():
    for page in ("find", "report", "group"):
        said = shown(paste(page, "The keeper climbed the stairs."))
        assert "too few to mean something: none is beyond the window" in said, page
