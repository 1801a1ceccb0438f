"""Whatever an engine or a plugin raises costs one batch: it is counted, and the next one is served."""

from __future__ import annotations

import inspect
import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ros2_rfm_serving.dispatch import DispatchPolicy, dispatcher
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import ConfigurationError, ContractError, ModelError
from ros2_rfm_serving.server import EngineConfig, ModelServer, ServerConfig, horizon
from ros2_rfm_serving.server.engine_queues import MAX_BACKOFF_S, backoff_s
from ros2_rfm_serving.server.horizon import HorizonPolicy
from ros2_rfm_serving.types import ActionChunk, EngineReply, HorizonRequest, Reply, SessionRequest, SessionSharing
from test.unit.fakes import CONTRACT, FakeEngine, observation, rows, session_request

CLOCK = itertools.count(1.0).__next__


class Tensor:
    """On a device: whoever wants its values as an array gets an error."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    shape, size, ndim = (4, 2), 8, 2


class Frail(FakeEngine):
    """Does `goes_wrong`, if there is something, in place of an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.contract = replace(CONTRACT, serving=SessionSharing.EXCLUSIVE)
        self.goes_wrong: Callable[[list[EngineReply]], Any] | None = None
        self.reset_fails = False
        self.resets = 0

    def reset(self) -> None:
        if self.reset_fails:
            raise RuntimeError("no reset")
        self.resets += 1

    def infer(self, requests):  # type: ignore[no-untyped-def]
        answers = [replace(answer, updates=np.ones((3, 4, 2), np.float32)) for answer in super().infer(requests)]
        return self.goes_wrong(answers) if self.goes_wrong else answers


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def given(**changes: Any) -> Callable[[list[EngineReply]], list[EngineReply]]:
    return lambda answers: [replace(answer, **changes) for answer in answers]


ENGINE_FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "raises": ("engine_error", raising(ValueError("x"))),
    "exits": ("engine_error", raising(SystemExit(1))),
    "says why": ("engine_error", raising(ModelError("x"))),
    "none": ("engine_error", lambda answers: None),
    "a number": ("engine_error", lambda answers: 3),
    "few": ("engine_error", lambda answers: []),
    "many": ("engine_error", lambda answers: answers * 2),
    "a row of none": ("bad_output", lambda answers: [None for _ in answers]),
    "a row of text": ("bad_output", lambda answers: ["x" for _ in answers]),
    "a row that failed": ("engine_error", lambda answers: [ModelError("too long") for _ in answers]),
    "a tensor": ("bad_output", given(chunk_robot=Tensor())),
    "a tensor of the model": ("bad_output", given(chunk_model=Tensor())),
    "a tensor of updates": ("bad_output", given(updates=Tensor())),
    "no chunk": ("bad_output", given(chunk_robot=None)),
    "an empty chunk": ("bad_output", given(chunk_robot=rows(length=0), chunk_model=rows(length=0))),
    "text in a chunk": ("bad_output", given(chunk_robot=[["a", "b"]] * 4)),
    "nan": ("non_finite_output", given(chunk_robot=np.full((4, 2), np.nan))),
    "too large for float32": ("non_finite_output", given(chunk_robot=np.full((4, 2), 1e300))),
    "updates of another rank": ("bad_output", given(updates=np.ones((4, 2), np.float32))),
    "updates of a rank too many": ("bad_output", given(updates=np.ones((1, 3, 4, 2), np.float32))),
    "updates of another chunk": ("bad_output", given(updates=np.ones((3, 5, 2), np.float32))),
    "no updates": ("bad_output", given(updates=None)),
    "no verdict": ("bad_output", given(verdict=None)),
    "no text": ("bad_output", given(text=7)),
    "no score": ("bad_output", given(score="high")),
    "no confidence": ("bad_output", given(confidence="high")),
    "a confidence of another chunk": ("bad_output", given(confidence=np.ones(5, np.float32))),
    "half a row": ("bad_output", given(execution_horizon=1.5)),
    "less than no rows": ("bad_output", given(execution_horizon=-1)),
}


class Robot:
    """Asks and is answered."""

    def __init__(self, server: ModelServer, name: str = "r1", **session: Any) -> None:
        self.server, self.name = server, name
        self.epoch = server.open_session(session_request(name, **session)).session_epoch
        self._sequence = itertools.count(1)

    def submit(self) -> None:
        with self.server.counting_refusals():
            self.server.submit(observation(self.epoch, next(self._sequence), self.name), CLOCK())

    def ask(self) -> list[Reply]:
        self.submit()
        return self.server.loop.step(CLOCK)


