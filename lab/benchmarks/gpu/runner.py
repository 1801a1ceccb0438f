"""Runner of pieces one after the other, each in a process of its own; results are kept in a folder, and not repeated."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lab.benchmarks.gpu.budget import Budget, correction
from lab.benchmarks.gpu.child import MORE, SKIPPED
from lab.benchmarks.gpu.launching import Launcher, Process
from lab.benchmarks.gpu.machine import Machine, identity_of, machine_from
from lab.benchmarks.gpu.pieces import Piece
from lab.benchmarks.gpu.rows import replace as replace_file
from ros2_rfm_serving.errors import ConfigurationError

STATES = DONE, FAILED, HUNG, SKIP, WAITS, LATER = "done", "failed", "hung", "skipped", "waits", "later"
"""States of a piece; `later`: the run's time is too short for it."""
ENDS_WITHIN_S, LOOKS_EVERY_S = 10.0, 0.05
LAST_BYTES = 4096
MACHINE = "machine.json"
"""File of a folder of results with their machine."""
UNLIMITED = Budget()
PATIENCE, LEAST_PATIENCE_S = 3.0, 180.0
"""Limits on a GPU with limited time: multiple of a piece's expected seconds, and least limit, for pieces that hang."""
MOST_TURNS = 50
"""Largest number of processes for one piece that reports more work each time."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    piece: str
    state: str
    seconds: float
    """Duration of all of its processes."""
    cpu_s: float = 0.0
    """CPU time of them, user and system: the wall time includes other load."""
    said: str
    """Its last line, or the pieces that it waits for."""
    driver: str = "-"
    """Driver of the GPU in the run in which it ended."""


class Book:
    """Folder of results: its machine, and the outcome of each piece. It serves one run at a time."""

    def __init__(self, out: Path, machine: Machine) -> None:
        """Open the folder without writing. Raises: `ConfigurationError` for a folder of another machine."""
        self.out, self.machine = out, machine
        self._require_own()

    def _require_own(self) -> None:
        file = self.out / MACHINE
        if file.exists() and (problem := difference(_read(file), self.machine)):
            raise ConfigurationError(
                f"holds figures of another run: {problem}", file=str(self.out), key="--out", fix="choose another folder"
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for a run on this machine.

        Raises: `ConfigurationError` while another run has it, for a folder that cannot be written, or that is now of another
        machine.
        """
        with written(self.out):
            for folder in (self.out, self.out / "state", self.out / "logs"):
                folder.mkdir(parents=True, exist_ok=True)
            lock = (self.out / ".lock").open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError("another run has it", file=str(self.out), key="--out", fix="wait for it") from None
            with written(self.out):
                if not (file := self.out / MACHINE).exists():
                    replace_file(file, json.dumps(self.machine.columns(), indent=1) + "\n")
            self._require_own()
            yield

    def outcome(self, piece: str) -> Outcome | None:
        """Return the outcome. None: the piece has not ended yet, or its record is unreadable."""
        found = _read(self.out / "state" / f"{piece}.json")
        try:
            times = {"seconds": float(found["seconds"]), "cpu_s": float(found.get("cpu_s", 0.0))}  # older records lack it
            driver = str(found.get("driver", "-"))
            return Outcome(piece=found["piece"], state=found["state"], said=found["said"], driver=driver, **times)
        except (KeyError, TypeError, ValueError):
            return None

    def keep(self, outcome: Outcome) -> None:
        with written(self.out):
            replace_file(self.out / "state" / f"{outcome.piece}.json", json.dumps(asdict(outcome), indent=1) + "\n")

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
    budget: Budget = UNLIMITED,
) -> list[Outcome]:
    """Run the pieces that are not done yet. told: called before each piece begins, and with its outcome. look: called repeatedly;
    raises when this process is to end. Skipped pieces are tried again, and failed or hung ones too, after all others.
    Raises: `ConfigurationError` when a file cannot be written; `KeyboardInterrupt`, when the running piece has ended.
    """
    outcomes: list[Outcome] = []
    with contextlib.closing(Launcher(machine, book.out)) as launcher:
        for piece in _by_turns(pieces, book):
            outcome = book.outcome(piece.name)
            if outcome is None or outcome.state != DONE:
                outcome = _unable(piece, book, pieces, outcomes, budget)
                if outcome is None:
                    told(piece, None)
                    limited = machine.on_gpu and budget.ends_s < math.inf
                    patience_s = max(LEAST_PATIENCE_S, PATIENCE * expected_s(piece, book, pieces)) if limited else math.inf
                    outcome = _run(piece, book, launcher, look, budget, patience_s)
                if outcome.state not in {WAITS, LATER}:
                    book.keep(outcome)
            told(piece, outcome)
            outcomes.append(outcome)
    return outcomes


