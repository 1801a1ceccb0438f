"""`rfm bench gpu`: pieces that are resumed, die, hang, find a disk full and are interrupted; and whose figures are whose."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lab.benchmarks.gpu import runner, tested
from lab.benchmarks.gpu.adopting import adopt
from lab.benchmarks.gpu.child import MORE, SKIPPED, Skip, Task
from lab.benchmarks.gpu.machine import Machine, gpu_type_of, machine_of
from lab.benchmarks.gpu.pieces import CHILD, LIMIT_S, Piece, pieces
from lab.benchmarks.gpu.report import gpu
from lab.benchmarks.gpu.rows import Rows
from ros2_rfm_serving.errors import ConfigurationError, ProfileError
from ros2_rfm_serving.profiles import ProfileRow, format_rows
from test.waiting import eventually

CPU = Machine(device="cpu", gpu="CPU", driver="-", torch="2.13.0", size="toy")
GPU = Machine(device="cuda", gpu="NVIDIA H100 80GB HBM3", driver="580.1", torch="2.13.0", size="full")


class Program(Piece):
    """A piece that is a few lines of Python."""

    def command(self, machine: Machine, out: Path) -> list[str]:
        return [sys.executable, "-c", self.work[0], str(out)]


def program(name: str, text: str, limit_s: float = 60.0, needs: tuple[str, ...] = ()) -> Piece:
    return Program(name=name, work=(text,), limit_s=limit_s, needs=needs)


def states(chosen: list[Piece], book: runner.Book) -> dict[str, str]:
    with book.held():
        return {outcome.piece: outcome.state for outcome in runner.run(chosen, book, CPU, lambda piece, outcome: None)}


def test_what_is_done_is_not_done_again_and_the_rest_is(tmp_path: Path) -> None:
    count = "import sys, pathlib; f = pathlib.Path(sys.argv[1], '{}'); f.write_text(f.read_text() + 'x' if f.exists() else 'x'); {}"
    chosen = [
        program("good", count.format("good", "print('fine')")),
        program("bad", count.format("bad", "raise ValueError('no')")),
        program("nothing", count.format("nothing", f"print('no vLLM here'); sys.exit({SKIPPED})")),
        program("after", "", needs=("good",)),
        program("waits", "", needs=("bad",)),
    ]
    wanted = {"good": "done", "bad": "failed", "nothing": "skipped", "after": "done", "waits": "waits"}
    assert states(chosen, runner.Book(tmp_path, CPU)) == wanted == states(chosen, runner.Book(tmp_path, CPU))
    assert [len((tmp_path / name).read_text()) for name in ("good", "bad", "nothing")] == [1, 2, 2]
    bad, skipped = (runner.Book(tmp_path, CPU).outcome(name) for name in ("bad", "nothing"))
    assert bad and "exit code 1: ValueError: no" in bad.said and "bad.log" in bad.said
    assert skipped and skipped.said == "no vLLM here"


def test_a_piece_with_more_to_do_goes_on_in_another_process(tmp_path: Path) -> None:
    text = "import os, sys, pathlib; f = pathlib.Path(sys.argv[1], 'n'); n = len(f.read_text()) if f.exists() else 0; "
    text += f"f.write_text('x' * (n + 1)); sys.exit({MORE} if n < 3 else 0)"
    assert states([program("long", text)], runner.Book(tmp_path, CPU)) == {"long": "done"}
    assert (tmp_path / "n").read_text() == "xxxx"


def test_a_piece_that_dies_or_hangs_is_said_and_leaves_nobody_behind(tmp_path: Path) -> None:
    dies = program("dies", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    hangs = "import signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    hangs += "child = subprocess.Popen(['sleep', '600']); open(sys.argv[1] + '/child', 'w').write(str(child.pid)); time.sleep(600)"
    patient = runner.ENDS_WITHIN_S
    runner.ENDS_WITHIN_S = 0.2
    try:
        found = states([dies, program("hangs", hangs, limit_s=5.0)], book := runner.Book(tmp_path, CPU))
    finally:
        runner.ENDS_WITHIN_S = patient
    assert found == {"dies": "failed", "hangs": "hung"}
    died = book.outcome("dies")
    assert died and died.said.startswith("killed by signal 11: it said nothing")
    child = Path("/proc", (tmp_path / "child").read_text(), "status")
    assert eventually(lambda: not child.exists() or "Z (zombie)" in child.read_text())


def test_a_full_disk_is_an_error_that_says_so_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = runner.Book(tmp_path, CPU)
    assert states([program("first", "")], book) == {"first": "done"}
    rows = Rows(tmp_path / "speed.csv", CPU)
    rows.add(batch=1, p50_ms=2.0)
    before = (tmp_path / "speed.csv").read_text()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigurationError, match="No space left on device; make room"):
            states([program("first", ""), program("second", "")], book)
        with pytest.raises(OSError, match="No space"):
            rows.add(batch=2, p50_ms=3.0)
    assert (tmp_path / "speed.csv").read_text() == before
    assert runner.Book(tmp_path, CPU).is_done("first") and not runner.Book(tmp_path, CPU).is_done("second")


@pytest.mark.parametrize(
    "spoilt", ["", "{", "[]", '{"piece": "one"}', '{"piece": "one", "state": "done", "seconds": "x", "said": ""}']
)
def test_a_state_that_nobody_can_read_is_none(spoilt: str, tmp_path: Path) -> None:
    book = runner.Book(tmp_path, CPU)
    assert states([program("one", "")], book) == {"one": "done"}
    (tmp_path / "state" / "one.json").write_text(spoilt)
    assert book.outcome("one") is None and states([program("one", "")], book) == {"one": "done"}


def test_a_piece_with_nothing_to_do_here_says_so_from_its_own_process(tmp_path: Path) -> None:
    """Its module runs as `__main__`, and what raises `Skip` or `Later` has imported them."""
    book = runner.Book(tmp_path, CPU)
    with book.held():
        (outcome,) = runner.run([Piece(name="none", work=("tests", "none"))], book, CPU, lambda *_: None)
    assert (outcome.state, outcome.said) == ("skipped", "test/gpu/test_none.py is not there: tests run in the repository's folder")
    assert outcome.cpu_s > 0


def test_one_folder_is_of_one_machine_and_of_one_run_at_a_time(tmp_path: Path) -> None:
    book, other = (runner.Book(tmp_path, replace(CPU, size=size)) for size in ("toy", "full"))
    with book.held():
        pass
    with pytest.raises(ConfigurationError, match=r"of another run: .*size toy, now full.*choose another folder"):
        runner.Book(tmp_path, replace(CPU, size="full"))
    with pytest.raises(ConfigurationError, match="of another run"), other.held():
        pass
    with book.held(), pytest.raises(ConfigurationError, match="another run has it"), runner.Book(tmp_path, CPU).held():
        pass
    with runner.Book(tmp_path, CPU).held():
        pass


def test_a_listing_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What it wrote made the folder that of a machine on which nothing was measured, and a GPU's run was refused."""
    monkeypatch.chdir(tmp_path)
    gpu(device="cpu", list_=True)
    assert "tests-graphs" in capsys.readouterr().out and not list(tmp_path.iterdir())
    book = runner.Book(Path("build/gpu/cpu"), machine_of("cpu"))
    with book.held():
        book.keep(runner.Outcome(piece="plan", state="done", seconds=1.0, said=""))
    gpu(device="cpu", list_=True)
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert (lines["plan"], lines["rosa"]) == ("done", "-"), "it looks where `make gpu DEVICE=cpu` writes"


