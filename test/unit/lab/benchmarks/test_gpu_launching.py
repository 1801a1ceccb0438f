"""Pieces that are forked from a process that has imported PyTorch, on a CPU: each ends, fails and is killed by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from lab.benchmarks.gpu import runner
from lab.benchmarks.gpu.launching import Launcher
from lab.benchmarks.gpu.pieces import Piece
from test.unit.lab.benchmarks.test_gpu_runner import CPU, GPU, program
from test.waiting import eventually

HOLDING = """
import sys, time
from pathlib import Path
from lab.benchmarks.gpu.launching import Launcher
from lab.benchmarks.gpu.pieces import Piece
from test.unit.lab.benchmarks.test_gpu_runner import CPU
out = Path(sys.argv[1])
launcher = Launcher(CPU, out)
process = launcher.start(Piece(name="long", work=("stages", "flow")), out / "long.log")
first = process.pid
while process.pid == first and process.poll() is None:
    time.sleep(0.01)
print(first, process.pid, flush=True)
time.sleep(600)
"""


def test_a_forked_piece_that_fails_says_why_in_its_own_log_and_the_next_one_runs(tmp_path: Path) -> None:
    chosen = [Piece(name=f"speed-{name}", work=("speed", name, "eager")) for name in ("none", "nothing")]
    skipped = Piece(name="plan", work=("plan",))
    book = runner.Book(tmp_path, CPU)
    with book.held():
        found = runner.run([*chosen, skipped], book, CPU, lambda *_: None)
    assert [outcome.state for outcome in found] == ["failed", "failed", "skipped"]
    assert "exit code 1: " in found[0].said and "no architecture is named 'none'" in found[0].said
    assert "'nothing'" in found[1].said and "'none'" not in book.log("speed-nothing").read_text()
    assert "no profile was measured yet" in found[2].said and found[0].cpu_s > 0.0


def test_a_forked_piece_ends_with_a_runner_that_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2 and pids[0] != pids[1]
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pid in pids:
        status = Path("/proc", str(pid), "status")
        assert eventually(lambda status=status: not status.exists() or "Z (zombie)" in status.read_text(), 60.0)  # type: ignore[misc]


def test_nothing_is_forked_on_a_gpu_or_for_another_interpreter(tmp_path: Path) -> None:
    """A process that has used CUDA cannot be; and what imports nothing need not be."""
    speed = Piece(name="speed-pi0", work=("speed", "pi0", "eager"))
    forks = Launcher(CPU, tmp_path)._forks
    assert forks(speed) and not Launcher(GPU, tmp_path)._forks(speed)
    assert not forks(replace(speed, python="/vllm/python")) and not forks(replace(speed, environment={"A": "1"}))
    assert not forks(Piece(name="tests-graphs", work=("tests", "graphs"))) and not forks(program("one", ""))
