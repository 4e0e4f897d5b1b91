"""Plans: a k for every layer under one budget of pairs, from the loss of each layer routed alone.

Layers differ: at k=1 a few cause most of the loss and many cause none. The plan is chosen from a table with one
measurement per layer and k. The sum of these losses was smaller than the loss of the layers together
(docs/tables/plans.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.errors import FocusError
from focus_core.evaluation.exposure import check_exposed
from focus_core.evaluation.perplexity import evaluate
from focus_core.io.locks import claims_folder
from focus_core.io.reading import read_json
from focus_core.io.schema import array, number, refused, table, whole
from focus_core.models import LoadedModel, check_positions
from focus_core.progress import Progress, silent
from focus_core.results import plain, record_run, text_records
from focus_core.routing.attach import attached
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import check_elsewhere, routers_hash
from focus_core.text import find_texts, read_text, token_blocks

RECORD, SCHEMA = "plan.json", "focus-plan/1"
_COST = table({"layer": whole(0), "top_k": whole(0), "loss": number(), "kept_share": number(0, 1)}, values=refused)
_RECORD = table({"costs": array(_COST)})


@dataclass(frozen=True)
class LayerCost:
    """One layer routed alone, all others attending fully.

    Attributes:
        layer: decoder layer.
        top_k: its k; 0 for local pairs and sinks alone.
        loss: rise of the mean negative log-likelihood over the untouched model, in nats.
        kept_share: share of its distant pairs kept, sinks included.
    """

    layer: int
    top_k: int
    loss: float
    kept_share: float


@claims_folder()
def plan_routers(
    texts: str | Path | Iterable[str | Path],
    out: str | Path,
    budget: float,
    *,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    length: int = 1024,
    blocks: int = 4,
    window: int | None = None,
    top_ks: Iterable[int] = (1, 2),
    costs: str | Path | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure every layer alone, choose a k for each, and write the routers with this plan to a folder.

    Measurements are saved one by one: a second call with the same arguments resumes an interrupted run.

    Args:
        texts: text files and folders to measure on, such as the training text.
        out: folder for the routers and `plan.json`.
        budget: share of distant pairs to keep, mean over layers, above 0 and at most 1.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        length: T, tokens per block.
        blocks: evenly spaced blocks to measure on.
        window: w; the routers' own when None.
        top_ks: candidates for a layer's k, beside K.
        costs: a `plan.json` with measurements to use again, for another budget.
        progress: told of every measured layer.

    Returns:
        The record in `plan.json`: settings, measurements ("costs") and the plan with its expected loss.

    Raises:
        FocusError: a budget, texts, routers or records that cannot be used.
        OSError: the folder cannot be written.
    """
    if not 0 < budget <= 1:
        raise FocusError(f"The budget is {budget}: give a share of pairs between 0 and 1.")
    files, out, top_ks = find_texts(texts), Path(out), sorted(set(top_ks))
    check_elsewhere(out, routers)
    with attached(model, routers, progress=progress) as (loaded, focus):
        if focus.config.read_share is not None:
            raise FocusError(
                f"{focus.name} read a share of the pairs, and a plan is a k for every layer: name routers that have a "
                "k, such as --routers smollm2-135m-k8."
            )
        check_positions(loaded, length)
        sample = token_blocks(loaded.tokenizer, [read_text(path) for path in files], length, max_blocks=blocks)
        fixed: dict[str, Any] = {
            "routers_hash": routers_hash(focus.routers),
            "model": loaded.info.identity,
            "settings": {
                "routers": focus.name,
                "length": length,
                "blocks": len(sample),
                "window": focus.config.window if window is None else window,
                "sink_tokens": focus.config.sink_tokens,
                "top_ks": top_ks,
            },
            "data": text_records(files),
        }
        _check_top_ks(top_ks, focus.config.num_groups)
        check_exposed(length, focus.config.replace(window=fixed["settings"]["window"]), focus.sliding_windows)
        earlier = Path(costs) if costs is not None else out / RECORD
        measured = [LayerCost(**row) for row in _earlier(earlier, fixed, needed=costs is not None)]
        total = len(focus.layers) * len(top_ks)
        for row in layer_costs(focus, sample, top_ks=top_ks, window=window, done=measured):
            measured.append(row)
            record_run(out / RECORD, {"schema": SCHEMA, **fixed, "costs": measured})
            progress(f"Layer {row.layer} at k={row.top_k}", len(measured) / total)
        chosen = plan_layers(measured, budget, focus.config.num_groups)
        expected = _expected(measured, focus.layers, chosen)
        if expected["kept_share"] > budget + 1e-9:
            raise FocusError(
                f"Even the fewest pairs are {expected['kept_share']:.1%}, more than the budget of {budget:.1%}: give a "
                "larger --budget or a smaller -k; measurements are kept."
            )
        _save(focus, chosen, fixed["settings"]["window"], out)
        plan = {"budget": budget, "layer_top_k": chosen, **expected}
    return record_run(out / RECORD, {"schema": SCHEMA, **fixed, "costs": measured, "plan": plan})


def _check_top_ks(top_ks: Sequence[int], num_groups: int) -> None:
    """Refuse values of k that these routers do not have, before anything is measured."""
    wrong = [top_k for top_k in top_ks if not 0 <= top_k <= num_groups]
    if wrong:
        raise FocusError(f"k is {wrong[0]} and these routers have {num_groups} groups: give 0 to {num_groups}.")