INTERRUPTED = """
import sys
from pathlib import Path
from lab.benchmarks.gpu import runner
from lab.benchmarks.processes import told_to_end
from test.unit.lab.benchmarks.test_gpu_runner import CPU, program
out = Path(sys.argv[1])
sleeping = "import os, sys, time; open(sys.argv[1] + '/pid', 'w').write(str(os.getpid())); time.sleep(600)"
try:
    book = runner.Book(out, CPU)
    with book.held(), told_to_end() as look:
        runner.run([program("first", ""), program("sleeps", sleeping)], book, CPU, lambda *told: None, look)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_piece_and_keeps_what_is_done(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(tmp_path)], start_new_session=True)
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    assert not Path("/proc", pid.read_text()).exists()
    book = runner.Book(tmp_path, CPU)
    assert book.is_done("first") and book.outcome("sleeps") is None


def test_a_piece_ends_with_a_runner_that_is_killed() -> None:
    """Its end of the pipe closes."""
    code = "import time; from threading import Thread; from lab.benchmarks.gpu import child; "
    code += "Thread(target=child._end_with_the_runner, daemon=True).start(); print('there', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin and process.stdout and process.stdout.readline() == b"there\n"
    process.stdin.close()
    assert process.wait(timeout=60) == -signal.SIGKILL


def test_each_row_says_where_it_was_measured_and_is_another_machines_nowhere(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "speed.csv", CPU)
    rows.add(architecture="pi0", batch=1, p50_ms=2.123456)
    rows.add(architecture="pi0", batch=2, p50_ms=3.0, said="a, comma")
    again = Rows(tmp_path / "speed.csv", CPU)
    assert again.has(architecture="pi0", batch=2) and not again.has(architecture="pi0", batch=4)
    assert not Rows(tmp_path / "speed.csv", GPU).has(architecture="pi0", batch=2)
    assert again.rows[0] == {**CPU.columns(), "architecture": "pi0", "batch": "1", "p50_ms": "2.1235", "said": ""}


@pytest.mark.parametrize("torn", [b"", b"\x00\xff", None, b"device,gpu,dri"])
def test_a_torn_file_is_refused_with_what_to_do_and_not_taken_for_measured(torn: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "speed.csv"
    Rows(file, CPU).add(architecture="pi0", batch=1, p50_ms=2.5)
    file.write_bytes(file.read_bytes()[:-2] if torn is None else torn)
    with pytest.raises(ConfigurationError, match=r"speed.csv.*is torn.*rm .*state/speed\*\.json"):
        Rows(file, CPU)


def test_a_toys_profile_is_no_gpus(tmp_path: Path) -> None:
    assert (CPU.profile_name, GPU.profile_name, GPU.gpu_type) == ("cpu_toy.csv", "h100.csv", "NVIDIA H100")
    assert (
        replace(GPU, size="toy").profile_name == "h100_toy.csv" and CPU.model("pi05") == "toy/pi05" and GPU.model("pi05") == "pi05"
    )
    assert replace(CPU, size="full").profile_name == "cpu_full.csv"
    assert [gpu_type_of(name) for name in ("NVIDIA L40", "NVIDIA GeForce RTX 4090", "CPU")] == [
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090",
        "CPU",
    ]


def _profile(folder: Path, machine: Machine, comment: str, model: str = "pi05", gpu_type: str = "NVIDIA H100") -> None:
    (folder / "profiles").mkdir(exist_ok=True)
    row = ProfileRow(model, gpu_type, "fixed", 1, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0)
    (folder / "profiles" / machine.profile_name).write_text(format_rows([row], comment))


def test_only_a_gpus_profile_at_full_size_is_adopted_and_beside_no_other(tmp_path: Path) -> None:
    target = tmp_path / "config"
    target.mkdir()
    said = "measured by `rfm bench gpu`, device cuda (NVIDIA H100), size full"
    _profile(tmp_path, CPU, "measured by `rfm bench gpu`, device cpu, size toy", "toy/pi05", "CPU")
    with pytest.raises(ProfileError, match="only a GPU at full size"):
        adopt(tmp_path, CPU, target)
    _profile(tmp_path, GPU, "measured by `rfm bench gpu`, device cpu, size toy")  # renamed
    with pytest.raises(ProfileError, match="only a GPU at full size"):
        adopt(tmp_path, GPU, target)
    _profile(tmp_path, GPU, said, "toy/pi05")
    with pytest.raises(ProfileError, match="only a GPU at full size"):
        adopt(tmp_path, GPU, target)
    _profile(tmp_path, GPU, said)
    assert adopt(tmp_path, GPU, target) == target / "h100.csv" == adopt(tmp_path, GPU, target)
    (target / "h100.csv").rename(target / "derived.csv")
    with pytest.raises(ProfileError, match=r"derived.csv: has pi05 on NVIDIA H100 too"):
        adopt(tmp_path, GPU, target)


def test_tests_that_could_not_run_are_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a machine whose vLLM was missing once would never be asked again, and nobody told."""
    (tmp_path / "test/gpu").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['gpu: here']\n")
    options = "def pytest_addoption(parser):\n    parser.addoption('--device')\n    parser.addoption('--requests')\n"
    (tmp_path / "test/gpu/conftest.py").write_text(options)
    text = "import pytest\npytestmark = pytest.mark.gpu\ndef test_one(): pass\n"
    text += "@pytest.mark.skip(reason='no vLLM here')\ndef test_other(): pass\n"
    (tmp_path / "test/gpu/test_vllm.py").write_text(text)
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path)
    task = Task(name="tests-vllm", machine=CPU, out=tmp_path, until_s=0.0)
    with pytest.raises(Skip, match="1 passed, 1 skipped: no vLLM here"):
        tested.run(task, "vllm")
    assert [row["outcome"] for row in task.rows("tests").rows] == ["passed", "skipped"]


