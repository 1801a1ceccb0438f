"""`rfm bench record`: cost of a recorder beside stand-ins, and effect on real robots, with it and without, in turns."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from lab.benchmarks.processes import process, spinning
from lab.benchmarks.robots.report import SERVER, START_LIMIT_S, parameters_of, robot_parameters, usage
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.operate.inputs import console, write_text
from ros2_rfm_serving.types.histogram import TICK_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.bag import Bag

SETTLE_S = 5.0
CHUNK = "rfm_serving/msg/ActionChunk"
LATE_S = 0.01
"""Lateness that is counted: a fifth of a control period."""
Spin = Callable[[Callable[[], bool], float], None]


class Cost(NamedTuple):
    """Cost of the recorder's process."""

    robots: int
    cpu_share: float
    """Share of one core."""
    rss_mb: float
    messages_hz: float
    mb_s: float
    lost: int
    """Losses among received messages: those that never arrived are not counted."""
    observations: float
    """Observations in the bag, which are best effort, per chunk, of which as many are sent, reliably."""


class Late(NamedTuple):
    """Lateness of all robots' control periods that began in one turn."""

    recorded: bool
    periods: int
    mean_ms: float
    """Mean lateness of their beginning."""
    late_share: float
    """Share that began later than `LATE_S`."""


def record(
    robots: Annotated[int, typer.Option(min=1, help="Robots, each with two images of 640 x 480 five times a second")] = 16,
    seconds: Annotated[float, typer.Option(min=5, help="Of the recorder's cost, and of every turn of the robots")] = 20.0,
    rounds: Annotated[int, typer.Option(min=0, help="Turns of real robots with and without; 0: the recorder's cost alone")] = 5,
    image_size_px: Annotated[int, typer.Option(help="Of the real robots' two cameras")] = 96,
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 79,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
) -> None:
    """CPU and memory of a recorder beside stand-ins for robots, which publish what robots would, from a process of their own; then
    how late the control periods of real robots begin, with a recorder and without, by turns.

    Example:  rfm bench record --robots 16 --rounds 5
    """
    from ros2_rfm_serving.operate.running import prepare_environment
    from ros2_rfm_serving.ros.node.middleware import use_profile

    prepare_environment(domain)
    use_profile("large_images.xml")
    cost = _cost(robots, seconds)
    console.print(_cost_table(cost))
    turns = _turns(robots, seconds, rounds, image_size_px) if rounds else []
    if turns:
        console.print(_late_table(turns))
    if json_file:
        figures = {"cost": cost._asdict(), "turns": [turn._asdict() for turn in turns], "ratios": ratios(turns)}
        write_text(json_file, json.dumps(figures, indent=1) + "\n")


def _cost(robots: int, seconds: float) -> Cost:
    from ros2_rfm_serving.audit.bag import OBSERVATION, Bag

    with TemporaryDirectory() as folder:
        with (
            _recorder(Path(folder) / "bag") as pid,
            parameters_of({"robots": robots}) as given,
            process("lab.benchmarks.record.standins", *given),
        ):
            time.sleep(SETTLE_S + robots / 16)
            before, begun_s, begun_ns = usage(pid), time.monotonic(), time.time_ns()
            time.sleep(seconds)
            after, took_s, ended_ns = usage(pid), time.monotonic() - begun_s, time.time_ns()
        bag = Bag(Path(folder) / "bag")
        sizes = [len(message.data) for message in bag.messages(since_ns=begun_ns, until_ns=ended_ns)]
        kinds = Counter(message.type for message in bag.messages(OBSERVATION, CHUNK, since_ns=begun_ns, until_ns=ended_ns))
        return Cost(
            robots=robots,
            cpu_share=(after.cpu_s - before.cpu_s) / took_s,
            rss_mb=after.rss_mb,
            messages_hz=len(sizes) / took_s,
            mb_s=sum(sizes) / took_s / 1e6,
            lost=_lost(bag),
            observations=kinds[OBSERVATION] / max(1, kinds[CHUNK]),
        )


@contextmanager
def _recorder(folder: Path) -> Iterator[int]:
    with (
        parameters_of({"folder": str(folder)}) as given,
        process("ros2_rfm_serving.ros.executables", "recorder_node", *given) as pid,
    ):
        yield pid


def _lost(bag: Bag) -> int:
    from ros2_rfm_serving.audit.chain import records

    own = (page for page in bag.pages() if page.writer.startswith("recorder/"))
    return sum(record["count"] for page in own for record in records(page) if record["kind"] == "lost" and "topic" in record)


