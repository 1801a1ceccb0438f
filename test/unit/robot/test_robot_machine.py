"""The promises that a robot keeps whatever happens: any order of events, in virtual time, against a record of its own."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.faults import FaultPlan
from ros2_rfm_serving.robot import RobotConfig, RobotCore, TaskGoal
from ros2_rfm_serving.robot.config import CommandType, ComponentClientConfig, FailSafeConfig, Motion, Rung, TaskPolicy
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.robot.motion.failsafe import ALLOWED
from ros2_rfm_serving.types import Conditioning, Fallback, PipelineConfig, RobotState, ScheduleVerdict, TaskOutcome, TaskPhase
from test.unit.robot.robot_happenings import Happenings
from test.unit.robot.robot_shadow import Shadow
from test.unit.robot.robot_stored import check_stored
from test.unit.robot.robot_world import COMPONENTS, HOME, NAMES, SPARE, World

NUM_EVENTS = 100_000
"""That hypothesis draws, at least; control periods and replies are no events."""
NUM_PIPELINED_EVENTS = int(os.environ.get("RFM_PIPELINED_EVENTS", "20000"))
"""The same of robots whose System 1 has a pipelined session."""
PHASES = tuple(phase for phase in Phase if phase is not Phase.shrink or not os.environ.get("RFM_UNSHRUNK"))
"""Whoever only wants to know that it fails need not wait minutes for the shortest sequence."""
PERIOD_S = 0.05
LADDERS = {
    CommandType.POSITION: ("hold", "repeat_last:0.2 ramp_down:0.3 hold", "ramp_down:0.4", "hold:0.3 safe_pose", "safe_pose"),
    CommandType.VELOCITY: ("zero", "repeat_last:0.2 ramp_down:0.3 zero", "ramp_down:0.2 zero", "safe_pose:1 zero"),
    CommandType.DELTA: ("hold", "zero", "repeat_last:0.1 hold", "ramp_down:0.3 hold", "hold:0.2 safe_pose"),
}


NOT_PIPELINED: st.SearchStrategy[PipelineConfig | None] = st.none()
PIPELININGS = st.builds(PipelineConfig, pp_perception=st.integers(1, 2), pp_generation=st.integers(1, 3))


def ladder(text: str) -> tuple[Rung, ...]:
    words = (word.partition(":") for word in text.split())
    return tuple(Rung(Motion(motion), float(seconds or math.inf)) for motion, _, seconds in words)


def columns(value: float) -> tuple[float, ...]:
    """Of x and y; the tags are not limited."""
    return (value, value, *(math.copysign(math.inf, value),) * (len(NAMES) - 2))


@st.composite
def configs(draw: st.DrawFn, pipelinings: st.SearchStrategy[PipelineConfig | None] = NOT_PIPELINED) -> RobotConfig:
    kind = draw(st.sampled_from(list(LADDERS)))
    rungs = ladder(draw(st.sampled_from(LADDERS[kind])))
    velocity = draw(st.sampled_from([0.5, 5.0])) if kind is CommandType.POSITION else 0.0
    acceleration = draw(st.sampled_from([0.0, 2.0, 20.0]))
    interpolation = 1 if kind is CommandType.DELTA else draw(st.integers(1, 4))
    pipelining = draw(pipelinings)
    timeouts_s = [0.4, 1.0] if pipelining is None else [0.6, 2.0]  # every answer of a pipelined session takes a few frames
    fallbacks = st.dictionaries(st.sampled_from(COMPONENTS), st.sampled_from(Fallback))
    return RobotConfig(
        name="r1",
        action_names=NAMES,
        cameras=("front",),
        state_size=3,
        control_rate_hz=1 / PERIOD_S,
        interpolation=interpolation,
        execution_horizon=draw(st.integers(1, 6 if pipelining is None else 2)),
        synchronous=draw(st.booleans()) and pipelining is None,
        conditioning=draw(st.sampled_from(Conditioning)),
        blend_steps=draw(st.integers(0, 3)),
        replace_queue=draw(st.booleans()) or pipelining is not None,
        pipelining=pipelining,
        calls_per_action=draw(st.sampled_from([{}, {"system2": 0.5}])),
        command_type=kind,
        limits=MotionLimits(
            lower=columns(-1.0),
            upper=columns(1.0),
            tolerance=draw(st.sampled_from([0.0, 0.1])),
            max_velocity=columns(velocity) if velocity else (),
            max_acceleration=columns(acceleration) if acceleration else (),
        ),
        fallback=rungs,
        safe_pose=(0.0,) * len(NAMES) if any(rung.motion is Motion.SAFE_POSE for rung in rungs) else (),
        max_action_age_s=draw(st.sampled_from([0.4, 1.0])),
        max_sensor_skew_s=0.2,
        failsafe=FailSafeConfig(
            degraded_after_s=draw(st.sampled_from([0.2, 1.0])), max_offline_s=draw(st.sampled_from([0.0, 2.0, 60.0]))
        ),
        policy=TaskPolicy(
            fallbacks=draw(fallbacks),
            max_consecutive_slo_violation=draw(st.integers(1, 4)),
            max_consecutive_safety_replan=draw(st.integers(1, 4)),
            on_max_violation=draw(st.sampled_from([Fallback.STOP_AND_CALL_HUMAN, Fallback.RETURN_TO_SAFE_STATE])),
            max_task_retries=draw(st.integers(0, 2)),
            on_max_task_retries=draw(st.sampled_from([Fallback.STOP_AND_CALL_HUMAN, Fallback.RETURN_TO_SAFE_STATE])),
        ),
        tick_is_step=interpolation > 1 or draw(st.booleans()),
        link=ComponentClientConfig(request_timeout_s=draw(st.sampled_from(timeouts_s)), initial_backoff_s=0.1, max_backoff_s=1.0),
    )


PLANS = st.sampled_from(
    [
        FaultPlan(),
        FaultPlan(delay_s=0.02, jitter_s=0.02, drop=0.02, duplicate=0.05, reorder=0.05, corrupt=0.02),
        FaultPlan(delay_s=0.1, jitter_s=0.1, drop=0.2, duplicate=0.2, reorder=0.2, hold_s=0.5, corrupt=0.2),
    ]
)
SYSTEM1_ROUTES = st.tuples(st.sampled_from([100.0, 5.0]), st.sampled_from([0.0, 0.15]))
PIPELINED_ROUTES = st.tuples(st.just(100.0), st.sampled_from([0.0, 0.3]))
ROUTES = st.fixed_dictionaries(
    {
        "system1": SYSTEM1_ROUTES,
        "system2": st.tuples(st.just(2.0), st.sampled_from([0.0, 0.3])),
        "safety": st.tuples(st.sampled_from([4.0, 1.0, 100.0]), st.sampled_from([0.0, 0.15])),
        "monitor": st.tuples(st.just(2.0), st.sampled_from([0.0, 0.3])),
    }
)


STORMS = st.binary(min_size=150, max_size=450)
"""Three hundred on average."""


class Coverage:
    """What has been seen, of all runs together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rules = 0
        self.happenings: Counter[str] = Counter()
        """By name: what the bytes of storms made happen."""
        self.passive: Counter[str] = Counter()
        """Control periods and replies, which nobody drew."""
        self.actions = self.ended_later = 0
        self.changes: Counter[tuple[RobotState, RobotState]] = Counter()
        self.reasons: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()

    @property
    def generated(self) -> int:
        """Events that hypothesis drew: rules, and what happened in storms."""
        return self.rules + self.happenings.total()

    def print(self) -> None:
        print(f"\n{self.name}: {self.generated} generated events: {self.rules} rules,")
        print(f"  and in storms {dict(self.happenings.most_common())};")
        print(f"  {dict(self.passive)}, {self.actions} of the control periods with an action")
        print(f"  {self.ended_later} chunks of pipelined sessions ended with a newer observation than they began with")
        for (before, after), times in sorted(self.changes.items()):
            print(f"  {before.name:>12} -> {after.name:<12} {times}")
        for reason, times in self.reasons.most_common():
            print(f"  {times:>6} control periods: {reason}")
        print("  tasks ended:", dict(self.endings))


