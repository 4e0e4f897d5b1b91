"""Training of learned baselines: training text runs through the frozen model once, and every layer learns beside it.

Nothing is back-propagated through the model. Each layer of each baseline has its own loss and its own Adam, so that one
pass over the text trains all of them. The file of a training is named by all that decides its result.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.baselines.learned import LEARNERS
from focus_core.baselines.learned.lesson import Learner, Lesson, Sizes, lesson
from focus_core.errors import FocusError
from focus_core.io.files import to_json, write_atomic
from focus_core.io.reading import parse_json, read_tensors
from focus_core.io.schema import table
from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule, attend_fully, hard_groups
from focus_core.routing.storage import weights_fingerprint

FORMAT = 1
RECENT = 10
"""Steps whose mean loss a report calls final."""


@dataclass(frozen=True)
class LearnedSettings:
    """Sizes of a training; one Adam step per block of text, layer and baseline.

    Attributes:
        names: keys of `LEARNERS`.
        tokens: of training text to read, in repeated passes where there is less.
        queries: of each block, drawn anew, whose attention is learned.
        rates: learning rates to try, by name; each falls to 0 along a cosine.
        trial: blocks after which the rate with the smallest loss alone is kept, for all layers of a baseline.
        window: pairs at most this far apart are kept anyway and not learned.
        sinks: first tokens that are kept anyway.
        sizes: of the learners.
        seed: of initial values and of the order of the text.
    """

    names: tuple[str, ...] = tuple(LEARNERS)
    tokens: int = 300 * 1024
    queries: int = 256
    rates: dict[str, tuple[float, ...]] = field(
        default_factory=lambda: {name: learner.rates for name, learner in LEARNERS.items()}
    )
    trial: int = 40
    window: int = 128
    sinks: int = 4
    sizes: Sizes = field(default_factory=Sizes)
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.names) - set(LEARNERS))
        if unknown:
            raise FocusError(f"There is no learned baseline {unknown[0]!r}: choose from {', '.join(LEARNERS)}.")
        if "seer" in self.names and self.sizes.block > self.window + 1:
            raise FocusError(
                f"Blocks of {self.sizes.block} keys are longer than the window of {self.window}: shorten them."
            )


@dataclass(frozen=True)
class Learned:
    """Trained baselines.

    Attributes:
        layers: by name of the baseline and layer, as `Case.fitted` takes them.
        report: by name: ``rate``, ``parameters`` of all layers, and the divergence, mean over layers: ``first_kl``
            and ``last_kl`` in nats, each on text before it is learned from, and ``trial_kl`` of every rate; and
            ``seconds`` of the training, which all names share. Older files lack the seconds.
    """

    layers: dict[str, dict[int, Learner]]
    report: dict[str, dict[str, Any]]


def learned(
    focus: FocusModel,
    blocks: np.ndarray,
    folder: Path,
    settings: LearnedSettings | None = None,
    progress: Progress = silent,
) -> Learned:
    """The learned baselines of a model, text and settings: read from the folder, or trained and written there.

    Args:
        focus: the model; its routers are not used.
        blocks: (N, T) int64 training text.
        folder: of the files; created if needed.
        settings: sizes; the defaults when None.
        progress: told of every block.

    Raises:
        FocusError: a text is too short, or a baseline does not converge.
        OSError: the file cannot be written.
    """
    settings = settings or LearnedSettings()
    digest = hashlib.sha256(np.ascontiguousarray(blocks, dtype=np.int64).tobytes())
    model = weights_fingerprint(focus.model)
    digest.update(json.dumps([FORMAT, asdict(settings), list(blocks.shape), model], sort_keys=True).encode())
    path = folder / f"learned-{digest.hexdigest()[:16]}.safetensors"
    if not path.exists():
        _write(path, train_learned(focus, blocks, settings, progress))
    return _read(path, focus.model.device)


def train_learned(
    focus: FocusModel, blocks: np.ndarray, settings: LearnedSettings, progress: Progress = silent
) -> Learned:
    """Train in one pass; arguments and errors as in `learned`."""
    length, first = blocks.shape[1], settings.window + settings.sinks + 1
    if length <= first:
        raise FocusError(f"Training blocks have {length} tokens, all within the window: give blocks of {2 * first}.")
    steps, start = max(1, settings.tokens // length), time.perf_counter()
    course = _Course(settings, steps)
    with torch.no_grad(), focus.routing("hard", balance="calibrated", rule=Rule(course.attend, hard_groups)):
        for step, number in zip(range(steps), _order(len(blocks), settings.seed)):
            draw = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
            chosen = torch.randperm(length - first, generator=draw)[: settings.queries].sort().values
            course.begin(step, chosen + first)
            rows = torch.from_numpy(blocks[number]).long()[None].to(focus.model.device)
            focus.model.base_model(input_ids=rows, use_cache=False)
            if step + 1 == min(settings.trial, steps):
                course.choose_rates()
            progress(f"Training {' and '.join(settings.names)}: {course.described()}", (step + 1) / steps)
    return course.finished(round(time.perf_counter() - start, 2))


def _order(count: int, seed: int) -> Iterator[int]:
    """Numbers of blocks: one permutation after another."""
    generator = np.random.default_rng(seed)
    while True:
        yield from generator.permutation(count).tolist()


@dataclass
class _Pupil:
    """One learner of one layer at one learning rate."""

    learner: Learner
    rate: float
    arguments: dict[str, Any]
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.learner.parameters(), lr=self.rate)

    def step(self, lesson: Lesson, share: float) -> None:
        """Learn from one lesson at this share of the rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * share
        with torch.enable_grad():
            loss = self.learner.loss(lesson)
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()
        self.losses.append(float(loss.detach()))

    def recent(self, steps: int) -> float:
        """Mean of the last losses; infinite where training broke."""
        mean = float(np.mean(self.losses[-steps:]))
        return mean if math.isfinite(mean) else math.inf


