"""What goes with actions, the pace of requests, failover, and when to tick."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.factory import parse_factory
from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.robot import RobotConfig, RobotCore
from ros2_rfm_serving.robot.client.calls import CoupledCalls
from ros2_rfm_serving.robot.client.component_client import ComponentClient
from ros2_rfm_serving.robot.config import ComponentClientConfig
from ros2_rfm_serving.types import (
    ActionChunk,
    JudgeVerdict,
    ObservationRequest,
    RobotState,
    Route,
    Schedule,
    SubgoalPlan,
    TaskOutcome,
)
from test.unit.fakes import SERVED, chunk, grant, schedule
from test.unit.robot.robots import CONFIG, GOAL, PERIOD_S, sensors

# --- calls that go with actions ---------------------------------------------------------------------------------------------

PEERS = {"system1": "s1", "system2": "s2", "safety": "s3"}


def plant(*, standby: bool = False, epoch: int = 1, rates: dict[str, float] | None = None) -> Schedule:
    """A route for each component; System 1 may turn to `spare`."""
    base = schedule()
    routes = tuple(
        Route(
            robot="r1",
            component=component,
            server=server,
            max_rate_hz=(rates or {}).get(component, math.inf),
            slo_s=0.0,
            standby="spare" if standby and component == "system1" else "",
        )
        for component, server in PEERS.items()
    )
    return replace(base, epoch=epoch, routes=routes)


def answer(request: ObservationRequest) -> ActionChunk | SubgoalPlan | JudgeVerdict:
    said = {"id": request.id, "stamp_ns": request.stamp_ns, "server": "", "model_hash": "hash", "served": SERVED}
    if request.id.component == "system1":
        return chunk(request)
    if request.id.component == "system2":
        return SubgoalPlan(subgoals=("lift", "drop"), text="lift\ndrop", **said)
    return JudgeVerdict(verdict="ongoing", score=1.0, text="", **said)


class Floor:
    """A brain whose sessions open at once, and whose requests are answered `delay` control periods later."""

    def __init__(self, config: RobotConfig, routes: Schedule, delay: int = 0, dead: frozenset[str] = frozenset()) -> None:
        self.brain, self.now_s, self.delay, self.dead = RobotCore(config), 0.0, delay, dead
        self.log: list[tuple[float, str, ObservationRequest]] = []
        self.commands: list[float] = []
        self._due: list[tuple[float, ObservationRequest]] = []
        self.brain.on_schedule(routes, 0.0)

    def run(self, seconds: float) -> Floor:
        for _ in range(round(seconds / PERIOD_S)):
            self.now_s += PERIOD_S
            for server in {*PEERS.values(), "spare"} - self.dead:
                self.brain.on_server_status(server, True, self.now_s)
            for due_s, request in [d for d in self._due if d[0] <= self.now_s]:
                self._due.remove((due_s, request))
                self.brain.on_reply(answer(request), self.now_s)
            tick = self.brain.tick(sensors(self.now_s), self.now_s)
            if tick.command is not None:
                self.commands.append(self.now_s)
            for server, opening in tick.opens:
                self.brain.on_session_opened(opening.component, server, grant(len(self.log) + 1), self.now_s)
            for server, request in tick.requests:
                self.log.append((self.now_s, server, request))
                if server not in self.dead:
                    self._due.append((self.now_s + self.delay * PERIOD_S + 1e-9, request))
            if self.brain.task is None and self.now_s > 2 * PERIOD_S:
                self.brain.start(GOAL, self.now_s)
        return self

    def asked(self, component: str) -> list[float]:
        return [at_s for at_s, _, request in self.log if request.id.component == component]


SYNC = replace(CONFIG, synchronous=True)


def test_a_synchronous_robot_asks_in_the_tick_in_which_its_horizon_ends() -> None:
    """3 actions of a chunk of 4, and an answer after 2 periods: a cycle of 5."""
    floor = Floor(SYNC, plant(), delay=1).run(10)
    asked = floor.asked("system1")
    assert {round((b - a) / PERIOD_S) for a, b in pairwise(asked)} == {5}
    assert all(request.inference_delay_steps == 0 for _, _, request in floor.log), "it waits"


@pytest.mark.parametrize(("ratio", "calls"), [(0.1, 10), (0.5, 2), (1.0, 1)])
def test_plans_come_before_the_actions_that_they_are_for(ratio: float, calls: int) -> None:
    floor = Floor(replace(SYNC, calls_per_action={"system2": ratio}), plant(rates={"safety": 1.0}), delay=1).run(60)
    order = [request.id.component for _, _, request in floor.log if request.id.component != "safety"]
    assert order[0] == "system2", "no action without a plan"
    assert order[: 3 * (calls + 1)] == 3 * (["system2"] + calls * ["system1"])
    told = [request.instruction for _, _, request in floor.log if request.id.component == "system1"]
    assert set(told) == {"lift"}, "the first subgoal"


def test_system_1_waits_for_a_plan_that_does_not_come_and_asks_for_it_again() -> None:
    config = replace(SYNC, calls_per_action={"system2": 0.5})
    floor = Floor(config, plant(), dead=frozenset({"s2"})).run(10)
    assert not floor.asked("system1")
    floor.dead = frozenset()
    assert Floor.run(floor, 10).asked("system1")


def test_an_asynchronous_robot_does_not_wait_for_its_plan() -> None:
    floor = Floor(replace(CONFIG, calls_per_action={"system2": 0.5}), plant(), delay=2).run(20)
    alone = Floor(CONFIG, plant(), delay=2).run(20)
    assert floor.asked("system1") == alone.asked("system1")
    assert len(floor.asked("system2")) == pytest.approx(0.5 * len(floor.asked("system1")), rel=0.1)


def test_robots_with_different_head_starts_plan_at_different_times() -> None:
    calls = CoupledCalls({"system2": 0.25}, initial_share=0.5)
    calls.serve(["system2"])
    due = []
    for _ in range(12):
        due.append("system2" in calls.due)
        if due[-1]:
            calls.on_reply("system2")
        calls.on_system1_call()
    assert [i for i, now in enumerate(due) if now] == [0, 2, 6, 10]


@given(st.floats(0.01, 5.0), st.integers(1, 300))
def test_calls_keep_their_ratio(ratio: float, actions: int) -> None:
    calls, made = CoupledCalls({"system2": ratio}), 0
    calls.serve(["system2"])
    for _ in range(actions):
        while calls.due:
            calls.on_reply("system2")
            made += 1
        calls.on_system1_call()
    assert made == math.floor((actions - 1) * ratio + 1 + 1e-6)


# --- pace --------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 0.6), min_size=50, max_size=50))
def test_a_late_request_does_not_delay_the_ones_after_it(late_s: list[float]) -> None:
    """Up to one period: at 1 Hz, lateness below that never costs a request."""
    link = ComponentClient("r1", "safety", ComponentClientConfig(request_timeout_s=math.inf))
    link.follow(replace(schedule().routes[0], max_rate_hz=1.0), "s1", 0.0)
    link.on_opened(grant())
    now_s = sent = 0.0
    for late in late_s:
        now_s = max(now_s, link.next_send_s) + late
        link.on_sent(1, now_s, 0, now_s)
        link.forget()
        sent += 1
    assert now_s <= 2 * max(late_s) + sent - 1 + 1e-9
    assert link.next_send_s >= sent - 0.7, "and no more often than once a second"


def test_no_limit_means_as_soon_as_it_can() -> None:
    link = ComponentClient("r1", "system1", ComponentClientConfig())
    link.follow(replace(schedule().routes[0], max_rate_hz=math.inf), "s1", 0.0)
    link.on_opened(grant())
    link.on_sent(1, 5.0, 0, 5.0)
    assert link.next_send_s == 5.0


# --- failover ----------------------------------------------------------------------------------------------------------------


def test_a_lost_server_is_left_for_its_standby_at_once_and_the_work_goes_on() -> None:
    floor = Floor(CONFIG, plant(standby=True)).run(5)
    assert floor.brain.system1_server == "s1"
    floor.dead = frozenset({"s1"})
    floor.brain.on_server_lost("s1", floor.now_s)
    floor.run(4 * PERIOD_S)
    assert floor.brain.system1_server == "spare" and floor.brain.failovers == 1
    assert [server for _, server, request in floor.log if request.id.component == "system1"][-1] == "spare"
    assert floor.brain.state is RobotState.STREAMING


def test_silence_is_a_loss_too() -> None:
    floor = Floor(CONFIG, plant(standby=True)).run(5)
    floor.dead = frozenset({"s1"})
    floor.run(CONFIG.server_timeout_s + 5 * PERIOD_S)
    assert floor.brain.system1_server == "spare"


def test_a_standby_is_kept_until_a_newer_schedule_or_its_own_loss() -> None:
    floor = Floor(CONFIG, plant(standby=True)).run(5)
    floor.dead = frozenset({"s1"})
    floor.brain.on_server_lost("s1", floor.now_s)
    floor.run(1)
    floor.dead = frozenset()
    floor.run(1)
    floor.brain.on_schedule(plant(standby=True), floor.now_s)  # the scheduler repeats it
    assert floor.run(1).brain.system1_server == "spare"
    floor.brain.on_schedule(plant(standby=True, epoch=2), floor.now_s)
    assert floor.run(1).brain.system1_server == "s1"
    floor.dead = frozenset({"s1"})
    floor.brain.on_server_lost("s1", floor.now_s)
    floor.brain.on_schedule(plant(standby=True, epoch=3), floor.now_s)
    assert floor.run(1).brain.system1_server == "spare", "a newer schedule calls nobody back to a server that is lost"
    floor.dead = frozenset({"spare"})
    floor.brain.on_server_lost("spare", floor.now_s)
    assert floor.run(1).brain.system1_server == "s1"


def test_a_robot_that_comes_after_the_loss_finds_the_standby() -> None:
    floor = Floor(CONFIG, plant(standby=True), dead=frozenset({"s1"})).run(CONFIG.server_timeout_s / 2)
    assert floor.brain.system1_server == "s1", "it may only be slow to say so"
    assert floor.run(2).brain.system1_server == "spare"


def test_a_session_that_is_being_opened_when_a_task_begins_is_still_given_up() -> None:
    brain = RobotCore(CONFIG)
    brain.on_schedule(schedule(), 0.0)
    brain.on_server_status("s1", True, 0.0)
    assert brain.tick(sensors(0.0), 0.0).opens
    brain.start(GOAL, 0.1)
    for step in range(1, 100):
        brain.on_server_status("s1", True, step / 10)
        opens = brain.tick(sensors(step / 10), step / 10).opens
        if opens:
            break
    assert opens


# --- when to tick ------------------------------------------------------------------------------------------------------------

GRID_S = 1 / 64
EVENTS = (
    "system1",
    "system2",
    "safety",
    "lose s1",
    "see s1",
    "see all",
    "see all",
    "see all",
    "open",
    "open",
    "task",
    "end",
    "schedule",
)


class Sparse:
    """A brain that is told the same events as another, and ticks at every instant of the grid or only when it asks to."""

    def __init__(self, config: RobotConfig, always: bool) -> None:
        self.brain, self.always, self.epoch = RobotCore(config), always, 1
        self.happened: list[object] = []
        self.latest: dict[str, ObservationRequest] = {}
        self.opening: list[tuple[str, str]] = []
        self.ticks = 0
        self.brain.on_schedule(plant(standby=True, rates={"safety": 0.5}), 0.0)

    def event(self, what: str, now_s: float) -> None:
        brain = self.brain
        if what in PEERS and what in self.latest:
            brain.on_reply(answer(self.latest.pop(what)), now_s)
        elif what == "lose s1":
            brain.on_server_lost("s1", now_s)
        elif what.startswith("see"):
            for server in ("s1",) if what == "see s1" else (*PEERS.values(), "spare"):
                brain.on_server_status(server, True, now_s)
        elif what == "open":
            for component, server in self.opening:
                brain.on_session_opened(component, server, grant(7), now_s)
            self.opening.clear()
        elif what == "task" and brain.task is None:
            brain.start(replace(GOAL, time_budget_s=4.0), now_s)
        elif what == "end" and brain.task is not None:
            brain.cancel(TaskOutcome.CANCELED, "", now_s)
            brain.finish()
        elif what == "schedule":
            self.epoch += 1
            brain.on_schedule(plant(standby=True, epoch=self.epoch, rates={"safety": 0.5}), now_s)

    def advance(self, now_s: float) -> None:
        if not self.always and self.brain.next_tick_s(now_s) > now_s:
            return
        tick = self.brain.tick(sensors(now_s), now_s)
        self.ticks += 1
        assert self.brain.next_tick_s(now_s) > now_s, "one tick does all that is to be done"
        self.opening += [(request.component, server) for server, request in tick.opens]
        for server, request in tick.requests:
            self.latest[request.id.component] = request
            self.happened.append((now_s, server, request.id, request.instruction))
        self.happened += [(now_s, server, request.component) for server, request in tick.opens]
        if tick.command is not None:
            self.happened.append((now_s, tuple(tick.command)))
        if self.brain.task and self.brain.task.result:
            self.happened.append((now_s, self.brain.task.result.outcome))
            self.brain.finish()


@settings(max_examples=150, deadline=None)
@given(
    events=st.lists(st.tuples(st.integers(0, 640), st.sampled_from(EVENTS)), max_size=120),
    synchronous=st.booleans(),
    ratio=st.sampled_from([0.0, 0.5, 1.0]),
)
@example(events=[(514, "see s1"), (515, "open"), (516, "task")], synchronous=False, ratio=0.0)
@example(events=[(385, "task"), (514, "see s1"), (577, "open")], synchronous=False, ratio=0.0)
def test_ticking_only_when_there_is_something_to_do_changes_nothing(
    events: list[tuple[int, str]], synchronous: bool, ratio: float
) -> None:
    config = replace(
        CONFIG,
        control_rate_hz=16.0,
        tick_is_step=False,
        synchronous=synchronous,
        calls_per_action={"system2": ratio} if ratio else {},
    )
    start = [(0, "see all"), (1, "open"), (2, "task")]
    often, seldom = Sparse(config, always=True), Sparse(config, always=False)
    at: dict[int, list[str]] = {}
    for step, what in start + sorted(events):
        at.setdefault(step, []).append(what)
    for step in range(641):
        for body in (often, seldom):
            for what in at.get(step, ()):
                body.event(what, step * GRID_S)
            body.advance(step * GRID_S)
    assert seldom.happened == often.happened
    for body in (often, seldom):
        body.brain.tick(None, 641 * GRID_S)  # the state is as of the last tick
    assert (seldom.brain.state, seldom.brain.refused, seldom.brain.failovers) == (
        often.brain.state,
        often.brain.refused,
        often.brain.failovers,
    )
    assert seldom.ticks < often.ticks / 2


def test_the_nodes_of_a_factory_are_told_their_calls_per_action(tmp_path: Path) -> None:
    text = """
server_cluster: {num_servers: 1, gpu_type: CPU}
robot_fleet: [{task: pick, num_robots: 1}]
pick:
  robot: arm.yaml
  pipeline: {action_period_ms: 200, system2_to_system1_call_ratio: 0.1}
  components:
    system1: {model: a, prompt: go}
    system2: {model: b, prompt: plan}
    safety: {model: c, prompt: safe, freq_hz: 2}
"""
    (tmp_path / "robots").mkdir()
    (tmp_path / "robots" / "arm.yaml").write_text("{}")
    (robot,) = [node for node in node_list(parse_factory(text), tmp_path) if node.executable == "robot_node"]
    assert robot.parameters["calls_per_action"] == ["system2=0.1"]