def layer_costs(
    focus: FocusModel,
    blocks: np.ndarray,
    *,
    top_ks: Sequence[int] = (1, 2),
    window: int | None = None,
    done: Sequence[LayerCost] = (),
) -> Iterator[LayerCost]:
    """Measure every layer at every k, with one forward pass over the blocks for each.

    Args:
        focus: model with calibrated routers.
        blocks: (N, T) int64 of text that no result is reported on.
        top_ks: candidates below K; K itself is full attention, with loss 0 by definition.
        window: w; the routers' own when None.
        done: rows of an interrupted run, which are not measured again.

    Yields:
        The missing rows.
    """
    changes: dict[str, Any] = {} if window is None else {"window": window}
    num_layers, full = len(focus.layers), focus.config.num_groups
    untouched: float | None = None
    for top_k in top_ks:
        for place, layer in enumerate(focus.layers):
            if any((row.layer, row.top_k) == (layer, top_k) for row in done):
                continue
            if untouched is None:
                untouched = float(np.mean(evaluate(focus, blocks, routing="off").block_nll))
            plan = tuple(top_k if other == place else full for other in range(num_layers))
            row = evaluate(focus, blocks, routing="hard", balance="calibrated", layer_top_k=plan, **changes)
            loss = float(np.mean(row.block_nll)) - untouched
            yield LayerCost(layer, top_k, loss, row.kept_share * num_layers - (num_layers - 1))


def plan_layers(costs: Sequence[LayerCost], budget: float, num_groups: int) -> tuple[int, ...]:
    """k of each layer with the smallest sum of losses whose mean kept share stays within the budget.

    See `cheapest`. Losses are first raised to that of any larger k, and to 0, since any other order is noise.

    Args:
        costs: every layer at the same values of k; K is added at no loss and all pairs.
        budget: share of distant pairs kept, mean over layers.
        num_groups: K.

    Returns:
        k in the order of the layers; the cheapest plan if none fits.
    """
    layers = sorted({row.layer for row in costs})
    top_ks = sorted({row.top_k for row in costs})
    table = {(row.layer, row.top_k): row for row in costs}
    loss = np.array([[table[layer, k].loss for k in top_ks] + [0.0] for layer in layers])
    loss = np.maximum.accumulate(loss[:, ::-1], axis=1)[:, ::-1]
    share = np.array([[table[layer, k].kept_share for k in top_ks] + [1.0] for layer in layers])
    choices = [*top_ks, num_groups]
    return tuple(choices[place] for place in cheapest(loss, share, budget))


def cheapest(loss: np.ndarray, share: np.ndarray, budget: float) -> np.ndarray:
    """One choice for each layer, with the smallest sum of losses whose mean kept share stays within the budget.

    At any price per pair, each layer takes the choice with the smallest loss plus price times pairs. The result is that
    of the lowest price that fits: the best among choices on the convex hull of loss against pairs.

    Args:
        loss: (layers, choices) loss of each choice, in nats.
        share: (layers, choices) share of distant pairs that it keeps.
        budget: share of distant pairs kept, mean over layers.

    Returns:
        (layers,) int64 places of the choices; those that keep the fewest pairs if none fits.
    """
    for price in np.unique(_turning_points(loss, share)):
        # Of equally good choices the first, which keeps the fewest pairs.
        picked = np.argmin(loss + price * share, axis=1)
        if np.take_along_axis(share, picked[:, None], 1).mean() <= budget:
            return picked
    return np.argmin(share, axis=1)


def _turning_points(loss: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Prices at which some layer's best k changes, each with one just above it."""
    gain = loss[:, :, None] - loss[:, None]
    pairs = share[:, None] - share[:, :, None]
    prices = (gain[pairs > 0] / pairs[pairs > 0]).clip(min=0.0)
    return np.concatenate([prices, prices * (1 + 1e-9) + 1e-15])


def _save(focus: FocusModel, chosen: tuple[int, ...], window: int, out: Path) -> None:
    """Write the routers with a plan as their setting; the settings of the model in memory do not change."""
    own = focus.config
    focus.config = own.replace(layer_top_k=chosen, window=window)
    try:
        focus.save_pretrained(out)
    finally:
        focus.config = own


def _expected(costs: Sequence[LayerCost], layers: Sequence[int], chosen: Sequence[int]) -> dict[str, float]:
    """Kept share and loss of a plan as sums over its layers; a layer at K keeps all pairs at no loss."""
    table = {(row.layer, row.top_k): row for row in costs}
    picked = [table.get((layer, k)) for layer, k in zip(layers, chosen)]
    return {
        "kept_share": sum(1.0 if row is None else row.kept_share for row in picked) / len(picked),
        "loss": sum(0.0 if row is None else row.loss for row in picked),
    }


def _earlier(path: Path, fixed: dict[str, Any], *, needed: bool) -> list[dict[str, Any]]:
    """Measurements of an earlier run with the same settings; none if there is no file, unless one is needed."""
    if not path.is_file() and not needed:
        return []
    try:
        record = read_json(path, _RECORD)
    except (OSError, FocusError) as error:
        raise FocusError(f"{path} is no record of a plan: give another folder or file.") from error
    if "routers_hash" not in record:
        raise FocusError(f"{path} is of an older version, which did not store its routers: give another folder.")
    if any(record.get(name) != value for name, value in plain(fixed).items()):
        raise FocusError(f"{path} was measured with other routers, settings or texts: give another folder.")
    return record["costs"]
