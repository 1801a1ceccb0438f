"""Change of a case's descriptor: a new plan with the recorded robots, service times and outages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ros2_rfm_serving.audit.whatif.case import Case, RobotCase, ServerCase
from ros2_rfm_serving.audit.whatif.changes import configured
from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.errors import ConfigurationError, ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry
from ros2_rfm_serving.factory.settings import RobotSettingsEntry, ServerSettings, Settings, settings_of
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.scheduler import plan_factory, to_schedule, without_automatic
from ros2_rfm_serving.server import ServerConfig
from ros2_rfm_serving.types import ModelContract, OutputKind, Placement
from ros2_rfm_serving.virtual_time.events import source


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Profiles and catalogue of a scheduler."""

    profile: Profile
    catalogue: Catalogue

    def service_s(self, model: str, gpu_type: str, rows: int) -> float:
        """Return the time of a batch in s for `replay.ServiceTime`: by the catalogue's law, or else as measured; NaN if unknown."""
        footprint = self.catalogue.footprint(model, gpu_type)
        if footprint and footprint.service:
            return footprint.service.law().mean_s(rows)
        for batching in ("fixed", "continuous"):
            if found := self.profile.batches_s(model, gpu_type, batching, rows):
                return found[rows - 1]
        return float("nan")


def with_factory(case: Case, factory: Factory, known: Knowledge, policy: str = "best") -> Case:
    """Return the case with another factory. Raises: `ConfigurationError` for a task without a recorded robot; `ScheduleError` when
    it cannot be served."""
    factory, _ = without_automatic(factory, known.profile, known.catalogue)
    solution = plan_factory(factory, known.profile, known.catalogue, policy=policy)
    if not solution.servers:
        raise ScheduleError("; ".join(solution.problems))
    first_s, then = case.schedules[0]
    schedule = replace(
        to_schedule(solution, factory.robots, epoch=1, previous=case.schedule), scheduler=then.scheduler, epoch=then.epoch + 1
    )
    settings = settings_of(factory)
    servers = {placement.server: _server(placement, settings.of(placement), case, known) for placement in schedule.placements}
    robots = _robots(case, factory.robots, settings)
    doubled = Counter(robot.task for robot in factory.robots if robot.name not in case.robots)
    gaps = [f"{count} robots of {task!r} were not recorded: each does what another one did" for task, count in doubled.items()]
    gaps += _unmeasured(schedule.placements, case)
    gaps += _not_applied(factory, case, settings)
    gaps += [
        f"{name} was out of order then, and is not there now"
        for name, s in case.servers.items()
        if s.outages and name not in servers
    ]
    return replace(case, robots=robots, servers=servers, schedules=((first_s, schedule),), gaps=(*case.gaps, *gaps))


def _not_applied(factory: Factory, case: Case, settings: Settings) -> list[str]:
    """Return descriptions of declared settings that a replay cannot apply."""
    gaps = [
        f"{task!r} is declared with control_rate_hz {wanted_hz:g}, which is not applied: robots tick as they did, at {rate_hz:g}"
        for task, rate_hz, wanted_hz in _rates(case, settings)
        if wanted_hz and wanted_hz != rate_hz
    ]
    if any(group.overflow is not None for group in factory.server_cluster):
        gaps.append(
            "the tier that servers are declared to overflow to is not replayed: what is too much for them waits, or is late"
        )
    return gaps


def _rates(case: Case, settings: Settings) -> list[tuple[str, float, float]]:
    """Return task, recorded rate and declared rate (0 if undeclared)."""
    found = {(_task(one), one.config.control_rate_hz) for one in case.robots.values()}
    return [(task, rate_hz, settings.robots[task].control_rate_hz) for task, rate_hz in sorted(found) if task in settings.robots]


def _unmeasured(placements: Sequence[Placement], case: Case) -> list[str]:
    recorded = {_kind(server.placement) for server in case.servers.values() if server.batches}
    new = dict.fromkeys(_kind(placement) for placement in placements if _kind(placement) not in recorded)
    return [f"{model!r} did not run on {gpu_type!r}: its times are the profile's" for model, gpu_type in new]


def _kind(placement: Placement) -> tuple[str, str]:
    return placement.model, placement.gpu_type


# --- robots ----------------------------------------------------------------------------------------------------------------


