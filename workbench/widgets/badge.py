"""Model, routers, settings and text of a page's results, as one line of badges."""

from __future__ import annotations

import streamlit as st

from focus_core.analysis import Trace
from focus_core.analysis.routed_text import how_made
from focus_core.routing.model import OTHER_WEIGHTS
from workbench.engine.plans import k_name, plan_in_words
from workbench.widgets.page.markup import counted, plain


def provenance_badge(trace: Trace, text_name: str, states: str) -> None:
    """One line of badges under the title of a page.

    Args:
        trace: the routing.
        text_name: name of the text.
        states: whose hidden states were routed.
    """
    provenance, config = trace.provenance, trace.config
    made = how_made(config.router, trained=provenance.trained)
    plan = "" if config.layer_top_k is None else f" The plan: {plan_in_words(config)}."
    head = "" if trace.head is None else f" · {trace.reader}" if trace.reader else f" read · head {trace.head}"
    with st.container(horizontal=True, gap="small"):
        st.badge(
            f"{plain(provenance.model)} @ {provenance.model_revision}",
            icon=":material/neurology:",
            color="gray",
            help="Model and the hash that identifies its weights.",
        )
        if provenance.trained:
            own = provenance.base_matches
            st.badge(
                f"routers {plain(provenance.routers)} @ {provenance.routers_hash} · {made}"
                f"{'' if own else ' · other weights'}",
                icon=":material/check:" if own else ":material/warning:",
                color="green" if own else "orange",
                help="Saved routers and the hash of their weights." if own else f"These routers {OTHER_WEIGHTS}",
            )
        else:
            st.badge(
                f"routers {provenance.routers_hash} · {made}",
                icon=":material/warning:",
                color="orange",
                help="These routers are initialised at random, so their groups mean nothing. Compare trained routers "
                "with them.",
            )
        st.badge(
            f"K {config.num_groups} · {k_name(config)}{head} · w {config.window} · sinks {config.sink_tokens} "
            f"· {config.balance}"
            f" · states of the {states}",
            icon=":material/tune:",
            color="gray",
            help="Number of groups, groups per token or budget of distant pairs (of which a text gets more "
            f"or less), window, sink tokens, balance, and the model whose hidden states the routers read.{plan}",
        )
        st.badge(
            f"{plain(text_name)} · {counted(len(trace.tokens), 'token')}",
            icon=":material/article:",
            color="gray",
            help="The analysed text.",
        )
