"""Pieces of `make gpu` at toy size on a CPU, for what they write. That each has a process of its own is the runner's test."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.benchmarks.gpu import goals, runner, vlm
from lab.benchmarks.gpu.machine import Machine, machine_of
from lab.benchmarks.gpu.pieces import CHILD, MODES, PROFILED, TEXTS, Piece, pieces
from ros2_rfm_serving.profiles import read_rows

RUN = ("served-groot_n1_7", "ratios-groot_n1_7", "speed-groot_n1_6", "stages-flow", "profile-groot_n1_6")
RUN += ("profile-qwen2_5_vl_3b", "rosa")
"""Some thirty seconds of a core"""
PROGRAM = """
import json, sys, test.engines.operators
from lab.benchmarks.gpu.child import ELSEWHERE, main

class Missing:
    "What a borrowed machine lacks, and so does an environment in which nobody installed it."
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ortools", "rclpy", "rfm_serving", "ament_index_python", "rcl_interfaces", "launch"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing, codes = Missing(), []
sys.meta_path.insert(0, missing)
for arguments in json.loads(sys.argv[1]):
    if arguments[-1] in ELSEWHERE:
        codes.append(main(arguments))
        assert codes.pop() == 77, "it says what is missing, and is tried again at home"
        sys.meta_path.remove(missing)
    codes.append(main(arguments))
sys.exit(max(codes))
"""


pytestmark = pytest.mark.timeout(1500)  # the pieces, on two cores that others use


@dataclass(frozen=True, kw_only=True)
class Here(Piece):
    """Several, in one process that imports PyTorch once, in an environment with LeRobot's torchvision."""

    of: tuple[Piece, ...]

    def command(self, machine: Machine, out: Path) -> list[str]:
        return [sys.executable, "-c", PROGRAM, json.dumps([each.command(machine, out)[1 + len(CHILD) :] for each in self.of])]


@pytest.fixture(scope="module")
def machine() -> Machine:
    return machine_of("cpu")


@pytest.fixture(scope="module")
def results(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu")
    book, chosen = runner.Book(out, machine), tuple(piece for piece in pieces("toy") if piece.name in RUN)
    assert {piece.name for piece in chosen} == set(RUN) and chosen[-1].name == "rosa"
    with book.held():
        (outcome,) = runner.run([Here(name="all", work=(), of=chosen)], book, machine, lambda piece, outcome: None)
    assert outcome.state == "done", outcome
    return out


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_speeds_and_stages_say_what_was_measured_where(results: Path, machine: Machine) -> None:
    speeds = rows(results / "speed.csv")
    assert {row["mode"] for row in speeds} == set(MODES) and {row["architecture"] for row in speeds} == {"groot_n1_6"}
    stages = rows(results / "stages.csv")
    assert {"SEQ", "DEC"} <= {row["mode"] for row in stages} and {row["policy"] for row in stages} == {"flow"}
    assert all(float(row["rate_hz"]) > 0 for row in stages)
    for row in (*speeds, *stages):
        assert machine.columns().items() <= row.items()


def test_ratios_of_a_served_and_of_a_recorded_architecture_have_goals(results: Path, machine: Machine) -> None:
    found = {(row["ratio"], row["case"]): row for row in rows(results / "ratios.csv")}
    through = {(key, batching) for key in ("clients", "server", "tail") for batching in ("fixed", "continuous")}
    assert through <= found.keys() and {"graphs", "batch", "tensorrt"} == {key for key, _ in found.keys() - through}
    assert all(float(row["value"]) > 0 and row["meets"] in {"True", "False"} and row["goal"] for row in found.values())
    assert all(machine.columns().items() <= row.items() for row in found.values())
    goals.write_page(results, machine)
    page = (results / goals.PAGE).read_text()
    assert "no figures of a GPU" in page and "(fixed); " in page


def test_profiles_are_of_action_and_of_text_models(results: Path) -> None:
    found = {(row.model, row.gpu_type, row.batching) for row in read_rows(results / "profiles" / "cpu_toy.csv")}
    acting = {("toy/groot_n1_6", "CPU", batching) for batching in ("fixed", "continuous")}
    assert found == acting | {("toy/qwen2_5_vl_3b", "CPU", "fixed")}


def test_rosa_is_reproduced_with_what_was_measured(results: Path) -> None:
    catalogue = (results / "profiles" / "catalogue" / "models.yaml").read_text()
    assert "toy/groot_n1_6" in catalogue and "toy/qwen2_5_vl_3b" in catalogue
    assert "device: cpu" in (results / "rosa" / "machine.txt").read_text()
    assert [file for file in (results / "rosa").rglob("*.csv") if "14" in file.name]


def test_text_models_have_the_published_sizes() -> None:
    """Of Qwen2.5-VL-7B-Instruct and -3B-Instruct: 8.29 and 3.75 thousand million."""
    assert [round(vlm.parameters_of(name) / 1e9, 2) for name in TEXTS["full"]] == [8.29, 3.75]


def test_what_needs_all_profiles_waits_for_text_models_too() -> None:
    known = [piece.name for piece in pieces("full", "/vllm/python")]
    assert known.index("rosa") > max(known.index(f"profile-{name}") for name in (*PROFILED, *TEXTS["full"]))
    assert {piece.python for piece in pieces("full", "/vllm/python") if piece.work[0] == "text"} == {"/vllm/python"}
