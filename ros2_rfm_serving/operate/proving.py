"""Trial of a robot's file step by step: a dry run without commands, then a reduced speed, then the declared one."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.operate.run import checked_nodes, refuse_a_second_factory
from ros2_rfm_serving.operate.running import Options, observing, prepare_environment, spinning

if TYPE_CHECKING:
    from ros2_rfm_serving.factory import Factory
    from ros2_rfm_serving.factory.nodes import NodeSpec
    from ros2_rfm_serving.monitoring.findings.look import Look
    from ros2_rfm_serving.operate.supervisor import Supervisor

PERIOD_S = 0.25
START_S = 120.0
"""Time until the first chunk: a server may have to load a model."""
OTHERS_S = 15.0
"""Time from the first robot's first chunk after which the others' are no longer waited for."""
STANDS = 1e-3
"""Range of a command below which it moves nothing."""
LEAST_SPEED = 0.01
"""Smallest `speed_scale` of a robot."""
ROBOT_PROBLEMS = ("state_problem", "command_problem", "start_problem", "reset_problem", "chunk_problem")
"""Values of a robot's diagnosis for which no step succeeds."""
MOVING_PROBLEMS = ("still_problem", "command_rivals")
"""Further such values, for steps in which the robot moves."""
PROBLEM_TEXTS = {"chunk_problem": "the newest chunk has {}", "command_rivals": "two publishers of commands: {}"}
"""Text around such a value; other values are complete by themselves."""
Range = tuple[float, float]
"""(lowest, highest)"""
ROBOT_NODES = ("robot_node", "foreman_node")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step of the trial."""

    title: str
    parameters: Mapping[str, Any]
    """Parameters of every robot node."""

    @property
    def is_dry(self) -> bool:
        return bool(self.parameters.get("dry_run"))


def stages(speed: float) -> list[Stage]:
    """Return the steps in their order. speed: share of the declared speed, above 0 and at most 1."""
    reduced = [Stage(title=f"at {speed:.0%} of the declared speed", parameters={"speed_scale": speed})] if speed < 1.0 else []
    dry = Stage(title="dry run: nothing is commanded", parameters={"dry_run": True})
    return [dry, *reduced, Stage(title="as declared", parameters={})]


@dataclass(frozen=True, kw_only=True)
class CommandedRange:
    """Commands that a dry run would have sent in one column of an action."""

    action: str
    lowest: float
    highest: float
    largest_step: float
    lower: float = -math.inf
    upper: float = math.inf
    """Limits of the action in the robot's file."""


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """Observations of one robot in one step of the trial."""

    robot: str
    state: str
    reason: str
    chunk_rate_hz: float
    action_rate_hz: float
    ages_s: Mapping[str, float] = field(default_factory=dict)
    """Sensor -> age of its newest reading, s."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Counter of refusals -> its value."""
    commanded: tuple[CommandedRange, ...] = ()
    """Ranges of the commands of a dry run."""
    problems: tuple[str, ...] = ()
    """Reasons why the step did not succeed; empty: it did."""


class Proof:
    """A factory on this machine whose robots are started anew for each step; scheduler and servers continue."""

    def __init__(
        self, robots: Sequence[NodeSpec], options: Options, look: Callable[[], Look], start_look: Callable[[], None]
    ) -> None:
        self._robots, self._options, self._look, self._start_look = robots, options, look, start_look
        self._names = [str(node.parameters["robot"]) for node in robots if node.executable == "robot_node"]

    def run(self, stage: Stage, seconds: float, stop: threading.Event, progress: Callable[[str], object]) -> list[StageReport]:
        """Run one step for `seconds` after every robot has chunks. progress: gets a line a few times a second."""
        nodes = [with_stage(node, stage) for node in self._robots]
        supervisor = _supervisor(
            nodes, replace(self._options, logs=self._options.logs / stage.title.split(":")[0].replace(" ", "_"))
        )
        self._start_look()
        supervisor.start()
        try:
            look = self._watch(supervisor, seconds, stop, lambda text: progress(f"{stage.title}; {text}"))
        finally:
            supervisor.stop()
        limits = {node.name: limits_of(node) for node in nodes if node.executable == "robot_node"}
        return [report_of(look, robot, stage, limits[robot]) for robot in self._names]

    def _watch(self, supervisor: Supervisor, seconds: float, stop: threading.Event, progress: Callable[[str], object]) -> Look:
        begun_s, first_s, working_s = time.monotonic(), math.inf, math.inf
        while not stop.wait(PERIOD_S):
            now_s = time.monotonic()
            supervisor.watch()
            if supervisor.is_hopeless or now_s - working_s > seconds or now_s - begun_s > START_S + seconds:
                break
            look = self._look()
            work = [has_chunks(look, robot) for robot in self._names]
            first_s = min(first_s, now_s) if any(work) else first_s
            if working_s == math.inf and (all(work) or now_s - first_s > OTHERS_S):
                working_s = now_s
            left_s = seconds - (now_s - working_s)
            progress(f"{left_s:.0f} s left" if working_s < math.inf else "waiting for the first chunk")
        return self._look()


