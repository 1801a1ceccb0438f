"""`rfm bench whatif`: error of a replay with a change, by a recorded run and a run with that change."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.operate.inputs import console, write_text

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.whatif.comparison import Comparison
    from ros2_rfm_serving.audit.whatif.figures import Figures

SERVER, MODEL, GPU_TYPE = "bench", "bench/pi0.5", "EMULATED"
SLO_S, START_LIMIT_S, SETTLE_S, RECORDER_S = 0.4, 120.0, 3.0, 20.0
ALONE_MS = 51.8
"""Duration of a batch of one."""
CATALOGUE = """\
gpu_types: {EMULATED: {memory_gb: 100}}
models:
  bench/pi0.5:
    engine: emulated
    action_names: [delta_x, delta_y, delta_z, gripper]
    cameras: [side, front]
    state_size: 39
    chunk_length: 32
    gpus:
      EMULATED:
        memory_gb: 11
        load_s: 0
        source: "as physical-intelligence/pi0.5 on an NVIDIA H200, with the robots of `rfm bench robots`"
        service: {batching: fixed, base_ms: 38.2, per_row_ms: 13.6, batch_sizes: [1, 2, 4, 8, 16], jitter: 0.05}
        derivation: "docs/profiles.md"
"""
CHANGES = "dispatch=fifo batch_size=4 batching=saturation mode=sync static:16"


class Row(NamedTuple):
    """Results of one change."""

    change: str
    before: Figures
    """Figures of the recorded run."""
    told: Comparison
    after: Figures
    """Figures of a run with the change."""


def whatif(
    robots: Annotated[int, typer.Option(min=1, help="In one process, before one emulated server")] = 12,
    seconds: Annotated[float, typer.Option(min=5, help="Of every run")] = 30.0,
    changes: Annotated[str, typer.Option(help="As of `rfm replay --with` and `--horizon`, spaces between them")] = CHANGES,
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 79,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the recordings there")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
) -> None:
    """How close `rfm replay --with` comes to what really happens. The model is emulated: it takes the time of pi0.5 on an H200.

    Example:  rfm bench whatif --changes "dispatch=fifo static:16" --seconds 20
    """
    from ros2_rfm_serving.operate.running import prepare_environment

    prepare_environment(domain)
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(TemporaryDirectory()))
        _write_profiles(folder / "profiles")
        rows = _measure(folder, robots, seconds, changes.split())
    console.print(*(_table(row) for row in rows))
    if json_file:
        write_text(json_file, json.dumps([_as_json(row) for row in rows], indent=1) + "\n")


def _write_profiles(folder: Path) -> None:
    """Write the model's profile for the server and the replay."""
    from ros2_rfm_serving.profiles import ProfileRow
    from ros2_rfm_serving.profiles.files import format_rows

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.yaml").write_text(CATALOGUE, encoding="utf-8")
    alone = ProfileRow(MODEL, GPU_TYPE, "fixed", 1, 1.0, *(ALONE_MS, ALONE_MS, ALONE_MS, ALONE_MS, ALONE_MS))
    (folder / "bench.csv").write_text(format_rows([alone]), encoding="utf-8")


def _measure(folder: Path, robots: int, seconds: float, changes: list[str]) -> list[Row]:
    from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.whatif.reading import recording

    before = _run(folder, "before", robots, seconds, "")
    rows = []
    for number, change in enumerate(changes, start=1):
        told = _ask(before, change)
        after = recording(Bag(_run(folder, f"after_{number}", robots, seconds, change))).figures
        rows.append(Row(change, recording(Bag(before)).figures, told, after))
        console.print(f"{change}: done")
    return rows


def _ask(bag: Path, change: str) -> Comparison:
    from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.whatif.asking import Question, what_if
    from ros2_rfm_serving.audit.whatif.factories import Knowledge
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.profiles import Profile

    catalogue = Catalogue.load(bag.parent / "profiles" / "models.yaml")
    question = Question(settings=change) if "=" in change else Question(horizon=change)
    return what_if(Bag(bag), question, Knowledge(profile=Profile({}), catalogue=catalogue))


