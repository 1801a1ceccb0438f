"""Pieces of `make gpu` at toy size on a CPU, each in its own process, for what they write."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ros2_rfm_serving.benchmarks.gpu import runner, vlm
from ros2_rfm_serving.benchmarks.gpu.machine import Machine, machine_of
from ros2_rfm_serving.benchmarks.gpu.pieces import MODES, PROFILED, TEXTS, Piece, pieces
from ros2_rfm_serving.profiles import read_rows

RUN = ("speed-groot_n1_6", "stages-flow", "profile-groot_n1_6", "profile-qwen2_5_vl_3b", "rosa")
"""Some forty seconds of a core"""
PROGRAM = "import sys, test.engines.operators; from ros2_rfm_serving.benchmarks.gpu.child import main; sys.exit(main())"


class Here(Piece):
    """In an environment with LeRobot's torchvision."""

    def command(self, machine: Machine, out: Path) -> list[str]:
        python, _, _, *arguments = super().command(machine, out)
        return [python, "-c", PROGRAM, *arguments]


def here(piece: Piece) -> Piece:
    return Here(name=piece.name, work=piece.work, needs=piece.needs)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return machine_of("cpu")


@pytest.fixture(scope="module")
def results(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu")
    book, chosen = runner.Book(out, machine), [here(piece) for piece in pieces("toy") if piece.name in RUN]
    with book.held():
        outcomes = runner.run(chosen, book, machine, lambda piece, outcome: None)
    assert [(outcome.piece, outcome.state) for outcome in outcomes] == [(name, "done") for name in RUN], outcomes
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