def _by_turns(pieces: Sequence[Piece], book: Book) -> list[Piece]:
    """Return those that failed or hung in an earlier run after the others that measure: they may do so again."""

    def rank(piece: Piece) -> int:
        outcome = book.outcome(piece.name)
        return 2 if not piece.measures else int(outcome is not None and outcome.state in {FAILED, HUNG})

    return sorted(pieces, key=rank)


def expected_s(piece: Piece, book: Book, pieces: Sequence[Piece]) -> float:
    """Return the seconds that a piece takes on this machine: the table's, corrected by the pieces that are done."""
    done = [(each.expected_s, outcome) for each in pieces if (outcome := book.outcome(each.name)) and outcome.state == DONE]
    return piece.expected_s * correction((seconds, outcome.seconds) for seconds, outcome in done)


def _unable(piece: Piece, book: Book, pieces: Sequence[Piece], outcomes: Sequence[Outcome], budget: Budget) -> Outcome | None:
    """Return why a piece is not begun; None: it is. outcomes: of the pieces before it."""
    missing = [name for name in piece.needs if not book.is_done(name)]
    if missing:
        later = {outcome.piece for outcome in outcomes if outcome.state == LATER}
        state = LATER if later.issuperset(missing) else WAITS
        return Outcome(piece=piece.name, state=state, seconds=0.0, said=f"for {', '.join(missing)}")
    takes_s = expected_s(piece, book, pieces)
    if budget.suffices(takes_s):
        return None
    said = f"not begun: {takes_s:.0f} s are expected, {budget.left_s:.0f} s are left"
    return Outcome(piece=piece.name, state=LATER, seconds=0.0, said=said)


def _run(piece: Piece, book: Book, launcher: Launcher, look: Callable[[], None], budget: Budget, patience_s: float) -> Outcome:
    """Run one piece. patience_s: limit for all of its processes together."""
    began_s, cpu_began_s, limit_s = time.monotonic(), launcher.cpu_s, piece.limit_s
    ran_out = False
    for _ in range(MOST_TURNS):
        own_s = min(piece.limit_s, max(0.0, began_s + patience_s - time.monotonic()))
        limit_s = min(own_s, budget.left_s)
        ran_out = limit_s < own_s
        code = _process(replace(piece, limit_s=limit_s), book, launcher, look)
        if code != MORE:
            break
    state = {0: DONE, SKIPPED: SKIP, None: LATER if ran_out else HUNG}.get(code, FAILED)
    said = _last_line(book.log(piece.name))
    if code is None:
        spent_s = time.monotonic() - began_s
        said = "the time is over; what it measured is kept" if ran_out else f"ended after {spent_s:.0f} s; what it measured is kept"
    if state == FAILED:
        said = f"{_how(code)}: {said}; the whole of it: {book.log(piece.name)}"
    seconds, cpu_s = round(time.monotonic() - began_s, 1), round(launcher.cpu_s - cpu_began_s, 1)
    return Outcome(piece=piece.name, state=state, seconds=seconds, cpu_s=cpu_s, said=said, driver=book.machine.driver)


def difference(columns: Mapping[str, str], machine: Machine) -> str:
    """Return how recorded columns differ from this machine, as text; empty: figures of both may be compared."""
    before, now = identity_of(columns), machine.identity
    return ", ".join(f"{key} {before[key] or 'unknown'}, now {value}" for key, value in now.items() if before[key] != value)


def machine_in(out: Path) -> Machine | None:
    """Return the machine whose results a folder holds; None: it holds none."""
    return machine_from(_read(out / MACHINE))


def _process(piece: Piece, book: Book, launcher: Launcher, look: Callable[[], None]) -> int | None:
    """Return its exit code; None: it was ended by its time limit."""
    with written(book.out):
        process = launcher.start(piece, book.log(piece.name))
    try:
        return _wait(process, piece.limit_s, look)
    finally:
        _end(process)
        launcher.ended(process)


def _wait(process: Process, limit_s: float, look: Callable[[], None]) -> int | None:
    ends_s = time.monotonic() + limit_s
    while time.monotonic() < ends_s:
        look()
        if (code := process.poll()) is not None:
            return code
        time.sleep(LOOKS_EVERY_S)
    return None


def _end(process: Process) -> None:
    """End a process, and all that it has started."""
    if process.poll() is None:
        _signal(process, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN_S)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: Process, number: signal.Signals) -> None:
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
    """Return the content; empty: the file is missing, or differs from its written form."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def written(out: Path) -> Iterator[None]:
    """Convert `OSError`. Raises: `ConfigurationError` in place of it."""
    try:
        yield
    except OSError as error:
        fix = "make room or choose another folder; the same command goes on"
        raise ConfigurationError(f"cannot be written: {error.strerror}", file=str(out), key="--out", fix=fix) from error
