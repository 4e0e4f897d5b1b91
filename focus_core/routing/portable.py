"""A model with routers on the workers of a cluster: each loads it once, and does the pieces of a job with it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from focus_core.cluster import Cluster, connected, in_order, spread, versions
from focus_core.errors import FocusError
from focus_core.models import LoadedModel, load_model
from focus_core.progress import Progress, silent
from focus_core.results import run_key
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import model_hash, routers_hash

_OVERHEAD = 2**30  # bytes of Python, its packages and activations in one worker

T = TypeVar("T")


@dataclass(frozen=True)
class PortableModel:
    """A model that every worker loads from its own cache, with routers that are sent to it.

    Attributes:
        name: as `load_model` accepts it.
        dtype: of the weights.
        weights: `model_hash` of the model.
        routers: files of saved routers.
        memory: bytes of the weights.
    """

    name: str
    dtype: torch.dtype
    weights: str
    routers: dict[str, bytes]
    memory: int

    @classmethod
    def of(
        cls, focus: FocusModel, model: str | Path | LoadedModel, dtype: torch.dtype = torch.float32
    ) -> PortableModel:
        """The model with routers of this process.

        Raises:
            FocusError: the model was given as an object, which has no name that a worker could load.
        """
        if isinstance(model, LoadedModel):
            raise FocusError("Workers load the model themselves: give its name or folder, or omit the cluster.")
        path = Path(model).expanduser()
        name = str(path.absolute()) if path.exists() else str(model)
        with TemporaryDirectory() as folder:
            focus.save_pretrained(folder)
            routers = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        memory = sum(each.numel() * each.element_size() for each in focus.model.parameters())
        return cls(name, dtype, model_hash(focus.model), routers, memory)

    def load(self, threads: int) -> tuple[FocusModel, Any]:
        """The model with routers and its tokenizer, in a worker with so many threads.

        Raises:
            FocusError: the model is not there, or has other weights.
        """
        torch.set_num_threads(threads)
        loaded = load_model(self.name, dtype=self.dtype)
        with TemporaryDirectory() as folder:
            for name, data in self.routers.items():
                (Path(folder) / name).write_bytes(data)
            focus = FocusModel.from_pretrained(loaded.model, folder)
        if model_hash(focus.model) != self.weights:
            raise FocusError(f"{self.name} has other weights on a worker: put the same model on every node.")
        return focus, loaded.tokenizer


def model_key(model: PreTrainedModel, **asked: Any) -> str:
    """A hash of everything that decides what passes of a model find, for resuming them.

    Args:
        model: whose weights and dtype count.
        asked: what is asked of it, as `focus_core.results.run_key` takes it.
    """
    return run_key(**asked, model=model_hash(model), dtype=str(model.dtype), versions=versions())


def pass_key(focus: FocusModel, **asked: Any) -> str:
    """The `model_key` of a model with routers: these and their settings count, too.

    Args:
        focus: the model with routers.
        asked: as there.
    """
    return model_key(focus.model, **asked, routers=routers_hash(focus.routers), config=focus.config)


class Job(Protocol):
    """What to do with the model; sent to every worker."""

    def work(self, focus: FocusModel, tokenizer: Any, piece: Any) -> Any:
        """The result of one piece of work, which depends on nothing but these and the job."""
        ...


class ModelWorker:
    """Does pieces of a job with a model that it loads for the first one, see `focus_core.cluster.Worker`."""

    def __init__(self, given: tuple[PortableModel, int, Job]) -> None:
        self.model, self.threads, self.job = given

    def versions(self) -> dict[str, str]:
        """Versions here."""
        return versions()

    def work(self, piece: Any) -> Any:
        """The result of one piece."""
        return self.job.work(*self._loaded, piece)

    @cached_property
    def _loaded(self) -> tuple[FocusModel, Any]:
        return self.model.load(self.threads)


def done_on(
    cluster: Cluster,
    model: PortableModel,
    job: Job,
    pieces: Iterable[T],
    *,
    ahead: int = 4,
    apart: Callable[[T], Sequence[T]] | None = None,
    progress: Progress = silent,
) -> Generator[tuple[T, Any]]:
    """Each piece of a job with its result, in order, done by the workers of a cluster.

    Args:
        cluster: where.
        model: the model with routers.
        job: what to do.
        pieces: the work; taken as workers are free.
        ahead: pieces begun or waiting, as a multiple of the workers.
        apart: parts of a piece that ends its workers, see `in_order`.
        progress: told when workers are awaited.

    Raises:
        FocusError: see `in_order` and `connected`.
    """
    with connected(cluster.address) as ray:
        workers, threads = spread(ray, cluster.workers, 2 * model.memory + _OVERHEAD)
        how = {"workers": workers, "threads": threads, "ahead": ahead, "apart": apart}
        yield from in_order(ray, ModelWorker, (model, threads, job), pieces, **how, progress=progress)
