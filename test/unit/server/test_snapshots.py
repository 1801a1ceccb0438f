"""A server's core continues from a snapshot as if nothing had happened, whatever had happened before and happens after."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from lab.benchmarks.dispatch.world import CLOUD, EDGE, World, draw_tasks
from ros2_rfm_serving.audit.servers.witness import INPUTS
from ros2_rfm_serving.dispatch import DISPATCH_POLICIES, DispatchPolicy, EngineView, WaitingRequest, dispatcher
from ros2_rfm_serving.dispatch.batching import BATCHINGS, CONTINUOUS
from ros2_rfm_serving.dispatch.best import BestPolicy
from ros2_rfm_serving.dispatch.fifo import FifoPolicy
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.errors import ConfigurationError, ModelError, RfmError, UnrecordableError
from ros2_rfm_serving.server import EngineConfig, ModelServer, ServerConfig, ServerCore, SessionRules, events
from ros2_rfm_serving.server.core import HANDLERS
from ros2_rfm_serving.simulation import simulated_server
from ros2_rfm_serving.types import SYSTEM1, RequestId
from ros2_rfm_serving.types.state import kept
from test.fuzz.targets import server as fuzz
from test.fuzz.targets.server import OPERATIONS, Program, Run
from test.unit.fakes import FakeEngine, observation, session_request
from test.unit.server.frames_machine import FramesMachine
from test.unit.server.mirrored import Mirror, mirrored, stored
from test.unit.server.rows_machine import ROBOTS, Machine
from test.unit.simulation import simulated

pytestmark = pytest.mark.interpreted
SEEN: Counter[str] = Counter()
TEXTS = tuple(text.encode(errors="replace").decode() for text in fuzz.TEXTS)
"""As they travel, in UTF-8."""
BUSY = [Run.open, Run.submit, Run.submit, Run.submit, Run.begin, Run.begin, Run.complete]
RULES = SessionRules(max_request_rate_hz=100.0, burst=3, absent_grace_s=0.05, idle_timeout_s=5.0)


def note(mirror: Mirror) -> None:
    mirror.renew()
    SEEN.update(twins=mirror.num_twins, decisions=mirror.num_decisions)


class MirroredMachine(RuleBasedStateMachine):
    """Robots that change their minds, an engine that fails, and operators, in any order."""

    make: ClassVar[type[Machine]] = Machine
    policy: ClassVar[str]

    @initialize(seed=st.integers(0, 1 << 32), joins=st.booleans())
    def begin(self, seed: int, joins: bool) -> None:
        more = {} if self.make is FramesMachine else {"joins": joins}
        self.machine = self.make(seed, dispatch=self.policy, sessions=RULES, **more)
        self.mirror = mirrored(self.machine.server, every=12)

    @rule(robot=st.sampled_from(ROBOTS), times=st.integers(2, 8))
    def robot_sends(self, robot: str, times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(RfmError):
                self.machine.ask(robot)

    @rule(robots=st.lists(st.sampled_from(ROBOTS), min_size=4, max_size=9))
    def crowd_sends(self, robots: list[str]) -> None:
        for robot in robots:
            self.robot_sends(robot, 1)

    @rule(times=st.integers(4, 20))
    def engine_runs(self, times: int) -> None:
        for _ in range(times):
            self.machine.go_on("")

    @rule(seconds=st.sampled_from([1e-3, 0.03, 1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.machine.now_s += seconds

    @rule(what=st.sampled_from(["open", "close", "reset", "misbehave", "regroup"]), robot=st.sampled_from(ROBOTS))
    def something_changes(self, what: str, robot: str) -> None:
        with contextlib.suppress(RfmError):
            getattr(self.machine, what)(robot)

    @rule(robot=st.sampled_from(ROBOTS), sequence=st.integers(0, 9))
    def message_is_dropped(self, robot: str, sequence: int) -> None:
        request = RequestId(robot, SYSTEM1, self.machine.epochs.get(robot, 0), 0, sequence)
        self.machine.server.superseded_early(request)
        with contextlib.suppress(RfmError):
            self.machine.server.check_admission(request)

    @rule(what=st.sampled_from(["drain", "resume", "resume", "resume", "refuse"]))
    def operator_decides(self, what: str) -> None:
        server = self.machine.server
        {"drain": server.drain, "resume": server.resume, "refuse": server.refuse_waiting}[what]()

    @rule(absent=st.lists(st.sampled_from(ROBOTS), max_size=3))
    def sessions_are_collected(self, absent: list[str]) -> None:
        self.machine.server.collect_sessions([(robot, SYSTEM1) for robot in absent], self.machine.now_s)

    @rule(rates=st.dictionaries(st.sampled_from(ROBOTS), st.sampled_from([1.0, 20.0, math.inf]), max_size=4))
    def schedule_changes(self, rates: dict[str, float]) -> None:
        self.machine.server.declare({(robot, SYSTEM1): rate_hz for robot, rate_hz in rates.items()})

    @rule(policy=st.sampled_from([*DISPATCH_POLICIES]), refetch_after_s=st.sampled_from([math.inf, 0.05]), window_s=st.just(2.0))
    def server_is_reconfigured(self, **changes: Any) -> None:
        server = self.machine.server
        with contextlib.suppress(ConfigurationError):
            server.reconfigure(replace(server.config, dispatch=changes.pop("policy"), **changes))

    @rule()
    def server_is_watched(self) -> None:
        self.machine.server.snapshot(self.machine.now_s)
        self.machine.server.refetches(self.machine.now_s)

    def teardown(self) -> None:
        if hasattr(self, "mirror"):
            note(self.mirror)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("make", [Machine, FramesMachine], ids=["rows", "frames"])
@pytest.mark.parametrize("policy", DISPATCH_POLICIES)
def test_whatever_happens_a_restored_core_is_equal_and_decides_alike(policy: str, make: type[Machine]) -> None:
    before = SEEN.copy()
    effort = settings(
        max_examples=5, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    machine = type("OfPolicy", (MirroredMachine,), {"make": make, "policy": policy})
    run_state_machine_as_test(machine, settings=effort)
    assert SEEN["twins"] - before["twins"] >= 5 and SEEN["decisions"] - before["decisions"] > 50


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("policy", "batching"),
    [
        *((policy, "wait") for policy in DISPATCH_POLICIES),
        *(("best", name) for name in BATCHINGS if name not in ("wait", CONTINUOUS)),
    ],
)
def test_and_so_does_one_with_a_cloud_over_a_network(policy: str, batching: str) -> None:
    """Robots in a closed loop, which execute while they wait; several batches are under way to the cloud."""
    config = ServerConfig(name="s", dispatch=policy, batching=batching, batch_size=4, refetch_after_s=0.1)
    world = World(config, (EDGE, CLOUD), round_trip_s=0.05, batches_in_flight=3)
    mirror = mirrored(world.server, every=25)
    tasks = draw_tasks(3, 10, ahead=0.5)
    world.run([tasks[i::6] for i in range(6)], [0.1 * i for i in range(6)])
    note(mirror)
    assert mirror.num_twins > 15 and mirror.num_restored["running"] > 3 and mirror.num_restored["waiting"] > 3


@pytest.mark.timeout(300)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(seed=st.integers(0, 1 << 32))
def test_any_program_goes_on_from_its_snapshots(seed: int) -> None:
    """Any policy, batching and overflow; sessions that come and go, engines that fail, requests of any kind."""
    rng = random.Random(seed)
    run = Run(Program(rng.randbytes(8 * 120)))
    mirror = mirrored(run.server, every=15)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz, "TEXTS", TEXTS)
        for _ in range(120):
            with contextlib.suppress(RfmError):
                rng.choice([*OPERATIONS, *BUSY])(run)
    note(mirror)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batching", ["fixed", "continuous"])
def test_and_so_do_the_servers_of_a_fleet(batching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole robots with plans and safety, in virtual time."""
    mirrors: list[Mirror] = []

    class MirroredServer(ModelServer):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            mirrors.append(mirrored(self, every=30))

    monkeypatch.setattr(simulated_server, "ModelServer", MirroredServer)
    plant = simulated.factory(6, plans=0.2, safety=True, mode="async", servers="dispatch: balanced")
    plan = simulated.schedule(plant, batch_size=4, batching=batching)
    report = simulated.run(plant, plan, seconds=5.0, jitter=0.1)
    for mirror in mirrors:
        note(mirror)
    assert report.goodput > 0.0 and len(mirrors) == 3 and sum(mirror.num_twins for mirror in mirrors) > 20


