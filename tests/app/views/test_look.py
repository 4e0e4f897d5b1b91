"""Colours, the strip's data and the charts."""

from __future__ import annotations

import itertools
import json

import numpy as np
import plotly.graph_objects as go
import pytest

from focus_core.analysis.display.cells import build_cells
from focus_core.analysis.display.palette import PALETTE, contrast, ink, luminance
from workbench.charts.group_sizes import all_sizes, layer_sizes, size_table
from workbench.charts.theme import diverging
from workbench.tokens.reads import pair_shares
from workbench.views.explore.pairs import pair_bar
from workbench.views.explore.token_map import MAX_COLUMNS, pool_groups, token_map
from workbench.widgets.page.markup import plain
from workbench.widgets.strip import strip_data

# Machado, Oliveira and Fernandes (2009), severity 1.0.
VISION = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def lab(color, vision):
    srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    xyz = to_xyz @ np.clip(vision @ linear, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(("count", "least"), [(8, 20), (16, 10)])
def test_group_colours_differ_for_every_kind_of_colour_vision(vision, count, least):
    points = [lab(color, VISION[vision]) for color in PALETTE[:count]]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(points, 2)) >= least


@pytest.mark.parametrize("color", PALETTE)
def test_printed_text_has_the_contrast_that_wcag_asks_for(color):
    assert contrast(ink(color), color) >= 4.5


def test_contrast_is_that_of_the_standard():
    assert luminance("#FFFFFF") == pytest.approx(1)
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


def test_the_strip_draws_the_groups_of_the_trace(make_trace):
    trace = make_trace("one two <script>alert(1)</script> four five six")
    cells = build_cells(trace.text, trace.offsets)
    data = strip_data(trace, [t.encode() for t in trace.tokens], cells, 1, selected=4, fade_unread=True)
    assert json.loads(json.dumps(data)) == data
    assert "".join(cell["t"] for cell in data["cells"]) == trace.text
    for token, cell in enumerate(data["cells"]):
        assert cell["g"][0] == trace.groups[1, token]
        assert set(cell["g"]) == set(np.flatnonzero(trace.membership[1, token]))
        assert cell["l"] == str(cell["g"][0])
    assert data["cells"][5]["f"] == 1  # after the selected token
    assert data["cells"][3]["f"] == 0  # in its window
    assert sum(group["share"] for group in data["groups"]) == pytest.approx(1)


def test_pooling_takes_the_most_frequent_group_of_each_run():
    groups = np.array([[0, 0, 1, 2, 2, 2, 3]])
    pooled, share, factor = pool_groups(groups, 4, columns=3)
    assert (pooled.tolist(), factor) == ([[0, 2, 3]], 3)
    assert np.allclose(share, [[2 / 3, 1, 1]])
    pooled, _, factor = pool_groups(groups, 4, columns=7)
    assert factor == 1 and (pooled == groups).all()


def test_long_maps_are_pooled_and_say_so(make_trace):
    figure = token_map(make_trace("w " * 1200 + "w"), dark=False)
    assert len(figure.data[0].x) <= MAX_COLUMNS
    assert "3 tokens" in figure.layout.title.text


def test_hover_texts_are_escaped(make_trace):
    figure = token_map(make_trace("a <b>bold</b> <script>"), dark=True)
    assert not any("<" in text for text in figure.data[0].text[0])


@pytest.mark.parametrize("dark", [False, True])
def test_charts_have_titles_and_axis_titles(make_trace, dark):
    trace = make_trace("one two three four five six seven")
    figures: list[go.Figure] = [
        token_map(trace, dark=dark, layer=1, token=2),
        layer_sizes(trace, 0, dark=dark),
        all_sizes(trace, dark=dark, layer=0),
        pair_bar(pair_shares(trace, 0), 0, dark=dark),
    ]
    for figure in figures:
        assert figure.layout.title.text
        assert figure.layout.xaxis.title.text
        assert figure.layout.template.layout.paper_bgcolor == ("rgb(17,17,17)" if dark else "white")


def test_white_print_reads_on_the_diverging_colours_of_the_dark_theme():
    assert min(contrast(color, "#FFFFFF") for color in diverging(dark=True)) >= 4.5


@pytest.mark.parametrize("num_groups", [4, 64])
def test_the_colour_bar_of_sizes_begins_at_none_and_is_neutral_at_the_even_split(make_trace, num_groups):
    trace = make_trace("one two three four five six seven", num_groups=num_groups)
    cells = all_sizes(trace, dark=False).data[0]
    positions, colors = zip(*cells.colorscale)
    assert cells.zmin == 0 and cells.zmax >= np.max(cells.z)
    assert positions[1] * cells.zmax == pytest.approx(1 / num_groups) and colors[1] == "#FFFFFF"


def test_sizes_add_up(make_trace):
    table = size_table(make_trace("one two three four five six seven"))
    totals = table.groupby("layer")[["first share", "member share", "first tokens"]].sum()
    assert np.allclose(totals["first share"], 1)
    assert np.allclose(totals["member share"], 2)
    assert (totals["first tokens"] == 7).all()


def test_markdown_is_shown_as_it_is():
    assert plain("*a* [x](y) <b> :red[z] $1$") == r"\*a\* \[x\]\(y\) \<b\> \:red\[z\] \$1\$"
