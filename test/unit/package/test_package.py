"""What the package promises about itself."""

from __future__ import annotations

import configparser
import importlib
import re
import subprocess
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
    nodes = {file.stem for file in (repository / "ros2_rfm_serving" / "ros").glob("*_node.py")} - {"observer_node"}
    assert nodes == scripts.keys() - {"rfm"}
    assert all(scripts[node] == f"ros2_rfm_serving.ros.executables:{node}" for node in nodes)


def test_an_executable_s_first_lines_import_nothing_that_takes_time() -> None:
    """Until they have run, Ctrl-C is Python's own: a traceback out of whatever is being imported."""
    heavy = ["numpy", "rclpy", "pydantic", "torch", "ortools"]
    program = f"import sys, ros2_rfm_serving.ros.executables; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"


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


PAGED = ("docs", "models", "examples", "config", "test")
SLUG = re.compile(r"[^\w\- ]")


def documents(repository: Path) -> list[Path]:
    """All pages of the repository, those of environments and builds left out."""
    return [*repository.glob("*.md"), *(page for room in PAGED for page in (repository / room).rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {SLUG.sub("", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_of_every_page_leads_somewhere(repository: Path) -> None:
    pages = documents(repository)
    assert len(pages) > 15
    broken = []
    for page in pages:
        for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text()):
            file, _, anchor = link.partition("#")
            target = (page.parent / file) if file else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(repository)}: {link}")
    assert not broken, broken


def test_every_page_that_is_named_exists(repository: Path) -> None:
    """Also without a link, as in `docs/rtc.md`."""
    missing = []
    for page in documents(repository):
        for name in set(re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", page.read_text())):
            if not (repository / name).exists():
                missing.append(f"{page.relative_to(repository)}: {name}")
    assert not missing, missing


def test_every_extra_that_is_named_exists(repository: Path) -> None:
    """In messages, pages and the table of what may be missing."""
    from ros2_rfm_serving.engines.registry import EXTRAS

    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = [file for folder in ("ros2_rfm_serving", "lab", "launch") for file in (repository / folder).rglob("*.py")]
    sources = [*documents(repository), *code]
    named = {
        extra.strip(): source
        for source in sources
        for group in re.findall(r"ros2-rfm-serving\[([\w, -]+)\]", source.read_text())
        for extra in group.split(",")
    }
    assert len(named) > 5
    assert not {extra: str(source) for extra, source in named.items() if extra not in extras}
    assert set(EXTRAS.values()) <= extras.keys()


def test_every_path_that_a_document_names_exists(repository: Path) -> None:
    """`path/file.py` in backticks or in a command: from the repository, from the package or below a folder that the line names."""
    missing = []
    for document in documents(repository):
        for path in set(re.findall(r"(?<![\w/.:<~-])([a-z_]\w*(?:/[\w.-]+)+\.py)\b", document.read_text())):
            below = [repository / "ros2_rfm_serving", repository / "lab"]
            places = (repository, *below, document.parent, *(room for folder in below for room in folder.iterdir()))
            if not any((place / path).is_file() for place in places):
                missing.append(f"{document.relative_to(repository)}: {path}")
    assert not missing