def test_all_that_a_server_holds_is_restored() -> None:
    """By two machines whose draws are always the same."""
    found: Counter[str] = Counter()
    for machine in (Machine(0, dispatch="best"), FramesMachine(1)):
        mirror = mirrored(machine.server, every=8)
        for _ in range(400):
            machine.happen()
        note(mirror)
        found.update(mirror.num_restored)
    assert all(found[name] for name in ("waiting", "running", "rows", "of_ended_sessions", "replies")), found


# --- what a state has, and what is refused --------------------------------------------------------------------------------


def working(**config: Any) -> Machine:
    """A server with sessions, requests that wait, rows in flight, and one whose session is over."""
    machine = FramesMachine(2, dispatch="balanced", **config)
    for robot in ROBOTS:
        machine.ask(robot)
    machine.go_on("")
    for robot in ROBOTS:
        machine.ask(robot)
    for robot in ROBOTS[:5]:
        machine.close(robot)
    machine.ask(ROBOTS[5])
    return machine


def restored(core: ServerCore, state: Mapping[str, Any]) -> ServerCore:
    return ServerCore.from_state(core.config, core.contract, core.limits, state)


def part_of(state: Any, path: Sequence[Any]) -> Any:
    for name in path:
        state = state[name]
    return state


PATHS: list[tuple[Any, ...]] = [
    (),
    ("sessions",),
    ("sessions", "open", 0),
    ("sessions", "open", 0, "history"),
    ("sessions", "quotas", ("r5", SYSTEM1)),
    ("figures",),
    ("figures", "queue_wait_s"),
    ("figures", "runs"),
    ("mailboxes",),
    ("mailboxes", "requests", 0),
    ("mailboxes", "requests", 0, "request"),
    ("mailboxes", "policy"),
    ("mailboxes", "policy", "all_task_lengths"),
    ("engines", 0),
    ("engines", 0, "timing"),
    ("engines", 0, "timing", "times"),
    ("engines", 0, "batches", 0),
    ("engines", 0, "in_flight"),
    ("engines", 0, "in_flight", "step_times"),
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_a_state_with_other_names_is_refused_with_them(path: tuple[Any, ...]) -> None:
    core = working().server.core
    unknown, lacking, nothing = (copy.deepcopy(core.state()) for _ in range(3))
    part_of(unknown, path)["hat"] = 1
    name = next(iter(part_of(lacking, path)))
    del part_of(lacking, path)[name]
    with pytest.raises(RfmError, match="has hat, which this version does not know"):
        restored(core, unknown)
    with pytest.raises(RfmError, match=f"lacks {name}"):
        restored(core, lacking)
    if path and path[-1] != "in_flight":  # None is a state there
        part_of(nothing, path[:-1])[path[-1]] = None
        with pytest.raises(RfmError, match="no state"):
            restored(core, nothing)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda state: state["engines"].append(state["engines"][0]), "of a server with 2 engines, not with 1"),
        (lambda state: state["sessions"]["quotas"].clear(), "no quota of it"),
        (lambda state: state["sessions"]["open"].clear(), "no session with epoch"),
        (lambda state: state["engines"][0]["batches"].clear(), "rows in flight without a batch"),
    ],
)
def test_a_state_whose_parts_do_not_belong_together_is_refused(spoil: Any, problem: str) -> None:
    core = working().server.core
    state = copy.deepcopy(core.state())
    spoil(state)
    with pytest.raises(RfmError, match=problem):
        restored(core, state)