def _robots(case: Case, wanted: Sequence[RobotEntry], settings: Settings) -> dict[str, RobotCase]:
    recorded: defaultdict[str, list[RobotCase]] = defaultdict(list)
    for one in case.robots.values():
        recorded[_task(one)].append(one)
    found = {}
    for robot in wanted:
        if not recorded[robot.task]:
            fix = f"{did_you_mean(robot.task, [task for task in recorded if recorded[task]])}; name its tasks alike"
            raise ConfigurationError(f"no robot of {robot.task!r} was recorded", key="--factory", fix=fix)
        same = case.robots.get(robot.name)
        model = recorded[robot.task][robot.index % len(recorded[robot.task])]
        like = same or _beside(model, robot.name, settings.robots[robot.task].mean_period_s)
        found[robot.name] = configured(like, partial(_as_declared, robot.name, settings.robots[robot.task]))
    return found


def _as_declared(name: str, settings: RobotSettingsEntry, config: RobotConfig) -> RobotConfig:
    return declared(replace(config, name=name), settings)


def _task(robot: RobotCase) -> str:
    return robot.task or robot.name.rpartition("_")[0]


def _beside(robot: RobotCase, name: str, period_s: float) -> RobotCase:
    """Return a robot that does the same with a delay, a part of the time for which it executes a chunk, so that requests do not
    coincide."""
    later_s = period_s * source(0, "beside", name).random()
    return replace(
        robot,
        ticks=tuple(tick._replace(at_s=tick.at_s + later_s) for tick in robot.ticks),
        commands=tuple(one._replace(at_s=one.at_s + later_s) for one in robot.commands),
    )


def declared(config: RobotConfig, settings: RobotSettingsEntry) -> RobotConfig:
    """Return the configuration with a descriptor's settings, as `factory/nodes.py` applies them to a live robot. Raises:
    `ConfigurationError` when they are invalid."""
    policy = replace(
        config.policy,
        fallbacks=settings.fallbacks,
        max_task_retries=settings.max_task_retries,
        on_max_task_retries=settings.on_max_task_retries,
        max_consecutive_safety_replan=settings.max_consecutive_safety_replan,
        max_consecutive_slo_violation=settings.max_consecutive_slo_violation,
        on_max_violation=settings.on_max_violation,
    )
    steps = settings.execution_horizon(config.step_rate_hz)
    return replace(
        config,
        prompts=dict(settings.prompts),
        calls_per_action=dict(settings.calls_per_action),
        synchronous=settings.synchronous,
        execution_horizon=steps,
        horizon=replace(settings.horizon, steps=steps),
        policy=policy,
    )


# --- servers ---------------------------------------------------------------------------------------------------------------


def _server(placement: Placement, settings: ServerSettings, case: Case, known: Knowledge) -> ServerCase:
    """Return a server with the times of servers that ran its model on such a GPU, and the outages of the server with its name."""
    alike = [server for server in case.servers.values() if _kind(server.placement) == _kind(placement)]
    same = [server for server in alike if server.name == placement.server]
    model = [server for server in case.servers.values() if server.placement.model == placement.model]
    like = next(iter((*same, *alike, *model)), None)
    config = like.config if like else ServerConfig(name=placement.server)
    named = case.servers.get(placement.server)
    return ServerCase(
        placement=placement,
        config=_config(config, placement, settings),
        contract=like.contract if like else _contract(placement, known.catalogue),
        batches=tuple(sorted(batch for server in same or alike for batch in server.batches)),
        intake_s=like.intake_s if like else 0.0,
        pause_s=like.pause_s if like else 0.0,
        outages=named.outages if named else (),
        confidences=tuple(sure for server in alike for sure in server.confidences),
    )


def _config(config: ServerConfig, placement: Placement, settings: ServerSettings) -> ServerConfig:
    return replace(
        config,
        name=placement.server,
        batch_size=placement.batch_size,
        max_sessions=placement.max_sessions,
        dispatch=settings.dispatch,
        batching=settings.batching,
        refetch_after_s=settings.refetch_after_s,
        profile_s=(),
    )


def _contract(placement: Placement, catalogue: Catalogue) -> ModelContract:
    entry = catalogue[placement.model]
    spec = EmulatedSpec(model=placement.model, output=OutputKind(entry.output), chunk_length=entry.chunk_length)
    return EmulatedEngine(spec, lambda rows: 0.0, lambda seconds: None).contract
