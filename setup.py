"""Packages of the project. All other settings are in pyproject.toml.

`data/` and `pages/` stand at the top of the repository, where people look for them, and are installed inside
the packages, where they clash with nobody else's; `focus_core/resources.py` finds them in both places.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["focus_core*", "workbench*"]), "focus_core._data", "workbench._pages"],
    package_dir={"focus_core._data": "data", "workbench._pages": "pages"},
)
