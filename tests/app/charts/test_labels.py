"""Names beside points: none covers another or a point, and those of a column stay in order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.charts.labels import LINE, Named, beside, in_a_column

ONE = st.floats(0, 1)
NAMES = st.lists(st.tuples(ONE, ONE, st.sampled_from(["", "k=1", "block top-k"])), max_size=25)
SIZE = (400, 300)


def box(note) -> tuple[float, float, float, float]:
    """Where an annotation of `beside` is printed, in pixels, by Plotly's rules for anchors and shifts."""
    width = 6.3 * len(note["text"])
    left = note["x"] * SIZE[0] + note["xshift"] - {"left": 0, "center": 0.5, "right": 1}[note["xanchor"]] * width
    low = note["y"] * SIZE[1] + note["yshift"] - {"bottom": 0, "middle": 0.5, "top": 1}[note["yanchor"]] * LINE
    return left, low, left + width, low + LINE


@settings(max_examples=60, deadline=None)
@given(NAMES)
def test_names_cover_neither_points_nor_each_other(points):
    named = [Named(x, y, name, "#000000") for x, y, name in points]
    notes = beside(named, x_range=(0, 1), y_range=(0, 1), sizes=[SIZE])
    boxes = [box(note) for note in notes]
    for number, (left, low, right, high) in enumerate(boxes):
        assert left >= -1e-6 and low >= -1e-6 and right <= SIZE[0] + 1e-6 and high <= SIZE[1] + 1e-6
        for x, y, _ in points:
            assert not (left < x * SIZE[0] < right and low < y * SIZE[1] < high)
        for other in boxes[:number]:
            assert (
                min(right, other[2]) - max(left, other[0]) <= 1e-6 or min(high, other[3]) - max(low, other[1]) <= 1e-6
            )


def test_a_lonely_name_is_never_left_out():
    assert [note["text"] for note in beside([Named(1, 1, "k=1")], x_range=(0, 1), y_range=(0, 1))] == ["k=1"]


def test_a_name_without_room_goes_to_another_of_its_points_and_the_first_chooses_first():
    crowd = [Named(0.5 + x / 40, 0.5 + y / 20) for x in range(-10, 11) for y in range(-6, 7)]
    named = Named(0.5, 0.5, "k=1", elsewhere=((0.05, 0.05),))
    axes = {"x_range": (0, 1), "y_range": (0, 1), "sizes": [SIZE]}
    assert beside([Named(0.5, 0.5, "k=1"), *crowd], **axes) == []
    (note,) = beside([named, *crowd], **axes)
    assert (note["x"], note["y"]) == (0.05, 0.05)
    rivals = [Named(0.05, 0.05, name, elsewhere=((0.95, 0.95),)) for name in ("a" * 30, "b" * 30)]
    first, second = beside([*rivals, *crowd], **axes)
    assert first["text"][0] == "a" and first["x"] == 0.05 and (second["x"], second["y"]) != (0.5, 0.5)


@settings(max_examples=60, deadline=None)
@given(st.lists(ONE, max_size=20, unique=True))
def test_a_column_keeps_its_order_and_its_distances(heights):
    points = [Named(0.1, y, f"{y}") for y in heights]
    notes = in_a_column(points, y_range=(0, 1), height=300)
    lines = [note["y"] * 300 - note["ay"] for note in notes]
    assert [note["y"] for note in notes] == sorted(heights)
    assert all(after - before >= LINE - 1e-6 for before, after in pairwise(lines))
    assert all(LINE / 2 - 1e-6 <= line <= 300 - LINE / 2 + 1e-6 for line in lines)
