"""Whether each published claim holds here: by a rule from the records where it can be tested, else with the reason.

A rule reads intervals. Percentile intervals of older records are widened to the width of Student's t first. Where an
interval holds 0, the claim is not testable at this number of blocks or items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from cards import direction, published, read
from reproduction_summaries import best_adapter, change, hard, row_of
from scipy import stats

HOLDS, FAILS, UNTESTED = "holds here", "does not hold here", "not testable here"
CHANCE = 0.05
"""Share of true zeros outside 95% intervals; no more significant rows than that show nothing."""
COLLAPSED = 0.5
"""Share of tokens in one group from which on routing has collapsed."""
COLLAPSE_STEPS = 600
"""Steps by which the paper's remedies have collapsed."""

Found = dict[str, list[dict[str, Any]]]
"""The records of `focus reproduce` by experiment, the oldest first."""


class Verdict(NamedTuple):
    """One of `HOLDS`, `FAILS` and `UNTESTED`, and the reason for it."""

    word: str
    because: str


class Ends(NamedTuple):
    """An interval."""

    low: float
    high: float


def ends(row: dict[str, Any], blocks: int) -> Ends:
    """The 95% interval of a row's difference from the untouched model.

    Args:
        row: of a record; those of older ones have percentiles of a bootstrap over blocks.
        blocks: of the record.
    """
    middle, low, high = row["difference"], row["low"], row["high"]
    if "established" in row:
        return Ends(low, high)
    wider = float(stats.t.ppf(0.975, blocks - 1) / stats.norm.ppf(0.975) * (blocks / (blocks - 1)) ** 0.5)
    return Ends(middle - (middle - low) * wider, middle + (high - middle) * wider)


def told(row: dict[str, Any], blocks: int) -> str:
    """A relative change with its interval."""
    untouched, span = row["perplexity"] - row["difference"], ends(row, blocks)
    return f"{change(row)} [{span.low / untouched:+.1%}, {span.high / untouched:+.1%}] over {blocks} blocks"


def _blocks(record: dict[str, Any]) -> int:
    return record["settings"]["scale"]["blocks"]


def below_untouched(found: Found) -> Verdict:
    """The published recipe lowers perplexity."""
    record = found["retrofit"][-1]
    row, blocks = hard([record], "published recipe"), _blocks(record)
    span, steps = ends(row, blocks), record["settings"]["scale"]["steps"]
    word = HOLDS if span.high < 0 else FAILS if span.low > 0 else UNTESTED
    return Verdict(word, f"published recipe at k = 2: {told(row, blocks)}, after {steps} steps; 4,000 in the paper")


def beats_baselines(found: Found) -> Verdict:
    """No baseline is better than the routers at the same share."""
    record = found["retrofit"][-1]
    blocks, ours = _blocks(record), hard([record], "our recipe")
    rows = [row for row in record["results"] if row["cell"].startswith("baseline") and row["kept_share"] is not None]
    best = min(rows, key=lambda row: row["perplexity"])
    one, two = ends(best, blocks), ends(ours, blocks)
    word = FAILS if one.high < two.low else HOLDS if two.high < one.low else UNTESTED
    return Verdict(word, f"{best['routing']} {told(best, blocks)}; routers at the same share {change(ours)}")


def benchmarks_unchanged(found: Found) -> Verdict:
    """No score changes where routing can matter."""
    from benchmark_card import RECORD, counts

    rows = counts(read(RECORD)["results"], exposed=True)
    because = (
        f"where routing can matter, {rows['outside'] or 'none'} of {rows['rows']} scores changed significantly, over "
        f"few items; {rows['fine_lower']} of {rows['fine']} log-likelihoods of the right answer are lower"
    )
    return Verdict(FAILS if rows["outside"] > CHANCE * rows["rows"] else UNTESTED, because)


def three_of_four(found: Found) -> Verdict:
    """k = 3 of K = 4 equals the untouched model."""
    rows = [row for row in found["scale"][-1]["results"] if row.get("top_k") == 3]
    most = max(abs(row["difference"]) / row["perplexity"] for row in rows)
    because = f"largest change {most:.2%}: any two tokens share one of three groups, so no pair is left out"
    return Verdict(HOLDS if most < 1e-3 else FAILS, because)


def lora_lower(found: Found) -> Verdict:
    """Adapters of rank 4 lower perplexity more than routers."""
    record, adapter = best_adapter(found["lora"], 4)
    blocks, ours = _blocks(record), hard([record], "our recipe")
    one, two = ends(adapter, blocks), ends(ours, blocks)
    word = HOLDS if one.high < two.low else FAILS if two.high < one.low else UNTESTED
    return Verdict(word, f"LoRA of rank 4 {told(adapter, blocks)}, our routers at k = 2 {change(ours)}")


