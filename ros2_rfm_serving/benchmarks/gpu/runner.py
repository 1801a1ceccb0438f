"""Runs pieces one after the other, each in a process of its own; what is done is kept in a folder, and not done again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ros2_rfm_serving.benchmarks.gpu.child import MORE, SKIPPED
from ros2_rfm_serving.benchmarks.gpu.machine import Machine
from ros2_rfm_serving.benchmarks.gpu.pieces import Piece
from ros2_rfm_serving.benchmarks.gpu.rows import replace
from ros2_rfm_serving.errors import ConfigurationError

STATES = DONE, FAILED, HUNG, SKIP, WAITS = "done", "failed", "hung", "skipped", "waits"
ENDS_WITHIN_S, LOOKS_EVERY_S = 10.0, 0.05
LAST_BYTES = 4096
MOST_TURNS = 50
"""Processes for one piece that says each time that there is more."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    piece: str
    state: str
    seconds: float
    """Of all of its processes."""
    cpu_s: float = 0.0
    """Of the same, user and system: the wall's is also of what else ran."""
    said: str
    """Its last line, or what it waits for."""


class Book:
    """The folder: which machine it is of, and what became of each piece. One run at a time."""

    def __init__(self, out: Path, machine: Machine) -> None:
        """Writes nothing yet. Raises: `ConfigurationError` for a folder that is of another machine."""
        self.out, self._machine = out, machine
        self._require_own()

    def _require_own(self) -> None:
        now, file = self._machine.columns(), self.out / "machine.json"
        told = _read(file)
        if file.exists() and told != now:
            differ = ", ".join(f"{key} {told.get(key)}, now {value}" for key, value in now.items() if told.get(key) != value)
            raise ConfigurationError(
                f"holds figures of another run: {differ}", file=str(self.out), key="--out", fix="choose another folder"
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """From now on it is this machine's.

        Raises: `ConfigurationError` while another run has it, for a folder that cannot be written, or is of another machine by now.
        """
        with _written(self.out):
            for folder in (self.out, self.out / "state", self.out / "logs"):
                folder.mkdir(parents=True, exist_ok=True)
            lock = (self.out / ".lock").open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError("another run has it", file=str(self.out), key="--out", fix="wait for it") from None
            with _written(self.out):
                if not (file := self.out / "machine.json").exists():
                    replace(file, json.dumps(self._machine.columns(), indent=1) + "\n")
            self._require_own()
            yield

    def outcome(self, piece: str) -> Outcome | None:
        """None: it has not ended yet, or nobody can read how."""
        found = _read(self.out / "state" / f"{piece}.json")
        try:
            times = {"seconds": float(found["seconds"]), "cpu_s": float(found.get("cpu_s", 0.0))}  # older books lack it
            return Outcome(piece=found["piece"], state=found["state"], said=found["said"], **times)
        except (KeyError, TypeError, ValueError):
            return None

    def keep(self, outcome: Outcome) -> None:
        with _written(self.out):
            replace(self.out / "state" / f"{outcome.piece}.json", json.dumps(asdict(outcome), indent=1) + "\n")

    def is_done(self, piece: str) -> bool:
        outcome = self.outcome(piece)
        return outcome is not None and outcome.state == DONE

    def log(self, piece: str) -> Path:
        return self.out / "logs" / f"{piece}.log"


def run(
    pieces: Sequence[Piece],
    book: Book,
    machine: Machine,
    told: Callable[[Piece, Outcome | None], None],
    look: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """told: before each piece, and with what became of it. look: raises when this process is to end. What was skipped, failed or
    hung before is tried again.

    Raises: `ConfigurationError` when nothing can be written; `KeyboardInterrupt`, when what ran has ended.
    """
    outcomes: list[Outcome] = []
    for piece in pieces:
        outcome = book.outcome(piece.name)
        if outcome is None or outcome.state != DONE:
            told(piece, None)
            outcome = _run(piece, book, machine, look)
            if outcome.state != WAITS:
                book.keep(outcome)
        told(piece, outcome)
        outcomes.append(outcome)
    return outcomes


def _run(piece: Piece, book: Book, machine: Machine, look: Callable[[], None]) -> Outcome:
    missing = [name for name in piece.needs if not book.is_done(name)]
    if missing:
        return Outcome(piece=piece.name, state=WAITS, seconds=0.0, said=f"for {', '.join(missing)}")
    began_s, cpu_began_s = time.monotonic(), _cpu_s()
    for _ in range(MOST_TURNS):
        code = _process(piece, book, machine, look)
        if code != MORE:
            break
    state = {0: DONE, SKIPPED: SKIP, None: HUNG}.get(code, FAILED)
    said = f"ended after {piece.limit_s:.0f} s" if code is None else _last_line(book.log(piece.name))
    if state == FAILED:
        said = f"{_how(code)}: {said}; the whole of it: {book.log(piece.name)}"
    seconds, cpu_s = round(time.monotonic() - began_s, 1), round(_cpu_s() - cpu_began_s, 1)
    return Outcome(piece=piece.name, state=state, seconds=seconds, cpu_s=cpu_s, said=said)


def _cpu_s() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _process(piece: Piece, book: Book, machine: Machine, look: Callable[[], None]) -> int | None:
    """Its exit code; None: it was ended, for its time was over."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **piece.environment}
    if not machine.on_gpu:
        environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with _written(book.out):
        log = book.log(piece.name).open("ab")
    with log:
        process = subprocess.Popen(
            piece.command(machine, book.out),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            return _wait(process, piece.limit_s, look)
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], limit_s: float, look: Callable[[], None]) -> int | None:
    ends_s = time.monotonic() + limit_s
    while time.monotonic() < ends_s:
        look()
        if (code := process.poll()) is not None:
            return code
        time.sleep(LOOKS_EVERY_S)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """It, and all that it has started."""
    if process.poll() is None:
        _signal(process, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN_S)
    _signal(process, signal.SIGKILL)
    process.wait()
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _how(code: int | None) -> str:
    return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _last_line(log: Path) -> str:
    with log.open("rb") as text:
        text.seek(max(0, log.stat().st_size - LAST_BYTES))
        lines = text.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _read(file: Path) -> dict[str, str]:
    """Empty: it is not there, or not what was written."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _written(out: Path) -> Iterator[None]:
    """Raises: `ConfigurationError` in place of `OSError`."""
    try:
        yield
    except OSError as error:
        fix = "make room or choose another folder; the same command goes on"
        raise ConfigurationError(f"cannot be written: {error.strerror}", file=str(out), key="--out", fix=fix) from error