def _run(folder: Path, name: str, num_robots: int, seconds: float, change: str) -> Path:
    """Return a recording of a run with the change."""
    from lab.benchmarks.processes import process, spinning
    from lab.benchmarks.robots.report import parameters_of, robot_parameters
    from lab.benchmarks.robots.world import Surroundings

    names = [f"robot_{i + 1}" for i in range(num_robots)]
    of_server, of_robots, batch_size = _parameters(change)
    batch_size = batch_size or 8
    server = {"model": MODEL, "server": SERVER, "batch_size": batch_size, "gpu_type": GPU_TYPE, "max_sessions": num_robots}
    with (
        parameters_of({**server, "profiles_folder": str(folder / "profiles"), **of_server}) as server_arguments,
        parameters_of({**robot_parameters(names, "state"), **of_robots}) as robot_arguments,
        process("ros2_rfm_serving.ros.model_server_node", *server_arguments),
        process("ros2_rfm_serving.ros.robots_node", *robot_arguments),
        spinning(lambda: Surroundings(names, SERVER, 96, SLO_S, model=MODEL, gpu_type=GPU_TYPE, batch_size=batch_size)) as (
            node,
            spin,
        ),
    ):
        spin(lambda: len(node.at_work) == num_robots, START_LIMIT_S)
        if len(node.at_work) < num_robots:
            raise RfmError(f"only {len(node.at_work)} of {num_robots} robots have a task after {START_LIMIT_S:g} s")
        spin(lambda: False, SETTLE_S)
        _record(folder / name, seconds, spin)
    return folder / name


def _record(bag: Path, seconds: float, spin: Any) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "record", str(bag), "--seconds", f"{seconds:g}"]
    recorder = subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.DEVNULL, start_new_session=True)
    spin(lambda: recorder.poll() is not None, seconds + RECORDER_S)
    if recorder.poll() is None:
        recorder.send_signal(signal.SIGINT)
        recorder.wait(timeout=RECORDER_S)


def _parameters(change: str) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the server node's parameters, the robots', and the schedule's batch size (0: unchanged). Raises: `RfmError`."""
    name, _, value = change.partition("=")
    if change.startswith("static:"):
        return {}, {"execution_horizon": int(change.partition(":")[2])}, 0
    if name in ("dispatch", "batching"):
        return {name: value}, {}, 0
    if name == "batch_size":
        return {}, {}, int(value)
    if name == "mode":
        return {}, {"synchronous": value == "sync"}, 0
    if change:
        raise RfmError(f"--changes: {change!r} cannot be run here; give dispatch=, batching=, batch_size=, mode= or static:N")
    return {}, {}, 0


# --- what is shown ---------------------------------------------------------------------------------------------------------


def _table(row: Row) -> Table:
    from ros2_rfm_serving.reports.whatif_tables import LABELS, scaled

    table = Table(title=f"{row.change}: {median_error(row):.0%} off, the median of its figures", title_justify="left")
    for heading in ("", "before", "replayed as it was", "after, as replayed", "after, for real", "error"):
        table.add_column(heading, justify="right")
    for figure in row.told.rows:
        real = getattr(row.after, figure.name)
        values = (figure.recorded, figure.replayed.median, figure.changed.median if figure.changed else math.nan, real)
        shown = [f"{scaled(figure.name, value):.1f}" if math.isfinite(value) else "-" for value in values]
        table.add_row(LABELS[figure.name], *shown, _error(figure.name, values[2], real))
    return table


def _error(name: str, told: float, real: float) -> str:
    from ros2_rfm_serving.audit.whatif.comparison import SHARES

    if not (math.isfinite(told) and math.isfinite(real)):
        return "-"
    return f"{100 * (told - real):+.1f} points" if name in SHARES else f"{100 * (told / real - 1):+.1f} %" if real else "-"


def median_error(row: Row) -> float:
    """Return the median error of the figures that are not shares."""
    from ros2_rfm_serving.audit.whatif.comparison import SHARES

    pairs = [(r.changed.median, getattr(row.after, r.name)) for r in row.told.rows if r.changed and r.name not in SHARES]
    errors = [abs(told / real - 1.0) for told, real in pairs if real and math.isfinite(told) and math.isfinite(real)]
    return median(errors) if errors else math.nan


def _as_json(row: Row) -> dict[str, Any]:
    after = {name: value if math.isfinite(value) else None for name, value in row.after.items()}
    return {**row.told.to_json(), "real": after, "median_error": median_error(row)}
