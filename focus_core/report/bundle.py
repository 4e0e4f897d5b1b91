"""A report and its session as one ZIP file, and the checks when it is opened.

A session file may come from anybody. So no part of it is executed, unpickled or written to the disk. Only entries with
known names and hashes that match the manifest are read, and never more bytes than allowed.
"""

from __future__ import annotations

import hashlib
import io
import json
import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from focus_core.errors import FocusError
from focus_core.io.reading import parse_json
from focus_core.report.files import FILES, report_files
from focus_core.report.model import Report
from focus_core.results import stamp

SCHEMA = 1
FORMAT = "focus-session"
MANIFEST, SESSION, TEXT = "manifest.json", "session.json", "text.txt"

MAX_FILE = 20 * 2**20
"""Largest accepted session file, in bytes."""
MAX_TOTAL = 200 * 2**20
"""Largest accepted size when unpacked, in bytes, all entries together."""
MAX_NOTE = 10_000
"""Longest note, in characters."""

MAX_TEXT = 2**20
"""Longest text in a session file, in characters; also the longest text of the app."""

_LIMITS = {MANIFEST: 2**18, SESSION: 4 * 2**20, TEXT: 4 * MAX_TEXT}
_DEFAULT_LIMIT = 64 * 2**20
_CHUNK = 2**16
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAX_ENTRIES = 64


@dataclass(frozen=True)
class Session:
    """The session in a session file.

    Attributes:
        settings: settings as links spell them, by name.
        choices: selection of the report: "layers" (list of int, or None for all), "sections" (list of str), "seed" and
            "examples" (int).
        notes: by hash of the routers they are about, then by "layer/group".
        text: the text; None for a corpus that is too long for a session file.
        text_name: name of the text.
        routers_hash: of the routers in use.
        date: day of the export.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    text: str | None = None
    text_name: str = ""
    routers_hash: str = ""
    date: str = ""


def write_bundle(report: Report, session: Session) -> bytes:
    """The report in every format with the session, as a ZIP file.

    The manifest holds schema, versions, date, origin, seed and the SHA-256 of every other file in it.

    Raises:
        FocusError: the text or the notes are longer than `read_bundle` accepts.
    """
    values = {
        "schema": SCHEMA,
        "settings": dict(session.settings),
        "choices": dict(session.choices),
        "notes": {routers: dict(notes) for routers, notes in session.notes.items()},
        "text_name": session.text_name,
        "routers_hash": session.routers_hash,
    }
    files = {SESSION: _dump(values), **report_files(report)}
    if session.text is not None:
        files[TEXT] = session.text.encode()
    for name, data in files.items():
        if len(data) > _LIMITS.get(name, _DEFAULT_LIMIT):
            raise FocusError(f"{name} is too large for a session file ({len(data):,} bytes): choose fewer layers.")
    manifest = stamp(
        {
            "format": FORMAT,
            "schema": SCHEMA,
            "origin": report.origin,
            "seed": report.seed,
            "files": {
                name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
            },
        }
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {MANIFEST: _dump(manifest), **files}.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def read_bundle(data: bytes) -> Session:
    """Check a session file and read its session.

    Args:
        data: the bytes of the ZIP file.

    Raises:
        FocusError: any difference from the files that `write_bundle` makes, in one sentence.
    """
    if len(data) > MAX_FILE:
        raise FocusError(f"The session file is larger than {MAX_FILE // 2**20} MB: it was not made here.")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = _checked_entries(archive)
            budget = [MAX_TOTAL]
            manifest = _object(_unpack(archive, entries[MANIFEST], budget), MANIFEST)
            promised = _promised(manifest, set(entries) - {MANIFEST})
            kept: dict[str, bytes] = {}
            for name, (size, digest) in promised.items():
                content = _unpack(archive, entries[name], budget)
                if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
                    raise FocusError(f"{name} in the session file was changed after it was made: export it again.")
                if name in (SESSION, TEXT):
                    kept[name] = content
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, FocusError):
            raise
        raise FocusError("The session file is no ZIP file, or it is damaged or cut short: export it again.") from error
    return _session(_object(kept[SESSION], SESSION), kept.get(TEXT), manifest)


def _checked_entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > _MAX_ENTRIES:
        raise FocusError(f"The session file has {len(infos):,} entries: it was not made here.")
    entries: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        # orig_filename is the stored name; filename is cut at a null byte.
        if info.orig_filename not in (MANIFEST, SESSION, TEXT, *FILES) or info.filename != info.orig_filename:
            raise FocusError(
                f"The session file holds {_name(info.orig_filename)}, which does not belong in it: export it again."
            )
        if info.filename in entries:
            raise FocusError(f"The session file holds {info.filename} twice: it was not made here.")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            raise FocusError(f"{info.filename} in the session file is a link or no plain file: it was not made here.")
        if info.flag_bits & 0x1:
            raise FocusError(f"{info.filename} in the session file is encrypted: export it again.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FocusError(f"{info.filename} in the session file is packed in an unknown way: export it again.")
        if info.file_size > _limit(info):
            raise FocusError(f"{info.filename} in the session file unpacks to {info.file_size:,} bytes: too many.")
        entries[info.filename] = info
    for name in (MANIFEST, SESSION):
        if name not in entries:
            raise FocusError(f"The session file has no {name}: give a ZIP file that the Report page exported.")
    if sum(info.file_size for info in infos) > MAX_TOTAL:
        raise FocusError(f"The session file unpacks to more than {MAX_TOTAL // 2**20} MB: it was not made here.")
    return entries


def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: list[int]) -> bytes:
    """The content of an entry. The directory's sizes may be false, so the unpacked bytes are counted as well."""
    content = bytearray()
    with archive.open(info) as stream:
        while chunk := stream.read(_CHUNK):
            content += chunk
            budget[0] -= len(chunk)
            if len(content) > _limit(info) or budget[0] < 0:
                raise FocusError(f"{info.filename} in the session file unpacks to too many bytes: export it again.")
    return bytes(content)