def test_a_state_does_not_change_with_its_core() -> None:
    machine = working()
    taken = machine.server.core.state()
    before = repr(stored(taken))
    for _ in range(100):
        machine.happen()
    assert repr(stored(taken)) == before and repr(stored(machine.server.core.state())) != before


def test_a_state_names_no_attribute_that_is_private_and_holds_no_object_of_a_server() -> None:
    def walk(state: Any) -> Iterator[Any]:
        yield state
        for each in state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ():
            yield from walk(each)

    parts = list(walk(working().server.core.state()))
    names = {key for part in parts if isinstance(part, dict) for key in part if isinstance(key, str)}
    assert len(names) > 90 and not [name for name in names if name.startswith("_")]
    modules = {type(part).__module__ for part in parts}
    assert not {module for module in modules if module.startswith(("ros2_rfm_serving.server", "ros2_rfm_serving.dispatch"))} - {
        TaskHistory.__module__
    }, "but for intervals of a history"


def test_images_and_arrays_of_requests_are_not_kept() -> None:
    def walk(state: Any) -> Iterator[Any]:
        yield state
        for each in state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ():
            yield from walk(each)

    assert not any(isinstance(part, (np.ndarray, bytes)) for part in walk(working().server.core.state()))


def test_a_restored_core_has_no_engine() -> None:
    core = working().server.core
    twin = restored(core, core.state())
    with pytest.raises(ModelError, match="a restored core has no engine"):
        twin.queues[0].engine.infer([])
    assert twin.limits == core.limits and [work.number for work in twin.works] == [work.number for work in core.works] != []