def _turns(count: int, seconds: float, rounds: int, image_size_px: int) -> list[Late]:
    from lab.benchmarks.robots.world import Surroundings

    names = [f"robot_{i + 1}" for i in range(count)]
    server = {"model": "emulated/instant", "server": SERVER, "batch_size": 8, "gpu_type": "EMULATED", "max_sessions": count}
    with (
        parameters_of(server) as of_server,
        parameters_of(robot_parameters(names, "timer")) as of_robots,
        process("ros2_rfm_serving.ros.model_server_node", *of_server),
        process("ros2_rfm_serving.ros.robots_node", *of_robots),
        spinning(lambda: Surroundings(names, SERVER, image_size_px)) as (node, spin),
        TemporaryDirectory() as folder,
    ):
        counted = Counted(node, names)
        spin(lambda: len(node.at_work) == count, START_LIMIT_S)
        if len(node.at_work) < count:
            raise RfmError(f"only {len(node.at_work)} of {count} robots have a task after {START_LIMIT_S:g} s")
        found = []
        for number in range(rounds):
            found.append(_turn(counted, spin, seconds, recorded=False))
            with _recorder(Path(folder) / str(number)):
                found.append(_turn(counted, spin, seconds, recorded=True))
        return found


def _turn(counted: Counted, spin: Spin, seconds: float, *, recorded: bool) -> Late:
    spin(lambda: False, SETTLE_S)
    before = counted.total()
    spin(lambda: False, seconds)
    console.print(f"{'with' if recorded else 'without'} a recorder: done")
    return late(before, counted.total(), recorded=recorded)


def late(before: Histogram, after: Histogram, *, recorded: bool) -> Late:
    """Return the lateness between two readings."""
    counts = [now - then for then, now in zip(before.counts, after.counts, strict=True)]
    periods, few = sum(counts), sum(count for bound, count in zip(after.bounds, counts, strict=False) if bound <= LATE_S)
    if not periods:
        return Late(recorded, 0, math.nan, math.nan)
    return Late(recorded, periods, 1e3 * (after.sum - before.sum) / periods, 1.0 - few / periods)


class Counted:
    """Every robot's own histogram of the lateness of its periods, from its status."""

    def __init__(self, node: Any, names: list[str]) -> None:
        from rfm_serving import msg

        from ros2_rfm_serving.ros.wire import qos

        self._of: dict[str, Histogram] = {}
        for name in names:
            topic = qos.Names().robot(name, "rfm/status")
            node.create_subscription(msg.RobotStatus, topic, self._take, qos.ROBOT_STATUS)

    def total(self) -> Histogram:
        found = Histogram(TICK_BOUNDS_S)
        for one in self._of.values():
            found.counts = [sum(pair) for pair in zip(found.counts, one.counts, strict=True)]
            found.sum += one.sum
        return found

    def _take(self, status: Any) -> None:
        for one in status.histograms:
            if one.name == "tick_late_s":
                self._of[status.header.frame_id] = Histogram(tuple(one.bounds), list(one.counts), one.sum)


def ratios(turns: list[Late]) -> dict[str, list[float]]:
    """Return the ratios of with to without, per round."""
    pairs = list(zip(turns[::2], turns[1::2], strict=True))
    return {"mean": [with_.mean_ms / without.mean_ms for without, with_ in pairs]}


def _cost_table(cost: Cost) -> Table:
    table = Table(title="a recorder beside stand-ins in another process", title_justify="left")
    for heading in ("robots", "CPU (% of a core)", "memory (MB)", "messages/s", "MB/s", "lost", "observations / chunks"):
        table.add_column(heading, justify="right")
    share, rate, size = f"{100 * cost.cpu_share:.1f}", f"{cost.messages_hz:.0f}", f"{cost.mb_s:.1f}"
    table.add_row(str(cost.robots), share, f"{cost.rss_mb:.0f}", rate, size, str(cost.lost), f"{cost.observations:.3f}")
    return table


def _late_table(turns: list[Late]) -> Table:
    table = Table(title="how late control periods begin, without a recorder and with one, by turns", title_justify="left")
    for heading in ("", "without, per round", "with, per round", "with / without: median", "from", "to"):
        table.add_column(heading, justify="right")
    means, shares = [f"{turn.mean_ms:.2f}" for turn in turns], [f"{turn.late_share:.2%}" for turn in turns]
    found = ratios(turns)["mean"]
    spread = (f"{median(found):.2f}", f"{min(found):.2f}", f"{max(found):.2f}")
    table.add_row("mean (ms)", " ".join(means[::2]), " ".join(means[1::2]), *spread)
    table.add_row(f"later than {1e3 * LATE_S:g} ms", " ".join(shares[::2]), " ".join(shares[1::2]), "", "", "")
    return table