def _limit(info: zipfile.ZipInfo) -> int:
    return _LIMITS.get(info.filename, _DEFAULT_LIMIT)


def _promised(manifest: dict[str, Any], there: set[str]) -> dict[str, tuple[int, str]]:
    """Size and hash of each file, from a manifest of the known schema that lists exactly the files present."""
    if manifest.get("format") != FORMAT:
        raise FocusError("The ZIP file is no session file: give one that the Report page exported.")
    if manifest.get("schema") != SCHEMA:
        raise FocusError(f"The session file has schema {_name(manifest.get('schema'))}, not {SCHEMA}: export it again.")
    files = manifest.get("files")
    if not isinstance(files, dict) or set(files) != there:
        raise FocusError("The session file does not hold the files that its manifest lists: export it again.")
    promised = {}
    for name, entry in files.items():
        size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if not isinstance(size, int) or not isinstance(digest, str):
            raise FocusError(f"The manifest of the session file does not describe {name}: export it again.")
        promised[name] = (size, digest)
    return promised


def _session(values: dict[str, Any], text: bytes | None, manifest: dict[str, Any]) -> Session:
    """The session, with the type of every value checked."""
    expected = {"schema", "settings", "choices", "notes", "text_name", "routers_hash"}
    made = manifest.get("made")
    date = made.get("date") if isinstance(made, dict) else None
    if set(values) != expected or values["schema"] != SCHEMA or not isinstance(date, str):
        raise FocusError(f"{SESSION} in the session file does not follow its schema: export it again.")
    notes = values["notes"]
    if (
        not _is_words(values["settings"], 300)
        or not _is_choices(values["choices"])
        or not isinstance(notes, dict)
        or not all(_is_words(entry, MAX_NOTE) for entry in notes.values())
        or not all(_is_place(place) for entry in notes.values() for place in entry)
        or not all(_is_text(values[name], 300) for name in ("text_name", "routers_hash"))
    ):
        raise FocusError(f"{SESSION} in the session file has a value of the wrong kind: export it again.")
    try:
        decoded = None if text is None else text.decode()
    except UnicodeDecodeError as error:
        raise FocusError(f"{TEXT} in the session file is not UTF-8: export it again.") from error
    return Session(
        values["settings"], values["choices"], notes, decoded, values["text_name"], values["routers_hash"], date[:40]
    )


def _is_words(value: Any, longest: int) -> bool:
    return isinstance(value, dict) and all(_is_text(word, longest) for word in value.values())


def _is_text(value: Any, longest: int) -> bool:
    """Whether a value is a string within the limit that UTF-8 can encode (JSON can spell half a surrogate pair)."""
    return isinstance(value, str) and len(value) <= longest and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_choices(value: Any) -> bool:
    if not isinstance(value, dict) or not set(value) <= {"layers", "sections", "seed", "examples"}:
        return False
    layers, sections = value.get("layers"), value.get("sections", [])
    return (
        (layers is None or (isinstance(layers, list) and all(_is_number(layer) for layer in layers)))
        and isinstance(sections, list)
        and all(isinstance(section, str) for section in sections)
        and all(_is_number(value.get(name, 0)) for name in ("seed", "examples"))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1_000_000


def _is_place(value: str) -> bool:
    layer, _, group = value.partition("/")
    return all(part.isascii() and part.isdigit() and len(part) <= 4 for part in (layer, group))


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = parse_json(data, name)
    except FocusError as error:
        raise FocusError(f"{name} in the session file is not valid JSON: export it again.") from error
    if not isinstance(value, dict):
        raise FocusError(f"{name} in the session file is not a JSON object: export it again.")
    return value


def _dump(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode("ascii")


def _name(value: Any) -> str:
    """A value from the file, short and printable, for an error."""
    return ascii(value)[:60]