# --- events ---------------------------------------------------------------------------------------------------------------


def test_each_input_has_an_event_and_each_event_a_handler() -> None:
    assert set(HANDLERS) == set(get_args(events.Event))
    assert set(INPUTS.values()) | {events.DrainStarted, events.DrainCanceled} == set(HANDLERS)


def test_events_are_values() -> None:
    for kind in HANDLERS:
        assert dataclasses.is_dataclass(kind)
    first, second = events.EnginePolled(0), events.EnginePolled(0)
    assert first == second and first != events.EnginePolled(1)


def test_events_are_answered_as_their_methods_are() -> None:
    core = ModelServer(ServerConfig(name="s"), FakeEngine()).core
    grant = core.handle(events.SessionRequested(session_request()), 0.0)
    request = observation(grant.session_epoch)
    assert core.handle(events.RequestReceived(request.id), 1.0).key == ("r1", SYSTEM1)
    assert core.handle(events.EnginePolled(0), 1.0) is None
    before = core.state()
    assert core.handle(events.AdmissionChecked(request.id), 1.0).key == ("r1", SYSTEM1)
    assert core.handle(events.RequestRejected(request.id, "bad_shape", "it is too long"), 1.0) is None
    assert core.state() == before, "these change nothing"
    with pytest.raises(RfmError, match="no batch 7 runs"):
        core.handle(events.BatchEnded(7, (True,), 0), 1.0)


# --- policies of other packages -------------------------------------------------------------------------------------------


class Lottery(DispatchPolicy):
    """Learns, and says what it keeps."""

    KEPT = kept(served="_served", rounds_by_kind="_rounds", newest="_newest")

    def __init__(self) -> None:
        self._served: Counter[str] = Counter()
        self._rounds: defaultdict[str, list[int]] = defaultdict(list)
        self._newest = 0.0

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        self._newest = max(self._newest, *(each.arrived_s for each in waiting))
        self._served[waiting[0].request.id.robot] += 1
        return sorted(waiting, key=lambda each: (self._served[each.request.id.robot], len(self._rounds["go"]), each.since_s))

    def task_ended(self, task: TaskHistory) -> None:
        self._rounds[task.kind[1]].append(task.rounds)


