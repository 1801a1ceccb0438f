"""`rfm bench rtc`: cost of an inference delay for a robot, by its execution of chunks; over DDS, or in lockstep."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from lab.benchmarks.rtc.cells import Cell

console = Console() if Console().is_terminal else Console(width=150)

MODES: dict[str, dict[str, Any]] = {
    "synchronous": {"synchronous": True, "blend_steps": 0, "execution_horizon": 8},
    "naive": {"conditioning": "none", "blend_steps": 0, "execution_horizon": 8},
    "guided": {"conditioning": "guided", "blend_steps": 0, "execution_horizon": 8},
    "training-time": {"conditioning": "prefix", "blend_steps": 0, "execution_horizon": 8},
    "default": {"execution_horizon": 4},
}
"""Differences from config/robots/metaworld_arm.yaml; the default mode is that of the shipped factories."""
DECLARED = ("synchronous", "execution_horizon")
"""Settings that are in a factory's descriptor, and not in the robot's file."""
NUM_TRANSLATIONS = 3
"""Columns of a Meta-World action that move the hand; the fourth is the gripper, which jumps when it closes."""
TRANSPORT_MS = 50.0
"""Round trip of a request without an injected delay, with all of this benchmark's processes on two cores."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of a measurement over DDS."""

    camera_rate_hz: float = 2.0
    transport_ms: float = TRANSPORT_MS
    domain: int = 79


def rtc(
    delays: Annotated[str, typer.Option(help="Injected inference delays, control steps")] = "0,2,4,8",
    modes: Annotated[str, typer.Option(help=f"Of {', '.join(MODES)}")] = ",".join(MODES),
    episodes: Annotated[int, typer.Option(min=1, help="Per task, four tasks")] = 30,
    lockstep: Annotated[bool, typer.Option(help="In process and in virtual time: no network, no machine's own delays")] = False,
    camera_rate_hz: Annotated[float, typer.Option(help="Rendering is what costs this machine most")] = 2.0,
    transport_ms: Annotated[
        float, typer.Option(min=0, help="Round trip of this machine without an injected delay, which is taken off it")
    ] = TRANSPORT_MS,
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 79,
    models: Annotated[Path | None, typer.Option(help="Folder of the models, in lockstep; default: the shipped ones")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures there")] = None,
    svg_file: Annotated[Path | None, typer.Option("--svg", help="Write the figure there")] = None,
) -> None:
    """Success, smoothness, idle time and time to success of four Meta-World tasks under injected inference delays.

    Examples:  rfm bench rtc   |   rfm bench rtc --lockstep --episodes 50 --modes naive,default --delays 4,8
    """
    wanted = modes.split(",")
    if unknown := [mode for mode in wanted if mode not in MODES]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(MODES)}", param_hint="--modes")
    setting = Setting(camera_rate_hz=camera_rate_hz, transport_ms=transport_ms, domain=domain)
    cells = []
    for delay in (int(part) for part in delays.split(",")):
        for mode in wanted:
            cell = _lockstep(mode, delay, episodes, models) if lockstep else _served(mode, delay, episodes, setting)
            cells.append(cell)
            console.print(_table([cell], f"{mode}, {delay} steps"))
            if json_file:  # written after every cell, so that a late failure does not lose earlier results
                json_file.write_text(json.dumps([asdict(done) for done in cells], indent=1) + "\n", encoding="utf-8")
    where = "in lockstep" if lockstep else "over DDS, 20 Hz control"
    console.print(_table(cells, f"four Meta-World tasks, {episodes} episodes each, {where}"))
    if svg_file:
        from lab.benchmarks.rtc.plot import draw

        draw(cells, svg_file)


# --- over DDS -------------------------------------------------------------------------------------------------------------


def _served(mode: str, delay_steps: int, episodes: int, setting: Setting) -> Cell:
    """Run every process of a factory with one robot per task; the delay is added on the wire, half of it each way."""
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.operate.run import run_factory
    from ros2_rfm_serving.operate.running import Options
    from ros2_rfm_serving.ros.node.runtime import share

    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        factory = write_factory(Path(folder), share() / "config", mode, delay_steps, setting)
        descriptor = load_factory(factory)
        work = {"episodes": episodes, "end_on_score": True, "results_file": str(results)}
        logs = Path("logs") / f"bench_rtc_{setting.domain}"
        options = Options(seconds=_limit_s(episodes), domain=setting.domain, logs=logs, work=work)
        run_factory(descriptor, options, until=lambda: results.exists() and _is_done(results, episodes, len(descriptor.robots)))
        lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] if results.exists() else []
    tasks = {robot.name: descriptor.tasks[robot.task].world for robot in descriptor.robots}
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        world = tasks[line["robot"]]
        assert world is not None
        rows.setdefault(world.task, []).append(line)
    return _cell(mode, delay_steps, {task: [_of_result(line) for line in of_task[:episodes]] for task, of_task in rows.items()})


def _limit_s(episodes: int) -> float:
    """Return a limit that is far above the usual duration."""
    return 120.0 + 30.0 * episodes


def _is_done(results: Path, episodes: int, num_robots: int) -> bool:
    return len(results.read_text(encoding="utf-8").splitlines()) >= episodes * num_robots