class _Course:
    """All pupils of a training, taught while the model reads."""

    def __init__(self, settings: LearnedSettings, steps: int) -> None:
        self.settings, self.steps, self.step = settings, steps, 0
        self.rows = torch.empty(0, dtype=torch.long)
        self.pupils: dict[str, dict[int, list[_Pupil]]] = {name: {} for name in settings.names}
        self.trials: dict[str, dict[str, float]] = {}

    def begin(self, step: int, rows: Tensor) -> None:
        """Read the next block; its lessons are about the queries at `rows`."""
        self.step, self.rows = step, rows

    def attend(self, call: AttentionCall) -> AttentionOutput:
        """Teach the pupils of this layer, and attend fully."""
        hidden, geometry, (query, key, _) = call.routing.hidden_states, call.geometry, call.together()
        pairs = {"window": self.settings.window, "sinks": self.settings.sinks, "scale": geometry.scale}
        model_pairs = {"softcap": geometry.softcap, "sliding_window": geometry.sliding_window}
        now = lesson(query, key, hidden, self.rows.to(hidden.device), **pairs, **model_pairs)
        share = 0.5 * (1 + math.cos(math.pi * self.step / self.steps))
        for name, layers in self.pupils.items():
            if call.layer not in layers:
                arguments = LEARNERS[name].arguments(now, self.settings.sizes, self.settings.seed + call.layer)
                layers[call.layer] = [
                    _Pupil(LEARNERS[name](**arguments).to(hidden.device), rate, arguments)
                    for rate in self.settings.rates[name]
                ]
            for pupil in layers[call.layer]:
                pupil.step(now, share)
        return attend_fully(call)

    def choose_rates(self) -> None:
        """Drop all rates but the one with the smallest loss in the second half of the trial, for each baseline."""
        for name, layers in self.pupils.items():
            means = [
                float(np.mean([pupil.recent((self.step + 2) // 2) for pupil in same_rate]))
                for same_rate in zip(*layers.values())
            ]
            best = int(np.argmin(means))
            if not math.isfinite(means[best]):
                raise FocusError(f"The baseline {name!r} does not converge at any rate: give smaller learning rates.")
            self.trials[name] = {f"{rate:g}": mean for rate, mean in zip(self.settings.rates[name], means)}
            self.pupils[name] = {layer: [pupils[best]] for layer, pupils in layers.items()}

    def described(self) -> str:
        """Recent divergence of the best rate of every baseline."""
        best = {
            name: min(np.mean([each.recent(RECENT) for each in same_rate]) for same_rate in zip(*layers.values()))
            for name, layers in self.pupils.items()
        }
        return ", ".join(f"{name} {value:.3f} nats" for name, value in best.items())

    def finished(self, seconds: float) -> Learned:
        """The learners, which no longer learn, and the report with the seconds of the training."""
        layers: dict[str, dict[int, Learner]] = {}
        report: dict[str, dict[str, Any]] = {}
        for name, pupils in self.pupils.items():
            chosen = {layer: pupil for layer, (pupil,) in pupils.items()}
            layers[name] = {layer: pupil.learner.requires_grad_(False) for layer, pupil in chosen.items()}
            report[name] = {
                "rate": next(iter(chosen.values())).rate,
                "parameters": sum(each.numel() for learner in layers[name].values() for each in learner.parameters()),
                "first_kl": float(np.mean([pupil.losses[0] for pupil in chosen.values()])),
                "last_kl": float(np.mean([pupil.recent(RECENT) for pupil in chosen.values()])),
                "trial_kl": self.trials[name],
                "seconds": seconds,
                "arguments": {layer: pupil.arguments for layer, pupil in chosen.items()},
            }
        return Learned(layers, report)


def _write(path: Path, learned: Learned) -> None:
    tensors = {
        f"{name}.{layer}.{parameter}": tensor.cpu().contiguous()
        for name, layers in learned.layers.items()
        for layer, learner in layers.items()
        for parameter, tensor in learner.state_dict().items()
    }
    write_atomic(path, save(tensors, {"report": to_json(learned.report)}))


def _read(path: Path, device: torch.device) -> Learned:
    layers: dict[str, dict[int, Learner]] = {}
    try:
        metadata, tensors = read_tensors(path)
        report = parse_json(metadata["report"], str(path), table(values=table({"arguments": table()})), finite=False)
        for name, each in report.items():
            layers[name] = {}
            for layer, arguments in each.pop("arguments").items():
                learner = LEARNERS[name](**arguments)
                learner.load_state_dict({n: tensors[f"{name}.{layer}.{n}"] for n in learner.state_dict()})
                layers[name][int(layer)] = learner.to(device).requires_grad_(False)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise FocusError(f"{path} is damaged: delete it, and its baselines are trained again.") from error
    return Learned(layers, report)
