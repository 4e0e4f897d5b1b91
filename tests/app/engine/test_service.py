"""The app's calls into the engine: what is computed once."""

from __future__ import annotations

from typing import Any

import pytest
from opening import TEXT, paste, shown

from focus_core import FocusConfig, FocusError, analyze, retrofit
from focus_core.models import default_model
from focus_core.text import encode
from workbench.engine import service

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


@pytest.fixture
def tokenised(monkeypatch) -> list[str]:
    """Every text that the default model's tokenizer is called on, in order."""
    calls: list[str] = []
    kind = type(service.load_base("default").tokenizer)
    genuine = kind.__call__

    def counting(self: Any, text: str, *args: Any, **options: Any) -> Any:
        calls.append(text)
        return genuine(self, text, *args, **options)

    monkeypatch.setattr(kind, "__call__", counting)
    return calls


@real_model
def test_a_new_text_is_tokenised_once_for_all_pages_routers_and_settings(tokenised):
    for number, name in enumerate(("explore", "compare", "report", "linguistics", "sparsity", "balance", "layers")):
        text = f"{TEXT} That was page {number}."
        assert shown(paste(name, text))
        assert tokenised.count(text) == 1, name
    text = f"{TEXT} That was the last one."
    paste("explore", text)
    paste("explore", text, states="routed", k="1", window="8")
    paste("sparsity", text, routers="smollm2-135m-k8-heads-lm", k="1", computed="mass")
    assert tokenised.count(text) == 1


@real_model
def test_the_tokens_are_those_of_the_engine_and_nobody_can_change_them():
    found = service.encoding("default", TEXT)
    fresh = encode(service.load_base("default").tokenizer, TEXT, opening=True)
    assert (found.input_ids == fresh.input_ids).all() and (found.offsets == fresh.offsets).all()
    assert found.tokens == fresh.tokens and service.encoding("default", TEXT) is found
    with pytest.raises(ValueError, match="read-only"):
        found.input_ids[0] = 1


def test_a_trace_from_known_tokens_is_the_same_and_no_longer_than_the_model(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=2, window=4, route_dim=8))
    text = "Mara rowed to the island, and the water was grey."
    known = encode(tiny_llama.tokenizer, text, opening=True)
    with focus.routing("hard"):
        own = analyze(focus, tiny_llama.tokenizer, text)
        given = analyze(focus, tiny_llama.tokenizer, text, encoding=known)
        assert (own.input_ids == given.input_ids).all() and (own.scores == given.scores).all()
        long = encode(tiny_llama.tokenizer, text * 100, opening=True)
        with pytest.raises(FocusError, match="limit here is"):
            analyze(focus, tiny_llama.tokenizer, text * 100, encoding=long)
