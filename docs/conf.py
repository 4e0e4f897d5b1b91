"""The documentation site: `sphinx-build -W -c docs . build/site`, run at the top of the repository.

The source folder is the repository itself, so that a link between README, docs/ and data/ works here and there.
"""

import builtins
import gc
import importlib
import shutil
import sys
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
API = ROOT / "docs" / "api"
sys.path.insert(0, str(ROOT))

from focus_core import __version__  # noqa: E402

gc.disable()  # documents are trees that live to the end: collections find nothing but take their time

project = "Focus Workbench"
author = project_copyright = "Focus Workbench contributors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/tables/*.md", "docs/api/*.rst", "data/routers/*/*.md"]
include_patterns += ["examples/*.md", "notebooks/*.md"]
exclude_patterns = [".*", "build", "dist", "runs", "shared", "tests", "focus_core", "workbench", "data/results"]
templates_path = ["_templates"]

myst_heading_anchors = 4

default_role = "py:obj"  # a name in backticks links to its description, and is plain code where there is none
autodoc_default_options = {"members": True, "ignore-module-all": True}  # everything once, where it is defined
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_use_type_comments = False  # there are none, and each signature would be parsed for them
python_use_unqualified_type_names = True
toc_object_entries = False
napoleon_use_ivar = True  # fields of a named tuple would be described twice otherwise

html_theme = "furo"
html_title = project
html_additional_pages = {"index": "redirect.html"}


def write_reference() -> None:
    """One page for each folder of focus_core: the names it exports, then every file. Commands have their own help."""
    shutil.rmtree(API, ignore_errors=True)  # pages of folders that are no more
    API.mkdir(exist_ok=True)
    for start in sorted(ROOT.glob("focus_core/**/__init__.py")):
        folder = ".".join(start.parent.relative_to(ROOT).parts)
        if folder.startswith("focus_core.commands"):
            continue
        files = sorted(path.stem for path in start.parent.glob("[!_]*.py") if path.stem != "cli")
        parts = [heading(folder, "="), exported(folder)]
        parts += [heading(f"{folder}.{name}", "-") for name in files]
        (API / f"{folder}.rst").write_text("\n".join(parts), encoding="utf-8")


def heading(module: str, underline: str) -> str:
    """Title and contents of a module."""
    return f"{module}\n{underline * len(module)}\n\n.. automodule:: {module}\n"


def exported(folder: str) -> str:
    """Links to what a package exports from its files; empty if it exports nothing."""
    package = importlib.import_module(folder)
    homes = {name: getattr(getattr(package, name), "__module__", folder) for name in getattr(package, "__all__", [])}
    links = [f":py:obj:`{name} <{home}.{name}>`" for name, home in homes.items() if home != folder]
    return f"Exports {', '.join(links)}.\n" if links else ""


def link_files(app: Sphinx, doctree: nodes.document) -> None:
    """Make Markdown files outside the site downloads, as Sphinx makes other files; folders lose their link."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node.get("reftype") != "myst" or node["reftarget"] in app.env.found_docs:
            continue
        if node["refdomain"] == "doc":
            place = {"refdoc": node["refdoc"], "reftarget": f"/{node['reftarget']}.md"}
            node.replace_self(addnodes.download_reference("", "", *node.children, **place))
        elif (Path(app.env.doc2path(node["refdoc"])).parent / node["reftarget"]).is_dir():
            node.replace_self(node.children)


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Look names up in the module whose docstring or signature holds them, as Python does."""
    for node in doctree.findall(addnodes.pending_xref):
        target = node["reftarget"]
        found = getattr(sys.modules.get(node.get("py:module") or ""), target, None)
        if hasattr(found, "__qualname__") and hasattr(found, "__module__"):
            node["reftarget"] = f"{found.__module__}.{found.__qualname__}"
        # A whole name needs no search for names that end with it, which reads all names for each.
        if hasattr(builtins, target) or node["reftarget"].partition(".")[0] in sys.modules:
            node.attributes.pop("refspecific", None)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    write_reference()
    app.connect("doctree-read", link_names)
    app.connect("doctree-read", link_files, priority=400)  # before Sphinx collects what is to be downloaded
