"""Passes of a fit: what is measured in each layer's attention, text by text, and found again after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.io.unfinished import resumed
from focus_core.progress import Progress
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule, attend_fully, hard_groups

Tensors = dict[str, Tensor]


class Kept:
    """Results of the steps of a fit, in files that the same fit finds again.

    Args:
        folder: of `focus_core.io.unfinished.unfinished`; None for a fit that does not resume.
        page_size: of steps that depend on it.
    """

    def __init__(self, folder: Path | None = None, page_size: int | None = None) -> None:
        self.folder = folder
        self.prefix = "" if page_size is None else f"pages-of-{page_size}-"

    def each(self, name: str, pieces: Sequence[int], work: Callable[[int], Tensors]) -> Iterator[Tensors]:
        """The result of each piece in order, on the CPU: found in its file, or worked out.

        Args:
            name: of the step, letters and digits.
            pieces: the work.
            work: of one piece.
        """

        def results(left: Sequence[int]) -> Generator[Tensors]:
            for piece in left:
                yield {key: part.cpu().contiguous() for key, part in work(piece).items()}

        if self.folder is None:
            return results(pieces)
        return resumed(self.folder, pieces, results, save=save_file, load=load_file, name=f"{self.prefix}{name}-")

    def one(self, name: str, work: Callable[[], Tensors]) -> Tensors:
        """The result of a step that is one piece."""
        (found,) = self.each(name, (0,), lambda _: work())
        return found


FRESH = Kept()
"""Keeps nothing."""


def reading_layers(focus: FocusModel) -> list[int]:
    """The layers that read pages: those without a sliding window of their own."""
    return [layer for layer, window in zip(focus.layers, focus.sliding_windows) if window is None]


def measured_calls(
    focus: FocusModel,
    blocks: np.ndarray,
    measure: Callable[[AttentionCall, AttentionOutput], Mapping[str, Tensor]],
    *,
    name: str,
    label: str,
    kept: Kept,
    progress: Progress,
    **changes: Any,
) -> Iterator[dict[int, Tensors]]:
    """What is found in the attention of every layer that reads pages, by layer, for one text after another.

    All layers see the states of the untouched model, so one pass measures all of them.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids.
        measure: given a layer's call and its full attention.
        name: of the step, for `Kept`.
        label: told to `progress`.
        kept: results of an earlier fit.
        progress: told the share done.
        changes: of settings, as `FocusModel.routing` takes them.
    """
    layers, ids = reading_layers(focus), torch.from_numpy(blocks).to(focus.model.device)

    def of_text(number: int) -> Tensors:
        found: Tensors = {}

        def attend(call: AttentionCall) -> AttentionOutput:
            full = attend_fully(call)
            if call.layer in layers:
                progress(label, (number + layers.index(call.layer) / len(layers)) / len(ids))
                found.update({f"{call.layer}.{key}": part for key, part in measure(call, full).items()})
            return full

        rule = Rule(attend, hard_groups)
        with torch.inference_mode(), focus.routing("hard", rule=rule, **changes):
            focus.model.base_model(input_ids=ids[number : number + 1], use_cache=False)
        return found

    for found in kept.each(name, range(len(ids)), of_text):
        by_layer: dict[int, Tensors] = {layer: {} for layer in layers}
        for key, part in found.items():
            layer, _, what = key.partition(".")
            by_layer[int(layer)][what] = part
        yield by_layer