SEEN, SEEN_PIPELINED = Coverage("one request in flight"), Coverage("pipelined sessions")


class RobotMachine(RuleBasedStateMachine):
    make: Callable[[RobotConfig], RobotCore] = RobotCore
    seen = SEEN

    @initialize(config=configs(), plan=PLANS, seed=st.integers(0, 2**16), routes=ROUTES)
    def begin(self, config: RobotConfig, plan: FaultPlan, seed: int, routes: dict[str, tuple[float, float]]) -> None:
        self._begin(config, plan, seed, routes)

    def _begin(self, config: RobotConfig, plan: FaultPlan, seed: int, routes: dict[str, tuple[float, float]]) -> None:
        self.world = World(config, plan, seed, routes, type(self).make)
        self.shadow = Shadow(self.world)
        self.brain = self.world.brain
        self.happenings = Happenings(self.world, self.shadow, self.seen.happenings)
        self.brain.on_schedule(self.world.schedule(), self.world.now_s)
        self.period(10)
        self.task("start")
        self.period(5)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.seen.passive += self.world.events
            self.seen.actions += self.shadow.actions
            self.seen.ended_later += self.shadow.ended_later
            self.seen.changes += self.brain.state_changes

    # --- time ---

    def period(self, ticks: int = 1, dt_s: float = PERIOD_S, *, may_act: bool = True) -> None:
        for _ in range(ticks):
            self.world.advance(dt_s)
            before = self.brain.state
            tick = self.world.tick(may_act=may_act)
            if self.brain.state is not before:
                assert self.brain.state in ALLOWED[before], f"{before.name} -> {self.brain.state.name}"
            self.shadow.ticked(tick, may_act=may_act)
            self.shadow.reset_begins()
            check_stored(self.brain)
            if self.brain.stop_reason:
                self.seen.reasons[re.sub(r"'.*'|[\d.]+", "_", self.brain.stop_reason)] += 1
            if may_act and not self.brain.config.tick_is_step:
                assert self.brain.next_tick_s(self.world.now_s) > self.world.now_s, "one tick does not do all that is to be done"

    @rule(
        ticks=st.integers(1, 60),
        latency_s=st.sampled_from([0.0, 0.03, 0.03, 0.12, 0.2, 0.6, 2.0]),
        safety=st.sampled_from(["safe", "safe", "safe", "Unsafe", ""]),
        monitor=st.sampled_from(["ongoing", "ongoing", "ongoing", "failed", "done"]),
        spoiled=st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.5]),
        jitter=st.sampled_from([1.0, 1.0, 0.7, 2.0]),
    )
    def run(self, ticks: int, latency_s: float, safety: str, monitor: str, spoiled: float, jitter: float) -> None:
        conditions = self.world.conditions
        conditions.latency_s, conditions.out_of_limits, conditions.wrong_kind = latency_s, spoiled, spoiled / 2
        conditions.words = {"safety": safety, "monitor": monitor}
        self.period(ticks, PERIOD_S * jitter)

    @rule(events=STORMS)
    def storm(self, events: bytes) -> None:
        """Two things happen per control period."""
        for number, code in enumerate(events):
            self.happenings.happen(code)
            if number % 2:
                self.period(dt_s=PERIOD_S * self.happenings.takes_periods())

    @rule(events=STORMS)
    def storm_again(self, events: bytes) -> None:
        """Rules are drawn alike: this one twice as often."""
        self.storm(events)

    @rule(ticks=st.integers(20, 80))
    def run_well(self, ticks: int) -> None:
        """Somebody has seen to everything."""
        self.recover()
        if not self.brain.resume(self.world.now_s):
            self.shadow.may_have_been_moved()
        if self.brain.task is not None and self.brain.task.phase is TaskPhase.RESETTING:
            self.reset_done()
        if self.brain.task is None or self.brain.task.result is not None:
            self.end()
        self.run(ticks, 0.03, "safe", "ongoing", 0.0, 1.0)

    @rule(dt_s=st.sampled_from([0.3, 0.7, 0.9, 1.5, 3.0, 61.0]))
    def freeze(self, dt_s: float) -> None:
        self.period(1, dt_s)

    @rule(ticks=st.integers(1, 5))
    def be_blind(self, ticks: int) -> None:
        self.period(ticks, may_act=False)

    @rule(
        kind=st.sampled_from(["none", "old", "old_images", "skewed", "nan", "unknown"]),
        ticks=st.integers(1, 30),
    )
    def read_badly(self, kind: str, ticks: int) -> None:
        self.world.conditions.readings = kind
        self.period(ticks)
        self.world.conditions.readings = "fresh"

    # --- servers ---

    @rule(server=st.sampled_from([HOME, SPARE]), said=st.booleans())
    def lose(self, server: str, said: bool) -> None:
        self.world.servers[server].up = False
        if said:
            self.brain.on_server_lost(server, self.world.now_s)

    @rule(server=st.sampled_from([HOME, SPARE]), model=st.sampled_from(["hash", "hash", "other"]), known=st.booleans())
    def return_(self, server: str, model: str, known: bool) -> None:
        host = self.world.servers[server]
        if known and host.model_hash == model:
            host.up = True  # it was only cut off
        else:
            host.restart(model)
            self.brain.on_server_lost(server, self.world.now_s)

    @rule()
    def recover(self) -> None:
        for host in self.world.servers.values():
            if not host.up or host.model_hash != "hash":
                host.restart("hash")
        self.world.conditions.opens = "granted"
        self.brain.on_schedule(self.world.schedule(), self.world.now_s)
        self.run(20, 0.03, "safe", "ongoing", 0.0, 1.0)

    @rule(how=st.sampled_from(["refused", "contract", "lost", "late", "granted"]), server=st.sampled_from([HOME, SPARE]))
    def open(self, how: str, server: str) -> None:
        self.world.conditions.opens = how
        if how != "granted":
            self.brain.on_server_lost(server, self.world.now_s)

    @rule(
        newer=st.booleans(),
        model=st.sampled_from(["fake", "fake", "new"]),
        home=st.sampled_from([HOME, SPARE]),
        dropped=st.sampled_from([None, None, *COMPONENTS]),
        standby=st.booleans(),
    )
    def schedule(self, newer: bool, model: str, home: str, dropped: str | None, standby: bool) -> None:
        world, routes = self.world, dict(self.world.routes)
        world.standby = standby
        world.routes = {name: route for name, route in routes.items() if name != dropped}
        before = self.brain.schedule_follower.schedule
        told = world.schedule(newer=newer, model=model, home=home)
        heard = self.brain.on_schedule(told, world.now_s)
        expected = (
            {ScheduleVerdict.NEWER}
            if newer
            else {ScheduleVerdict.REPEATED}
            if told == before
            else {ScheduleVerdict.STALE, ScheduleVerdict.TAKEOVER}
        )
        assert heard in expected, "an epoch means one schedule, while that is repeated"
        world.routes = routes

    @rule()
    def old_schedule(self) -> None:
        world, before = self.world, self.brain.refused["stale_schedule"]
        world.schedule_epoch += 1
        self.brain.on_schedule(world.schedule(newer=False), world.now_s)
        world.schedule_epoch -= 1
        assert not self.brain.on_schedule(world.schedule(newer=False), world.now_s).is_accepted
        assert self.brain.refused["stale_schedule"] == before + 1
        world.schedule_epoch += 1

    @rule(
        offline_s=st.sampled_from([0.0, 0.3, 2.0, 60.0]),
        timeout_s=st.sampled_from([0.3, 2.0]),
        clamped=st.sampled_from([0.01, 0.5, 1.0]),
    )
    def reconfigure(self, offline_s: float, timeout_s: float, clamped: float) -> None:
        """At work, as people may."""
        config = self.brain.config
        failsafe, gate = replace(config.failsafe, max_offline_s=offline_s), replace(config.gate, max_clamped=clamped)
        with contextlib.suppress(ConfigurationError):  # it is where other settings do not let it go on: nothing has changed
            self.brain.prepared(replace(config, failsafe=failsafe, gate=gate, server_timeout_s=timeout_s))()
        self.period()

    # --- people and tasks ---

    @rule(x=st.floats(-1.0, 1.0, width=32), y=st.floats(-1.0, 1.0, width=32))
    def push(self, x: float, y: float) -> None:
        """By hand, whenever a person may do that: it stands, or is held."""
        if self.brain.paused or self.brain.stop_reason or self.brain.task is None or not self.brain._motion.ladder.moved:
            self.world.arm = np.array([x, y], np.float32)
        self.period(2)

    @rule(what=st.sampled_from(["pause", "resume", "resume", "resume", "abort"]))
    def person(self, what: str) -> None:
        if what == "pause":
            self.brain.pause(self.world.now_s)
            self.shadow.forgets()
        elif what == "resume":
            if not self.brain.resume(self.world.now_s):
                self.shadow.may_have_been_moved()
        else:
            self.brain.abort(self.world.now_s)
        self.period(2)

    @rule(what=st.sampled_from(["start", "start", "start", "start", "cancel", "stop", "reset fails"]))
    def task(self, what: str) -> None:
        brain, now_s = self.brain, self.world.now_s
        run = brain.task
        if what == "start" and (run is None or run.result is not None):
            brain.finish()
            reset = self.world.rng.random() < 0.3
            budget_s = self.world.rng.choice([3.0, 30.0, 300.0])
            brain.start(TaskGoal(task="t", instruction="go", time_budget_s=budget_s, reset=reset), now_s)
            self.shadow.task_begins()
        elif what == "cancel":
            brain.cancel(TaskOutcome.CANCELED, "", now_s)
            self.shadow.forgets()
        elif what == "stop":
            self.shadow.told_to_stand(brain.stop_command())
        elif what == "reset fails" and run is not None:
            self.shadow.reset_ends(ok=False)
        self.period()

    @precondition(lambda self: self.brain.task is not None and self.brain.task.phase is TaskPhase.RESETTING)
    @rule()
    def reset_done(self) -> None:
        assert self.brain.task is not None
        self.shadow.reset_ends(ok=True)
        self.period()

    @precondition(lambda self: self.brain.task is not None and self.brain.task.result is not None)
    @rule()
    def end(self) -> None:
        if self.brain.task is not None and self.brain.task.result is not None:
            self.seen.endings[self.brain.task.result.outcome.name] += 1
        self.brain.finish()
        self.period()
        self.task("start")

    @invariant()
    def figures_are_sane(self) -> None:
        if hasattr(self, "world"):
            self.seen.rules += 1
            brain = self.brain
            check_stored(brain)
            assert brain.queue_depth >= 0 and (math.isnan(brain.staleness_s) or brain.staleness_s >= 0)


