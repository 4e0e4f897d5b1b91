"""A whole cluster report: texts in, a folder of files out. `focus report` and notebooks call the same function."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from focus_core.analysis.tables import described
from focus_core.analysis.tokens import spelled
from focus_core.analysis.trace import Provenance
from focus_core.cluster import Cluster
from focus_core.errors import FocusError
from focus_core.io.files import valid_name
from focus_core.io.remote import RemoteFile, claim_output, destination
from focus_core.machine import peak_memory
from focus_core.models import LoadedModel
from focus_core.progress import Progress, silent
from focus_core.report import bundle
from focus_core.report.build import build_report
from focus_core.report.corpora.corpus import Corpus, scan
from focus_core.report.corpora.stream import StreamSettings, chosen_layers, collect, forget
from focus_core.report.files import report_files, write_files
from focus_core.report.model import Report
from focus_core.report.saved import check_unlike
from focus_core.report.tags import TAGS, SectionTagger
from focus_core.routing.attach import attached
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import model_hash, routers_hash, weights_fingerprint
from focus_core.text import token_bytes

STATES = ("untouched", "routed")


@dataclass(frozen=True)
class WrittenReport:
    """A report written to a folder.

    Attributes:
        report: the cards and their numbers.
        files: the files that were written.
        record: size, time, memory, origin and file names as plain values.
    """

    report: Report
    files: tuple[Path | RemoteFile, ...]
    record: dict[str, Any]


def write_report(
    texts: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    untrained: bool = False,
    settings: StreamSettings | None = None,
    tags: bool = True,
    dtype: torch.dtype = torch.float32,
    title: str | None = None,
    cluster: Cluster | None = None,
    progress: Progress = silent,
) -> WrittenReport:
    """Route a corpus of any length, and write a report with a card for every group of every layer.

    Memory does not grow with the corpus. A second call with the same arguments resumes an interrupted report. A folder
    with a report of other texts or settings is refused.

    Args:
        texts: text files and folders, or addresses of a store. Those that cannot be read, or end
            every worker, are listed in the result.
        out: folder for the report, or an address of a store.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        untrained: use untrained routers instead.
        settings: see `StreamSettings`.
        tags: parts of speech of each group, by spaCy.
        dtype: of the weights, where the model is loaded here.
        title: of the report; made from the texts' names when None.
        cluster: workers of Ray that route the corpus, with the model by name; None for this process.
        progress: told of every block.

    Raises:
        FocusError: texts, routers or settings that cannot be used.
        OSError: the folder cannot be written.
    """
    settings = settings or StreamSettings()
    if settings.states not in STATES:
        raise FocusError(f"states is {settings.states!r}: choose {' or '.join(STATES)}.")
    texts = [texts] if isinstance(texts, (str, Path)) else list(texts)
    with ExitStack() as held:
        folder = held.enter_context(claim_output(out))
        corpus = scan(texts)
        chosen = attached(model, routers, untrained=untrained, dtype=dtype, progress=progress)
        loaded, focus = held.enter_context(chosen)
        provenance = provenance_of(loaded, focus)
        tagger = SectionTagger() if tags else None
        config = focus.config.replace(**({} if settings.top_k is None else {"top_k": settings.top_k}))
        heads = [config.head_of(head) for head in settings.heads]
        layers = chosen_layers(focus, settings)
        known: dict[str, Any] = {
            "origin": {
                **described(provenance, config, f"{settings.states} model", corpus.sha256),
                "dtype": str(dtype),
                **({"head": heads[0]} if len(heads) == 1 else {}),
            },
            "block_length": settings.block_length,
            "tagger": str(tagger) if tagger else "not asked for",
        }
        check_unlike(destination(out), {**known, "seed": settings.seed}, {"layer": layers, "head": heads})
        elsewhere = None
        if cluster is not None:
            from focus_core.report.corpora.work import counted_on
            from focus_core.routing.portable import PortableModel

            portable = PortableModel.of(focus, model, dtype)
            elsewhere = counted_on(cluster, portable, tags=tags, progress=progress)
        started = time.monotonic()
        statistics = collect(
            focus,
            loaded.tokenizer,
            corpus,
            settings,
            folder,
            fingerprint={
                **dataclasses.asdict(provenance),
                "dtype": str(dtype),
                "weights": model_hash(focus.model),
                "tagger": None if tagger is None else str(tagger),
            },
            tag=tagger,
            num_tags=len(TAGS) if tagger else 0,
            elsewhere=elsewhere,
            progress=progress,
        )
        seconds = time.monotonic() - started
        progress("Writing the report", 1.0)
        made = build_report(
            statistics,
            lambda ids: [spelled(raw) for raw in token_bytes(loaded.tokenizer, ids)],
            layers=layers,
            heads=heads,
            documents=corpus.documents,
            unread=corpus.unread,
            title=title or f"Groups in {valid_name(Path(texts[0]).name) if len(texts) == 1 else f'{len(texts)} texts'}",
            tag_names=TAGS if tagger else (),
            **known,
        )
        spelt = {
            "model": loaded.info.name if isinstance(model, LoadedModel) else _portable(model),
            "routers": "untrained" if untrained else _spelling(routers, focus),
            "k": str(config.top_k),
            **({} if settings.top_k is None or focus.config.layer_top_k is None else {"k_from": "one"}),
            **({} if config.read_share is None else {"share": f"{100 * config.read_share:g}"}),
            "window": str(config.window),
            "sinks": str(config.sink_tokens),
            "states": settings.states,
        }
        session = _session(made, corpus, settings, spelt, provenance.routers_hash)
        written = write_files({**report_files(made), "session.zip": bundle.write_bundle(made, session)}, out)
        forget(folder)
    record = {
        "tokens": made.num_tokens,
        "words": made.num_words,
        "seconds": round(seconds, 3),
        "peak_memory_bytes": peak_memory(),
        "documents": len(made.documents),
        "failed": [each._asdict() for each in made.failed],
        "origin": made.origin,
        "made": made.made,
        "files": [path.name for path in written],
    }
    return WrittenReport(made, tuple(written), record)


def provenance_of(loaded: LoadedModel, focus: FocusModel) -> Provenance:
    """The model and the routers of a corpus, by name and hash."""
    return Provenance(
        loaded.info.name,
        weights_fingerprint(focus.model),
        focus.name,
        routers_hash(focus.routers),
        focus.trained,
        focus.base_matches,
    )


def _spelling(routers: str | Path | FocusModel | None, focus: FocusModel) -> str:
    """The routers as a link of the app names them."""
    return focus.name if routers is None or isinstance(routers, FocusModel) else _portable(routers)


def _portable(name: str | Path) -> str:
    """A name as it was given; of a file or folder its own name, since others get the session file."""
    path = Path(name).expanduser()
    return path.resolve().name if path.is_absolute() or path.exists() else str(name)


def _text(corpus: Corpus) -> str | None:
    """The only text, if it is still there."""
    try:
        return corpus.text(0)
    except (FocusError, OSError):
        return None


def _session(
    made: Report, corpus: Corpus, settings: StreamSettings, spelt: dict[str, str], routers_hash: str
) -> bundle.Session:
    """The session for the Report page of the app, with the text if it is a single short one."""
    short = len(corpus.files) == 1 and corpus.characters <= bundle.MAX_TEXT
    return bundle.Session(
        settings=spelt,
        choices={
            "layers": list(made.layers),
            "sections": list(made.sections),
            "seed": settings.seed,
            "examples": settings.examples,
        },
        text=_text(corpus) if short else None,
        text_name=corpus.documents[0].name,
        routers_hash=routers_hash,
    )
