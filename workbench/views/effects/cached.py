"""Effects of single groups, computed once for all sessions and kept under everything they depend on."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import streamlit as st

from focus_core.analysis import Trace
from focus_core.analysis.interventions import Experiment
from focus_core.analysis.interventions.groups import EffectSettings, group_effect
from focus_core.analysis.interventions.run import distances_of, point_of
from focus_core.analysis.interventions.slices import copied_or_new, parts_of_speech
from focus_core.progress import Progress
from focus_core.results import plain
from focus_core.routing.model import FocusModel
from workbench.engine import service
from workbench.engine.cached import setting_key
from workbench.engine.service import Analysis
from workbench.views.linguistics.cached import tagged


@dataclass(frozen=True)
class Asked:
    """An experiment that a page asks for.

    Attributes:
        layer: number of the layer.
        head: key/value head.
        tokens: from the beginning of the text.
        effect: what is done, and compared with.
    """

    layer: int
    head: int
    tokens: int
    effect: EffectSettings


@dataclass
class _Made:
    """A result that is computed outside of the cache function, where progress can be shown."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    point: dict[str, Any] | None = None


def eligible_sizes(trace: Trace, row: int, tokens: int) -> np.ndarray:
    """(K,) keys of each group that some query may read beyond its window, in the first tokens of the text."""
    length = min(tokens, len(trace.tokens))
    last = max(trace.config.sink_tokens, length - 1 - trace.config.window)
    return trace.membership[row, trace.config.sink_tokens : last].sum(0)


def known(analysis: Analysis, asked: Asked, groups: Sequence[int]) -> list[dict[str, Any]]:
    """The points of those groups that have been computed before."""
    found = [_made(_key(analysis, asked), group).point for group in groups]
    return [point for point in found if point is not None]


def group_point(
    analysis: Analysis, asked: Asked, group: int, model: str, routers: str, progress: Progress
) -> dict[str, Any]:
    """The effect of one group as a point of the record of `focus effects`. Runs the model many times.

    Other sessions that ask for the same wait for it. An interrupted run is made again.

    Args:
        analysis: of the text.
        asked: the experiment.
        group: index of the group.
        model: as in `service.Settings`.
        routers: as in `service.Settings`.
        progress: called after every run.

    Raises:
        FocusError: the experiment is not possible.
    """
    made = _made(_key(analysis, asked), group)
    with made.lock:
        if made.point is None:
            # Causal effects are those of the routed model, whatever hidden states the page routes.
            settings = dataclasses.replace(service.settings_of(analysis, model, routers), states="routed")
            base = service.load_base(model)
            ids, offsets = analysis.trace.input_ids[: asked.tokens], analysis.trace.offsets[: asked.tokens]
            spoken = parts_of_speech(tagged(analysis), np.asarray(offsets))

            def work(focus: FocusModel) -> dict[str, Any]:
                progress("Running the text as it is", 0.0)
                experiment = Experiment(focus, np.array(ids), asked.layer, asked.head, untouched=True)
                found = group_effect(experiment, group, asked.effect, untouched=True, progress=progress)
                kinds = [copied_or_new(np.array(ids)), distances_of(experiment, found.keys), spoken]
                return plain(point_of(found, kinds))

            with base.lock:
                made.point = service.routed(base, settings, work)
        return made.point


def _key(analysis: Analysis, asked: Asked) -> str:
    return json.dumps([setting_key(analysis), plain(dataclasses.asdict(asked))])


@st.cache_resource(max_entries=256, show_spinner=False)
def _made(key: str, group: int) -> _Made:
    return _Made()