def test_a_gpu_that_pytorch_does_not_see_is_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="sees no GPU; install"):
        machine_of("auto")


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    for device, problem in (("cuda:99", "is not there"), ("tpu", "none of auto")):
        with pytest.raises(ConfigurationError, match=problem):
            machine_of(device)
    with pytest.raises(ConfigurationError, match="none of toy, full"):
        machine_of("cpu", "huge")
    assert machine_of("cpu").size == "toy"


@pytest.mark.parametrize("size", ["toy", "full"])
def test_every_piece_has_a_name_of_its_own_and_less_than_ten_minutes(size: str) -> None:
    known = pieces(size)  # type: ignore[arg-type]
    names = [piece.name for piece in known]
    assert len(set(names)) == len(names) and all(piece.limit_s <= LIMIT_S < 600 for piece in known)
    for i, piece in enumerate(known):
        assert set(piece.needs) <= set(names[:i]), "what it needs comes before"
    assert json.loads(json.dumps(known[0].command(CPU, Path("out"))))[: 1 + len(CHILD)] == [sys.executable, *CHILD]
    assert os.sep not in "".join(names)


def test_what_was_done_before_cpu_times_were_kept_is_done(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "old.json").write_text('{"piece": "old", "state": "done", "seconds": 3.0, "said": "x"}')
    assert runner.Book(tmp_path, CPU).is_done("old")