def lives(server: ModelServer, robot: Robot) -> bool:
    """The next request is answered, and nothing is left of the last one."""
    (reply,) = robot.ask()
    server.check_integrity()
    return isinstance(reply, ActionChunk) and server.is_idle and server.stalled_s(math.inf) == 0.0


@pytest.mark.parametrize("fault", ENGINE_FAULTS)
def test_what_an_engine_raises_or_gives_costs_its_batch_and_the_next_one_is_served(fault: str) -> None:
    counter, goes_wrong = ENGINE_FAULTS[fault]
    engine = Frail()
    server = ModelServer(ServerConfig(name="s1"), engine)
    robot = Robot(server, horizon=HorizonRequest(policy="confidence"))
    engine.goes_wrong = goes_wrong
    for lost in (1, 2, 3):
        assert robot.ask() == [] and server.refused == {counter: lost} and server.problems[counter]
    engine.goes_wrong = None
    assert lives(server, robot)


def test_a_reset_that_fails_lets_nothing_run_on_what_the_last_robot_left() -> None:
    engine = Frail()
    server = ModelServer(ServerConfig(name="s1"), engine)
    robot = Robot(server)
    engine.reset_fails = True
    assert robot.ask() == robot.ask() == [] and server.refused == {"engine_error": 2} and engine.batches == []
    engine.reset_fails = False
    assert lives(server, robot) and engine.resets == 1


def methods_of(protocol: type) -> list[str]:
    """What a class of another package may be asked."""
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]


def test_every_method_of_an_engine_is_tried_here_or_while_the_model_is_loaded() -> None:
    beside_serving = {"prepare", "warm_up", "check_parity", "check_precision", "close"}
    assert {*methods_of(Engine)} - beside_serving == {"infer", "reset", "close_session"}


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1)])
def test_an_engine_that_cannot_forget_a_session_or_say_whether_it_lives_is_served(error: BaseException) -> None:
    frail = type("Frail", (FakeEngine,), {"close_session": raising(error), "is_dead": property(raising(error))})
    server = ModelServer(ServerConfig(name="s1"), frail())
    server.close_session("r1", "system1", Robot(server).epoch)
    assert server.refused == {"engine_error": 1} and not server.given_up and server.refused == {"engine_error": 2}
    assert lives(server, Robot(server))


class FrailDispatch(DispatchPolicy):
    def rank(self, waiting, engine, now_s):  # type: ignore[no-untyped-def]
        return waiting


class FrailHorizon(HorizonPolicy):
    def rows(self, confidence: np.ndarray, horizon: HorizonRequest) -> int:
        return 2


DISPATCH_FAULTS = {
    "raises": raising(ZeroDivisionError()),
    "exits": raising(SystemExit()),
    "none": lambda *_: None,
    "nobody": lambda *_: [],
    "somebody twice": lambda self, waiting, *_: [*waiting, waiting[0]],
    "a stranger": lambda self, waiting, *_: [object() for _ in waiting],
    "nobody left to others": lambda self, waiting, *_: waiting.clear() or [],
}


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        (method, fault)
        for method in methods_of(DispatchPolicy)
        if method not in ("state", "restore")  # of recordings: test_snapshots.py
        for fault in DISPATCH_FAULTS
        if method == "rank" or fault in ("raises", "exits")  # nobody reads what the others give
    ],
)
def test_a_dispatch_policy_that_fails_is_replaced_by_fifo_for_that_batch(
    method: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrailDispatch, method, DISPATCH_FAULTS[fault])
    server = ModelServer(ServerConfig(name="s1", batch_size=1), FakeEngine(), policy=FrailDispatch())
    robots = [Robot(server, name) for name in ("r1", "r2", "r3")]
    for robot in robots:
        robot.submit()
    assert [server.loop.step(CLOCK)[0].id.robot for _ in robots] == ["r1", "r2", "r3"]
    server.close_session("r1", "system1", robots[0].epoch)
    assert server.refused["dispatch_error"] > 0 and server.problems["dispatch_error"]
    assert lives(server, robots[1])


