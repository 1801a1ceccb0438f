"""A text model in a model server process: requests run side by side, as the descriptor says; an engine that died ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rfm_serving import msg

from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.ros.model_server_node import EXIT_HUNG
from ros2_rfm_serving.ros.server import loading
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM2, JudgeVerdict, ObservationRequest, RequestId, SubgoalPlan, empty
from test.unit.engines.chat_server import Turn, says
from test.unit.engines.chat_server import server as chat_server
from test.unit.fakes import FakeEngine, schedule

from .server_fleet import Fleet, launched, serving

ANSWERS = {SAFETY: "safe", MONITOR: "ongoing", SYSTEM2: "1. lift"}


class Model:
    """An OpenAI-compatible server that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Components, in the order in which they were asked for"""
        self.may_answer = {component: threading.Event() for component in ANSWERS}

    def __call__(self, body: dict[str, Any], number: int) -> Turn:
        said = body["messages"][1]["content"][-1]["text"]
        component = next((c for c in ANSWERS if said.startswith(f"for {c}")), "")
        if component:  # else it is being warmed up
            self.asked.append(component)
            self.may_answer[component].wait(60.0)
        return says(ANSWERS.get(component, "safe"))


def ask(fleet: Fleet, robot: str, component: str, sequence: int) -> None:
    identity = RequestId(robot=robot, component=component, session_epoch=fleet.epochs[robot], episode=1, sequence=sequence)
    request = ObservationRequest(id=identity, stamp_ns=0, instruction=f"for {component}", state=empty(0), prefix_model=empty(0, 0))
    fleet.out.publish(convert.observation_to(request))


def asked_for(fleet: Fleet, model: Model, robot: str, component: str, seen: Callable[[], bool]) -> None:
    """Best effort: again until it has arrived."""
    for sequence in range(1, 40):
        ask(fleet, robot, component, sequence)
        end_s = time.monotonic() + 1.5
        while time.monotonic() < end_s:
            fleet.spin(0.05)
            if seen():
                return
    raise AssertionError(f"{robot}'s request for {component} never arrived: {model.asked}")


def test_a_verdict_waits_for_no_plan_and_the_descriptor_says_how_many_run_at_once(ros_domain: int, tmp_path: Path) -> None:
    model = Model()
    robots = {"p1": SYSTEM2, "p2": SYSTEM2, "s1": SAFETY, "m1": MONITOR}
    with (
        chat_server(model) as (url, _),
        serving(tmp_path, model="judge", judge_url=url, max_request_rate_hz=0.0) as (fleet, _),
    ):
        heard: list[Any] = []
        for robot, component in robots.items():
            kind, topic = convert.REPLIES[SubgoalPlan if component == SYSTEM2 else JudgeVerdict]
            fleet.create_subscription(kind, qos.Names().robot(robot, topic), heard.append, qos.REPLY)
            assert fleet.open(robot, component=component, action_names=(), cameras=(), state_size=0).success

        def answered(robot: str) -> bool:
            return any(said.id.robot == robot for said in heard)

        def waiting(number: int) -> Callable[[], bool]:
            return lambda: bool(fleet.status.waiting >= number)

        try:
            # One plan is being thought over, and a verdict comes and goes.
            asked_for(fleet, model, "p1", SYSTEM2, lambda: model.asked.count(SYSTEM2) == 1)
            model.may_answer[SAFETY].set()
            asked_for(fleet, model, "s1", SAFETY, lambda: answered("s1"))
            assert not answered("p1")

            # Two plans: that is all that the descriptor allows. Whoever comes now waits.
            model.may_answer[SAFETY].clear()
            asked_for(fleet, model, "p2", SYSTEM2, lambda: model.asked.count(SYSTEM2) == 2)
            before = len(model.asked)
            asked_for(fleet, model, "m1", MONITOR, waiting(1))
            asked_for(fleet, model, "s1", SAFETY, waiting(2))
            assert len(model.asked) == before
            model.may_answer[SYSTEM2].set()
            fleet.wait(lambda: len(model.asked) >= before + 2, what="the next two")
            assert sorted(model.asked[before : before + 2]) == [MONITOR, SAFETY]
        finally:
            for event in model.may_answer.values():
                event.set()
        fleet.wait(lambda: all(answered(robot) for robot in robots), what="all answers")


def test_an_engine_that_died_ends_its_process_whether_or_not_batches_have_a_limit(ros_domain: int, tmp_path: Path) -> None:
    """As vLLM's does when its core is gone: READY would be a lie, and only a new process helps."""
    with serving(tmp_path, "r1", hung_after_s=0.0) as (fleet, process):
        assert fleet.open("r1").success
        fleet.ask("r1", 1.0)
        fleet.send("r1", 2.0, instruction="die")
        fleet.wait(lambda: process.poll() is not None, what="the end")
        assert process.returncode == EXIT_HUNG and fleet.states[-1] == msg.ServerStatus.FAILED
        assert fleet.status.detail == "the engine is dead"


def test_an_engine_that_cannot_be_served_gives_back_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is tried again every ten seconds: the next one would find the GPU's memory taken."""

    class Cold(FakeEngine):
        def __init__(self) -> None:
            super().__init__()
            self.given_back = 0

        def warm_up(self) -> None:
            raise RuntimeError("no kernel image is available")

        def close(self) -> None:
            self.given_back += 1
            raise OSError("and cannot be closed in order either")

    engine, logged = Cold(), list[str]()
    monkeypatch.setattr(loading, "build_engine", lambda spec: engine)
    spec = SimpleNamespace(entry=CatalogueEntry(engine="cold"))
    specs: dict[str, Any] = {"engine_spec": lambda placement: spec, "overflow_spec": lambda placement: None}
    params: Any = SimpleNamespace(**specs, check_parity=False, hung_after_s=0.0, image_width_px=96, image_height_px=96)
    tried = loading.Loading(params, schedule().placements[0], logged.append)
    assert tried.wait(30.0) and isinstance(tried.outcome, str)
    assert engine.given_back == 1 and "no kernel image" in logged[-1] and "in order" in logged[0]


def test_a_judge_none_of_whose_first_answers_is_a_word_is_not_ready_and_says_what_it_answered(
    ros_domain: int, tmp_path: Path
) -> None:
    with (
        chat_server(lambda body, number: says("The cell is clear.")) as (url, _),
        launched(tmp_path, model="judge", judge_url=url) as (fleet, _),
    ):
        fleet.wait(lambda: fleet.status and fleet.status.state == msg.ServerStatus.FAILED)
        assert "judge cannot be loaded" in fleet.status.detail and "'The cell is clear.'" in fleet.status.detail
        assert "safe, unsafe" in fleet.status.detail and url not in fleet.status.detail