class PipelinedMachine(RobotMachine):
    seen = SEEN_PIPELINED

    @initialize(config=configs(PIPELININGS), plan=PLANS, seed=st.integers(0, 2**16), routes=ROUTES, system1=PIPELINED_ROUTES)
    def begin(
        self,
        config: RobotConfig,
        plan: FaultPlan,
        seed: int,
        routes: dict[str, tuple[float, float]],
        system1: tuple[float, float],
    ) -> None:
        self._begin(config, plan, seed, {**routes, "system1": system1})


@pytest.fixture
def coverage(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    with capsys.disabled():
        for seen in (SEEN, SEEN_PIPELINED):
            if seen.generated:
                seen.print()


@pytest.fixture
def seeds(pytestconfig: pytest.Config) -> Iterator[int]:
    """One per round: with the same one, of `--hypothesis-seed` or of CI's profile, every round would draw the same events."""
    given = pytestconfig.getoption("--hypothesis-seed")
    first = random.randrange(2**32) if given in (None, "random") else int(given)
    print(f"again: --hypothesis-seed={first}")
    return itertools.count(first)


@pytest.mark.patient
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("coverage")
def test_the_promises_hold_in_any_order_of_events(seeds: Iterator[int]) -> None:
    run_machine(RobotMachine, NUM_EVENTS, seeds, lambda: SEEN.actions >= 0.05 * SEEN.passive["tick"])


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("coverage")
def test_they_hold_in_pipelined_sessions(seeds: Iterator[int]) -> None:
    """`RFM_PIPELINED_EVENTS=100000 pytest ... -k pipelined` draws as many events as of the others."""
    seen = SEEN_PIPELINED
    run_machine(PipelinedMachine, NUM_PIPELINED_EVENTS, seeds, lambda: seen.actions >= 300 and seen.ended_later >= 200)


def run_machine(machine: type[RobotMachine], num_events: int, seeds: Iterator[int], moved: Callable[[], bool]) -> None:
    """Draws as many events, and goes on, three times as long at most, until robots `moved` enough to have their promises tested."""
    seen = machine.seen
    effort = settings(
        max_examples=25, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES
    )
    while seen.generated <= num_events or not moved():
        assert seen.generated <= 3 * num_events, "robots hardly moved, or hardly a request was in flight beside another"
        run_state_machine_as_test(seed(next(seeds))(machine), settings=effort)
