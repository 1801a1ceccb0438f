"""`rfm bench gpu --minutes`: the most valuable pieces first, each with its expected seconds, and none that cannot end in time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.benchmarks.gpu import report, runner
from lab.benchmarks.gpu.budget import Budget, correction
from lab.benchmarks.gpu.child import MORE
from lab.benchmarks.gpu.pieces import KERNELS, Piece, pieces
from lab.benchmarks.gpu.speeds import BATCHES
from lab.benchmarks.gpu.tested import REQUESTS
from test.unit.lab.benchmarks.test_gpu_runner import CPU, GPU, program

GPU_MINUTES = 25.0


def names(size: str = "full") -> list[str]:
    return [piece.name for piece in pieces(size)]  # type: ignore[arg-type]


def test_pieces_come_by_value() -> None:
    """Correctness, profiles, ratios, batching, speeds of all eight, stages, memory; compiled kernels come last."""
    order = names()
    first = ["tests-graphs", "tests-failures", "tests-streams", "profile-pi05", "profile-groot_n1_7", "profile-smolvla"]
    assert order[: len(first)] == first
    groups = ["profile-smolvla", "ratios-pi05", "served-pi05", "batching-pi05", "beside-pi05", "speed-pi05", "stages-pi05"]
    groups += ["tests-memory", "tests-compile", "speed-pi05-compiled", "plan", "rosa"]
    assert [order.index(name) for name in groups] == sorted(order.index(name) for name in groups)
    compiled = [piece for piece in pieces("full") if piece.work[0] == "speed" and set(KERNELS) & set(piece.work)]
    last = [piece.name for piece in pieces("full") if piece.measures][-len(compiled) :]
    assert last == [piece.name for piece in compiled] and len(compiled) == 8
    assert BATCHES == (1, 8, 32) and REQUESTS == 2000


def test_the_valuable_pieces_fit_into_one_borrowed_session() -> None:
    """By the table: all of them but later loads, arrivals, other architectures and compiled kernels."""
    spent_s = 0.0
    for piece in pieces("full"):
        spent_s += piece.expected_s
        if piece.name == "tests-memory":
            break
    assert spent_s < 60.0 * GPU_MINUTES
    assert all(0.0 < piece.expected_s < 600.0 for size in ("toy", "full") for piece in pieces(size))  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.floats(0.1, 600), st.floats(0.0, 6000)), max_size=8))
def test_what_was_measured_corrects_the_table(measured: list[tuple[float, float]]) -> None:
    """On a machine on which all takes as long as expected, or nothing was measured, the table stands."""
    factor = correction(measured)
    assert 0.0 < factor < math.inf
    assert correction([]) == 1.0 and correction([(each, each) for each, _ in measured]) == pytest.approx(1.0)
    ratios = [1.0, *(seconds / expected for expected, seconds in measured)]
    assert min(20.0, max(0.05, min(ratios))) - 1e-9 <= factor <= max(ratios) + 1e-9
    assert correction([(100.0, 300.0)] * 5) > 2.5, "a machine three times as slow is nearly known as such"


def test_a_piece_that_cannot_end_in_time_is_not_begun_and_a_shorter_one_is(tmp_path: Path) -> None:
    now = [0.0]
    budget = Budget(ends_s=100.0, clock=lambda: now[0])
    chosen = [replace(program(name, "print('ran')"), expected_s=seconds) for name, seconds in (("long", 101.0), ("short", 10.0))]
    book, begun = runner.Book(tmp_path, CPU), list[str]()

    def told(piece: Piece, outcome: runner.Outcome | None) -> None:
        begun.extend([piece.name] if outcome is None else [])

    with book.held():
        found = runner.run(chosen, book, CPU, told, budget=budget)
        assert [outcome.state for outcome in found] == ["later", "done"] and begun == ["short"]
        assert found[0].said == "not begun: 101 s are expected, 100 s are left"
        assert book.outcome("long") is None, "a later run begins it"
        assert [outcome.state for outcome in runner.run(chosen, book, CPU, told)] == ["done", "done"]


def test_what_waits_for_a_piece_without_time_is_later_too_and_no_failure(tmp_path: Path) -> None:
    long = replace(program("long", ""), expected_s=101.0)
    chosen = [long, program("bad", "raise ValueError"), program("after", "", needs=("long",)), program("other", "", needs=("bad",))]
    book = runner.Book(tmp_path, CPU)
    with book.held():
        found = runner.run(chosen, book, CPU, lambda *_: None, budget=Budget.of(1.0))
    assert [outcome.state for outcome in found] == ["later", "failed", "later", "waits"]


def test_a_piece_that_outlasts_the_time_ends_with_it_and_goes_on_later(tmp_path: Path) -> None:
    slow = program("slow", "import time; print('begun', flush=True); time.sleep(600)")
    book = runner.Book(tmp_path, CPU)
    with book.held():
        (outcome,) = runner.run([slow], book, CPU, lambda *_: None, budget=Budget.of(1.0 / 60.0))
    assert (outcome.state, outcome.said) == ("later", "the time is over; what it measured is kept")
    assert book.outcome("slow") is None and "begun" in book.log("slow").read_text()


def test_each_piece_prints_its_expected_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [replace(program("one", ""), expected_s=7.0), replace(program("two", ""), expected_s=4000.0)]
    monkeypatch.setattr("lab.benchmarks.gpu.pieces.pieces", lambda size, vllm_python="": chosen)
    report.gpu(device="cpu", out=tmp_path / "out", minutes=5.0)
    shown = capsys.readouterr().out
    assert "[1/2] one, 7 s expected ..." in shown and "[2/2] two: later" in shown and "not begun" in shown
    assert "1 done, 1 later" in shown


def test_no_minutes_begin_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.gpu(device="cpu", out=tmp_path / "out", minutes=0.0, bundle=tmp_path / "gpu.tar.gz", piece=["tests-graphs"])
    assert "1 later" in capsys.readouterr().out and (tmp_path / "gpu.tar.gz").exists()


def test_a_piece_that_hangs_on_a_gpu_costs_little_of_the_time_and_comes_last_in_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEAST_PATIENCE_S", 1.0)
    hangs = program("hangs", "import time; time.sleep(600)", limit_s=570.0)
    fails, after = program("fails", "raise ValueError"), program("after", "")
    plan = replace(program("plan", "", needs=("hangs",)), measures=False)
    book = runner.Book(tmp_path, GPU)
    with book.held():
        first = runner.run([hangs, fails], book, GPU, lambda *_: None, budget=Budget.of(10.0))
        assert [outcome.state for outcome in first] == ["hung", "failed"] and first[0].seconds < 60.0
        second = runner.run([hangs, fails, after, plan], book, GPU, lambda *_: None, budget=Budget.of(10.0))
    assert [outcome.piece for outcome in second] == ["after", "hangs", "fails", "plan"]


def test_a_piece_that_goes_on_in_new_processes_on_a_gpu_does_not_take_all_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEAST_PATIENCE_S", 2.0)
    endless = program("endless", f"import sys, time; time.sleep(0.3); sys.exit({MORE})")
    book = runner.Book(tmp_path, GPU)
    with book.held():
        (outcome,) = runner.run([endless], book, GPU, lambda *_: None, budget=Budget.of(10.0))
    assert outcome.state == "hung" and outcome.said.endswith("s; what it measured is kept")
