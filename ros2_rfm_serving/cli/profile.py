"""`rfm profile`: latency by batch size and rate, of a model on this machine or of a published service law."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ros2_rfm_serving.errors import ProfileError

if TYPE_CHECKING:
    from ros2_rfm_serving.operate.profiled import Server
    from ros2_rfm_serving.profiles import ProfileRow
    from ros2_rfm_serving.profiles.table import CurveKey

console = Console()
DERIVED = "derived from published figures by `rfm profile --derive"
MEASURED = "measured by `rfm profile`, camera images of"
DERIVED_REQUESTS = 2000
"""Per point of a law and repetition. At full rate an open-loop queue never settles: such a point is the mean over these."""


class Sheet:
    """The file that is written: valid at every instant, because each point replaces the whole of it."""

    def __init__(self, file: Path, comment: str) -> None:
        """Raises: `ProfileError` when it cannot be written, or holds what must not be mixed with the new rows."""
        from ros2_rfm_serving.profiles import read_rows

        self._file, self._comment = file, comment
        if file.is_dir():
            raise ProfileError(f"{file}: is a folder; --out must be a file, such as {file / 'cpu.csv'}")
        holds = _first_comment(file) if file.exists() else comment
        derived = holds.startswith(DERIVED)
        if derived != comment.startswith(DERIVED) or not (derived or holds == comment):
            holds = "derived rows" if derived else f"rows {holds or 'of which nobody said how they were measured'}"
            raise ProfileError(f"{file}: holds {holds}; choose another --out: these are {comment.split(';', maxsplit=1)[0]}")
        self.rows: list[ProfileRow] = read_rows(file) if file.exists() and not derived else []
        self._write()

    def add(self, row: ProfileRow) -> None:
        self.rows.append(row)
        self._write()

    def num_kept(self, key: CurveKey, arrivals: str) -> int:
        return sum(row.key == key and row.arrivals == arrivals for row in self.rows)

    def missing_hz(self, key: CurveKey, arrivals: str, max_rate_hz: float) -> list[float]:
        """The rates of a curve that are not there yet; kept rows of the same server fix what 100 % is."""
        from ros2_rfm_serving.profiles.measure import STEPS, rates_hz

        kept = [row for row in self.rows if row.key == key]
        step_hz = min((row.rate_hz for row in kept), default=max_rate_hz / STEPS)
        there = [row.rate_hz for row in kept if row.arrivals == arrivals]
        return [r for r in rates_hz(STEPS * step_hz) if not any(abs(r - k) < 0.05 * step_hz for k in there)]

    def _write(self) -> None:
        from ros2_rfm_serving.profiles import format_rows

        partial_file = self._file.with_name(self._file.name + ".partial")
        try:
            partial_file.write_text(format_rows(self.rows, self._comment), encoding="utf-8")
            partial_file.replace(self._file)
        except OSError as error:
            raise ProfileError(f"{self._file}: cannot be written: {error.strerror}; make room or choose another --out") from error


def _first_comment(file: Path) -> str:
    """Without its mark; empty: it has none."""
    with file.open("rb") as text:
        first = text.readline().decode(errors="replace")
    return first[1:].strip() if first.startswith("#") else ""


def profile(
    models: Annotated[list[str], typer.Argument(help="Models of the catalogue", show_default=False)],
    out: Annotated[Path, typer.Option(help="CSV file to write; measured rows that it holds already are kept", show_default=False)],
    gpu_type: Annotated[str, typer.Option(help="Name of the GPU type in descriptors")] = "CPU",
    batches: Annotated[str, typer.Option(help="Batch sizes; by default 1,2,4,8, or those of the service law")] = "",
    batching: Annotated[
        str, typer.Option(help="fixed, continuous or both; by default fixed, or all that the service law has", show_default=False)
    ] = "",
    arrivals: Annotated[str, typer.Option(help="Arrival processes")] = "periodic,poisson,fleet",
    requests: Annotated[int, typer.Option(min=10, help="Per point, when measuring")] = 600,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads, when measuring")] = 1,
    factory: Annotated[Path | None, typer.Option(help="Descriptor whose robots' image sizes are used", show_default=False)] = None,
    image_size: Annotated[str, typer.Option(metavar="WxH", help="Of camera images, when measuring without --factory")] = "640x480",
    derive: Annotated[
        bool, typer.Option("--derive", help="Compute from the catalogue's service laws instead of measuring")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="PNG file: latency against throughput (ROSA Fig. 13)")] = None,
    profiles: Annotated[Path | None, typer.Option(help="Folder with models.yaml; default: the shipped one")] = None,
) -> None:
    """Latency by batch size and rate: ten rates up to the highest throughput, under each arrival process.

    Measuring can be stopped at any time (Ctrl-C); the same command goes on where it stopped.

    Examples. Measure the embedded models on this machine, and draw them:

        rfm profile rfm/metaworld-flow rfm/metaworld-judge --factory my_factory.yaml --out cpu.csv --plot cpu.png

    The same of a server that lets requests join a running batch (batching: continuous in the descriptor):

        rfm profile rfm/metaworld-flow --batching continuous --factory my_factory.yaml --out cpu.csv

    Derive the profile of a model from its published service law:

        rfm profile nvidia/GR00T-N1.6-3B --gpu-type "NVIDIA H200" --derive --out h200.csv
    """
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.operate.profiled import BATCHINGS, derived, load_model, measured
    from ros2_rfm_serving.shipped import shipped

    folder = profiles or shipped("config", "profiles")
    catalogue = Catalogue.load(folder / "models.yaml")
    processes, sizes, ways = _processes(arrivals), _sizes(batches), _batchings(batching)
    if plot and not plot.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {plot.parent}", param_hint="--plot")
    size_px = _size_px(image_size, factory)
    servers: list[Server] = []
    for model in dict.fromkeys(models):
        entry = catalogue[model]
        if derive:
            servers += derived(model, entry, gpu_type, sizes, ways or BATCHINGS)
        else:
            load = partial(load_model, model, entry, gpu_type, threads, folder)
            servers += measured(model, gpu_type, sizes, ways or BATCHINGS[:1], size_px, load)
    derivation = f"{DERIVED} {' '.join(models)} --gpu-type '{gpu_type}'`; see docs/profiles.md"
    comment = derivation if derive else f"{MEASURED} {size_px[0]}x{size_px[1]}"
    sheet = Sheet(out, comment)
    try:
        _fill(sheet, servers, processes, DERIVED_REQUESTS if derive else requests)
    except KeyboardInterrupt:
        console.print(f"stopped: {len(sheet.rows)} rows are in {out}; the same command goes on from there")
        raise typer.Exit(130) from None
    console.print(f"written: {out}, {len(sheet.rows)} rows")
    if plot:
        from ros2_rfm_serving.reports.profile_plot import draw

        draw(sheet.rows, plot)
        console.print(f"written: {plot}")


def _fill(sheet: Sheet, servers: list[Server], processes: list[str], num_requests: int) -> None:
    """Measures what the sheet lacks."""
    from ros2_rfm_serving.profiles.measure import STEPS, measure

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        kept = sum(sheet.num_kept(server.key, process) for server in servers for process in processes)
        task = progress.add_task("measuring", total=len(servers) * len(processes) * STEPS, completed=kept)
        for server in servers:
            if all(sheet.num_kept(server.key, process) >= STEPS for process in processes):
                continue
            subject = server.start()
            for process in processes:
                for rate_hz in sheet.missing_hz(server.key, process, subject.max_rate_hz):
                    model, _, way, size = server.key
                    batch = way if way == "continuous" else f"batch {size}"
                    progress.update(task, description=f"{model}, {batch}, {process}, {rate_hz:.1f} Hz")
                    sheet.add(measure(subject, server.key, process, rate_hz, num_requests, repetitions=server.repetitions))
                    progress.advance(task)


def _size_px(text: str, factory: Path | None) -> tuple[int, int]:
    """Width and height: the largest that a robot of the factory sends, or else as given."""
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.factory.settings import settings_of

    if factory:
        return next(iter(settings_of(load_factory(factory)).servers.values())).image_size_px
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and 8 <= int(width) <= 8192 and 8 <= int(height) <= 8192):
        raise typer.BadParameter(f"{text!r} is no size such as 640x480", param_hint="--image-size")
    return int(width), int(height)


def _batchings(text: str) -> tuple[str, ...]:
    from ros2_rfm_serving.operate.profiled import BATCHINGS

    ways = tuple(dict.fromkeys(part for part in text.split(",") if part))
    for way in ways:
        if way not in BATCHINGS:
            raise typer.BadParameter(f"{way!r} is none of {', '.join(BATCHINGS)}", param_hint="--batching")
    return ways


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of whole numbers such as 1,2,4,8", param_hint="--batches") from None
    if any(size < 1 for size in sizes):
        raise typer.BadParameter(f"{text!r} has a batch size below 1", param_hint="--batches")
    return tuple(dict.fromkeys(sizes))


def _processes(text: str) -> list[str]:
    from ros2_rfm_serving.profiles import ARRIVALS

    processes = list(dict.fromkeys(text.split(",")))
    unknown = [process for process in processes if process not in ARRIVALS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(ARRIVALS)}", param_hint="--arrivals")
    return processes