HORIZON_FAULTS = {
    "raises": raising(ZeroDivisionError()),
    "exits": raising(SystemExit()),
    "none": lambda *_: None,
    "text": lambda *_: "many",
    "less than nothing": lambda *_: -1,
    "another shape": lambda *_: np.ones((1, 99)),
}


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Adds what an entry point of another package loads, as dispatch and as horizon policy `added`."""

    class Entry:
        name = "added"
        load: Any = None

    def add(load: Any) -> None:
        Entry.load = staticmethod(load)

    for module in (horizon, dispatcher):
        monkeypatch.setattr(module, "entry_points", lambda group: [Entry()])
    horizon.policy.cache_clear()
    yield add
    horizon.policy.cache_clear()


@pytest.mark.parametrize("method", methods_of(HorizonPolicy))
@pytest.mark.parametrize("fault", HORIZON_FAULTS)
def test_a_horizon_policy_that_fails_leaves_it_to_the_robot_for_that_batch(
    method: str, fault: str, monkeypatch: pytest.MonkeyPatch, added: Callable[[Any], None]
) -> None:
    added(lambda: FrailHorizon)
    engine = Frail()
    server = ModelServer(ServerConfig(name="s1"), engine)
    robot = Robot(server, horizon=HorizonRequest(policy="added"))
    with monkeypatch.context() as broken:
        broken.setattr(FrailHorizon, method, HORIZON_FAULTS[fault])
        (reply,) = robot.ask()
    assert isinstance(reply, ActionChunk) and reply.execution_horizon == 0
    assert server.refused == {"horizon_error": 1} and "added" in server.problems["horizon_error"]
    (reply,) = robot.ask()
    assert isinstance(reply, ActionChunk) and reply.execution_horizon == 2


@pytest.mark.parametrize("load", [raising(ImportError("x")), lambda: raising(RuntimeError("x")), raising(SystemExit(2))])
def test_a_policy_that_cannot_be_made_is_said_where_it_is_asked_for(load: Any, added: Callable[[Any], None]) -> None:
    added(load)
    with pytest.raises(ConfigurationError, match="'added' cannot be made"):
        ModelServer(ServerConfig(name="s1", dispatch="added"), FakeEngine())
    server = ModelServer(ServerConfig(name="s1"), FakeEngine())
    with pytest.raises(ContractError, match="'added' cannot be made"):
        Robot(server, horizon=HorizonRequest(policy="added"))
    assert lives(server, Robot(server))


# --- an engine that is of no use any more -----------------------------------------------------------------------------------


class Poisoned(FakeEngine):
    """Fails with whatever one robot asks; `broken`: with everything."""

    broken = False

    def infer(self, requests):  # type: ignore[no-untyped-def]
        if self.broken or any(request.id.robot == "poison" for request in requests):
            raise ValueError("index out of range")
        return super().infer(requests)


def test_an_engine_that_answers_nothing_any_more_is_given_up() -> None:
    engine = Poisoned()
    server = ModelServer(ServerConfig(name="s1", max_engine_errors=3), engine)
    robot = Robot(server)
    assert lives(server, robot) and not server.given_up
    engine.broken = True
    for given_up in (False, False, True):
        assert robot.ask() == [] and bool(server.given_up) == given_up
    assert server.given_up == "the engine failed 3 times in a row, last with ValueError: index out of range"


def test_an_engine_that_is_dead_is_given_up_before_anybody_asks() -> None:
    engine = Poisoned()
    server = ModelServer(ServerConfig(name="s1"), engine)
    assert not server.given_up
    engine.is_dead = True
    assert server.given_up == "the engine is dead"


class Asserts(FakeEngine):
    """As an engine whose kernel met an index out of range."""

    error: Exception = torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors might come later")

    def infer(self, requests):  # type: ignore[no-untyped-def]
        raise self.error


@pytest.mark.parametrize(
    "error", [Asserts.error, RuntimeError("Triton Error [CUDA]: device-side assert"), RuntimeError("cuDNN error: CUDNN_STATUS_...")]
)
@pytest.mark.parametrize("lasts", [True, False])
def test_an_engine_whose_device_is_lost_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch, lasts: bool, error: Exception) -> None:
    """PyTorch says it with an error of its own; that it lasts, by saying it again. Other errors of CUDA are one batch's."""

    def synchronize() -> None:
        if lasts:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    stand_ins = {
        "is_initialized": True,
        "device_count": 1,
        "memory_reserved": 1,
        "current_stream": SimpleNamespace(synchronize=synchronize),
    }
    for name, says in stand_ins.items():
        assert callable(getattr(torch.cuda, name))
        monkeypatch.setattr(torch.cuda, name, lambda *_, says=says: says)
    monkeypatch.setattr(Asserts, "error", error)
    server = ModelServer(ServerConfig(name="s1", max_engine_errors=10), Asserts())
    assert Robot(server).ask() == [] and bool(server.given_up) == lasts
    assert not lasts or server.given_up.startswith(f"its device is lost: {type(error).__name__}: {error}")


