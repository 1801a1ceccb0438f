"""The file that `rfm profile` fills, point by point; points that it has already are not measured again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ros2_rfm_serving.errors import ProfileError
from ros2_rfm_serving.operate.profiled import Server
from ros2_rfm_serving.profiles import ProfileRow, format_rows, read_rows
from ros2_rfm_serving.profiles.measure import STEPS, Subject, measure, rates_hz
from ros2_rfm_serving.profiles.table import CurveKey

DERIVED = "derived from published figures by `rfm profile --derive"
MEASURED = "measured by `rfm profile`, camera images of"


class Sheet:
    """File of profile rows that is valid at every instant, because each point replaces the whole file."""

    def __init__(self, file: Path, comment: str) -> None:
        """Open the file. Raises: `ProfileError` when it cannot be written, or has rows that must not be mixed with the new ones."""
        self.file, self._comment = file, comment
        if file.is_dir():
            raise ProfileError(f"{file}: is a folder; --out must be a file, such as {file / 'cpu.csv'}")
        holds = _first_comment(file) if file.exists() else comment
        derived = holds.startswith(DERIVED)
        if derived != comment.startswith(DERIVED) or not (derived or holds == comment):
            holds = "derived rows" if derived else f"rows {holds or 'of which nobody said how they were measured'}"
            raise ProfileError(f"{file}: holds {holds}; choose another --out: these are {comment.split(';', maxsplit=1)[0]}")
        self.rows: list[ProfileRow] = read_rows(file) if file.exists() and not derived else []
        self._write()

    @classmethod
    def derived(cls, file: Path, models: Sequence[str], gpu_type: str) -> Sheet:
        """Return a sheet of derived rows, which are written anew each time."""
        return cls(file, f"{DERIVED} {' '.join(models)} --gpu-type '{gpu_type}'`; see docs/profiles.md")

    @classmethod
    def measured(cls, file: Path, size_px: tuple[int, int]) -> Sheet:
        return cls(file, f"{MEASURED} {size_px[0]}x{size_px[1]}")

    def fill(self, servers: Sequence[Server], processes: Sequence[str], num_requests: int, console: Console) -> None:
        """Measure the missing points."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left:"), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            kept = sum(self.num_kept(server.key, process) for server in servers for process in processes)
            task = progress.add_task("measuring", total=len(servers) * len(processes) * STEPS, completed=kept)
            for server, subject, process, rate_hz in self._missing(servers, processes):
                model, _, way, size = server.key
                batch = way if way == "continuous" else f"batch {size}"
                progress.update(task, description=f"{model}, {batch}, {process}, {rate_hz:.1f} Hz")
                self.add(measure(subject, server.key, process, rate_hz, num_requests, repetitions=server.repetitions))
                progress.advance(task)

    def _missing(self, servers: Sequence[Server], processes: Sequence[str]) -> Iterator[tuple[Server, Subject, str, float]]:
        """Yield the missing points; a server is started when its first point is due."""
        for server in servers:
            if all(self.num_kept(server.key, process) >= STEPS for process in processes):
                continue
            subject = server.start()
            for process in processes:
                for rate_hz in self.missing_hz(server.key, process, subject.max_rate_hz):
                    yield server, subject, process, rate_hz

    def add(self, row: ProfileRow) -> None:
        self.rows.append(row)
        self._write()

    def num_kept(self, key: CurveKey, arrivals: str) -> int:
        return sum(row.key == key and row.arrivals == arrivals for row in self.rows)

    def missing_hz(self, key: CurveKey, arrivals: str, max_rate_hz: float) -> list[float]:
        """Return the missing rates of a curve; kept rows of the same server determine the full rate."""
        kept = [row for row in self.rows if row.key == key]
        step_hz = min((row.rate_hz for row in kept), default=max_rate_hz / STEPS)
        there = [row.rate_hz for row in kept if row.arrivals == arrivals]
        return [r for r in rates_hz(STEPS * step_hz) if not any(abs(r - k) < 0.05 * step_hz for k in there)]

    def _write(self) -> None:
        partial_file = self.file.with_name(self.file.name + ".partial")
        try:
            partial_file.write_text(format_rows(self.rows, self._comment), encoding="utf-8")
            partial_file.replace(self.file)
        except OSError as error:
            raise ProfileError(f"{self.file}: cannot be written: {error.strerror}; make room or choose another --out") from error


def _first_comment(file: Path) -> str:
    """Return the first comment without its mark; empty: there is none."""
    with file.open("rb") as text:
        first = text.readline().decode(errors="replace")
    return first[1:].strip() if first.startswith("#") else ""
