"""Whatever raises around a model server costs what it was doing: it is counted, the next request is served; what does not come
back ends the process. Without a graph; `test_server_hygiene.py` has the same over DDS."""

from __future__ import annotations

import inspect
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rclpy.serialization import serialize_message
from websockets.exceptions import ConnectionClosed

from ros2_rfm_serving.engines import registry
from ros2_rfm_serving.engines.base import Engine, Parity
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.ros.server import intake as intakes
from ros2_rfm_serving.ros.server import loading, runs
from ros2_rfm_serving.ros.server.delivery import Delivery
from ros2_rfm_serving.ros.server.engine_thread import EngineThreads
from ros2_rfm_serving.ros.server.intake import Intake
from ros2_rfm_serving.ros.server.loading import Former, Loaded, Loading
from ros2_rfm_serving.ros.server.settings import hung_limit_s
from ros2_rfm_serving.ros.server.watchdog import EXIT_HUNG, Watchdog
from ros2_rfm_serving.ros.server.websocket_door import PREFIX, WebsocketDoor
from ros2_rfm_serving.ros.server.websocket_entry import DoorConfig
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.openpi.protocol import OpenpiClient
from ros2_rfm_serving.types import Placement
from test.ros import door_rig
from test.ros.door_rig import eventually
from test.ros.mirror_engine import MirrorEngine
from test.unit.fakes import FakeEngine, observation, session_request

ERRORS = [ValueError("x"), SystemExit(1)]
HUNG_AFTER_S = 1.0
NOTHING_BEFORE = Former()


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


# --- what leaves the engine's thread ----------------------------------------------------------------------------------------


