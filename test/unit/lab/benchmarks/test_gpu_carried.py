"""What `rfm bench gpu` needs on a borrowed machine: little enough to be carried, and no package that is not there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import carried

ROOT = carried.ROOT
CARRIED = ROOT / "scripts" / "gpu_wheels.txt"
THERE = """
torch torchgen functorch torchvision transformers tokenizers triton pytest _pytest numpy safetensors huggingface_hub filelock
fsspec packaging yaml regex tqdm typer click rich pygments markdown_it mdurl shellingham annotated_doc jinja2 markupsafe sympy
mpmath networkx PIL typing_extensions httpx httpcore h11 anyio sniffio idna certifi hf_xet pluggy iniconfig setuptools pip
"""
"""Modules of the image: PyTorch, torchvision, transformers, tokenizers, triton, pytest, and what they depend on"""
MODULES = {"pydantic-core": "pydantic_core", "annotated-types": "annotated_types", "typing-inspection": "typing_inspection"}
PROGRAM = """
import importlib, pkgutil, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.path.insert(0, sys.argv[1])
there = set(sys.argv[2].split()) | set(sys.stdlib_module_names) | {"ros2_rfm_serving", "lab", "test", "conftest"}

class OfTheImage:
    "Finds what the image has; all else is not installed."
    @staticmethod
    def find_spec(name, path=None, target=None):
        first = name.partition(".")[0]
        return PathFinder.find_spec(name, path, target) if first in there or first.startswith("_sysconfigdata") else None

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, OfTheImage]
import lab.benchmarks.gpu as gpu
import ros2_rfm_serving.cli.main
from lab.benchmarks.gpu.child import ELSEWHERE, WORK
at_home = {WORK[work].partition(":")[0] for work in ELSEWHERE}
names = [module.name for module in pkgutil.iter_modules(gpu.__path__)]
assert at_home <= set(names) and len(names) > 15
for name in names:
    if name not in at_home:
        importlib.import_module(f"{gpu.__name__}.{name}")
for name in at_home:
    try:
        importlib.import_module(f"{gpu.__name__}.{name}")
    except ModuleNotFoundError as error:
        print(name, "needs", error.name)
print("imported")
"""


def pinned() -> dict[str, str]:
    lines = [line for line in CARRIED.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def modules() -> str:
    return " ".join([THERE, *(MODULES.get(name, name.replace("-", "_")) for name in pinned())])


def test_every_piece_is_imported_where_only_the_image_and_the_wheels_are() -> None:
    """No ROS, no OR-Tools, and nothing else that is installed here; only what computes at home needs more, and says what."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT), modules()], capture_output=True, text=True, check=False, timeout=240, cwd=ROOT
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split("\n")[:2] == ["plans needs ortools", "imported"]


def test_what_measures_does_not_load_the_scheduler() -> None:
    program = "import sys, ros2_rfm_serving.operate.profiled, ros2_rfm_serving.ros.server.engine_thread; "
    program += "print([name for name in sys.modules if name.startswith(('ros2_rfm_serving.scheduler', 'ortools', 'rclpy'))])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240, cwd=ROOT)
    assert found.stdout.strip() == "[]"


def test_the_tracked_files_and_the_wheels_are_below_the_limit() -> None:
    """`scripts/gpu_wheels`, which needs a network, refuses wheels that are larger than is left for them here."""
    tracked = carried.tracked_bytes()
    assert tracked > 2**20, "the files of this repository"
    assert carried.problem(tracked, carried.WHEELS_BYTES) == ""
    assert carried.LIMIT_BYTES == 64 * 2**20


@pytest.mark.parametrize(
    ("tracked", "wheels", "problem"),
    [
        (40 * 2**20, 0, "there are no wheels"),
        (40 * 2**20, 9 * 2**20, "wheels of 9.0 MiB, and 8.0 MiB is the most"),
        (61 * 2**20, 4 * 2**20, "tracked files of 61.0 MiB and wheels of 4.0 MiB, and 64.0 MiB is the most"),
        (60 * 2**20, 4 * 2**20, ""),
    ],
)
def test_what_is_too_large_is_said(tracked: int, wheels: int, problem: str) -> None:
    assert carried.problem(tracked, wheels) == problem


def test_every_wheel_is_pinned_and_is_a_dependency() -> None:
    """A version that nobody pinned may be another one on the day when a GPU is there."""
    lines = [line for line in CARRIED.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==\d+(\.\d+)+", line) for line in lines), lines
    assert {"pydantic", "pydantic-core", "orjson", "simplejpeg"} <= pinned().keys()


def test_the_command_needs_neither_pip_nor_an_environment_of_its_own() -> None:
    """`python3 -m ros2_rfm_serving.cli` runs the files of the checkout."""
    found = subprocess.run(
        [sys.executable, "-m", "ros2_rfm_serving.cli", "bench", "gpu", "--device", "cpu", "--list"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        cwd=ROOT,
    )
    listed = [line.split()[0] for line in found.stdout.splitlines()]
    assert {"tests-graphs", "profile-pi05", "served-groot_n1_7", "rosa"} <= set(listed)
    assert Path(ROOT / "ros2_rfm_serving" / "cli" / "__main__.py").exists()
