"""Open tables fit a window of 1,200 pixels: their columns have widths, and the widths a sum."""

import pytest

from workbench.views.attention.tables import KEY_COLUMNS
from workbench.views.compare.tables import DIFFERING_COLUMNS, SURE_COLUMNS
from workbench.views.find.show import CONTEXT_COLUMNS
from workbench.views.group.tables import TOKEN_COLUMNS
from workbench.views.quality.kinds import KINDS_COLUMNS
from workbench.views.speed.columns import BASELINE_COLUMNS, CROSSOVER_COLUMNS, MODEL_COLUMNS
from workbench.views.speed.tables import crossovers, read_speed, shipped_speeds
from workbench.widgets.columns import PAGE, fitted

MARGINS = {name: SURE_COLUMNS[name] for name in ("margin in A", "margin in B")}
OF_TEXTS = (KEY_COLUMNS, DIFFERING_COLUMNS | MARGINS, CONTEXT_COLUMNS)


@pytest.mark.parametrize("columns", [KINDS_COLUMNS, BASELINE_COLUMNS, CROSSOVER_COLUMNS, MODEL_COLUMNS, *OF_TEXTS])
def test_tables_are_no_wider_than_a_page(columns):
    assert sum(width for _, width in columns.values()) <= PAGE


def test_the_tokens_of_a_group_fit_beside_a_chart():
    assert sum(width for _, width in TOKEN_COLUMNS.values()) <= (PAGE - 32) / 2


def test_every_column_of_the_summary_is_shown_and_a_short_header_has_the_long_name_as_hint():
    points = read_speed(shipped_speeds()["bench-narrow"].read_bytes(), "bench-narrow").points
    assert set(CROSSOVER_COLUMNS) == set(crossovers(points).columns)
    made = fitted(CROSSOVER_COLUMNS, {})["at tokens"]
    assert (made["label"], made["help"], made["width"]) == ("at", "at tokens", 56)
