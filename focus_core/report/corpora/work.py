"""Reports and traces of a corpus by the workers of a cluster: what they do, and what they send back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from focus_core.cluster import LESS, Cluster, Lost
from focus_core.errors import FocusError
from focus_core.progress import Progress, silent
from focus_core.report.corpora import traces
from focus_core.report.corpora.corpus import Section, Unit
from focus_core.report.corpora.parts import Block
from focus_core.report.corpora.statistics import Part, Statistics
from focus_core.report.corpora.stream import StreamSettings, chosen_layers, section_blocks
from focus_core.report.tags import SectionTagger
from focus_core.routing.model import FocusModel
from focus_core.routing.portable import PortableModel, done_on

Result = TypeVar("Result")


@dataclass(frozen=True)
class CountingJob:
    """Sums over the tokens of units of text, see `focus_core.routing.portable.Job`.

    Attributes:
        settings: of the report.
        tags: whether to tag parts of speech.
        shape: arguments of `Statistics`.
    """

    settings: StreamSettings
    tags: bool
    shape: dict[str, Any]

    def work(self, focus: FocusModel, tokenizer: Any, piece: Unit) -> Part:
        """The sums of one unit."""
        tag = SectionTagger() if self.tags else None
        statistics, layers = Statistics(**self.shape), chosen_layers(focus, self.settings)
        for section in piece:
            for block in section_blocks(focus, tokenizer, section, self.settings, layers, tag):
                statistics.add(block)
        return statistics.part()


MOST_LOST = 4
"""Documents that may end every worker one after another; more are no fault of theirs."""


def alone(unit: Unit) -> list[Unit]:
    """The sections of a unit, each a unit."""
    return [(section,) for section in unit]


@dataclass(frozen=True)
class TracingJob:
    """Routes units of text and sends their blocks back, see `focus_core.routing.portable.Job`."""

    settings: traces.TraceSettings

    def work(self, focus: FocusModel, tokenizer: Any, piece: Unit) -> list[list[Block]]:
        """The blocks of each section."""
        return [list(traces.section_blocks(focus, tokenizer, section, self.settings)) for section in piece]


def bearable(found: Generator[tuple[Unit, Result | Lost]]) -> Generator[tuple[Unit, Result | Lost]]:
    """The same units with their results.

    Raises:
        FocusError: more than `MOST_LOST` documents were lost without a result between them.
    """
    lost: set[int] = set()
    with closing(found):
        for unit, result in found:
            if not isinstance(result, Lost):
                lost.clear()
            else:
                lost.add(unit[0].document)
                if len(lost) > MOST_LOST:
                    raise FocusError(f"{result.reason}, {len(lost)} times in a row: {LESS}")
            yield unit, result


def counted_on(
    cluster: Cluster, model: PortableModel, *, tags: bool, progress: Progress = silent
) -> Callable[[Iterator[Unit], StreamSettings, dict[str, Any]], Generator[tuple[Unit, Part | Lost]]]:
    """A function for `stream.collect` that sums on a cluster.

    Args:
        cluster: where.
        model: the model with routers.
        tags: whether to tag parts of speech.
        progress: told when workers are awaited.
    """

    def count(
        units: Iterator[Unit], settings: StreamSettings, shape: dict[str, Any]
    ) -> Generator[tuple[Unit, Part | Lost]]:
        job = CountingJob(settings, tags, shape)
        yield from bearable(done_on(cluster, model, job, units, apart=alone, progress=progress))

    return count


def traced_on(
    cluster: Cluster, model: PortableModel, settings: traces.TraceSettings, *, progress: Progress = silent
) -> Callable[[Iterator[Unit]], Generator[tuple[Section, list[Block] | Lost]]]:
    """A function for `traces.write_traces` that routes on a cluster.

    Args:
        cluster: where.
        model: the model with routers.
        settings: see `TraceSettings`.
        progress: told when workers are awaited.
    """

    def trace(units: Iterator[Unit]) -> Generator[tuple[Section, list[Block] | Lost]]:
        job = TracingJob(settings)
        found = done_on(cluster, model, job, units, ahead=2, apart=alone, progress=progress)
        with closing(bearable(found)) as each:
            for unit, blocks in each:
                if isinstance(blocks, Lost):
                    yield unit[0], blocks
                else:
                    yield from zip(unit, blocks, strict=True)

    return trace