class OwnWords(FifoPolicy):
    """Has a state that no table can name."""

    def __init__(self) -> None:
        self._cells: list[Any] = [frozenset, 0]

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        self._cells[1] += len(waiting)
        return super().rank(waiting, engine, now_s)[:: 1 - 2 * (self._cells[1] % 2)]

    def state(self) -> dict[str, Any]:
        return {"count": self._cells[1]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._cells[1] = state["count"]


class Forgetful(FifoPolicy):
    """Has an attribute and no table."""

    def __init__(self) -> None:
        self.seen: set[str] = set()


class Extended(BestPolicy):
    """Has an attribute more than the table of its base has."""

    def __init__(self) -> None:
        super().__init__()
        self.hat = 1


class Unplain(FifoPolicy):
    KEPT = kept("tasks")

    def __init__(self) -> None:
        self.tasks = {"a": [TaskHistory()]}


class Shared(FifoPolicy):
    KEPT = kept("newest", "by_robot")

    def __init__(self) -> None:
        self.newest = [1]
        self.by_robot = {"r1": self.newest}


class Objects(FifoPolicy):
    KEPT = kept("tasks")

    def __init__(self) -> None:
        self.tasks = {"a": TaskHistory()}


class Changing(FifoPolicy):
    """Begins with a value of another class than it has later."""

    KEPT = kept("newest")

    def __init__(self) -> None:
        self.newest: Any = []

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        self.newest = {"r1": 1.0}
        return waiting


class Raising(FifoPolicy):
    def state(self) -> dict[str, Any]:
        raise SystemExit(1)

    def restore(self, state: Mapping[str, Any]) -> None:
        raise ValueError("x")


class Unrelated:
    """No `DispatchPolicy`."""

    def __init__(self) -> None:
        self.last = None

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return waiting


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a server whose policy another package adds, by name."""

    def make(kind: type, **config: Any) -> ModelServer:
        class Entry:
            name = "added"
            load = staticmethod(lambda: kind)

        monkeypatch.setattr(dispatcher, "entry_points", lambda group: [Entry()])
        return ModelServer(ServerConfig(name="s", dispatch="added", **config), FakeEngine())

    return make


@pytest.mark.parametrize("kind", [Lottery, OwnWords])
def test_a_policy_of_another_package_that_keeps_its_state_goes_on_from_it(kind: type, served: Any) -> None:
    server, rng = served(kind), random.Random(0)
    mirror = mirrored(server, every=10)
    epochs = {robot: server.open_session(session_request(robot)).session_epoch for robot in ROBOTS}
    for number in range(1, 150):
        robot = rng.choice(ROBOTS)
        server.submit(observation(epochs[robot], number, robot, 1 + number // 40), float(number))
        if number % 3:
            server.loop.step(lambda: number + 0.5)  # noqa: B023
    note(mirror)
    assert mirror.num_twins > 15 and mirror.core.state()["mailboxes"]["policy"]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (Forgetful, "dispatch policy Forgetful has seen, which its KEPT does not name"),
        (Extended, "dispatch policy Extended has hat, which its KEPT does not name"),
        (Unplain, r"Unplain.tasks has a TaskHistory, which is no plain value"),
        (Objects, "dispatch policy Objects has objects in tasks.*let it be a defaultdict"),
        (Shared, "dispatch policy Shared has one mutable object in two places"),
        (Raising, "dispatch policy Raising gives no state: SystemExit"),
        (Unrelated, "dispatch policy Unrelated gives no state: AttributeError.*extend `DispatchPolicy`"),
    ],
)
def test_a_policy_that_cannot_be_restored_is_named_in_place_of_a_state(kind: type, problem: str, served: Any) -> None:
    core = served(kind).core
    with pytest.raises(UnrecordableError, match=problem):
        core.state()


def test_a_policy_that_no_name_makes_is_not_recorded() -> None:
    with pytest.raises(UnrecordableError, match="OwnWords is not what `dispatch: fifo` makes"):
        ModelServer(ServerConfig(name="s"), FakeEngine(), policy=OwnWords()).core.state()
    assert ModelServer(ServerConfig(name="s"), FakeEngine(), policy=FifoPolicy()).core.state()


def test_a_policy_that_fails_to_restore_is_named(served: Any) -> None:
    core = served(FifoPolicy).core
    state = core.state()
    with pytest.raises(RfmError, match="dispatch policy Raising cannot be restored: ValueError: x"):
        restored(served(Raising).core, state)


def test_a_policy_that_has_another_state_after_it_was_restored_is_named(served: Any) -> None:
    server = served(Changing)
    epoch = server.open_session(session_request()).session_epoch
    server.submit(observation(epoch), 1.0)
    server.loop.step(lambda: 2.0)
    with pytest.raises(RfmError, match="dispatch policy Changing has another state after it was restored"):
        restored(server.core, server.core.state())


def test_a_policy_whose_package_is_gone_is_no_policy_of_that_name(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    core = served(Lottery).core
    monkeypatch.setattr(dispatcher, "entry_points", lambda group: [])
    with pytest.raises(UnrecordableError, match="Lottery is not what `dispatch: added` makes"):
        core.state()


def test_engines_of_every_kind_are_restored_with_their_limits() -> None:
    class Several(FakeEngine):
        max_concurrent = 3

    away = EngineConfig(engine=FakeEngine(), batch_size=2, batches_in_flight=2, round_trip_s=0.1, profile_s=(0.1, 0.2))
    server = ModelServer(ServerConfig(name="s", max_concurrent=3, batch_size=2), Several(), away)
    twin = restored(server.core, server.core.state())
    assert [lane.max_concurrent for lane in twin.queues] == [3, 2] and twin.limits == server.core.limits
    assert twin.queues[1].view == server.core.queues[1].view or twin.queues[1].view.round_trip_s == 0.1
