"""Robot in virtual time: the decision core of the live node, woken when it has something to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ros2_rfm_serving.errors import CapacityError, ContractError, RfmError
from ros2_rfm_serving.factory import RobotEntry, TaskEntry
from ros2_rfm_serving.factory.settings import RobotSettingsEntry
from ros2_rfm_serving.faults import Direction, corrupt
from ros2_rfm_serving.robot import RobotConfig, RobotCore, Sensors, TaskGoal
from ros2_rfm_serving.robot.config import EpisodeReset
from ros2_rfm_serving.scheduler import RobotClaim
from ros2_rfm_serving.scheduler.estimation import ComponentTotals, RobotStatusSample, SloCounts
from ros2_rfm_serving.simulation.chunk_continuity import ChunkContinuity
from ros2_rfm_serving.simulation.conditions import NetworkConditions
from ros2_rfm_serving.simulation.goodput import GoodputCounter
from ros2_rfm_serving.simulation.simulated_server import SimulatedServer
from ros2_rfm_serving.simulation.wire import AT_ONCE, Wire
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import (
    SYSTEM1,
    ObservationRequest,
    Reply,
    RequestId,
    RobotState,
    Schedule,
    SessionGrant,
    SessionRequest,
    empty,
)
from ros2_rfm_serving.virtual_time.events import source

MAX_TICKS_AT_ONCE = 100
STATE = empty(0)
UP = Direction.UP


def robot_config(name: str, settings: RobotSettingsEntry, world: World) -> RobotConfig:
    """Return the configuration of the live node without sensors and actuators.

    No verdict has content, so that failures and late answers are counted (`goodput.py`) but have no consequences.
    """
    steps = settings.virtual_steps
    owed = world.conditions.plans_owed
    return RobotConfig(
        name=name,
        action_names=(),
        cameras=(),
        state_size=0,
        control_rate_hz=steps / settings.action_period_s,
        execution_horizon=steps,
        horizon=replace(settings.horizon, steps=steps),
        synchronous=settings.synchronous,
        pipelining=settings.pipelining,
        num_steps=settings.num_steps,
        calls_per_action=dict(settings.calls_per_action),
        calls_head_start=source(world.seed, "plans", name).random() if owed is None else owed,
        max_action_age_s=max(RobotConfig.max_action_age_s, 2.0 * settings.mean_period_s),
        tick_is_step=False,
        prompts=dict(settings.prompts),
        link=world.conditions.link,
    )


def longest_period_s(task: TaskEntry) -> float:
    """Return the longest period of anything that the robot does periodically, if inference took no time."""
    periods = [1.0 / c.freq_hz for c in task.components.values() if c.freq_hz]
    ratios = [ratio for name in task.components if (ratio := task.calls_per_action(name))]
    return max([*periods, *(task.cycle_period_s / ratio for ratio in ratios)])


class SimulatedRobot:
    """One robot, which has a task from a random phase on, or whenever one arrives."""

    def __init__(
        self,
        robot: RobotEntry,
        task: TaskEntry,
        settings: RobotSettingsEntry,
        schedule: Schedule,
        hosts: Mapping[str, SimulatedServer],
        ledger: GoodputCounter,
        world: World,
        network: NetworkConditions,
    ) -> None:
        self.name, self.task = robot.name, robot.task
        self.brain = RobotCore(robot_config(robot.name, settings, world))
        self._faults_rng = source(world.seed, "faults", robot.name)
        self.wire = Wire(network, robot.name, source(world.seed, "network", robot.name), self._faults_rng)
        self._schedule, self._hosts, self._ledger, self._world = schedule, hosts, ledger, world
        self._events, self._traffic, self._roads = world.events, world.traffic, world.roads
        self._roads.lead(self.name, self.task)
        self._arrivals = world.conditions.arrivals
        self._goal = TaskGoal(
            task=robot.task,
            instruction=settings.instruction,
            time_budget_s=self._arrivals.duration_s if self._arrivals else math.inf,
            reset=False,
        )
        period_s = max(longest_period_s(task), *(1.0 / route.max_rate_hz for route in schedule.routes))
        self._first_period_s = min(period_s, world.warm_up_s) if world.warm_up_s else period_s
        self._arriving = source(world.seed, "arrivals", robot.name)
        self._tasks_waiting = 0
        self._sessions: dict[str, tuple[SimulatedServer, int]] = {}
        self._there = False
        self._goal_coupled = {name for name, component in task.components.items() if not component.freq_hz}
        self._fresh = False
        """A prediction has arrived of which no action was executed yet."""
        self._wakes_s = math.inf
        self.stay = ChunkContinuity()

    # --- joining and leaving ---

    @property
    def is_present(self) -> bool:
        return self._there

    def join(self) -> None:
        self._there = True
        now_s = self.stay.came_s = self._events.now_s
        self.brain.on_schedule(self._schedule, now_s)
        self._react()
        if self._arrivals:
            self._events.at(now_s + self._arriving.expovariate(self._arrivals.rate_hz), self._task_arrives)
        else:
            self._tasks_waiting = 1
            self._events.at(now_s + self._first_phase_s(), self._begin_task)

    def _first_phase_s(self) -> float:
        declared_s = self._world.conditions.begins.get(self.name)
        return source(self._world.seed, "phase", self.name).random() * self._first_period_s if declared_s is None else declared_s

    def leave(self) -> None:
        """Close the sessions, with the delay of any other message. Messages on their way to the robot are lost."""
        if self._there:
            now_s = self._events.now_s
            for component, (host, epoch) in self._sessions.items():
                for copy in self._roads.broadcast(self.wire.deliveries(UP, now_s, reliable=True), self.name, host.name):
                    self._events.at(now_s + copy.delay_s, host.close_session, self.name, component, epoch)
            self.vanish()

    def vanish(self) -> None:
        """Leave without a message: its sessions stay open until servers detect that it is gone."""
        if self._there:
            self.finish()
            self._there = False

    def _task_arrives(self) -> None:
        assert self._arrivals is not None
        self._tasks_waiting += 1
        self._events.at(self._events.now_s + self._arriving.expovariate(self._arrivals.rate_hz), self._task_arrives)
        self._begin_task()

    def _begin_task(self) -> None:
        if self._there and self._tasks_waiting and self.brain.task is None:
            self._tasks_waiting -= 1
            self._ledger.begin(self._events.now_s)
            self.brain.start(self._goal, self._events.now_s)
            self._react()

    def follow(self, schedule: Schedule) -> None:
        """Follow another active schedule."""
        self._schedule = schedule
        if self._there:
            self.brain.on_schedule(schedule, self._events.now_s)
            self._react()

    def lives(self) -> RobotClaim:
        """Return the liveness message of its status."""
        return RobotClaim(robot=self.name, follows=self.brain.schedule_follower.scheduler, admission=self.brain.admission)

    def status_sample(self) -> RobotStatusSample:
        """Return the sample of its status for the scheduler."""
        brain = self.brain
        trips = {name: part.round_trips for name, part in brain.figures.items()}
        return RobotStatusSample(
            robot=self.name,
            task=self._goal.task,
            server=brain.system1_server,
            streams=self._there and brain.state is RobotState.STREAMING and brain.task is not None,
            asked={name: ComponentTotals(sum(trip.counts), trip.sum) for name, trip in trips.items()},
            horizons=sum(brain.horizons.counts),
            horizons_s=brain.horizons.sum,
            round_trip_p99_s=float(np.quantile(brain.round_trips_s or [math.nan], 0.99)),
            kept={name: SloCounts(part.in_time, part.late) for name, part in brain.figures.items()},
        )

    # --- received messages ---

    def receive(self, reply: Reply) -> None:
        traffic, now_s = self._traffic, self._events.now_s
        if not self._there:
            traffic.lost += 1
            return
        if not self.brain.on_reply(reply, now_s):
            traffic.late += 1
            self._react()  # one answer less is waited for: there may be something to ask
            return
        identity = reply.id
        component = identity.component
        traffic.answered += 1
        self._ledger.answered(component, now_s, identity.sequence)
        if component == SYSTEM1:
            self._fresh = True
        if component in self._goal_coupled:
            self._tick(now_s)  # it has something to do now
        self._react()

    def on_server_status(self, server: str) -> None:
        if self._there and self.brain.on_server_status(server, True, self._events.now_s):
            self._react()

    def session_answered(self, component: str, server: str, answer: SessionGrant | RfmError) -> None:
        if not self._there:
            return
        now_s = self._events.now_s
        if isinstance(answer, RfmError):
            unfit, full = isinstance(answer, ContractError), isinstance(answer, CapacityError)
            self.brain.on_session_refused(component, server, str(answer), now_s, is_contract_mismatch=unfit, is_server_full=full)
        else:
            self._sessions[component] = (self._hosts[server], answer.session_epoch)
            self.brain.on_session_opened(component, server, answer, now_s)
        self._react()

    def request_refetch(self, request: RequestId) -> None:
        """Process a server's request for a newer observation."""
        if self._there:
            self.brain.request_refetch(request)
            self._react()

    def episode_reset(self, reset: EpisodeReset, ok: bool) -> None:
        if self._there:
            self.brain.on_episode_reset(reset, ok)

    # --- the control loop ---

    def _react(self) -> None:
        """Tick as long as there is something to do now, and sleep until there may be again."""
        now_s, ticks = self._events.now_s, 0
        while (next_s := self.brain.next_tick_s(now_s)) <= now_s:
            self._tick(now_s)
            ticks += 1
            assert ticks < MAX_TICKS_AT_ONCE, f"{self.name} asks for ticks that change nothing"
        if next_s != self._wakes_s:
            self._wakes_s = next_s
            if next_s < math.inf:
                self._events.at(next_s, self._wake, next_s)

    def _wake(self, time_s: float) -> None:
        """Tick, unless a newer plan replaced this one: every change plans the next wake-up again."""
        if time_s == self._wakes_s and self._there:
            self._wakes_s = math.inf
            self._tick(time_s)
            self._react()

    def _tick(self, now_s: float) -> None:
        tick = self.brain.tick(Sensors(STATE, now_s, (), now_s), now_s)
        for server, opening in tick.opens:
            self._open(server, opening, now_s)
        for reset in tick.resets:
            self._reset(reset, now_s)
        for server, request in tick.requests:
            self._send(server, request, now_s)
        if tick.command is not None and self._fresh:
            self._fresh = False
            self._ledger.executed(now_s)
            self.stay.executed(now_s)
        task = self.brain.task
        if task is not None and task.result is not None:
            self._ledger.end(now_s)
            self._fresh = False
            self.brain.finish()
            self._begin_task()

    def _send(self, server: str, request: ObservationRequest, now_s: float) -> None:
        self._ledger.sent(request.id.component, now_s, request.id.sequence)
        copies = self.wire.deliveries(UP, now_s)
        if self._roads.are_laid:
            copies = self._roads.delivered(copies, self.name, server, UP, now_s)
        if copies is AT_ONCE:
            self._traffic.sent += 1
            self._hosts[server].receive(request)
            return
        self._traffic.sets_out(len(copies), anew=True)
        for copy in copies:
            damaged = corrupt(request, self._faults_rng) if copy.corrupt else request
            self._events.soon(copy.delay_s, self._traffic.arrives, self._hosts[server].receive, damaged)

    def _open(self, server: str, opening: SessionRequest, now_s: float) -> None:
        for copy in self._roads.broadcast(self.wire.deliveries(UP, now_s, reliable=True), self.name, server):
            self._events.at(now_s + copy.delay_s, self._hosts[server].open_session, self, opening)

    def _reset(self, reset: EpisodeReset, now_s: float) -> None:
        for copy in self._roads.broadcast(self.wire.deliveries(UP, now_s, reliable=True), self.name, reset.server):
            self._events.at(now_s + copy.delay_s, self._hosts[reset.server].reset_episode, self, reset)

    def finish(self) -> None:
        """End the simulation."""
        if self._there:
            self._ledger.end(self._events.now_s)
            self.stay.end(self._events.now_s)