def test_pytorch_asks_its_device_for_errors_that_last_in_the_same_way() -> None:
    source = (Path(torch.__file__).parent / "testing" / "_internal" / "common_utils.py").read_text(encoding="utf-8")
    asks = source.partition("def _should_stop_test_suite")[2].partition("def ")[0]
    assert "synchronize()" in asks and "except RuntimeError" in asks and issubclass(torch.AcceleratorError, RuntimeError)


class Several(FakeEngine):
    """Takes several calls at once; each waits until it may go on. Fails with what "poison" asks, `broken`: with everything."""

    max_batch_size = 8
    broken = False

    def __init__(self) -> None:
        super().__init__()
        self.go: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self.under_way: list[str] = []
        self.probes = 0

    def infer(self, requests):  # type: ignore[no-untyped-def]
        (request,) = requests
        robot = request.id.robot
        if robot:
            self.under_way.append(robot)
            assert self.go[robot].wait(20)
        else:
            self.probes += 1
        if self.broken or robot.startswith("poison"):
            raise ValueError("index out of range")
        return super().infer(requests)


def at_once(server: ModelServer, robots: list[Robot]) -> dict[str, threading.Thread]:
    """One request of each is under way, on a thread of its own."""
    for robot in robots:
        robot.submit()
    threads = {}
    while work := server.loop.begin(CLOCK()):
        ran = lambda work=work: server.loop.complete(work, server.loop.run(work), CLOCK())  # type: ignore[misc] # noqa: E731
        threads[work.batch[0].request.id.robot] = threading.Thread(target=ran)
    for thread in threads.values():
        thread.start()
    return threads


@pytest.mark.parametrize("broken", [False, True])
def test_several_calls_that_fail_at_once_are_told_apart_from_an_engine_that_does(broken: bool) -> None:
    engine = Several()
    server = ModelServer(ServerConfig(name="s1", max_concurrent=8, max_engine_errors=3), engine)
    engine.broken = broken
    threads = at_once(server, [Robot(server, f"poison{i}") for i in range(8)])
    for name, thread in threads.items():
        engine.go[name].set()
        thread.join(20)
    assert len(threads) == 8 and server.refused == {"engine_error": 8}
    assert bool(server.given_up) == broken and engine.probes == (6 if broken else 2)
    server.check_integrity()
    assert server.is_idle


def test_a_call_that_does_not_come_back_is_seen_beside_others_that_do() -> None:
    engine = Several()
    server = ModelServer(ServerConfig(name="s1", max_concurrent=2), engine)
    hangs, moves = Robot(server, "hangs"), Robot(server, "moves")
    (stuck,) = at_once(server, [hangs]).values()
    begun_s = CLOCK()
    engine.go["moves"].set()
    for _ in range(3):
        (sound,) = at_once(server, [moves]).values()
        sound.join(20)
    now_s = CLOCK()
    assert server.snapshot(now_s).served == 3 and server.stalled_s(now_s) > now_s - begun_s
    engine.go["hangs"].set()
    stuck.join(20)
    assert server.is_idle and server.stalled_s(math.inf) == 0.0


def test_requests_of_one_robot_are_not_the_end_of_everybodys_engine() -> None:
    server = ModelServer(ServerConfig(name="s1", max_engine_errors=3), Poisoned())
    poison = Robot(server, "poison")
    for _ in range(20):
        assert poison.ask() == []
    assert not server.given_up and server.refused == {"engine_error": 20}
    assert lives(server, Robot(server))


