"""Files that others wrote: one sentence for each wrong content, and never a wait."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from focus_core.errors import FocusError
from focus_core.io.files import to_json
from focus_core.io.reading import DEEPEST, parse_json, read_bytes, read_json, read_tensors
from focus_core.io.schema import Wrong, array, maybe, number, table, text, whole
from focus_core.results import run_key

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
CHECK = table(
    {"settings": table(), "points": array(table({"tokens": whole(1), "share": maybe(number(0, 1))}))}, {"name": text()}
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 200_000 + b"]" * 200_000, "nested too deep"),
        (b"[" * (DEEPEST + 2) + b"]" * (DEEPEST + 2), "nested too deep"),
        (b"[NaN]", "not finite"),
        (b"[1e999]", "not finite"),
        (b"[-Infinity]", "not finite"),
        (b"9" * 10_000, "not valid JSON"),
    ],
)
def test_json_that_is_refused(tmp_path, content, words):
    path = tmp_path / "f.json"
    path.write_bytes(content)
    with pytest.raises(FocusError, match=words) as error:
        read_json(path)
    assert str(path) in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_opened(tmp_path, kind):
    os.mkfifo(tmp_path / "pipe")
    path = {"pipe": tmp_path / "pipe", "device": Path("/dev/zero"), "folder": tmp_path}[kind]
    for read in (read_bytes, read_json, read_tensors):
        with pytest.raises(FocusError):
            read(path)


@pytest.mark.parametrize(
    "value",
    [
        *(None, 5, "x", [], {}),
        *({"settings": each, "points": []} for each in (None, 1, "x", [])),
        *({"settings": {}, "points": each} for each in (None, 1, "x", {}, [None], ["x"], [{}])),
        *({"settings": {}, "points": [{"tokens": each, "share": None}]} for each in (0, True, 1.5, "9", None, -1)),
        *({"settings": {}, "points": [{"tokens": 1, "share": each}]} for each in (2, -0.1, "x", True, [])),
        {"settings": {}, "points": [], "name": 7},
    ],
)
def test_values_of_another_shape_are_refused_by_their_place(value):
    with pytest.raises(FocusError, match=r"^f\.json is damaged or of another kind: .* (must|is missing)"):
        parse_json(json.dumps(value), "f.json", CHECK)


def test_values_of_the_shape_are_accepted_with_more_beside_them():
    value = {"settings": {"a": 1}, "points": [{"tokens": 3, "share": 0.5, "more": None}], "name": "n", "else": []}
    assert parse_json(json.dumps(value), "f.json", CHECK) == value


@given(JSON)
def test_any_value_is_accepted_or_refused_in_words(value):
    try:
        CHECK(value, "")
    except Wrong as error:
        assert str(error)


@given(JSON)
def test_json_that_is_written_is_valid_and_finite(value):
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(to_json(value), parse_constant=refuse)
    assert parse_json(to_json(value, indent=None), "x") == found
    assert to_json([math.nan, {"a": -math.inf}, 1.5], indent=None) == '[null, {"a": null}, 1.5]'


@pytest.mark.parametrize(
    "offsets", [["0", "4"], [None, None], [0, None], [[], {}], [4, 0], [0, 1e30], [0, 10**30], "x", None, 3]
)
def test_safetensors_with_wrong_offsets_are_refused(tmp_path, offsets):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(FocusError, match="safetensors"):
        read_tensors(tmp_path / "a.safetensors")


def test_tensors_come_back_with_their_metadata(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors", metadata={"key": "k"})
    metadata, tensors = read_tensors(tmp_path / "a.safetensors")
    assert metadata["key"] == "k" and torch.equal(tensors["a"], torch.ones(2))


def test_a_key_changes_with_every_part():
    parts = {"blocks": torch.arange(4).numpy(), "settings": {"a": 1}, "model": "x"}
    changes = ({"blocks": torch.arange(4).flip(0).numpy()}, {"settings": {"a": 2}}, {"model": "y"}, {"more": 1})
    keys = {run_key(**parts), *(run_key(**{**parts, **change}) for change in changes)}
    assert len(keys) == 5 and run_key(**parts) in keys
