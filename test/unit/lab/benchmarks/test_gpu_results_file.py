"""`rfm bench gpu --bundle` and `--from`: one file out, one file in, whole at every instant, refused where it would mix figures."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from lab.benchmarks.gpu import report, results_file, runner
from lab.benchmarks.gpu.machine import Machine, machine_of
from lab.benchmarks.gpu.rows import Rows
from ros2_rfm_serving.errors import ConfigurationError
from test.unit.lab.benchmarks.test_gpu_runner import CPU, GPU, program
from test.waiting import eventually


def folder(out: Path, machine: Machine = CPU) -> Path:
    """Results as a run leaves them: one piece done, rows of another."""
    book = runner.Book(out, machine)
    with book.held():
        book.keep(runner.Outcome(piece="first", state="done", seconds=1.0, said="", driver=machine.driver))
    Rows(out / "speed.csv", machine).add(architecture="pi0", batch=1, p50_ms=2.5)
    (out / "logs" / "first.log").write_text("x" * 100_000 + "the end")
    (out / "profiles").mkdir()
    (out / "profiles" / machine.profile_name).write_text("# profile\n")
    (out / "models").mkdir()
    (out / "models" / "weights.safetensors").write_bytes(b"0" * 1_000_000)
    return out


def contents(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file() and file.name != ".lock"}


def test_a_file_of_results_is_a_folder_again(tmp_path: Path) -> None:
    out, file = folder(tmp_path / "one"), tmp_path / "gpu.tar.gz"
    results_file.write(out, file)
    results_file.unpack(results_file.read(file), tmp_path / "two", CPU)
    before, after = contents(out), contents(tmp_path / "two")
    assert before.pop("models/weights.safetensors") and before.pop("logs/first.log").endswith(after.pop("logs/first.log"))
    assert before == after and runner.Book(tmp_path / "two", CPU).is_done("first")
    assert file.stat().st_size < 10_000, "neither weights nor whole logs are carried"
    results_file.write(tmp_path / "two", tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == file.read_bytes(), "the same results are the same file"


def test_another_driver_or_index_is_the_same_machine_and_a_column(tmp_path: Path) -> None:
    """Borrowed machines of one kind have several drivers: on 2026-11-04 an H200 had another one than a week before."""
    results_file.write(folder(tmp_path / "one", GPU), tmp_path / "gpu.tar.gz")
    later = replace(GPU, driver="590.7", device="cuda:1")
    results_file.unpack(results_file.read(tmp_path / "gpu.tar.gz"), tmp_path / "two", later)
    book = runner.Book(tmp_path / "two", later)
    with book.held():
        rows = Rows(tmp_path / "two" / "speed.csv", later)
        assert rows.has(architecture="pi0", batch=1) and not rows.has(architecture="pi0", batch=8)
        rows.add(architecture="pi0", batch=8, p50_ms=3.0)
    assert [row["driver"] for row in rows.rows] == ["580.1", "590.7"]
    first = book.outcome("first")
    assert first and first.driver == "580.1"


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (replace(GPU, gpu="NVIDIA H200"), "gpu NVIDIA H100 80GB HBM3, now NVIDIA H200"),
        (replace(GPU, torch="2.14.0"), "torch 2.13.0, now 2.14.0"),
        (replace(GPU, size="toy"), "size full, now toy"),
        (replace(GPU, device="cpu"), "device cuda, now cpu"),
    ],
)
def test_results_of_another_machine_are_refused_by_name(other: Machine, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "gpu.tar.gz"
    results_file.write(folder(tmp_path / "one", GPU), file)
    with pytest.raises(ConfigurationError, match=rf"gpu\.tar\.gz.*of another machine: {problem}.*plan and rosa run anywhere"):
        results_file.unpack(results_file.read(file), tmp_path / "two", other)
    assert not (tmp_path / "two").exists()


def archive(members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.type = (len(data) if kind == tarfile.REGTYPE else 0), kind
            member.linkname = "/etc/passwd"
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def indexed(changes: dict[str, object]) -> Callable[[bytes], bytes]:
    """The file with other words in its index."""

    def spoil(whole: bytes) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
        index = {**json.loads(members["index.json"]), **changes}
        return archive({**members, "index.json": json.dumps(index).encode()})

    return spoil


def edited(whole: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
    return archive({**members, "speed.csv": members["speed.csv"].replace(b"2.5", b"1.5")})


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda whole: b"", "is damaged, or no file"),
        (lambda whole: b"results\n" * 100, "is damaged, or no file"),
        (lambda whole: whole[: len(whole) // 2], "is damaged, or no file"),
        (lambda whole: whole[:-4], "is damaged, or no file"),
        (lambda whole: whole[:200] + bytes([whole[200] ^ 255]) + whole[201:], "is damaged, or no file"),
        (lambda whole: gzip.compress(b"not an archive" * 100), "is damaged, or no file"),
        (lambda whole: archive({"weights.safetensors": b"x"}), "'weights.safetensors' is none of its files"),
        (lambda whole: archive({"../../escape.csv": b"x"}), "is not a file below the folder"),
        (lambda whole: archive({"/tmp/escape.csv": b"x"}), "is not a file below the folder"),
        (lambda whole: archive({"speed.csv": b""}, tarfile.SYMTYPE), "is not a file below the folder"),
        (lambda whole: archive({"speed.csv": b"device\n"}), "is damaged, or no file"),
        (indexed({"format": "another"}), "its index.json does not say"),
        (indexed({"files": 3}), "its index.json does not say"),
        (indexed({"machine": {"gpu": "H100"}}), "does not say of which machine"),
        (indexed({"machine": replace(CPU, torch="1.0").columns()}), "names another machine"),
        (indexed({"files": {"speed.csv": "0"}}), "is not as it was written"),
        (edited, "speed.csv is not as it was written"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_name(spoil: Callable[[bytes], bytes], problem: str, tmp_path: Path) -> None:
    file = tmp_path / "gpu.tar.gz"
    results_file.write(folder(tmp_path / "one"), file)
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(ConfigurationError, match=rf"gpu\.tar\.gz.*{problem}"):
        results_file.read(file)


def test_a_file_that_is_not_there_is_refused_and_nothing_is_measured_anew(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.tar\.gz.*is not there"):
        report.gpu(device="cpu", out=tmp_path / "out", from_=tmp_path / "none.tar.gz")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_results_is_not_overwritten(tmp_path: Path) -> None:
    results_file.write(folder(tmp_path / "one"), tmp_path / "gpu.tar.gz")
    results, other = results_file.read(tmp_path / "gpu.tar.gz"), folder(tmp_path / "two")
    before = contents(other)
    with pytest.raises(ConfigurationError, match="holds files already"):
        results_file.unpack(results, other, CPU)
    assert contents(other) == before
    (tmp_path / "three").mkdir()
    (tmp_path / "three.partial").mkdir()
    (tmp_path / "three.partial" / "left.csv").write_text("of a killed command")
    results_file.unpack(results, tmp_path / "three", CPU)
    assert "left.csv" not in contents(tmp_path / "three") and runner.Book(tmp_path / "three", CPU).is_done("first")


def test_large_logs_do_not_make_the_file_too_large_to_bring_back(tmp_path: Path) -> None:
    """A borrowed machine gives back files of 16 MiB at most."""
    out = folder(tmp_path / "one")
    for number in range(600):
        (out / "logs" / f"piece_{number}.log").write_bytes(os.urandom(results_file.LAST_OF_LOG + 1))
    results_file.write(out, tmp_path / "gpu.tar.gz")
    assert (tmp_path / "gpu.tar.gz").stat().st_size < results_file.MOST_BYTES
    assert "speed.csv" in results_file.read(tmp_path / "gpu.tar.gz").files


def test_a_file_that_cannot_be_written_is_an_error_and_the_last_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = results_file.Saver(folder(tmp_path / "one"), tmp_path / "gpu.tar.gz")
    saver.save()
    before = saver.file.read_bytes()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    Rows(tmp_path / "one" / "speed.csv", CPU).add(architecture="pi0", batch=8, p50_ms=3.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigurationError, match=r"gpu\.tar\.gz.*cannot be written: No space"):
            saver.save()
    assert saver.file.read_bytes() == before
    saver.save()
    assert b"pi0,8" in results_file.read(saver.file).files["speed.csv"]


def test_what_a_running_piece_measures_is_saved_now_and_then(tmp_path: Path) -> None:
    now = [0.0]
    out, saver = folder(tmp_path / "one"), results_file.Saver(tmp_path / "one", tmp_path / "gpu.tar.gz", lambda: now[0])
    saver.save()
    first = saver.file.stat().st_mtime_ns
    now[0] = 10.0
    (out / "logs" / "first.log").write_text("more")
    saver.save_if_changed()
    assert saver.file.stat().st_mtime_ns == first, "a log alone is nothing new"
    Rows(out / "speed.csv", CPU).add(architecture="pi0", batch=8, p50_ms=3.0)
    saver.save_if_changed()
    assert saver.file.stat().st_mtime_ns == first, "not more often than every few seconds"
    now[0] = 20.0
    saver.save_if_changed()
    assert b"pi0,8" in results_file.read(saver.file).files["speed.csv"]


KILLED = """
import sys, time
from pathlib import Path
import lab.benchmarks.gpu.pieces as known
from lab.benchmarks.gpu import report, results_file
from test.unit.lab.benchmarks.test_gpu_results_file import measuring
results_file.SAVED_EVERY_S = 0.02
known.pieces = lambda size, vllm_python="": [measuring(number) for number in range(12)]
folder, bundle, source = sys.argv[1:]
report.gpu(device="cpu", out=Path(folder), bundle=Path(bundle), from_=Path(source) if source else None)
"""
MEASURING = """
import sys, time
from pathlib import Path
from lab.benchmarks.gpu.machine import machine_from
from lab.benchmarks.gpu.rows import Rows
import json
out = Path(sys.argv[1])
rows = Rows(out / "speed.csv", machine_from(json.loads((out / "machine.json").read_text())))
for batch in range(6):
    if not rows.has(piece={0}, batch=batch):
        rows.add(piece={0}, batch=batch, seconds=time.time())
        time.sleep(0.03)