@contextmanager
def proving(factory: Factory, options: Options, stop: threading.Event) -> Iterator[Proof]:
    """Start scheduler and servers, and stop them at the end. Raises: `RfmError` for a process that cannot start."""
    from ros2_rfm_serving.factory.environment import discovery_environment
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.ros.monitor.looking import LookingNode

    prepare_environment(options.domain, discovery_environment(factory, ""))
    factory = factory.on_one_machine()
    with spinner(f"checking {factory.file}"):
        nodes = checked_nodes(factory, options)
    board = Board([robot.name for robot in factory.robots], factory.servers)
    with observing(board, options.namespace) as observer:
        refuse_a_second_factory(observer, across_machines=False)
    served = _supervisor([node for node in nodes if node.executable not in ROBOT_NODES], options)
    with spinning(lambda: LookingNode(board, options.namespace)) as node:
        served.start()
        try:
            yield Proof(
                [one for one in nodes if one.executable in ROBOT_NODES], options, lambda: node.heard, lambda: _restart(node)
            )
        finally:
            served.stop()


def _restart(node: Any) -> None:
    node.finish()


def _supervisor(nodes: list[NodeSpec], options: Options) -> Supervisor:
    from ros2_rfm_serving.operate.supervisor import Supervisor

    return Supervisor(nodes, options.logs, fleet_namespace=options.namespace, log_level=options.log_level)


def with_stage(node: NodeSpec, stage: Stage) -> NodeSpec:
    """Return a node with the parameters of a step. The share of the speed multiplies that of the robot's file."""
    from ros2_rfm_serving.factory.nodes import merged_parameters

    if node.executable != "robot_node":
        return node
    parameters = dict(stage.parameters)
    if "speed_scale" in parameters:
        own = float(merged_parameters(node).get("speed_scale", 1.0))
        parameters["speed_scale"] = max(LEAST_SPEED, own * float(parameters["speed_scale"]))
    return replace(node, parameters={**node.parameters, **parameters})


def has_chunks(look: Look, robot: str) -> bool:
    return any(row.chunk_rate_hz > 0 for row in look.robots.get(robot, [])[-1:])


def limits_of(node: NodeSpec) -> dict[str, Range]:
    """Return the limits of each action of a robot. Raises: `ConfigurationError` for parameters that its node refuses."""
    from ros2_rfm_serving.factory.nodes import merged_parameters
    from ros2_rfm_serving.ros.node.draft import draft
    from ros2_rfm_serving.ros.robot.settings import robot_settings

    config = robot_settings(draft(merged_parameters(node)), node.name).config
    bounds = zip(config.limits.lower, config.limits.upper, strict=False)
    return dict(zip(config.action_names, bounds, strict=False))


def report_of(look: Look, robot: str, stage: Stage, limits: Mapping[str, Range]) -> StageReport:
    """Return the observations of a robot, with the reasons why the step did not succeed. limits: limits of each action."""
    rows, diagnosis = look.robots.get(robot, []), look.diagnosis(f"{robot}: robot")
    values = diagnosis.values if diagnosis else {}
    last = rows[-1] if rows else None
    report = StageReport(
        robot=robot,
        state=values.get("state", "silent"),
        reason=last.reason if last else "",
        chunk_rate_hz=max((row.chunk_rate_hz for row in rows), default=0.0),
        action_rate_hz=max((row.action_rate_hz for row in rows), default=0.0),
        ages_s=_ages(values),
        refused={
            key.removeprefix("refused "): int(text) for key, text in values.items() if key.startswith("refused ") and int(text)
        },
        commanded=tuple(_commanded(values, limits)),
    )
    return replace(report, problems=tuple(_problems(report, stage, values)))


def _ages(values: Mapping[str, str]) -> dict[str, float]:
    ages = {key.removeprefix("image_age_s "): float(text) for key, text in values.items() if key.startswith("image_age_s ")}
    return {"state": float(values["state_age_s"]), **ages} if "state_age_s" in values else ages


def _commanded(values: Mapping[str, str], limits: Mapping[str, Range]) -> Iterator[CommandedRange]:
    for key, text in values.items():
        if key.startswith("dry_run "):
            low, high, step = map(float, text.split())
            name = key.removeprefix("dry_run ")
            lower, upper = limits.get(name, (-math.inf, math.inf))
            yield CommandedRange(action=name, lowest=low, highest=high, largest_step=step, lower=lower, upper=upper)


def _problems(report: StageReport, stage: Stage, values: Mapping[str, str]) -> Iterator[str]:
    if report.state == "silent":
        yield "the robot's node does not report: its log says why"
        return
    if not report.chunk_rate_hz:
        yield f"no chunk came: {report.reason or 'the log of the server says why'}"
    for key in (*ROBOT_PROBLEMS, *(() if stage.is_dry else MOVING_PROBLEMS)):
        if values.get(key):
            yield PROBLEM_TEXTS.get(key, "{}").format(values[key])
    yield from (f"{key}: {text}" for key, text in values.items() if key.startswith(("image_problem ", "type_problem ")) and text)
    if not stage.is_dry and report.chunk_rate_hz and not report.action_rate_hz:
        yield f"chunks came, and none of their actions was executed: {report.reason or 'the log of the robot says why'}"
    if stage.is_dry and report.chunk_rate_hz:
        if not report.commanded:
            yield f"no command would have gone out: {report.reason or 'the robot had no task'}"
        elif all(one.highest - one.lowest < STANDS for one in report.commanded):
            yield "the commands would not move the robot: all of them are alike"
