"""Learning rates: a best one outside the first grid is found and bracketed; what was not bracketed is said to be so."""

import json
import math
from itertools import pairwise

import pytest

from focus_core import FocusError
from focus_core.reproduce.studies.rates import RateSearch, rate_remark, search_rate
from focus_core.resources import data_dir


def valley(best):
    """A loss that falls towards a rate and rises behind it, on the scale of orders of magnitude."""
    return lambda rate: 3.0 + abs(math.log10(rate) - math.log10(best))


@pytest.mark.parametrize("best", [2e-6, 3e-5, 1e-3, 4e-2, 0.5])
def test_a_best_rate_outside_the_first_grid_is_found_and_bracketed(best):
    tried = []

    def loss(rate):
        tried.append(rate)
        return valley(best)(rate)

    found = search_rate(loss, (3e-4, 1e-3, 3e-3))
    assert found.bracketed and best / 2 < found.best < best * 2
    assert len(tried) == len(set(tried)) and {3e-4, 1e-3, 3e-3} <= set(tried)
    rates = [rate for rate, _ in found.trials]
    assert rates == sorted(tried) and found.words.startswith("bracketed by")
    assert all(2 <= high / low <= 4 for low, high in pairwise(rates))


def test_a_search_that_ends_at_an_edge_says_so():
    found = search_rate(valley(10.0), (1e-5, 5e-5, 1e-4), most=2)
    assert not found.bracketed and found.words == "grid not bracketed" and len(found.trials) == 5
    assert found.to_dict()["bracketed"] is False


def test_one_rate_is_a_start_and_diverged_training_is_no_best():
    found = search_rate(lambda rate: valley(1e-3)(rate) if rate < 5e-3 else math.nan, [1e-2])
    assert found.best == pytest.approx(1e-3) and found.bracketed
    trials = {trial["rate"]: trial["loss"] for trial in found.to_dict()["trials"]}
    assert trials[1e-2] is None and json.dumps(found.to_dict(), allow_nan=False)
    for wrong in ((), (0.0, 1e-3), (-1e-3,)):
        with pytest.raises(FocusError, match="above 0"):
            search_rate(valley(1e-3), wrong)


def test_records_tell_which_rates_are_bracketed():
    old = json.loads((data_dir() / "results" / "reproduce-lora.json").read_text(encoding="utf-8"))
    if "rates" not in old:
        assert "grid not bracketed" in rate_remark(old)
    inside, edge = search_rate(valley(1e-3), (3e-4, 1e-3, 3e-3)), RateSearch(((1e-3, 2.0), (3e-3, 1.0)))
    rates = {name: {**each.to_dict(), "chosen_on": "web.txt"} for name, each in {"one": inside, "two": edge}.items()}
    text = rate_remark({"rates": rates, "results": []})
    assert "on web.txt, never" in text and "Bracketed: one." in text and "Grid not bracketed: two." in text
    assert rate_remark({"results": [{"cell": "our recipe"}]}) == ""
