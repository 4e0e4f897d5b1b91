from __future__ import annotations

import numpy as np
import pytest

from focus_core.analysis.tokens import margins
from workbench.tokens.tables import ambiguous, token_table


def test_margin_is_between_the_last_group_joined_and_the_first_left_out(make_trace):
    weights = np.array([[[0.5, 0.3, 0.15, 0.05], [0.26, 0.25, 0.25, 0.24]]], dtype=np.float32)
    assert np.allclose(margins(make_trace("a b", assignment=weights, top_k=1), 0), [0.2, 0.01])
    trace = make_trace("a b", assignment=weights, top_k=2)
    assert np.allclose(margins(trace, 0), [0.15, 0.0])
    assert ambiguous(trace, 0)["token"].tolist() == [1, 0]
    everything = make_trace("a b", assignment=weights, top_k=4)
    assert np.isinf(margins(everything, 0)).all()
    assert len(ambiguous(everything, 0)) == 0


def test_the_token_table_holds_every_layer(make_trace):
    trace = make_trace("one two three four")
    table = token_table(trace, [b"one", b" two", b" three", b" four"])
    assert "".join(table["text"]) == trace.text
    assert table["bytes"][1] == "20 74 77 6f"
    for row, layer in enumerate(trace.layers):
        for token in range(4):
            groups = {int(g) for g in table[f"layer_{layer}_groups"][token].split()}
            assert groups == set(np.flatnonzero(trace.membership[row, token]))
            assert table[f"layer_{layer}_weight"][token] == pytest.approx(trace.assignment[row, token].max(), abs=1e-4)