def test_who_spoilt_a_batch_spoils_no_other_one() -> None:
    server = ModelServer(ServerConfig(name="s1", batch_size=4, max_engine_errors=3), Poisoned())
    robots = [Robot(server, name) for name in ("poison", "r1", "r2", "r3")]
    answered: list[str] = []
    for _ in range(20):
        for robot in robots:
            robot.submit()
        while server.num_waiting:
            answered += [reply.id.robot for reply in server.loop.step(CLOCK)]
    assert {name: answered.count(name) for name in ("r1", "r2", "r3")} == {"r1": 19, "r2": 19, "r3": 19}, "one batch was lost"
    assert server.refused == {"engine_error": 4 + 19} and not server.given_up
    assert server.snapshot(0.0).served == 57


def test_what_was_not_answered_counts_in_no_figure() -> None:
    engine = Poisoned()
    server = ModelServer(ServerConfig(name="s1"), engine)
    engine.broken = True
    robot = Robot(server)
    for _ in range(5):
        robot.ask()
    assert server.snapshot(CLOCK()).request_rate_hz == 0.0 and math.isnan(server.snapshot(CLOCK()).latency_p50_s)


def test_an_engine_elsewhere_that_fails_at_once_does_not_draw_requests_to_it() -> None:
    class Gone(FakeEngine):
        def infer(self, requests):  # type: ignore[no-untyped-def]
            self.batches.append(list(requests))
            raise ModelError("not connected")

    elsewhere = Gone()
    tier = EngineConfig(engine=elsewhere, round_trip_s=0.001, profile_s=(0.001,))
    server = ModelServer(ServerConfig(name="s1", batch_size=1, profile_s=(1.0,)), FakeEngine(), tier)
    robots = [Robot(server, f"r{i}") for i in range(4)]
    for step in range(100):
        for robot in robots:
            robot.submit()
        if work := server.loop.begin(step * 0.01, queue_index=1):
            server.loop.complete(work, server.loop.run(work), step * 0.01)
    assert len(elsewhere.batches) <= 2 and server.given_up == ""


def test_an_engine_elsewhere_that_is_gone_for_days_is_still_asked_every_half_minute() -> None:
    waits_s = [backoff_s(num_failed) for num_failed in (1, 2, 3, 7, 5_000)]
    assert waits_s == [0.5, 1.0, 2.0, MAX_BACKOFF_S, MAX_BACKOFF_S]


def test_progress_is_what_counts_not_that_something_waits() -> None:
    server = ModelServer(ServerConfig(name="s1", batch_size=1), FakeEngine())
    robots = [Robot(server, name) for name in ("r1", "r2")]
    for at_s, robot in enumerate(robots):
        server.submit(observation(robot.epoch, 1, robot.name), float(at_s))
    assert server.stalled_s(5.0) == 5.0, "nobody has begun"
    work = server.loop.begin(5.0)
    assert work and server.stalled_s(9.0) == 4.0
    server.loop.complete(work, server.loop.run(work), 9.0)
    assert server.stalled_s(10.0) == 1.0, "the other one waits"
    work = server.loop.begin(10.0)
    assert work
    server.loop.complete(work, server.loop.run(work), 11.0)
    assert server.stalled_s(1e9) == 0.0


def test_what_waits_when_a_server_ends_is_counted_and_told() -> None:
    server = ModelServer(ServerConfig(name="s1"), FakeEngine())
    robot = Robot(server)
    robot.submit()
    server.drain()
    (refused,) = server.refuse_waiting()
    assert refused.robot == "r1" and server.is_idle and server.refused == {"draining": 1}
    server.resume()
    assert lives(server, robot)


def test_a_session_request_is_what_it_was() -> None:
    """The engine is told what its session asked for: one that is a server itself passes it on."""
    engine = FakeEngine()
    server = ModelServer(ServerConfig(name="s1"), engine)
    asked = HorizonRequest(policy="static", steps=3)
    assert isinstance(session_request(), SessionRequest) and Robot(server, horizon=asked).ask()
    assert engine.batches[0][0].horizon == asked


def test_what_is_told_of_an_engine_while_it_serves_is_not_asked_of_it() -> None:
    """On the executor's thread nothing foreign runs."""

    class Fickle(FakeEngine):
        asked = 0

        @property
        def max_batch_size(self) -> int:  # type: ignore[override]
            self.asked += 1
            if self.asked > 3:
                raise ValueError("x")
            return 4

    target = ModelServer(ServerConfig(name="s1", max_sessions=3), Fickle())
    target.open_session(session_request())
    assert [target.max_batch_size for _ in range(9)] == [4] * 9
    assert target.occupancy == (1, 3, 0.0)
