"""What is imported is what is declared: in pyproject.toml for pip, in package.xml for rosdep, in the doctor's table for people."""

from __future__ import annotations

import ast
import configparser
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.engines.architectures.names import ARCHITECTURES
from ros2_rfm_serving.engines.registry import ENGINES
from ros2_rfm_serving.operate.doctor.checks import FEATURES, QUICKSTART, executables
from ros2_rfm_serving.operate.doctor.imports import imports_of, nodes
from ros2_rfm_serving.operate.doctor.packages import PACKAGES

if sys.version_info >= (3, 11):
    import tomllib

OURS = "rfm_serving"
MESSAGES = {"builtin_interfaces"}
"""Of other packages' messages: fields of ours, imported by no node."""
LAUNCH = {"launch", "launch_ros", "ros2launch"}
"""Which no wheel has."""
CHARTS = {"python3-matplotlib"}
"""Optional for pip (extra `plots`), small and known to rosdep."""
INTERFACES_AT_RUN_TIME = {"rosidl_default_runtime"}


REALLY = """
import builtins, importlib, json, sys

real = builtins.__import__
seen = set()

def watch(name, g=None, l=None, fromlist=(), level=0):
    if g and str(g.get("__name__")).startswith("ros2_rfm_serving") and not level:
        seen.add(name.partition(".")[0])
    return real(name, g, l, fromlist, level)

def whole(module):
    for verb in getattr(importlib.import_module(module), "VERBS", {}).values():
        if not verb.startswith("lab."):  # of a checkout alone
            whole(verb.partition(":")[0])

builtins.__import__ = watch
found = {}
for module in sys.argv[1:]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "ros2_rfm_serving"]:
        del sys.modules[name]  # ours run again, and all that they import is asked for again
    seen.clear()
    whole(module)
    found[module] = sorted(seen)
print(json.dumps(found))
"""


def roots(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules} - {OURS}


@pytest.fixture(scope="module")
def needed() -> set[str]:
    """What every installation needs: all that an executable imports, less what an extra brings."""
    imported = set().union(*(roots(imports_of(module)) for module in executables().values()))
    unknown = imported - set(PACKAGES)
    assert not unknown, f"say in operate/doctor/packages.py where these come from: {unknown}"
    return {root for root in imported if PACKAGES[root].extra is None}


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return content


@pytest.fixture(scope="module")
def manifest(repository: Path) -> ET.Element:
    return ET.parse(repository / "package.xml").getroot()


def declared(manifest: ET.Element, *tags: str) -> list[str]:
    return [str(element.text) for tag in tags for element in manifest.iter(tag)]


def test_every_executable_of_setup_cfg_is_looked_at(repository: Path) -> None:
    setup = configparser.ConfigParser()
    setup.read(repository / "setup.cfg")
    scripts = dict(line.split(" = ") for line in setup["options.entry_points"]["console_scripts"].strip().splitlines())
    assert scripts.pop("rfm").startswith("ros2_rfm_serving.cli.")
    assert scripts and set(scripts) <= set(nodes())
    for name, target in scripts.items():
        assert target == f"ros2_rfm_serving.ros.executables:{name}" and executables()[name] == f"ros2_rfm_serving.ros.{name}"
    assert {module for module in [*QUICKSTART.values(), *FEATURES.values()] if ".engines." in module} == {
        path.partition(":")[0] for name, path in ENGINES.items() if name not in ("emulated", "wave")
    } | {ARCHITECTURES["pi0"].partition(":")[0]}


def test_what_is_read_from_the_source_is_what_python_imports(repository: Path) -> None:
    modules = [executables()[name] for name in ("rfm", *nodes())]
    command = [sys.executable, "-W", "ignore", "-c", REALLY, *modules]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=True)
    really: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    for module in modules:
        assert roots(imports_of(module)) == set(really[module]) - set(sys.stdlib_module_names) - {"ros2_rfm_serving", OURS}, module


def test_pip_installs_what_is_imported_and_nothing_else(needed: set[str], project: dict[str, Any]) -> None:
    assert set(project["dependencies"]) == {PACKAGES[root].pip for root in needed}


def test_every_feature_has_an_extra_with_what_it_imports(project: dict[str, Any], needed: set[str]) -> None:
    for name, module in {**QUICKSTART, **FEATURES, **executables()}.items():
        for root in roots(imports_of(module, when_used=name not in executables())) - needed - {"pydantic_core"}:
            package = PACKAGES[root]
            assert package.extra and package.pip in project["optional-dependencies"][package.extra], f"{name} imports {root}"


def test_what_robots_servers_and_schedulers_run_needs_no_extra() -> None:
    brought = {name: {r for r in roots(imports_of(module)) if PACKAGES[r].extra} for name, module in executables().items()}
    assert {name for name, extras in brought.items() if extras} == {"metaworld_robot_node"}


def test_rosdep_installs_what_is_imported_and_nothing_else(manifest: ET.Element, needed: set[str]) -> None:
    keys = declared(manifest, "depend", "exec_depend")
    imported = {key for root in needed if (key := PACKAGES[root].rosdep)}
    assert set(keys) == imported | MESSAGES | LAUNCH | CHARTS | INTERFACES_AT_RUN_TIME
    assert (
        len(keys) == len(set(keys)) and keys[-1] and sorted(declared(manifest, "exec_depend")) == declared(manifest, "exec_depend")
    )


def test_what_the_messages_are_made_of_is_there_when_they_are_built(repository: Path, manifest: ET.Element) -> None:
    listed = re.search(r"DEPENDENCIES ([\w ]+)\)", (repository / "CMakeLists.txt").read_text())
    assert listed and set(declared(manifest, "depend")) == set(listed.group(1).split())
    assert set(declared(manifest, "buildtool_depend")) == {"ament_cmake", "ament_cmake_python", "rosidl_default_generators"}


def test_what_only_tests_import_is_a_test_dependency(repository: Path, manifest: ET.Element) -> None:
    imported: set[str] = set()
    for file in (repository / "test").rglob("*.py"):
        if file.relative_to(repository / "test").parts[0] in ("unit", "ros", "system"):
            for node in ast.walk(ast.parse(file.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                imported |= {name.partition(".")[0] for name in [*names, getattr(node, "module", None) or ""]}
    keys = set(declared(manifest, "test_depend"))
    for module in ("hypothesis", "httpx", "websockets", "domain_coordinator"):
        assert module not in imported or keys & {module, f"python3-{module}"}, module
    assert not keys & set(declared(manifest, "depend", "exec_depend"))


def test_what_rosdep_cannot_bring_is_named_with_its_command(repository: Path, needed: set[str]) -> None:
    page = (repository / "docs" / "colcon.md").read_text()
    for root in needed:
        if PACKAGES[root].rosdep is None:
            assert f"'{PACKAGES[root].pip}'" in page, f"docs/colcon.md does not say how to get {root}"
