"""An intruder on the domain of a factory with certificates says what servers and schedulers say to everybody, over real DDS:
forged, recorded, with another member's certificate, another authority's, one that has ended, a thousand times a second. Robots move
on, the schedule in force stays, orders are carried out, and everything is counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rfm_serving import msg, srv

from ros2_rfm_serving.ros import predecessor
from ros2_rfm_serving.ros.fleet_client import FleetClient
from ros2_rfm_serving.ros.node.doorkeeper import sign_answer
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.robot.vouched import UNVOUCHED
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.security.signing import Prover
from ros2_rfm_serving.types import ServerState
from test.enclaves import Enclaves
from test.unit.fakes import schedule

from .flood import flood
from .herald import Herald, speaker
from .test_predecessor import following as a_schedule
from .test_scheduler_node import Rig, rig
from .test_sealed_replies import SUCCESS, Hall, hall

__all__ = ["hall", "rig"]

COUNTED = ("unproven", "untimely_schedule", "stale_schedule", "stale_status")
SOME = ("status, another member", "schedule, gone", "schedule, ended")
OURS, NEXT, GHOST = 5, 7, 66
"""The last is a scheduler that has gone, of which somebody has recordings."""
FIGURES = {
    "server_1: server": [f"refused {kind}" for kind in COUNTED],
    "scheduler: servers": ["statuses unproven", "statuses of servers that do not hear this scheduler"],
    "scheduler: schedule": ["schedules unproven"],
}
SCHEDULE, STATUS = "/rfm/schedule", "/rfm/servers/{}/status"


def drains(server: str, **fields: Any) -> Any:
    made = msg.ServerStatus(state=msg.ServerStatus.DRAINING, detail="forged", challenge=b"x" * 16, **fields)
    made.header.frame_id = server
    return made


@contextmanager
def ended_of(enclaves: Enclaves, name: str) -> Iterator[None]:
    """Its enclave has a certificate that has ended."""
    own = enclaves.root / name
    before = {file: file.read_bytes() for file in (own / "cert.pem", own / "key.pem")}
    enclaves.make(name, begun_days=9, days=3)
    yield
    for file, text in before.items():
        file.write_bytes(text)


def forgeries(enclaves: Enclaves, server: str) -> dict[str, bytes]:
    """Statuses of nobody, of other members and authorities, and of a process of that server that has gone."""
    own = enclaves.root / server
    gone = speaker(own).numbered(drains(server, scheduler=GHOST, hears=[GHOST]))
    with ended_of(enclaves, server):
        ended = speaker(own).numbered(drains(server))
    return {
        "nobody": bytes(serialize_message(drains(server))),
        "another member": speaker(enclaves.root / "arm_1").numbered(drains(server)),
        "another authority": speaker(Enclaves(enclaves.root / "else").make(server)).numbered(drains(server)),
        "ended": ended,
        "gone": gone,
    }


def plans(enclaves: Enclaves, node: Any, plan: Any) -> dict[str, list[bytes]]:
    """The same of schedules. `gone` has many words, as whoever recorded it."""
    own = enclaves.root / "scheduler"
    ghost = Herald(own, node, plan)
    with ended_of(enclaves, "scheduler"):
        herald = Herald(own, node, plan)
        ended = [herald.word() for _ in range(100)]
    return {
        "nobody": [bytes(serialize_message(plan))],
        "another member": [Herald(enclaves.root / "arm_1", node, plan).word()],
        "another authority": [Herald(Enclaves(enclaves.root / "else").make("scheduler"), node, plan).word()],
        "ended": ended,
        "gone": [ghost.word() for _ in range(3000)],
    }


def counters(status: Any, *kinds: str) -> int:
    return sum(counter.count for counter in status.refused if counter.name in kinds) if status else 0


# --- a robot at work ---


def is_in_force(hall: Hall) -> None:
    """The plan of a scheduler that the server knows to live, and that the robot follows by its word."""
    plan = convert.schedule_to(schedule("arm_1"), "hall")
    plan.scheduler = OURS
    hall.fleet.wait(lambda: hall.fleet.status, what="a status")
    hall.herald.put(plan, [hall.fleet.status.process])
    every(hall.fleet, 1.0, lambda: hall._plans.publish(hall.herald.word()))
    hall.goal()
    hall.fleet.wait(lambda: hall.fleet.status.scheduler == OURS and following(hall) == OURS, what="it is followed")


def following(hall: Hall) -> int:
    return int(hall.node._robots[0].brain.schedule_follower.scheduler)


def says(hall: Hall) -> str:
    """The robot, in `/diagnostics`."""
    return str(hall.node._robots[0].diagnosis().message)


def intrusions(hall: Hall) -> dict[str, tuple[type, str, list[bytes]]]:
    enclaves, fleet = hall.plant.enclaves, hall.fleet
    recorded: list[bytes] = []
    fleet.create_subscription(msg.ServerStatus, STATUS.format("s1"), recorded.append, qos.SERVER_STATUS, raw=True)
    fleet.wait(lambda: len(recorded) > 2, what="statuses")
    nowhere = convert.schedule_to(schedule("arm_1", server="s9"), "forged")
    nowhere.scheduler, nowhere.epoch = GHOST, 9
    ours = hall.herald.word()
    hall._plans.publish(ours)
    return {
        "nothing": (msg.Schedule, "/nowhere", [ours]),
        **{f"status, {what}": (msg.ServerStatus, STATUS.format("s1"), [data]) for what, data in forgeries(enclaves, "s1").items()},
        "status, recorded": (msg.ServerStatus, STATUS.format("s1"), recorded[:2]),
        **{f"schedule, {what}": (msg.Schedule, SCHEDULE, data) for what, data in plans(enclaves, fleet, nowhere).items()},
        "schedule, recorded": (msg.Schedule, SCHEDULE, [ours]),
    }


@pytest.mark.parametrize(("kinds", "seconds"), [(SOME, 1.0), pytest.param((), 5.0, marks=pytest.mark.thorough)])
def test_a_robot_moves_on_whatever_is_said_in_the_name_of_its_server_and_its_scheduler(
    kinds: tuple[str, ...], seconds: float, hall: Hall, tmp_path: Path
) -> None:
    fleet, robot = hall.fleet, hall.robot
    is_in_force(hall)
    all_of_them = intrusions(hall)
    for number, what in enumerate(kinds or all_of_them):
        kind, topic, messages = all_of_them[what]
        refused = counters(robot.status, *COUNTED)
        with flood(tmp_path / f"flood{number}", kind, topic, messages) as told:
            if what != "nothing":
                fleet.wait(lambda: counters(robot.status, *COUNTED) > refused + 5, what=f"{what} is counted")  # noqa: B023
            commands, begin_s, begin_cpu_s = len(robot.commands), time.monotonic(), time.process_time()
            fleet.spin(seconds)
            took_s, cpu_s = time.monotonic() - begin_s, time.process_time() - begin_cpu_s
        rate_hz = (len(robot.commands) - commands) / took_s
        print(f"{what}: {rate_hz:.1f} commands/s, {100 * cpu_s / took_s:.0f} % of a core; {told()}")
        hall.goes_on()
        assert following(hall) == OURS and hall.node._robots[0].brain.system1_server == "s1"
    assert robot.status.state == msg.RobotStatus.STREAMING


def test_words_that_were_held_back_move_nobody_when_they_are_delivered(hall: Hall, tmp_path: Path) -> None:
    """Nobody has heard them, and each is genuine: of the scheduler that is followed, and of the one that was before it."""
    fleet, robot = hall.fleet, hall.robot
    is_in_force(hall)

    def delivered(name: str, words: list[bytes], *kinds: str) -> None:
        """The server and the robot count them, and go on as they are."""
        scheduler, refused = following(hall), counters(robot.status, *kinds)
        refused_there = counters(fleet.status, *kinds)
        with flood(tmp_path / name, msg.Schedule, SCHEDULE, words, 20.0):
            fleet.wait(lambda: counters(robot.status, *kinds) > refused + 5, what=f"{name}: the robot counts them")
            fleet.wait(lambda: counters(fleet.status, *kinds) > refused_there + 5, what=f"{name}: the server counts them")
        hall.goes_on()
        assert following(hall) == scheduler == fleet.status.scheduler

    late = [hall.herald.word() for _ in range(100)]
    hall._plans.publish(hall.herald.word())
    fleet.spin(1.0)
    delivered("of the same scheduler", late, "stale_schedule")

    unheard = [hall.herald.word() for _ in range(100)]
    plan = convert.schedule_to(schedule("arm_1"), "hall")
    plan.scheduler = NEXT
    hall.herald = Herald(hall.plant.enclaves.root / "scheduler", fleet, plan, [fleet.status.process])
    fleet.wait(lambda: fleet.status.scheduler == NEXT and following(hall) == NEXT, what="the next one is followed")
    hall.goes_on()
    delivered("of the one before", unheard, "rival_schedule", "untimely_schedule")
    assert robot.status.state == msg.RobotStatus.STREAMING


class Recording:
    """Of a scheduler that has gone, and of a process of the server that followed it."""

    def __init__(self, hall: Hall) -> None:
        nowhere = convert.schedule_to(schedule("arm_1", server="s9"), "recorded")
        nowhere.scheduler, nowhere.epoch = GHOST, 9
        enclaves, fleet = hall.plant.enclaves.root, hall.fleet
        gone = speaker(enclaves / "s1")
        ready = msg.ServerStatus(state=msg.ServerStatus.READY, challenge=b"x" * 16, scheduler=GHOST, hears=[GHOST])
        ready.header.frame_id = "s1"
        ghost = Herald(enclaves / "scheduler", fleet, nowhere, [gone.process])
        statuses = fleet.create_publisher(msg.ServerStatus, STATUS.format("s1"), qos.SERVER_STATUS)
        self.say_schedule = lambda: hall._plans.publish(ghost.word())
        self.say_status = lambda: statuses.publish(gone.numbered(ready))


def restarts(hall: Hall, before: Recording) -> None:
    """The robot, after the recording's schedule, which is the first that it hears."""
    node = hall.node
    hall.fleet.wait(lambda: node._robots, what="the robot")
    assert node.trigger_deactivate() == SUCCESS and node.trigger_cleanup() == SUCCESS
    before.say_schedule()
    hall.robot.status = None
    assert node.trigger_configure() == SUCCESS and node.trigger_activate() == SUCCESS


