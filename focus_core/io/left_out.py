"""Tells of tables in a folder of which only the plain texts are read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePath

logger = logging.getLogger(__name__)


def tell_left_out(folder: str | Path, names: Iterable[str], tables: tuple[str, ...] = ()) -> None:
    """Warn of tables that are left out; nothing if there are none.

    Args:
        folder: as the user named it.
        names: of the tables.
        tables: suffixes of those that are read where they are named.
    """
    counts = Counter(PurePath(name).suffix.lower() for name in names)
    if counts:
        kinds = " and ".join(f"{count:,} {suffix}" for suffix, count in sorted(counts.items()))
        named = " and ".join(sorted(set(tables) & set(counts)))
        remedy = f"name the {named} files themselves" if named else "write their texts into .txt files"
        logger.warning(f"Files of the folder {folder} are left out, {kinds}: to read them, {remedy}.")
