"""View models and sentences of the Sparsity page."""

from __future__ import annotations

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.sparsity import CLASSES, PooledMask
from focus_core.routing.config import FocusConfig
from focus_core.routing.routers import ROUTERS
from workbench.engine.plans import PLANNED, chosen_k, share_name
from workbench.widgets.page.markup import counted

MAX_QUERIES = 256
"""Queries whose attention is measured; evenly spaced over longer texts."""
_ALL_K = 8


Swept = tuple[int | str, ...]
"""Values of k, and `PLANNED` where the routers' plan is in force; or shares of the distant pairs, such as "15%"."""
_SHARES = (0.02, 0.05, 0.1, 0.15, 0.25, 0.5)


def swept_budgets(config: FocusConfig) -> dict[int | str, FocusConfig]:
    """Budgets of narrow groups that are measured in one pass, the chosen one among them."""
    if config.read_share is None:
        return {k: config.replace(top_k=int(k)) for k in swept_k(config.num_groups, config.top_k)}
    return {share_name(share): config.replace(read_share=share) for share in sorted({*_SHARES, config.read_share})}


def swept_k(num_groups: int, chosen: int | str) -> Swept:
    """The values of k measured in one pass: all of few, else powers of two, and the chosen one; a plan comes last."""
    few = range(1, num_groups + 1) if num_groups <= _ALL_K else (2**i for i in range(num_groups.bit_length()))
    if isinstance(chosen, str):
        return (*sorted({*few, num_groups}), chosen)
    return tuple(sorted({*few, chosen, num_groups}))


def query_memberships(trace: Trace, swept: Swept) -> list[np.ndarray]:
    """(L, T, K) bool groups that tokens read at each k: the k of largest weight, ties to the lower number; a plan's
    as traced."""
    assert trace.query_weights is not None
    ranks = _ranks(trace.query_weights)
    return [trace.query_membership if isinstance(k, str) else ranks < k for k in swept]


def key_memberships(trace: Trace, swept: Swept) -> list[np.ndarray]:
    """(L, T, K) bool groups that tokens are in at each k; a plan's as traced."""
    ranks, kind = _ranks(trace.assignment), ROUTERS[trace.config.router]
    return [trace.membership if isinstance(k, str) else ranks < kind.key_top_k(k) for k in swept]


def _ranks(weights: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(-weights, axis=-1, kind="stable"), axis=-1)


def mask_table(mask: PooledMask, num_tokens: int) -> pd.DataFrame:
    """One row per tile of a pooled mask that has causal pairs: its tokens and the share of each class."""
    rows, columns = np.nonzero(np.isfinite(mask.shares[..., 0]))

    def span(tile: np.ndarray, name: str) -> dict[str, np.ndarray]:
        return {
            f"first {name}": tile * mask.factor,
            f"last {name}": np.minimum((tile + 1) * mask.factor, num_tokens) - 1,
        }

    shares = {name: mask.shares[rows, columns, kind] for kind, name in enumerate(CLASSES)}
    return pd.DataFrame({**span(rows, "query"), **span(columns, "key"), **shares})


def attention_table(trace: Trace, swept: Swept, mass: np.ndarray) -> pd.DataFrame:
    """One row per k and layer: share of attention mass on each class of pairs, and on kept pairs.

    Args:
        trace: the routing.
        swept: the values of k.
        mass: (len(swept), L, 4), from `focus_core.analysis.sparsity.mass_by_class`.
    """
    flat = mass.reshape(-1, len(CLASSES))
    table = pd.DataFrame({"k": np.repeat(swept, len(trace.layers)), "layer": np.tile(trace.layers, len(swept))})
    for kind, name in enumerate(CLASSES):
        table[name] = flat[:, kind]
    table["mass kept"] = 1 - flat[:, CLASSES.index("dropped")]
    return table


def verdict(trace: Trace, pairs: pd.DataFrame) -> str:
    """The share of pairs computed over all layers, then the bound on the speed-up.

    Args:
        trace: the routing.
        pairs: from `focus_core.analysis.sparsity.pair_table`.
    """
    mean = {name: float(pairs[name].to_numpy().mean()) for name in ("kept", "exposure", "random kept")}
    if mean["exposure"] == 0:
        return (
            f"Everything is computed, because no pair is distant.\n\n"
            f"The text has {counted(len(trace.tokens), 'token')}, and the window is {trace.config.window}. "
            "Take a longer text or a smaller window."
        )
    luck = f"Random groups would keep {mean['random kept']:.0%} of the pairs."
    if trace.config.read_share is not None:
        luck = "The budget is a share of the pairs, so any groups would keep as many."
        if trace.config.by_error:
            luck = "Heads read what their summaries would get wrong, so one text keeps more and another less."
        luck += " Summaries are no pairs."
    return (
        f"{mean['kept']:.0%} of the causal pairs are computed{by_head(trace)}, mean over layers.\n\n"
        f"Attention can be at most {1 / mean['kept']:.1f} times faster: a bound, not a measurement. {luck} "
        f"{mean['exposure']:.0%} of the pairs are beyond the window, where routing decides."
    )


def by_head(trace: Trace) -> str:
    """The head whose pairs are on show, for the end of a sentence; empty where all heads share the groups."""
    if trace.head is None:
        return ""
    return f" by {trace.reader}" if trace.reader else f" by head {trace.head}"


def _way(trace: Trace) -> str:
    if trace.parts is not None:
        return f"what {trace.reader} reads beyond its window"
    return "sharing a group" if trace.reads_own_groups else "the groups that tokens read"


def layer_sentence(trace: Trace, row: int, pairs: pd.DataFrame) -> str:
    """The share of pairs computed in one layer, by class."""
    values = {name: float(pairs[name].to_numpy()[row]) for name in pairs.columns}
    luck = (
        f"With k = {trace.config.top_k_of(row)} of {trace.config.num_groups}, random groups would keep "
        f"{values['random kept']:.1%}."
    )
    if trace.config.read_share is not None:
        luck = f"The budget is {share_name(trace.config.read_share)} of the pairs beyond the window"
        luck += ", all heads and layers together" * trace.config.by_error
        luck += "; one text keeps more, another less." if trace.config.by_error else "."
    return (
        f"Layer {trace.layers[row]}: **{values['kept']:.1%}** of the causal pairs are kept ({values['local']:.1%} "
        f"local, {values['sink']:.1%} sinks, {values['same group']:.1%} by {_way(trace)}). The bound on the speed-up "
        f"is **{values['bound']:.2f}×**. {luck}"
    )


def attention_sentence(trace: Trace, row: int, swept: Swept, mass: np.ndarray, pairs: pd.DataFrame) -> str:
    """The share of the untouched model's attention on the kept pairs."""
    chosen = chosen_k(trace.config)
    at, name = swept.index(chosen), "the planned k" if chosen == PLANNED else f"k = {chosen}"
    here_kept, here_dropped = "in shared groups", "dropped"
    if trace.parts is not None:
        name = name if trace.config.read_share is None else f"a budget of {chosen}"
        here_kept, here_dropped = "read beyond the window", "left to summaries"
    kept, here = 1 - mass[at, :, -1].mean(), mass[at, row]
    return (
        f"At {name} the kept pairs ({float(pairs['kept'].to_numpy().mean()):.0%} of all) hold "
        f"**{kept:.1%}** of the untouched model's attention, mean over layers. In layer {trace.layers[row]}: "
        f"{here[0]:.1%} local, {here[1]:.1%} on sinks, {here[2]:.1%} {here_kept}, **{here[3]:.1%} {here_dropped}**."
    )