def test_a_newcomer_is_held_up_by_no_recording_while_its_server_says_who_lives(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks, and believes nobody meanwhile. The recording is there first, and all the time, statuses and all."""
    monkeypatch.setattr("ros2_rfm_serving.ros.robot.vouched.HOLD_S", 60.0)
    monkeypatch.setattr("ros2_rfm_serving.ros.robot.vouched.PATIENCE_S", 600.0)
    is_in_force(hall)
    recording = Recording(hall)
    every(hall.fleet, 0.3, recording.say_schedule)
    every(hall.fleet, 0.2, recording.say_status)
    restarts(hall, recording)
    began_s, followed = time.monotonic(), set[int]()
    hall.fleet.wait(lambda: followed.add(following(hall)) or OURS in followed, what="its own is followed")
    print(f"followed after {time.monotonic() - began_s:.1f} s")
    assert followed <= {0, OURS}, "it has followed a recording"
    hall.fleet.wait(lambda: counters(hall.robot.status, "untimely_schedule") > 3, what="counted")
    hall.goal()
    assert following(hall) == OURS
    asserted, body = list[str](), hall.node._robots[0]
    monkeypatch.setattr(body.brain, "on_server_alive", lambda server, now_s: asserted.append(server))
    servers = hall.node._servers
    servers._users["s9"] = [body]
    for _ in range(3):
        servers._on_liveliness("s9", SimpleNamespace(alive_count=1, alive_count_change=1))
    assert asserted == ["s9"], "liveliness has no signature: over and over it keeps nobody waiting"


def test_a_newcomer_whose_servers_say_nothing_yet_believes_what_it_hears_and_not_for_long(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server follows anybody when it starts. From when one does its word counts, whatever was believed before."""
    monkeypatch.setattr("ros2_rfm_serving.ros.robot.vouched.HOLD_S", 1.0)
    monkeypatch.setattr("ros2_rfm_serving.ros.robot.vouched.PATIENCE_S", 600.0)
    recording = Recording(hall)
    every(hall.fleet, 0.5, recording.say_schedule)
    restarts(hall, recording)
    hall.fleet.wait(lambda: following(hall) == GHOST, what="the recording is believed")
    assert says(hall).endswith(UNVOUCHED), "and it says what it cannot know"
    is_in_force(hall)
    assert UNVOUCHED not in says(hall)
    refused = counters(hall.robot.status, "untimely_schedule")
    hall.fleet.wait(lambda: counters(hall.robot.status, "untimely_schedule") > refused + 3, what="counted")
    assert following(hall) == OURS, "its server vouches for it"


# --- a scheduler and a server ---


@pytest.fixture
def enclaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Enclaves:
    made = Enclaves(tmp_path / "enclaves")
    monkeypatch.setattr(Rig, "enter", lambda name: monkeypatch.setenv(ENCLAVE, str(made.make(name))))
    return made


def follows(rig: Rig) -> bool:
    """By their own word: whoever else listens hears the intruder as well."""
    robots, mine = rig.robot._robots, rig.scheduler._identity
    return rig.server._standing.following.scheduler == mine and bool(robots) and robots[0].brain.schedule_follower.scheduler == mine


@pytest.mark.parametrize("kinds", [SOME, pytest.param((), marks=pytest.mark.thorough)])
def test_the_schedule_in_force_stays_and_orders_are_carried_out(
    kinds: tuple[str, ...], enclaves: Enclaves, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.wait(lambda: follows(rig))
    rig.wait(lambda: rig.server_status.state == ServerState.READY)
    recorded: list[bytes] = []
    rig.peer.create_subscription(msg.Schedule, SCHEDULE, recorded.append, qos.SCHEDULE, raw=True)
    rig.wait(lambda: len(recorded) > 1)
    nowhere = msg.Schedule(scheduler=GHOST, epoch=9, factory="forged")
    ours = msg.Schedule(scheduler=rig.scheduler._identity, epoch=99, factory="forged in its name")
    said = {
        **{f"schedule, {what}": (SCHEDULE, msg.Schedule, data) for what, data in plans(enclaves, rig.peer, nowhere).items()},
        "schedule, in its own name": (SCHEDULE, msg.Schedule, [bytes(serialize_message(ours))]),
        "schedule, recorded": (SCHEDULE, msg.Schedule, recorded[:1]),
        **{
            f"status, {what}": (STATUS.format("server_1"), msg.ServerStatus, [data])
            for what, data in forgeries(enclaves, "server_1").items()
        },
    }

    def counted(name: str) -> int:
        if name == "scheduler: servers":
            return int(rig.scheduler._watching._unproven + rig.scheduler._watching._untimely)
        return sum(rig.server._standing.refused[kind] for kind in COUNTED)

    def is_told(name: str) -> bool:
        """In `/diagnostics`."""
        values = rig.values(name)
        return any(int(values.get(figure, 0)) > 5 for figure in FIGURES[name])

    monkeypatch.setenv(ENCLAVE, str(enclaves.make("operator")))
    client = FleetClient()
    mine = rig.scheduler._identity
    with ThreadPoolExecutor(1) as pool:
        for number, what in enumerate(kinds or said):
            topic, kind, messages = said[what]
            name = "server_1: server" if kind is msg.Schedule else "scheduler: servers"
            before = counted(name)
            with flood(tmp_path / f"flood{number}", kind, topic, messages, 20.0) as told:  # all nodes share one thread
                rig.wait(lambda: counted(name) > before + 5)  # noqa: B023
                begin_s = time.monotonic()
                answers = pool.submit(lambda: (client.admit("guest", "arm"), client.release("guest", given_up=lambda: False)))
                rig.wait(answers.done)
                took_s = time.monotonic() - begin_s
            assert answers.result()[1] > answers.result()[0] and follows(rig), what
            assert "server_1" not in rig.scheduler._watching._lookout.watch.health.lost  # the other one nobody starts here
            print(f"{what}: admitted and released in {1e3 * took_s:.0f} ms; {told()}")
    client.destroy_node()
    assert rig.scheduler._identity == mine and follows(rig)
    for name in FIGURES:
        rig.wait(lambda: is_told(name))  # noqa: B023


def test_a_scheduler_that_is_started_again_takes_up_what_servers_prove_that_they_follow(enclaves: Enclaves, rig: Rig) -> None:
    """And a server that is started again finds itself in the schedule of now."""
    rig.wait(lambda: follows(rig))
    before = rig.scheduler._identity
    assert rig.server_status.hears == [before] or before in rig.server_status.hears
    rig.restart_scheduler()
    assert rig.scheduler._identity != before
    rig.wait(lambda: follows(rig))
    rig.wait(lambda: rig.server_status.process in rig.schedules[-1].hears)


class Teller(Node):
    """Answers `get_schedule` of server_1."""

    def __init__(self, epoch: int, enclave: Path | None, *, recorded: bool = False) -> None:
        """recorded: with a proof that was given to somebody else's question."""
        super().__init__(f"teller_{epoch}")
        self._epoch, self._prover, self._recorded = epoch, Prover(enclave) if enclave else None, recorded
        self.create_publisher(msg.ServerStatus, STATUS.format("server_1"), qos.SERVER_STATUS)
        self.create_service(srv.GetSchedule, "/rfm/servers/server_1/get_schedule", self._on_ask, qos_profile=qos.CONTROL)

    def _on_ask(self, request: Any, response: Any) -> Any:
        response.schedule = a_schedule(self._epoch, hosts=("server_1",))
        if self._recorded:
            request.proof.public_key = bytes(32)
        if self._prover:
            sign_answer(self._prover, request, "scheduler", response)
        return response


def test_a_scheduler_takes_up_no_schedule_that_somebody_else_tells(
    ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`get_schedule` is answered before the server does: without a proof, with another member's, with a recorded one of its own."""
    enclaves = Enclaves(tmp_path)
    server, robot = enclaves.make("server_1"), enclaves.make("arm_1")
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("scheduler")))
    monkeypatch.setattr(predecessor, "ANSWER_S", 1.0)
    rclpy.init()
    intruders = [Teller(7, None), Teller(8, robot), Teller(9, server, recorded=True)]
    try:
        for own in ([], [Teller(4, server)]):
            spinner, over = executor(), threading.Event()
            for node in (*intruders, *own):
                spinner.add_node(node)
            with ThreadPoolExecutor(1) as pool:
                spinning = pool.submit(lambda: [spinner.spin_once(timeout_sec=0.02) for _ in iter(over.is_set, True)])  # noqa: B023
                left = predecessor.found_in_force(qos.Names(""), ["server_1"], 8.0, logging.getLogger())
                over.set()
                spinning.result()
            spinner.shutdown()
            assert (left.schedule and left.schedule.epoch) == (4 if own else None)
    finally:
        for node in (*intruders, *own):
            node.destroy_node()
        rclpy.try_shutdown()
