"""Checkpoints of a phase of training: whose they are, whether they are whole, and which one to resume from."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer_utils import get_last_checkpoint

from focus_core.errors import FocusError
from focus_core.io.files import to_json, write_atomic
from focus_core.io.reading import read_json, regular
from focus_core.io.schema import table
from focus_core.io.schema import whole as whole_number
from focus_core.results import run_key, text_records
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import CONFIG, model_hash, weights_hash
from focus_core.training.modes import Phase
from focus_core.training.parallel.processes import is_main_process
from focus_core.training.stream import TokenStream

if TYPE_CHECKING:
    from focus_core.training.trainer import TrainerSettings

CHECKPOINTS = "checkpoints"
RUN = "run.json"
"""Name of the file with the key of a phase."""

_STATE = "trainer_state.json"


def phase_key(
    focus: FocusModel, stream: TokenStream, phase: Phase, settings: TrainerSettings, *, sharded: bool = False
) -> dict[str, str]:
    """The identity of a phase: a hash of its text, of the weights that it starts from, and of its settings.

    The number of processes is no part of it; whether checkpoints are for any number of them is.
    """
    key = run_key(
        phase=phase,
        settings=settings,
        routing=focus.config,
        length=stream.length,
        text=text_records(source.path for source in stream.sources if source.path is not None),
        datasets=[source.dataset for source in stream.sources if source.dataset],
        model=model_hash(focus.model),
        start=weights_hash(focus.routers),
        **({"sharded": True} if sharded else {}),
    )
    return {"key": key}


def check_belongs(folder: Path, key: dict[str, str]) -> None:
    """Refuse a folder that a phase with another key wrote.

    Raises:
        FocusError: it did, or the folder is of an older version, which did not store the key.
    """
    path = folder / RUN
    try:
        stored = read_json(path, table())
    except FileNotFoundError as error:
        raise FocusError(
            f"{folder} has no {RUN} with the hash of its text and weights, so it cannot be resumed: delete it."
        ) from error
    if "key" not in stored:
        raise FocusError(f"{folder} is of an older version, which did not store its text: delete it to train anew.")
    if stored != key:
        raise FocusError(
            f"{folder} belongs to a run with other text, weights or settings: use those, or give another folder."
        )


def checkpoint_to_resume(checkpoints: Path, key: dict[str, str]) -> str | None:
    """The last checkpoint of the same run; None for a fresh start."""
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    if is_main_process():
        if last is not None:
            check_belongs(checkpoints, key)
            _check_whole(Path(last))
        write_atomic(checkpoints / RUN, to_json(key) + "\n")
    return last


def _check_whole(checkpoint: Path) -> None:
    """Refuse a checkpoint with a file of Trainer's that is cut, changed on the disk or of another kind.

    Raises:
        FocusError: there is one.
    """
    try:
        read_json(checkpoint / _STATE, table({"global_step": whole_number(0)}), finite=False)
        whole = all(_sums_hold(path) for path in checkpoint.glob("*.pt*"))
    except (OSError, FocusError, zipfile.BadZipFile):
        whole = False
    if not whole:
        raise FocusError(f"{checkpoint} is damaged: delete it to train from the checkpoint before, or from the start.")


def _sums_hold(path: Path) -> bool:
    """Whether every part of a file that PyTorch wrote has its checksum."""
    with zipfile.ZipFile(regular(path)) as archive:
        return archive.testzip() is None


def remove_checkpoints(folder: Path) -> None:
    """Delete a finished run's checkpoints."""
    if is_main_process() and (folder / CONFIG).is_file():
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
