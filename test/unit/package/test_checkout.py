"""The lab (benchmarks, reproductions, training) is found in a checkout, and no installation contains it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from ros2_rfm_serving.checkout import find_checkout, is_checkout
from ros2_rfm_serving.errors import ConfigurationError

LAB_VERBS = [["bench", "path"], ["bench", "--help"], ["reproduce", "rosa"], ["train", "--help"], ["netlink", "--help"]]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like a checkout."""
    root = tmp_path / "clone"
    (root / "lab").mkdir(parents=True)
    (root / "lab" / "__init__.py").touch()
    (root / "package.xml").write_text("<package><name>rfm_serving</name></package>")
    return root


def test_the_checkout_is_where_the_package_was_imported_from(repository: Path) -> None:
    assert find_checkout(repository / "ros2_rfm_serving", Path("/nowhere/venv"), Path("/")) == repository


def test_it_is_found_around_the_environment_and_around_the_current_folder(checkout: Path, tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "site-packages" / "ros2_rfm_serving", tmp_path / "elsewhere"
    assert find_checkout(installed, checkout / ".venv", elsewhere) == checkout
    assert find_checkout(installed, tmp_path / "venv", checkout / "docs" / "figures") == checkout


def test_without_one_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"needs a checkout of the repository.*clone the repository"):
        find_checkout(tmp_path / "ros2_rfm_serving", tmp_path / "venv", tmp_path)


def test_a_folder_of_another_package_is_no_checkout(checkout: Path) -> None:
    assert is_checkout(checkout)
    (checkout / "package.xml").write_text("<package><name>lab</name></package>")
    assert not is_checkout(checkout)


@pytest.mark.parametrize("verb", LAB_VERBS, ids=" ".join)
def test_a_verb_of_the_lab_says_outside_of_a_checkout_that_it_needs_one(verb: list[str], tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from ros2_rfm_serving import checkout
from ros2_rfm_serving.cli.main import main
find, here = checkout.find_checkout, Path({str(tmp_path)!r})
checkout.find_checkout = lambda: find(here / "package", here / "venv", here)
sys.argv = ["rfm", *{verb!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "needs a checkout of the repository" in done.stderr and "Traceback" not in done.stderr


def test_a_verb_of_the_lab_runs_from_any_folder_of_the_checkout(repository: Path) -> None:
    command = [sys.executable, "-c", "from ros2_rfm_serving.cli.main import main; main()", "bench", "--help"]
    environment = {"PYTHONPATH": str(repository), "PYTHONSAFEPATH": "1", "COLUMNS": "100"}
    done = subprocess.run(command, cwd=repository / "docs", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "dispatch" in done.stdout, done.stderr


def test_a_module_of_the_lab_runs_in_a_process_of_its_own(tmp_path: Path, repository: Path) -> None:
    command = [sys.executable, "-m", "ros2_rfm_serving.checkout", "lab.benchmarks.network.netlink", "--help"]
    environment = {"PYTHONPATH": str(repository), "COLUMNS": "100"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Usage" in done.stdout, done.stderr


def test_the_installation_contains_nothing_of_the_lab(repository: Path) -> None:
    """`make wheel-test` and `make colcon` look at the wheel for other computers and at a workspace in the same way."""
    lab = {f"/{file.relative_to(repository / 'lab')}" for file in (repository / "lab").rglob("*.py")} - {"/__init__.py"}
    installed = [str(file) for file in distribution("ros2-rfm-serving").files or []]
    assert len(installed) > 500 and len(lab) > 100
    assert not [name for name in installed if "/lab/" in f"/{name}" or any(name.endswith(own) for own in lab)]