def write_factory(folder: Path, config: Path, mode: str, delay_steps: int, setting: Setting) -> Path:
    """Write the shipped evaluation factory with its robots in this mode and behind this delay."""
    robot = yaml.safe_load((config / "robots" / "metaworld_arm.yaml").read_text(encoding="utf-8"))
    parameters = robot["/**"]["ros__parameters"]
    parameters.update({name: value for name, value in MODES[mode].items() if name not in DECLARED})
    parameters.update({"max_action_age_s": 5.0, "server_timeout_s": 5.0, "default_budget_s": 15.0})
    parameters["max_observation_age_s"] = 0.5 + 2.0 / setting.camera_rate_hz
    period_ms = 1e3 / parameters["control_rate_hz"]
    if delay_steps:  # half a step early, so that an answer takes effect with the step that it is due for
        one_way_ms = max(0.0, (delay_steps - 0.5) * period_ms - setting.transport_ms) / 2
        parameters["faults"] = f"delay_ms={one_way_ms:g}"
    (folder / "robot.yaml").write_text(yaml.safe_dump(robot), encoding="utf-8")
    factory = yaml.safe_load((config / "factory_evaluation.yaml").read_text(encoding="utf-8"))
    for section in factory.values():
        if isinstance(section, dict) and "components" in section:
            section["robot"] = str(folder / "robot.yaml")
            section["world"]["camera_rate_hz"] = setting.camera_rate_hz
            section["pipeline"]["action_period_ms"] = MODES[mode]["execution_horizon"] * period_ms
            section["execution"] = {"mode": "sync" if MODES[mode].get("synchronous") else "async"}
            section["components"]["system1"]["slo_ms"] = 1000
    file = folder / "factory.yaml"
    file.write_text(yaml.safe_dump(factory, sort_keys=False), encoding="utf-8")
    return file


def _of_result(line: Mapping[str, Any]) -> dict[str, float]:
    return {
        "success": line["steps"] > 0,
        "steps": line["steps"],
        "idle": line["held_steps"] - line["waiting_steps"],
        "seam": max(line["seam_jump"][:NUM_TRANSLATIONS]),
        "jerk": sum(line["mean_squared_jerk"][:NUM_TRANSLATIONS]) / NUM_TRANSLATIONS,
    }


# --- in lockstep ----------------------------------------------------------------------------------------------------------


def _lockstep(mode: str, delay_steps: int, episodes: int, models: Path | None) -> Cell:
    import torch

    from lab.rollouts.closed_loop import run_trials
    from ros2_rfm_serving.engines.embedded.engine import load_embedded
    from ros2_rfm_serving.ros.node.runtime import share
    from ros2_rfm_serving.worlds.metaworld import TASKS, metaworld_arm

    torch.set_num_threads(1)
    engine = load_embedded("rfm/metaworld-flow", (models or share() / "models") / "metaworld_flow")
    rows = {}
    for number, (task, spec) in enumerate(TASKS.items()):
        with metaworld_arm(task) as arm:
            seeds = range(10_000_000 * (number + 1), 10_000_000 * (number + 1) + episodes)
            trials = run_trials(arm, engine, config_of(mode), spec.instructions[0], seeds, delay_steps=delay_steps)
        rows[task] = [
            {"success": t.success, "steps": t.steps, "idle": t.idle_steps, "seam": t.seam_jump, "jerk": t.mean_squared_jerk}
            for t in trials
        ]
    return _cell(mode, delay_steps, rows)


def config_of(mode: str) -> Any:
    """Return the configuration of the shipped robot in this mode, as its node would read it."""
    from lab.benchmarks.shipped_robot import robot_config

    return robot_config("metaworld_arm.yaml", **MODES[mode])


# --- figures --------------------------------------------------------------------------------------------------------------


def _cell(mode: str, delay_steps: int, rows: Mapping[str, list[dict[str, float]]]) -> Cell:
    flat = [row for of_task in rows.values() for row in of_task]
    return Cell(
        mode=mode,
        delay_steps=delay_steps,
        successes={task: sum(bool(row["success"]) for row in of_task) for task, of_task in rows.items()},
        episodes={task: len(of_task) for task, of_task in rows.items()},
        steps=[int(row["steps"]) for row in flat if row["success"]],
        idle_steps=[int(row["idle"]) for row in flat],
        seam_jump=[row["seam"] for row in flat],
        mean_squared_jerk=[row["jerk"] for row in flat],
    )


def _table(cells: Iterable[Cell], title: str) -> Table:
    from ros2_rfm_serving.monitoring.board import wilson_interval

    cells = list(cells)
    tasks = list(dict.fromkeys(task for cell in cells for task in cell.successes))
    columns = (
        "delay",
        "mode",
        *tasks,
        "all",
        "95 % interval",
        "seam jump, mean (median)",
        "jerk^2",
        "idle steps",
        "steps to success",
    )
    table = Table(*columns, title=title)
    for cell in cells:
        wins, n = cell.success
        low, high = wilson_interval(wins, n)
        table.add_row(
            str(cell.delay_steps),
            cell.mode,
            *(f"{cell.successes.get(task, 0)}/{cell.episodes.get(task, 0)}" for task in tasks),
            f"{wins / n:.1%}" if n else "-",
            f"{low:.0%} - {high:.0%}",
            f"{_mean(cell.seam_jump):.3f} ({_median(cell.seam_jump):.3f})",
            f"{_mean(cell.mean_squared_jerk):.4f}",
            f"{_mean(cell.idle_steps):.1f}",
            f"{_mean(cell.steps):.0f}",
        )
    return table


def _mean(values: list[Any]) -> float:
    return sum(values) / len(values) if values else math.nan


def _median(values: list[Any]) -> float:
    return sorted(values)[len(values) // 2] if values else math.nan
