"""What the package promises about itself."""

from __future__ import annotations

import configparser
import importlib
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib


def test_the_version_stands_in_one_place(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    assert "version" not in project["project"] and "version" in project["project"]["dynamic"]
    version = re.search(r"<version>(.+)</version>", (repository / "package.xml").read_text())
    assert version and version.group(1) in (repository / "CHANGELOG.rst").read_text()


def test_both_installers_offer_the_rfm_command(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    setup = configparser.ConfigParser()
    setup.read(repository / "setup.cfg")
    scripts = dict(line.split(" = ") for line in setup["options.entry_points"]["console_scripts"].strip().splitlines())
    assert project["project"]["scripts"]["rfm"] == scripts["rfm"]
    for target in scripts.values():
        module, function = target.split(":")
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("folder", ["msg", "srv", "action"])
def test_every_field_of_the_wire_is_documented(repository: Path, folder: str) -> None:
    undocumented = []
    for file in (repository / folder).iterdir():
        assert file.read_text().startswith("# "), f"{file.name} does not say what it is"
        lines = file.read_text().splitlines()
        for i, line in enumerate(lines):
            if re.fullmatch(r"[\w/]+(?:\[\])? \w+(=\w+)?(\s*#\s*)?", line.rstrip()):
                undocumented.append(f"{file.name}:{i + 1}: {line}")
    assert not undocumented


def test_the_interfaces_are_all_built(repository: Path) -> None:
    listed = set(re.findall(r'"((?:msg|srv|action)/\w+\.\w+)"', (repository / "CMakeLists.txt").read_text()))
    assert listed == {f"{f.parent.name}/{f.name}" for d in ("msg", "srv", "action") for f in (repository / d).iterdir()}


def test_the_readme_names_only_files_that_exist(repository: Path) -> None:
    for document in [repository / "README.md", *(repository / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!http|#)([^)#]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