def _tasks(found: Found, choose: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    rows = (row for record in found["lora"] for row in record["results"] if choose(row))
    return [task for row in rows for task in row.get("benchmarks", {}).values()]


def _lower(gaps: Iterable[dict[str, Any]]) -> tuple[int, int]:
    every = list(gaps)
    return sum(direction(gap) < 0 for gap in every), len(every)


def lora_costs(found: Found) -> Verdict:
    """Adapters lose benchmark points."""
    tasks = _tasks(found, lambda row: row["cell"].startswith("LoRA"))
    lower, every = _lower(task["differences"][task["headline"]] for task in tasks)
    items = [task["items_scored"] for task in tasks]
    because = f"{lower or 'none'} of {every} scores significantly lower, over {min(items)} to {max(items)} items each"
    return Verdict(HOLDS if lower > CHANCE * every else UNTESTED, because)


def routers_free(found: Found) -> Verdict:
    """Routers lose no benchmark points."""
    tasks = _tasks(found, lambda row: row["cell"] == "our recipe" and row.get("top_k") == 2)
    names = ("gold_log_probability", "log_likelihood")
    fine = [task["differences"][name] for task in tasks for name in names if name in task["differences"]]
    (lower, every), (finer, likelihoods) = _lower(task["differences"][task["headline"]] for task in tasks), _lower(fine)
    because = (
        f"our routers at k = 2: {lower or 'none'} of {every} scores significantly lower, over few items, and {finer} "
        f"of {likelihoods} log-likelihoods of the right answer"
    )
    return Verdict(FAILS if lower > CHANCE * every else UNTESTED, because)


def few_items(found: Found) -> Verdict:
    """Alignment needs a larger model and all items."""
    items = found["alignment"][-1]["settings"]["scale"]["limit"]
    return Verdict(
        UNTESTED, f"an instruction-tuned model of 7B parameters needs a GPU; {items} items cannot show it here"
    )


def finetune_equal(found: Found) -> Verdict:
    """Full fine-tuning with routers reaches full attention."""
    record = found["finetune"][-1]
    blocks, full, ours = _blocks(record), row_of([record], cell="full attention"), hard([record], "our recipe")
    one, two, steps = ends(full, blocks), ends(ours, blocks), record["settings"]["scale"]["full_steps"]
    word = FAILS if one.high < two.low else UNTESTED
    because = f"after {steps} steps {full['perplexity']:.1f} with full attention, {ours['perplexity']:.1f} with routers"
    return Verdict(word, because + ("" if word == FAILS else "; their intervals overlap, which is no equality"))


def domains_hold(found: Found) -> Verdict:
    """Perplexity does not rise on any text."""
    record = found["domains"][-1]
    blocks = _blocks(record)
    rows = [row for row in record["results"] if row.get("top_k") == 2 and row["low"] is not None]
    worse = [row for row in rows if ends(row, blocks).low > 0]
    names = ", ".join(row["cell"] for row in worse)
    because = f"routers alone at k = 2: significantly higher on {len(worse)} of {len(rows)} texts" + (
        f" ({names})" if worse else ""
    )
    return Verdict(FAILS if worse else UNTESTED, because)


def lengths_hold(found: Found) -> Verdict:
    """At the longest text k = 2 costs no more than published."""
    rows = published()["lengths"]["rows"]
    tokens, full, routed = rows[-1][:3]
    ours = hard([found["lengths"][-1]], str(tokens))
    wanted, here = routed / full - 1, ours["difference"] / (ours["perplexity"] - ours["difference"])
    because = f"k = 2 at {tokens:,} tokens: {here:+.1%} here, {wanted:+.1%} in the paper, on one stretch of text"
    return Verdict(HOLDS if here <= wanted else FAILS, because)


def k_trades(found: Found) -> Verdict:
    """More groups a token: more pairs, lower perplexity."""
    record = found["k-sweep"][-1]
    rows, blocks = [hard([record], f"k={k}", k) for k in (1, 2, 3)], _blocks(record)
    falls = all(ends(two, blocks).high < ends(one, blocks).low for one, two in pairwise(rows))
    rises = all(one["kept_share"] < two["kept_share"] for one, two in pairwise(rows))
    because = ", ".join(f"k = {row['top_k']} {change(row)} with {row['kept_share']:.0%} kept" for row in rows)
    return Verdict(HOLDS if falls and rises else UNTESTED, because)


def _largest(found: Found) -> tuple[dict[str, float], int]:
    """Largest group of every remedy after all weights were trained, and the steps."""
    rows = [row for row in found["stability"][-1]["results"] if row.get("phase") == "everything"]
    return {row["cell"]: row["largest"] for row in rows if row["routing"] == "hard"}, rows[0]["steps"]


def sinkhorn_survives(found: Found) -> Verdict:
    """Groups stay balanced under full fine-tuning with the published rounds."""
    largest, steps = _largest(found)
    share = largest["sinkhorn-10"]
    because = f"10 rounds: largest group {share:.0%} after {steps} steps; an even one of 8 is 12.5%"
    return Verdict(HOLDS if share < COLLAPSED else FAILS, because)


def others_collapse(found: Found) -> Verdict:
    """Every other remedy ends with most tokens in one group."""
    largest, steps = _largest(found)
    others = {name: share for name, share in largest.items() if not name.startswith(("sinkhorn", "tau"))}
    standing = {name: share for name, share in others.items() if share < COLLAPSED}
    kept = ", ".join(f"{name} {share:.0%}" for name, share in standing.items())
    because = f"{len(others) - len(standing)} of {len(others)} collapse within {steps} steps" + (
        f"; not {kept}. The paper's do so by step {COLLAPSE_STEPS}" if standing else ""
    )
    return Verdict(HOLDS if not standing else FAILS if steps >= COLLAPSE_STEPS else UNTESTED, because)


def _ablation(found: Found, cells: Iterable[str]) -> list[dict[str, Any]]:
    return [hard([found["ablation"][-1]], cell) for cell in cells]


def more_groups(found: Found) -> Verdict:
    """More groups: fewer pairs, higher perplexity."""
    blocks = _blocks(found["ablation"][-1])
    rows = _ablation(found, ("num_groups=4", "default", "num_groups=16", "num_groups=32"))
    rises = ends(rows[0], blocks).high < ends(rows[-1], blocks).low
    ordered = all(one["perplexity"] < two["perplexity"] for one, two in pairwise(rows))
    because = f"k = 2: K = 4 {change(rows[0])}, K = 32 {change(rows[-1])}, with fewer pairs kept"
    return Verdict(HOLDS if rises and ordered else UNTESTED, because)


def temperature_trades(found: Found) -> Verdict:
    """A higher temperature: more even groups, higher perplexity."""
    rows = _ablation(found, ("temperature=0.05", "default", "temperature=0.2", "temperature=0.5"))
    largest = [row["largest_group_share"] for row in rows]
    rises = rows[0]["perplexity"] < rows[-1]["perplexity"]
    because = (
        f"tau from 0.05 to 0.5: largest group from {largest[0]:.0%} to {largest[-1]:.0%}, perplexity from "
        f"{change(rows[0])} to {change(rows[-1])}"
    )
    return Verdict(HOLDS if largest[-1] < largest[0] and rises else FAILS, because)


def width_hardly_matters(found: Found) -> Verdict:
    """Perplexity moves less than a tenth as far over routing widths as over numbers of groups."""
    spreads = []
    for cells in (("route_dim=4", "default", "route_dim=64"), ("num_groups=4", "default", "num_groups=32")):
        perplexities = [row["perplexity"] for row in _ablation(found, cells)]
        spreads.append(max(perplexities) - min(perplexities))
    because = f"perplexity moves by {spreads[0]:.1f} over widths 4 to 64, by {spreads[1]:.1f} over K from 4 to 32"
    return Verdict(HOLDS if spreads[0] < spreads[1] / 10 else FAILS, because)


def few_rounds_collapse(found: Found) -> Verdict:
    """Three Sinkhorn rounds put nearly all tokens in one group."""
    (row,) = _ablation(found, ("sinkhorn_rounds=3",))
    share = row["largest_group_share"]
    because = f"3 rounds: largest group {share:.0%}, in the worst layer; our scores are bounded"
    return Verdict(HOLDS if share >= COLLAPSED else FAILS, because)


def groups_linguistic(found: Found) -> Verdict:
    """Groups follow parts of speech beyond the spelling of tokens."""
    layers = read("alignment-books.json")["alignment"]["upos"]["layers"]
    beyond = sum(layer["beyond_identity"] for layer in layers)
    because = f"beyond token identity in {beyond or 'none'} of {len(layers)} layers: spelling explains as much"
    return Verdict(HOLDS if beyond == len(layers) else FAILS, because)


def stated(because: str) -> Callable[[Found], Verdict]:
    """A claim that no record here can test, and the reason."""
    return lambda found: Verdict(UNTESTED, because)


RULES: dict[str, Callable[[Found], Verdict]] = {
    "retrofit-lowers": below_untouched,
    "retrofit-beats": beats_baselines,
    "retrofit-benchmarks": benchmarks_unchanged,
    "scale-sizes": stated("774M to 70B parameters need a GPU; the models here have fewer than 300M"),
    "scale-k3": three_of_four,
    "lora-lower": lora_lower,
    "lora-costs": lora_costs,
    "lora-free": routers_free,
    "alignment-keeps": few_items,
    "alignment-loses": few_items,
    "finetune-equal": finetune_equal,
    "finetune-scratch": stated("a model of 7B parameters and 2B tokens need many GPUs"),
    "domains-hold": domains_hold,
    "lengths-hold": lengths_hold,
    "speed-gpu": stated("the claim is about an H100 up to 1M tokens; no GPU was timed here"),
    "k-sweep-trades": k_trades,
    "k-sweep-sweet": stated("it names no measure that a record could fail"),
    "stability-sinkhorn": sinkhorn_survives,
    "stability-others": others_collapse,
    "ablation-groups": more_groups,
    "ablation-temperature": temperature_trades,
    "ablation-width": width_hardly_matters,
    "ablation-rounds": few_rounds_collapse,
    "groups-linguistic": groups_linguistic,
}
"""The rule of every claim in `data/published.json`, by its id."""
