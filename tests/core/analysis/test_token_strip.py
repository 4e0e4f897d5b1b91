from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from focus_core import FocusConfig, FocusError, analyze, retrofit
from focus_core.analysis.display.notebook import MAX_TOKENS

TEXT = "Money $x^2$ and </script><script>alert(\"1\")</script> <!-- & 'quotes' 🥖 e\u0301 \u202e\u2028 end.\n\nA fox, a hen."


@pytest.fixture(params=["layer", "head"])
def trace(request, tiny_llama):
    config = FocusConfig(num_groups=4, top_k=2, window=4, sink_tokens=2, route_dim=8, router=request.param)
    with retrofit(tiny_llama.model, config).routing("hard") as focus:
        return analyze(focus, tiny_llama.tokenizer, TEXT)


def embedded(html: str) -> dict:
    return json.loads(re.search(r"^const DATA = (.*);$", html, re.MULTILINE)[1])


def test_the_strip_holds_the_text_once_and_the_groups_of_every_layer(trace):
    data = embedded(trace.show(layer=1)._repr_html_())
    assert "".join(cell["t"] for cell in data["cells"]) == TEXT
    tokens = [facts for cell in data["cells"] for facts in cell["k"]]
    assert [facts[0] for facts in tokens] == list(range(len(trace.tokens)))
    assert "".join(facts[3].replace(" ", "") for facts in tokens) == TEXT.encode().hex()
    assert data["row"] == 1
    joined = trace.config.key_top_k_of(0)
    for row, layer in enumerate(data["layers"]):
        groups = np.reshape(layer["groups"], (len(tokens), -1))
        assert (groups[:, 0] == trace.groups[row]).all()
        for token in range(len(tokens)):
            assert set(groups[token, :joined]) == set(np.flatnonzero(trace.membership[row, token]))
        weights = np.reshape(layer["weights"], groups.shape) / 1000
        assert np.abs(weights - np.take_along_axis(trace.assignment[row], groups, 1)).max() < 0.0011
        assert layer["margins"] == pytest.approx(1000 * (weights[:, joined - 1] - weights[:, joined]), abs=2)
        assert sum(group["share"] for group in layer["legend"]) == pytest.approx(1)
        assert layer["drawn"] == joined


def test_routers_per_head_say_what_a_token_reads(trace):
    for row, layer in enumerate(embedded(trace._repr_html_())["layers"]):
        if trace.head is None:
            assert "reads" not in layer
        else:
            assert [len(read) for read in layer["reads"]] == [2] * len(trace.tokens)
            assert all(trace.query_membership[row, token, read].all() for token, read in enumerate(layer["reads"]))


def test_text_cannot_leave_the_script(trace):
    html = trace.show()._repr_html_()
    assert html.lower().count("<script") == html.lower().count("</script") == 1
    assert html.endswith("})();</script>")
    data = next(line for line in html.splitlines() if line.startswith("const DATA"))
    assert data.isascii()
    assert not set("<>&") & set(data)
    assert "http" not in html.replace("http-equiv", "")


def test_the_saved_page_is_whole_and_fetches_nothing(trace, tmp_path):
    path = trace.show(2).save(tmp_path / "new" / "strip.html")
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page
    assert trace.show(2)._repr_html_() in page
    assert [each.name for each in path.parent.iterdir()] == ["strip.html"]


def test_a_trace_shows_itself_from_the_middle_layer(trace):
    assert trace._repr_html_() == trace.show(layer=1)._repr_html_()
    assert trace._repr_html_() != trace.show(layer=2)._repr_html_()
    assert len(repr(trace)) < 100


def test_layers_and_tokens_that_are_not_there_are_refused(trace):
    with pytest.raises(FocusError, match="Layer 3 is not in this trace: choose one of 0, 1, 2"):
        trace.show(layer=3)
    with pytest.raises(FocusError, match="is not in this trace"):
        trace.show(first=len(trace.tokens))


def test_a_long_text_is_shown_in_parts_that_say_so(trace):
    import dataclasses

    times = 8192 // len(trace.tokens) + 1
    lengthened = {
        name: np.concatenate([getattr(trace, name)] * times, axis=1)
        for name in ("scores", "assignment", "membership", "query_weights")
    }
    offsets = np.concatenate([trace.offsets + each * len(TEXT) for each in range(times)])
    long = dataclasses.replace(
        trace,
        text=TEXT * times,
        input_ids=np.tile(trace.input_ids, times),
        offsets=offsets,
        tokens=trace.tokens * times,
        token_bytes=trace.token_bytes * times,
        **lengthened,
    )
    html = long.show()._repr_html_()
    assert len(html) < 300_000
    first = embedded(html)
    shown = [facts[0] for cell in first["cells"] for facts in cell["k"]]
    assert MAX_TOKENS <= len(shown) < MAX_TOKENS + 30
    assert first["part"].startswith(f"Tokens 0 to {shown[-1]:,} of {len(long.tokens):,}; ")
    assert f"trace.show(first={shown[-1] + 1}) shows the next part" in first["part"]
    second = embedded(long.show(first=shown[-1] + 1)._repr_html_())
    assert second["cells"][0]["k"][0][0] == shown[-1] + 1
    assert embedded(trace._repr_html_())["part"] == ""


def test_the_table_has_a_row_for_every_layer_and_token(trace):
    table = trace.to_dataframe()
    assert len(table) == len(trace.layers) * len(trace.tokens)
    assert ("head" in table) == (trace.head is not None)
    for row, layer in enumerate(trace.layers):
        part = table[table["layer"] == layer].reset_index(drop=True)
        assert (part["token"] == np.arange(len(trace.tokens))).all()
        assert (part["group"] == trace.groups[row]).all()
        assert np.allclose(part["weight"], trace.assignment[row].max(-1))
        for token in range(len(trace.tokens)):
            start, end = part.loc[token, ["start", "end"]]
            assert part["text"][token] == TEXT[start:end]
            assert {int(g) for g in part["groups"][token].split()} == set(np.flatnonzero(trace.membership[row, token]))
            assert [int(g) for g in part["reads"][token].split()] == np.flatnonzero(
                trace.query_membership[row, token]
            ).tolist()
            assert part["score"][token] == trace.scores[row, token, part["group"][token]]
        assert part["is_sink"].sum() == 2


def test_nothing_of_the_app_is_imported():
    code = (
        "import sys, focus_core.analysis.display.notebook, focus_core.analysis.tables\n"
        "assert not {'streamlit', 'plotly', 'workbench'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