"""


def measuring(number: int) -> runner.Piece:
    return program(f"piece_{number}", MEASURING.format(number))


def test_a_kill_at_any_moment_and_a_second_folder_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    """As on a borrowed machine: each command is killed, and its file of results goes to the next one."""
    rng, file, source = random.Random(os.getpid()), tmp_path / "gpu.tar.gz", ""
    seen: dict[tuple[str, str], str] = {}
    for turn in range(4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / f"out_{turn}"), str(file), source])
        assert eventually(lambda process=process: file.exists() or process.poll() is not None)  # type: ignore[misc]
        if turn < 3:
            time.sleep(2.0 + rng.uniform(0.0, 2.0))
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=200)
        kept = results_file.read(file)  # whole, whenever it was killed
        (tmp_path / f"kept_{turn}.tar.gz").write_bytes(file.read_bytes())
        source = str(tmp_path / f"kept_{turn}.tar.gz")
        rows = kept.files.get("speed.csv", b"").decode().splitlines()[1:]
        now = {(row.split(",")[5], row.split(",")[6]): row for row in rows}
        assert seen.items() <= now.items(), "what was saved before is there, and was not measured again"
        assert len(now) == len(rows)
        seen = now
    assert process.returncode == 0 and len(seen) == 12 * 6


def test_plan_and_rosa_go_on_at_home_from_results_of_another_machine(tmp_path: Path) -> None:
    """Without a GPU, and with another PyTorch; here nothing was measured that they could wait for."""
    file = tmp_path / "gpu.tar.gz"
    results_file.write(folder(tmp_path / "one", GPU), file)
    with pytest.raises(typer.Exit) as ended:
        report.gpu(out=tmp_path / "home", piece=["plan", "rosa"], from_=file)
    assert ended.value.exit_code == 1
    assert runner.machine_in(tmp_path / "home") == GPU
    with pytest.raises(ConfigurationError, match="of another machine"):
        report.gpu(device="cpu", out=tmp_path / "other", from_=file)
    assert machine_of("cpu").gpu == "CPU"