class Doors:
    """Three of them, each keeps what it is given; `broken`: (door, method) that raises."""

    def __init__(self) -> None:
        self.broken: dict[tuple[str, str], BaseException] = {}
        self.sent: list[str] = []
        self.told: list[str] = []
        self.topics = SimpleNamespace(send=self._method("topics", "send", self._send))
        self.infer = SimpleNamespace(
            take=self._method("infer", "take", lambda reply: reply.id.robot == "goal" and not self._send(reply)),
            fail=self._method("infer", "fail", self._fail),
        )
        self.gateway = SimpleNamespace(
            take=self._method("gateway", "take", lambda replies: [r for r in replies if r.id.robot != "ws" or self._send(r)]),
            fail=self._method("gateway", "fail", self._fail),
        )

    def _send(self, reply: Any) -> str:
        self.sent.append(reply.id.robot)
        return ""

    def _fail(self, requests: Any) -> None:
        self.told += [request.robot for request in requests]

    def _method(self, door: str, name: str, sound: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if error := self.broken.get((door, name)):
                raise error
            return sound(*arguments)

        return call


CALLS = [("topics", "send"), ("infer", "take"), ("infer", "fail"), ("gateway", "take"), ("gateway", "fail")]


def test_every_call_of_a_door_is_broken_here() -> None:
    calls = re.findall(r"(topics|infer|gateway)\.(\w+)\(", inspect.getsource(Delivery))
    assert set(calls) == set(CALLS)


class Rig:
    """A server with its threads and doors, and no graph."""

    def __init__(self, engine: Any, max_concurrent: int = 1) -> None:
        self.doors, self.logged = Doors(), []
        self.server = ModelServer(ServerConfig(name="s1", batch_size=4, max_concurrent=max_concurrent), engine)
        deliver = Delivery(self.doors.topics, self.doors.infer, self.doors.gateway)  # type: ignore[arg-type]
        self.threads = EngineThreads(
            self.server, lambda done, failed: deliver(done, failed, self.server.count_fault), self.logged.append
        )
        self.epochs = {robot: self.server.open_session(session_request(robot)).session_epoch for robot in ("r1", "goal", "ws")}
        self._sequence = 0

    def submit(self) -> None:
        self._sequence += 1
        for robot, epoch in self.epochs.items():
            self.server.submit(observation(epoch, self._sequence, robot), time.monotonic())
        self.threads.wake()

    def ask(self) -> None:
        self.submit()
        assert eventually(lambda: self.threads.is_idle)


class Moody(FakeEngine):
    fails = False

    def infer(self, requests):  # type: ignore[no-untyped-def]
        if self.fails:
            raise ValueError("x")
        return super().infer(requests)


@pytest.mark.parametrize("error", ERRORS, ids=["error", "exit"])
@pytest.mark.parametrize("call", CALLS, ids=".".join)
def test_a_door_that_fails_keeps_no_other_from_its_replies(call: tuple[str, str], error: BaseException) -> None:
    engine = Moody()
    rig = Rig(engine)
    engine.fails = call[1] == "fail"
    rig.doors.broken[call] = error
    rig.ask()
    assert rig.server.refused["publish_failed"] > 0 and not rig.logged
    got = rig.doors.told if engine.fails else rig.doors.sent
    assert len(got) >= {"send": 1, "take": 1, "fail": 3}[call[1]], "the others got theirs"
    engine.fails = False
    rig.doors.broken.clear()
    rig.doors.sent.clear()
    rig.ask()
    assert sorted(rig.doors.sent) == ["goal", "r1", "ws"] and rig.server.stalled_s(1e9) == 0.0
    rig.threads.stop()


@pytest.mark.parametrize("method", ["begin", "run", "complete_all"])
@pytest.mark.parametrize("error", ERRORS, ids=["error", "exit"])
def test_an_error_that_nobody_foresaw_is_logged_a_few_times_and_the_thread_lives(
    method: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(FakeEngine())
    with monkeypatch.context() as broken:
        broken.setattr(rig.server._queues[0].running if method == "run" else rig.server.loop, method, raising(error))
        for robot, epoch in rig.epochs.items():
            rig.server.submit(observation(epoch, 1, robot), time.monotonic())
        rig.threads.wake()
        assert eventually(lambda: rig.server.refused["worker_error"] > 0)
        time.sleep(0.3)
        assert rig.server.refused["worker_error"] < 10
    if method != "begin":
        assert {"goal", "r1", "ws"} <= set(rig.doors.told), "nobody waits for what will not come"
    if method == "complete_all":
        rig.server._queues[0]._expected_end_s.clear()
    rig._sequence = 1
    rig.ask()
    assert {"goal", "r1", "ws"} <= set(rig.doors.sent)
    rig.threads.stop()


@pytest.mark.parametrize("error", ERRORS, ids=["error", "exit"])
def test_calls_that_run_at_once_end_whatever_happens(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Waits()
    rig = Rig(engine, max_concurrent=2)
    with monkeypatch.context() as broken:
        broken.setattr(rig.server._queues[0].running, "run", raising(error))
        rig.ask()
        assert rig.server.refused["worker_error"] == 3 and len(rig.logged) == 3
        assert set(rig.doors.told) == {"goal", "r1", "ws"}
    with monkeypatch.context() as broken:
        broken.setattr(runs.threading, "Thread", raising(RuntimeError("can't start new thread")))
        rig.ask()
        assert rig.server.refused["worker_error"] == 6 and rig.server.is_idle
    rig.submit()
    assert eventually(lambda: engine.num_in == 2) and not rig.threads.is_idle
    rig.threads.call(lambda: rig.server.resize(1, 0))
    for thread in rig.threads.stop():
        thread.join(0.3)
        assert thread.is_alive(), "two are under way"
    assert not engine.closed_when, "nor is it closed beneath them"
    engine.go.set()
    assert eventually(lambda: engine.closed_when) and engine.closed_when == [0]
    assert len(rig.doors.sent) == 2 and rig.server.num_waiting == 1


class Waits(FakeEngine):
    """Until it may go on; `closed_when`: how many calls were under way."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.num_in, self.closed_when = threading.Event(), 0, list[int]()

    def infer(self, requests):  # type: ignore[no-untyped-def]
        self.num_in += 1
        assert self.go.wait(20)
        self.num_in -= 1
        return super().infer(requests)

    def close(self) -> None:
        self.closed_when.append(self.num_in)


# --- what comes in ----------------------------------------------------------------------------------------------------------


def message(epoch: int, sequence: int = 1, robot: str = "r1", episode: int = 1) -> bytes:
    return bytes(serialize_message(convert.observation_to(observation(epoch, sequence, robot, episode))))


@pytest.fixture
def intake() -> Iterator[Any]:
    """(server, intake, refusals)"""
    server, refusals = ModelServer(ServerConfig(name="s1"), FakeEngine()), []
    made = Intake(server, lambda: None, refusals.append, 1)
    yield server, made, refusals
    made.stop()


@pytest.mark.parametrize("error", ERRORS, ids=["error", "exit"])
def test_a_decoder_that_raises_costs_its_image(error: BaseException, intake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, taking, refusals = intake
    epoch = server.open_session(session_request()).session_epoch
    with monkeypatch.context() as broken:
        broken.setattr("ros2_rfm_serving.server.images.decode", raising(error))
        taking.take(message(epoch, 1))
        assert eventually(lambda: server.refused["intake_error"] == 1) and server.problems["intake_error"]
        assert eventually(lambda: refusals) and refusals[0].kind == "intake_error", "whoever waits for it is told"
    assert eventually(lambda: taking.is_idle)
    taking.take(message(epoch, 2))
    assert eventually(lambda: server.num_waiting) and taking.stalled_s(1e9) == 0.0


def test_who_finds_no_place_before_the_decoders_is_told(intake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, taking, refusals = intake
    monkeypatch.setattr(intakes, "MAX_WAITING", 0)
    taking.take(message(server.open_session(session_request()).session_epoch, 1))
    assert [error.kind for error in refusals] == ["intake_full"] and server.refused == {"intake_full": 1}


def test_a_message_that_cannot_even_be_read_is_counted(intake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, taking, _ = intake
    monkeypatch.setattr(intakes.cdr, "observation_from", raising(IndexError()))
    taking.take(b"")
    assert server.refused["intake_error"] == 1


def test_a_late_observation_of_the_former_session_takes_nobodys_place(intake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, taking, refusals = intake
    former = server.open_session(session_request()).session_epoch
    late = message(former, 7)
    epoch = server.open_session(session_request()).session_epoch
    go, decode = threading.Event(), server.deposit
    monkeypatch.setattr(server, "deposit", lambda *arguments: go.wait(20) and decode(*arguments))
    server.open_session(session_request("r2"))
    taking.take(message(server.open_session(session_request("r2")).session_epoch, 1, "r2"))  # keeps the only decoder busy
    assert eventually(lambda: not taking.is_idle and not len(taking._light))
    taking.take(message(epoch, 1))
    taking.take(late)
    taking.take(message(epoch, 9, "ghost"))
    assert [error.kind for error in refusals] == ["stale_epoch", "unknown_session"]
    assert server.refused == {"stale_epoch": 1, "unknown_session": 1}
    assert taking.stalled_s(time.monotonic() + 5.0) > 4.0, "the decoder is not back"
    go.set()
    assert eventually(lambda: server.num_waiting == 2)


def sent_and_refused(server: ModelServer, taking: Any, sent: int) -> dict[str, int]:
    """Once all that were sent, and one that waits, are accounted for."""
    counted = lambda: server.num_waiting + server.snapshot(0.0).superseded + server.refused.total()  # noqa: E731
    assert eventually(lambda: taking.is_idle and server.num_waiting > 0) and counted() == sent, (server.refused, counted())
    return dict(server.refused)


def test_what_a_session_left_before_the_decoders_is_counted_when_the_next_one_asks(
    intake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, taking, _ = intake
    busy = server.open_session(session_request("r2")).session_epoch
    former = server.open_session(session_request()).session_epoch
    go, decode = threading.Event(), server.deposit
    monkeypatch.setattr(server, "deposit", lambda *arguments: go.wait(20) and decode(*arguments))
    taking.take(message(busy, 1, "r2"))  # keeps the only decoder busy
    assert eventually(lambda: not taking.is_idle and not len(taking._light))
    taking.take(message(former, 1))
    taking.take(message(server.open_session(session_request()).session_epoch, 1))
    go.set()
    assert eventually(lambda: server.num_waiting == 2)
    assert sent_and_refused(server, taking, sent=3) == {"session_ended": 1}


def test_what_is_refused_while_a_server_drains_or_of_an_old_episode_is_not_lost_as_well(intake: Any) -> None:
    server, taking, _ = intake
    epoch = server.open_session(session_request()).session_epoch
    server.drain()
    for sequence in (1, 2, 3):
        taking.take(message(epoch, sequence))
    taking.take(message(epoch, 1, "ghost"))
    server.resume()
    taking.take(message(epoch, 4))
    assert sent_and_refused(server, taking, sent=5) == {"draining": 3, "unknown_session": 1}
    server.reset_episode("r1", "system1", epoch, 2)
    taking.take(message(epoch, 5))
    taking.take(message(epoch, 6, episode=2))
    assert sent_and_refused(server, taking, sent=7) == {"draining": 3, "unknown_session": 1, "stale_episode": 2}


# --- loading ----------------------------------------------------------------------------------------------------------------

SPEC = EngineSpec(
    model="mirror", entry=CatalogueEntry(engine="mirror"), models_folder=Path(), profile=Profile({}), gpu_type="", wait=time.sleep
)
PLACED = Placement(
    server="s1",
    model="mirror",
    components=(),
    gpu_type="",
    batching="fixed",
    batch_size=2,
    max_sessions=0,
    predicted_p99_s=0.0,
)


def loaded(
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[EngineSpec], Any],
    former: Former = NOTHING_BEFORE,
    over: bool = True,
    spec: EngineSpec = SPEC,
    check_parity: bool = True,
) -> Loading:
    monkeypatch.setattr(registry, "_find", lambda name: build)
    params = SimpleNamespace(
        engine_spec=lambda placement: spec,
        overflow_spec=lambda placement: None,
        check_parity=check_parity,
        session_rate_hz=1.0,
        hung_after_s=HUNG_AFTER_S,
        image_width_px=96,
        image_height_px=96,
        server_config=lambda placement, sessions: ServerConfig(name="s1", batch_size=2),
    )
    made = Loading(params, PLACED, lambda text: None, former)  # type: ignore[arg-type]
    assert not over or eventually(lambda: made.wait(0.1))
    return made


@pytest.mark.parametrize("error", ERRORS, ids=["error", "exit"])
@pytest.mark.parametrize(
    "method", ["__init__", "prepare", "warm_up", "check_parity", "check_precision", "infer", "max_batch_size", "contract"]
)
def test_whatever_raises_while_a_model_is_loaded_is_an_outcome(
    method: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = method == "check_precision"
    frail = type("Frail", (MirrorEngine,), {method: raising(error), "must_agree": gated})
    outcome = loaded(monkeypatch, frail, check_parity=not gated).outcome
    assert isinstance(outcome, str) and outcome.startswith("mirror cannot be loaded")
    assert isinstance(loaded(monkeypatch, MirrorEngine).outcome, Loaded)


@pytest.mark.parametrize("error", ERRORS, ids=["error", "exit"])
def test_an_engine_that_cannot_be_closed_either_is_an_outcome(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    frail = type("Frail", (MirrorEngine,), {"warm_up": raising(error), "close": raising(error)})
    assert isinstance(loaded(monkeypatch, frail).outcome, str)


@pytest.mark.parametrize(
    ("told", "parity", "served"), [(False, "on_request", True), (True, "on_request", False), (False, "at_start", False)]
)
def test_a_model_that_fails_its_parity_is_not_served_where_its_server_or_the_catalogue_asks_for_it(
    told: bool, parity: Any, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = [Parity(block="prefix", error=0.3, tolerance=1e-4)]
    off = type("Off", (MirrorEngine,), {"check_parity": lambda engine: far})
    spec = replace(SPEC, entry=CatalogueEntry(engine="mirror", parity=parity))
    outcome = loaded(monkeypatch, off, spec=spec, check_parity=told).outcome
    assert isinstance(outcome, Loaded) if served else isinstance(outcome, str)


def test_an_engine_that_must_agree_is_held_against_its_reference_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(SPEC, entry=CatalogueEntry(engine="mirror"))
    for error, served in ((0.3, False), (0.0, True)):
        far = [Parity(block="prefix", error=error, tolerance=0.05, precision="int8")]
        coarse = type("Coarse", (MirrorEngine,), {"check_parity": lambda engine, far=far: far, "must_agree": True})
        assert isinstance(loaded(monkeypatch, coarse, spec=spec, check_parity=False).outcome, Loaded) == served


@pytest.mark.parametrize("asked", [False, True])
def test_an_engine_that_must_agree_and_compares_nothing_is_not_served(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = type("Bare", (MirrorEngine,), {"check_parity": lambda engine: [], "must_agree": True})
    assert isinstance(loaded(monkeypatch, bare, check_parity=asked).outcome, str)


def test_a_gate_that_takes_minutes_says_how_far_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, near = threading.Event(), threading.Event(), [Parity(block="prefix", error=0.0, tolerance=0.05)]

    def compared(engine: Any) -> list[Parity]:
        engine.on_check(3, 8)
        begun.set()
        assert goes_on.wait(60.0)
        return near

    coarse = type("Coarse", (MirrorEngine,), {"check_precision": compared, "must_agree": True})
    spec = replace(SPEC, entry=CatalogueEntry(engine="mirror", options={"dtype": "bfloat16"}))
    made = loaded(monkeypatch, coarse, spec=spec, check_parity=False, over=False)
    assert begun.wait(60.0)
    now_s = loading.clock()
    assert made.news(now_s) == "", "not each time that somebody looks"
    said = made.news(now_s + loading.NEWS_PERIOD_S)
    assert said.startswith("loading mirror, for ") and said.endswith("comparing it at bfloat16 with its reference, 3 of 8")
    assert made.news(now_s + loading.NEWS_PERIOD_S) == "" != made.news(now_s + 2 * loading.NEWS_PERIOD_S)
    goes_on.set()
    assert eventually(lambda: made.wait(0.1)) and isinstance(made.outcome, Loaded)
    assert made.news(now_s + 1e6) == ""


def test_where_parity_is_asked_for_it_is_measured_and_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    far, near = ([Parity(block="prefix", error=error, tolerance=0.05)] for error in (0.3, 0.0))
    checks = {"check_parity": far, "check_precision": near}
    own = {name: lambda engine, found=found: found for name, found in checks.items()}
    engine = type("Kept", (MirrorEngine,), {**own, "must_agree": True, "computed_by": "as it was"})
    assert isinstance(loaded(monkeypatch, engine, check_parity=False).outcome, Loaded)
    assert isinstance(loaded(monkeypatch, engine, check_parity=True).outcome, str)


@pytest.mark.parametrize(
    ("spoilt", "dtype", "served"), [(False, "bfloat16", True), (True, "bfloat16", False), (True, "float32", True)]
)
def test_a_bundle_whose_weights_need_their_bits_is_not_served_in_half_precision(
    spoilt: bool, dtype: str, served: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch  # here: four processes collect these tests, and each would take seconds for it

    from ros2_rfm_serving.engines import bundles
    from ros2_rfm_serving.engines.embedded import bundle
    from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
    from test.unit.engines.test_agreement import cancelling
    from test.unit.engines.test_engines import SMALL

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    network = FlowPolicyNetwork(SMALL).eval().requires_grad_(False)
    bundle.save(tmp_path / "m", cancelling(network) if spoilt else network)
    entry = CatalogueEntry(engine="bundle", bundle="m", options={"device": "cpu", "dtype": dtype, "trace": False})
    spec = replace(SPEC, models_folder=tmp_path, entry=entry)
    outcome = loaded(monkeypatch, bundles.build, spec=spec, check_parity=False).outcome
    assert isinstance(outcome, Loaded) == served, outcome


def test_every_method_of_an_engine_was_tried() -> None:
    methods = {name for name, value in vars(Engine).items() if inspect.isfunction(value) and not name.startswith("_")}
    elsewhere = {"reset", "close_session"}  # test/unit/server/test_chaos.py
    assert methods - elsewhere == {"prepare", "warm_up", "check_parity", "check_precision", "infer", "close"}
    assert loading.warm_up and np  # what loading runs of it


def test_a_model_whose_predecessor_does_not_end_is_not_loaded_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    former = threading.Thread(target=never.wait, daemon=True)
    former.start()
    made = loaded(monkeypatch, MirrorEngine, Former((former,), HUNG_AFTER_S))
    assert made.wedged and isinstance(made.outcome, str)
    never.set()


def test_models_that_are_replaced_while_they_load_are_never_two_at_once_and_give_back_what_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here: list[int] = []
    at_once: list[int] = []

    class Large(MirrorEngine):
        def __init__(self, spec: EngineSpec) -> None:
            here.append(1)
            at_once.append(len(here))
            time.sleep(0.3)
            super().__init__(spec)

        def close(self) -> None:
            here.pop()

    first = loaded(monkeypatch, Large, over=False)
    assert eventually(lambda: at_once)
    second = loaded(monkeypatch, Large, Former(loading=first), over=False)
    third = loaded(monkeypatch, Large, Former(loading=second))
    assert isinstance(third.outcome, Loaded) and not isinstance(first.outcome, Loaded)
    assert at_once == [1, 1] and len(here) == 1, "the second was never begun"


# --- what does not come back ------------------------------------------------------------------------------------------------


def test_the_watchdog_says_what_is_stuck_and_takes_it_back_when_it_moves() -> None:
    said: list[str] = []
    dog, stalled = Watchdog(said.append, ends_process=False), [0.0]
    dog.watch(0.5, {"the engine": lambda now_s: stalled[0]})
    stalled[0] = 100.0
    assert eventually(lambda: dog.hung == "the engine") and said == ["the engine"]
    stalled[0] = 0.0
    assert eventually(lambda: not dog.hung)
    dog.rest()
    stalled[0] = 100.0
    time.sleep(1.0)
    assert not dog.hung, "nobody watches"
    dog.stop()


def test_an_engine_with_a_timeout_of_its_own_is_not_ended_before_it() -> None:
    engine: Any = SimpleNamespace(timeout_s=30.0)
    assert hung_limit_s(10.0, engine) > 60.0, "nor before the blank request that follows"
    assert hung_limit_s(90.0, engine) == 90.0 and hung_limit_s(0.0, engine) == 0.0
    engine.timeout_s = 0.0
    assert hung_limit_s(10.0, engine) == 10.0


WEDGED = """\
import ctypes, json, os, signal, sys, time
from rclpy.serialization import serialize_message
from ros2_rfm_serving.ros.server import watchdog
from ros2_rfm_serving.ros.server.engine_thread import EngineThreads
from ros2_rfm_serving.ros.server.intake import Intake
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.dispatch import DispatchPolicy
from test.unit.fakes import FakeEngine, observation, session_request

limit_s = watchdog.EXECUTOR_S = float(sys.argv[1])
never = lambda *_: time.sleep(3600)

def wedge(what):
    class Engine(FakeEngine):
        def infer(self, requests):
            if what == "engine":
                never()
            if what == "interpreter":
                ctypes.PyDLL(None).sleep(3600)
            return super().infer(requests)

    class Policy(DispatchPolicy):
        def rank(self, waiting, engine, now_s):
            return never() if what == "policy" else waiting

    server = ModelServer(ServerConfig(name="s1"), Engine(), policy=Policy())
    threads = EngineThreads(server, lambda replies, failed: None, print)
    intake = Intake(server, threads.wake, print, 1)
    dog = watchdog.Watchdog(lambda what: None, ends_process=True)
    dog.watch(limit_s, {"the engine": threads.stalled_s, "a decoder": intake.stalled_s})
    epoch = server.open_session(session_request()).session_epoch
    if what == "decoder":
        server.deposit = never
    intake.take(bytes(serialize_message(convert.observation_to(observation(epoch)))))
    while True:
        time.sleep(0.1)
        if what != "executor":
            dog.beat()

children = {}
for what in sys.argv[2:]:
    children[what] = os.fork()
    if not children[what]:
        wedge(what)
healthy, codes = children.pop("nothing"), {}
for what, child in children.items():
    codes[what] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
codes["nothing"] = os.waitpid(healthy, os.WNOHANG)[0]
os.kill(healthy, signal.SIGKILL)
print(json.dumps(codes))
"""


def test_a_wedge_ends_the_process_within_hung_after(repository: Path) -> None:
    """Each in a process of its own. Where a machine is so busy that a healthy one stands still for as long, with a longer limit."""
    wedges = ("engine", "policy", "decoder", "executor", "interpreter", "nothing")
    expected = {
        **dict.fromkeys(("engine", "policy", "decoder", "executor"), EXIT_HUNG),
        "interpreter": -signal.SIGKILL,
        "nothing": 0,
    }
    for limit_s in ("3.0", "10.0", "30.0"):
        command = [sys.executable, "-W", "ignore", "-c", WEDGED, limit_s, *wedges]
        ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120, check=True)
        if (codes := json.loads(ran.stdout)) == expected:
            break
    assert codes == expected


# --- the gateway ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=["error", "exit"])
@pytest.mark.parametrize("method", ["metadata", "ask", "answer"])
def test_a_connection_that_fails_ends_alone(method: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = door_rig.Rig()
    other, sound = rig.client(), getattr(OpenpiClient, method)
    unlucky = f"{PREFIX}2"

    def fail(client: OpenpiClient, *arguments: Any) -> Any:
        if client.robot == unlucky:
            raise error
        return sound(client, *arguments)

    monkeypatch.setattr(OpenpiClient, method, fail)
    with pytest.raises((RuntimeError, ConnectionClosed, TypeError)):  # as openpi's client takes a frame of text
        rig.client().infer(door_rig.observation(1.0))
    assert other.infer(door_rig.observation(2.0))["actions"][0, 0] == 2.0
    assert rig.client().infer(door_rig.observation(3.0))["actions"][0, 0] == 3.0
    assert len(rig.logged) == 1 and eventually(lambda: rig.door.stalled_s(time.monotonic()) == 0.0)
    rig.logged.clear()
    rig.stop()


def test_healthz_says_what_moves_and_readyz_what_takes_something_new() -> None:
    rig, moves = door_rig.Rig(), [True]
    rig.door.stop()
    serving = lambda: (rig.server, rig.thread.wake) if rig.serves else None  # noqa: E731
    rig.door = WebsocketDoor(DoorConfig(port=0), serving, rig.logged.append, lambda: moves[0])

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{rig.door.port}/{path}", timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert (status("healthz"), status("readyz")) == (200, 200)
    rig.serves = False
    assert (status("healthz"), status("readyz")) == (200, 503), "draining: it answers what it has"
    moves[0] = False
    assert (status("healthz"), status("readyz")) == (503, 503)
    rig.stop()
