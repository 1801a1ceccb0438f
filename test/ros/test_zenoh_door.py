"""Robots on Zenoh at a factory on DDS, through a real Zenoh router. The robot is somebody else's code (test/zenoh_robot.py)."""

from __future__ import annotations

import contextlib
import functools
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zenoh
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg, srv
from zenoh import ext

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.graph_names import own_name
from ros2_rfm_serving.ros import zenoh_router_node
from ros2_rfm_serving.ros.node import own_name as own_name_of_node
from ros2_rfm_serving.ros.node.own_name import claim
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.zenoh import passing
from ros2_rfm_serving.ros.zenoh.door import ZenohDoorNode
from ros2_rfm_serving.ros.zenoh.format import Address, Attachment, Kind
from ros2_rfm_serving.ros.zenoh.format import Node as GraphNode
from ros2_rfm_serving.ros.zenoh.inbox import MAX_IN_LANE, MAX_LANES, MAX_WAITING_BYTES, Inbox, Lane
from ros2_rfm_serving.ros.zenoh.session import Session, configuration
from ros2_rfm_serving.ros.zenoh_door_node import SPECS
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.shipped import shipped
from test import ports
from test.ros.robot_rig import FakeServer
from test.ros.zenoh_rig import ADDRESS, Floor, client, floor, router
from test.zenoh_robot import Robot

ARRIVES = zenoh.CongestionControl.BLOCK
"""Behind half a megabyte a busy machine drops what may be dropped."""


@pytest.fixture
def port() -> int:
    return ports.free_port(ADDRESS)


@pytest.fixture
def routing(port: int) -> Iterator[zenoh.Session]:
    session = router(port)
    yield session
    session.close()


@pytest.fixture
def patient_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants a name looks until it hears of who has it."""
    monkeypatch.setattr(own_name_of_node, "CLAIM_S", 90.0)


def beside(here: Floor, work: Callable[[], Any], what: str) -> Any:
    """What blocks, while the factory goes on."""
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(work)
        here.wait(doing.done, what)
        return doing.result()


def test_a_robot_without_ros_is_served_as_any_other(ros_domain: int, port: int, routing: zenoh.Session) -> None:
    """Schedule, server's status, session, observation, chunk, the robot's status: bytes as they came, urgent ones ahead."""
    how: list[zenoh.Sample] = []
    with floor(port) as here:
        here.schedule.publish(msg.Schedule(scheduler=7, epoch=3, factory="hall"))
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        other = client(port)
        other.declare_subscriber(f"{ros_domain}/*/rfm/*/*/*", zenoh.handlers.Callback(how.append, indirect=False))
        robot = beside(here, lambda: Robot(ADDRESS, ros_domain, "arm_1", "s1", port=port), "the robot's start")
        try:
            here.wait(lambda: here.count("robots") == 1, "the robot at the door")
            answer = beside(here, lambda: robot.open(action_names=["x"], state_size=3), "a session")
            assert answer.success and answer.session_epoch == here.server.opened["arm_1"], answer
            chunk = beside(here, lambda: chunk_for(robot), "a chunk")
            assert (chunk.id.robot, chunk.id.sequence) == ("arm_1", robot.sequence) and chunk.chunk_robot.rows > 0
            seen = here.server.observations[-1]
            assert list(seen.state) == [0.5, 1.5, 2.5] and len(seen.images[0].data) == 300_000
            robot.tell()
            here.wait(lambda: here.statuses, "the robot's status on DDS")
            latched = passing.address_of(ros_domain, "/rfm/schedule", msg.Schedule)
            late: list[zenoh.Sample] = []  # as rmw_zenoh subscribes to what is latched
            history = ext.HistoryConfig(detect_late_publishers=True, max_samples=1)
            ears = ext.declare_advanced_subscriber(other, latched.key, late.append, history=history)
            here.wait(lambda: late, "the schedule that was published before")
            assert deserialize_message(late[0].payload.to_bytes(), msg.Schedule).epoch == 3
            here.schedule.publish(msg.Schedule(scheduler=7, epoch=4, factory="hall"))
            here.wait(lambda: {"schedule", "server"} <= {what for what, _ in robot.heard}, "schedule and server's status")
            schedule = next(message for what, message in robot.heard if what == "schedule")
            assert (schedule.scheduler, schedule.epoch, schedule.factory) == (7, 4, "hall")
            ears.undeclare()
            urgent = next(sample for sample in how if "action_chunk" in str(sample.key_expr))
            assert (urgent.priority, urgent.express) == (zenoh.Priority.INTERACTIVE_HIGH, True)
            assert urgent.congestion_control == zenoh.CongestionControl.DROP
            assert Attachment.read(urgent.attachment.to_bytes()).sequence == 1
            told = 1 + len(here.server.observations)
            here.wait(lambda: here.count("calls") == 1 and here.count("from_robots") == told, "the figures")
            assert not [what for what in here.told if what.startswith("refused")], here.told
        finally:
            robot.close()
        here.wait(lambda: here.count("robots") == 0, "the robot's leaving")
        here.wait(lambda: not here.peer.count_subscribers("/arm_1/rfm/action_chunk"), "nobody who takes its chunks")
        other.close()


def chunk_for(robot: Robot) -> Any:
    """A busy machine loses what is best effort: it is asked for again."""
    for _ in range(5):
        robot.observe([0.5, 1.5, 2.5], {"front": bytes(300_000)})
        with contextlib.suppress(queue.Empty):
            return robot.chunks.get(timeout=5)
    raise AssertionError("no chunk")


def test_what_is_none_of_ours_is_refused_and_counted(ros_domain: int, port: int, routing: zenoh.Session) -> None:
    with floor(port, max_observation_mb=0.5, robots=["arm_1"]) as here:
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        here.server._on_open(msg.RequestId(robot="arm_1"), srv.OpenSession.Response())  # a session
        robot = client(port)
        topic = passing.address_of(ros_domain, "/rfm/servers/s1/observation", msg.Observation)
        stale = topic._replace(interface=topic.interface._replace(hash="RIHS01_" + "0" * 64))
        foreign = topic._replace(interface=passing.interface(msg.Plan))
        nobody = topic._replace(name="/rfm/servers/s9/observation")
        good = serialized(msg.Observation(id=msg.RequestId(robot="arm_1", component="system1")))
        stranger = serialized(msg.Observation(id=msg.RequestId(robot="arm_2", component="system1")))
        gid = bytes(16)
        there = robot.liveliness().declare_token(token(robot, ros_domain, "/arm_1/rfm/action_chunk"))
        here.wait(lambda: here.count("robots") == 1, "the robot")
        put(robot, topic, good, Attachment(5, 0, gid))
        for refused in (
            lambda: put(robot, topic, good, None),
            lambda: robot.put(topic.key, good, attachment=b"short", congestion_control=ARRIVES),
            lambda: put(robot, stale, good, Attachment(6, 0, gid)),
            lambda: put(robot, foreign, good, Attachment(6, 0, gid)),
            lambda: put(robot, nobody, good, Attachment(6, 0, gid)),
            lambda: put(robot, topic, stranger, Attachment(6, 0, gid)),
            lambda: put(robot, topic, good[:-3], Attachment(6, 0, gid)),
            lambda: put(robot, topic, b"", Attachment(6, 0, gid)),
            lambda: put(robot, topic, good + bytes(600_000), Attachment(6, 0, gid)),
            lambda: robot.delete(topic.key, congestion_control=ARRIVES),
        ):
            refused()
        put(robot, topic, good, Attachment(9, 0, gid))  # 6 to 8 were lost on the way: what was refused has not come
        tokens = [
            robot.liveliness().declare_token(token(robot, ros_domain, "/arm_2/rfm/action_chunk")),  # who may not come in
            robot.liveliness().declare_token(token(robot, ros_domain, "/arm_1/rfm/plan", msg.ActionChunk)),
            robot.liveliness().declare_token(f"@ros2_lv/{ros_domain}/nonsense"),
        ]
        here.wait(lambda: here.count("from_robots") == 2 and len(here.server.observations) == 2, "the good ones")
        expected = {
            "refused_bad_attachment": 3,
            "refused_stale_hash": 1,
            "refused_foreign_type": 2,
            "refused_not_there": 1,
            "refused_unknown_robot": 1,
            "refused_bad_message": 2,
            "refused_too_large": 1,
            "refused_bad_token": 1,
            "lost_before_the_door": 3,
        }
        here.wait(lambda: all(here.count(what) == times for what, times in expected.items()), f"{expected}")
        assert here.count("robots") == 1 and len(tokens) == 3
        there.undeclare()
        robot.close()


def test_nobodys_numbers_are_in_the_way_of_another_robot(ros_domain: int, port: int, routing: zenoh.Session) -> None:
    """An identity is in the graph for all to see: who writes it, with a number far ahead, in whosever name, holds up nobody."""
    with floor(port) as here:
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        for robot in ("arm_1", "arm_2"):
            here.server._on_open(msg.RequestId(robot=robot), srv.OpenSession.Response())
        victim, intruder = client(port), client(port)
        topic = passing.address_of(ros_domain, "/rfm/servers/s1/observation", msg.Observation)
        own = passing.address_of(ros_domain, "/arm_1/rfm/status", msg.RobotStatus)
        gid, far = bytes(range(16)), 1 << 60
        of = {name: serialized(msg.Observation(id=msg.RequestId(robot=name, component="system1"))) for name in ("arm_1", "arm_2")}
        tokens = [
            who.liveliness().declare_token(token(who, ros_domain, f"/{name}/rfm/action_chunk"))
            for who, name in ((victim, "arm_1"), (intruder, "arm_2"))
        ]
        here.wait(lambda: here.count("robots") == 2, "the robots")

        def carried(number: int) -> bool:
            put(victim, topic, of["arm_1"], Attachment(number, 0, gid))
            return bool(here.wait(lambda: here.count("from_robots") >= number, f"{number} of them"))

        assert carried(1)
        put(intruder, topic, of["arm_2"], Attachment(far, 0, gid))
        here.wait(lambda: here.count("from_robots") == 2, "the intruder's")
        put(victim, topic, of["arm_1"], Attachment(2, 0, gid))
        here.wait(lambda: here.count("from_robots") == 3, "arm_1's next")
        assert here.count("out_of_turn") == 0
        put(intruder, topic, of["arm_1"], Attachment(far, 0, gid))  # the server knows that it is none of arm_1's session
        here.wait(lambda: here.count("from_robots") == 4, "the intruder's, before arm_1's: each has a connection of its own")
        for number in range(3, 13):
            put(victim, topic, of["arm_1"], Attachment(number, 0, gid))
        here.wait(lambda: len(here.server.observations) == 14, "all of arm_1's")
        here.wait(lambda: here.count("out_of_turn") == 1 and here.count("from_robots") == 14, "figures")
        assert here.count("lost_before_the_door") == 0 and here.level == DiagnosticStatus.OK

        status = serialized(msg.RobotStatus())
        put(victim, own, status, Attachment(1, 0, gid))
        here.wait(lambda: here.count("from_robots") == 15, "its status")
        put(intruder, own, status, Attachment(far, 0, gid))  # as it may where a router has no rules
        here.wait(lambda: here.count("from_robots") == 16, "the intruder's")
        for number in (2, 3, 3):
            put(victim, own, status, Attachment(number, 0, gid))
        here.wait(lambda: here.count("from_robots") == 19 and here.count("out_of_turn") == 3, "all of its statuses")
        assert not [what for what in here.told if what.startswith("refused")], here.told
        for one in tokens:
            one.undeclare()
        victim.close(), intruder.close()


def test_under_its_own_name_a_robot_speaks_for_itself_alone(ros_domain: int, port: int, routing: zenoh.Session) -> None:
    """Observations and requests; where the router has rules, nobody else writes there."""
    with floor(port) as here:
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        here.server._on_open(msg.RequestId(robot="arm_1"), srv.OpenSession.Response())
        robot = client(port)
        there = robot.liveliness().declare_token(token(robot, ros_domain, "/arm_1/rfm/action_chunk"))
        here.wait(lambda: here.count("robots") == 1, "the robot")
        topic = passing.address_of(ros_domain, "/rfm/servers/s1/observation", msg.Observation)
        own = topic._replace(name=own_name(topic.name, "arm_1"))
        others = topic._replace(name=own_name(topic.name, "arm_2"))
        good = serialized(msg.Observation(id=msg.RequestId(robot="arm_1", component="system1")))
        put(robot, own, good, Attachment(1, 0, bytes(16)))
        here.wait(lambda: len(here.server.observations) == 1, "its observation")
        put(robot, others, good, Attachment(2, 0, bytes(16)))
        here.wait(lambda: here.count("refused_foreign_name") == 1, "the refusal")
        service = passing.address_of(ros_domain, "/rfm/servers/s1/open_session", srv.OpenSession)
        request = serialized(srv.OpenSession.Request(robot="arm_1", component="system1"))

        def ask(name: str) -> str:
            address = service._replace(name=own_name(service.name, name))
            how: Any = {"attachment": Attachment(1, 0, bytes(16)).written(), "target": zenoh.QueryTarget.ALL_COMPLETE}
            (reply,) = beside(here, lambda: list(robot.get(address.key, payload=request, timeout=20, **how)), "a word")
            return reply.err.payload.to_string() if reply.ok is None else str(reply.ok.key_expr)

        assert ask("arm_1") == service._replace(name=own_name(service.name, "arm_1")).key
        assert "arm_2 speaks for 'arm_1'" in ask("arm_2")
        assert len(here.server.observations) == 1
        there.undeclare()
        robot.close()


def test_requests_that_nobody_can_answer_are_answered(ros_domain: int, port: int, routing: zenoh.Session) -> None:
    with floor(port, call_timeout_s=0.5) as here:
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        robot = client(port)
        service = passing.address_of(ros_domain, "/rfm/servers/s1/open_session", srv.OpenSession)
        request = serialized(srv.OpenSession.Request(robot="arm_1", component="system1"))

        def ask(address: Address, data: bytes, attachment: bytes = Attachment(1, 0, bytes(16)).written()) -> str:
            asking = robot.get(address.key, payload=data, attachment=attachment, timeout=20, target=zenoh.QueryTarget.ALL_COMPLETE)
            (reply,) = beside(here, lambda: list(asking), "a word")
            return reply.err.payload.to_string() if reply.ok is None else "ok"

        assert "no token says" in ask(service, request)
        there = robot.liveliness().declare_token(token(robot, ros_domain, "/arm_1/rfm/action_chunk"))
        here.wait(lambda: here.count("robots") == 1, "the robot")
        here.wait(lambda: ask(service, request) == "ok", "an answer in time")
        assert "same version" in ask(service._replace(interface=service.interface._replace(hash="RIHS01_1")), request)
        assert "ends after" in ask(service, request[:-1])
        assert "attachment" in ask(service, request, b"")
        assert "at most" in ask(service, request + bytes(100_000))
        describe = passing.address_of(ros_domain, "/rfm/servers/s1/describe", srv.DescribeServer)
        assert "is not there" in ask(describe, serialized(srv.DescribeServer.Request()))
        silent = Node("silent")  # nobody spins it: it is there, and never answers
        silent.create_service(srv.DescribeServer, describe.name, lambda request, response: response, qos_profile=qos.CONTROL)
        told = functools.partial(ask, describe, serialized(srv.DescribeServer.Request()))
        here.wait(lambda: "no answer within 0.5 s" in told(), "the end of its patience")
        here.wait(lambda: here.count("unanswered_calls"), "its count")
        silent.destroy_node()
        there.undeclare()
        here.wait(lambda: here.count("robots") == 0, "its leaving")
        robot.close()


def test_a_server_that_is_lost_on_dds_is_lost_on_zenoh_and_a_name_is_borne_once(
    ros_domain: int, port: int, routing: zenoh.Session, patient_claims: None
) -> None:
    with floor(port) as here:
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        robot = client(port)
        of_server = f"@ros2_lv/{ros_domain}/*/*/*/SS/*/*/*/%rfm%servers%s1%open_session/*/*/*"

        def shown() -> int:
            return len(list(robot.liveliness().get(of_server, timeout=5)))

        assert shown() == 1
        here.lose(here.server)
        here.wait(lambda: here.count("servers") == 0, "its withdrawal")
        assert shown() == 0
        again = FakeServer()
        here.executor.add_node(again)
        here.wait(lambda: here.count("servers") == 1 and shown() == 1, "its coming back")
        taken = here.peer.create_publisher(msg.RobotStatus, "/arm_1/rfm/status", qos.ROBOT_STATUS)
        here.wait(lambda: here.door.count_publishers("/arm_1/rfm/status"), "the robot on DDS")
        there = robot.liveliness().declare_token(token(robot, ros_domain, "/arm_1/rfm/action_chunk"))
        here.wait(lambda: here.count("refused_name_taken"), "a word on the name")
        assert here.count("robots") == 0
        here.peer.destroy_publisher(taken)
        here.wait(lambda: here.count("robots") == 1, "the name's being free")
        with pytest.raises(ConfigurationError, match="another process is robot 'arm_1' already"):
            claim(here.peer, "robot", [("arm_1", "/arm_1/rfm/name")])
        before = here.count(
            "refused_name_taken"
        )  # a robot that the door could not see: it has begun anew itself, or there was a cut
        hidden = here.peer.create_publisher(msg.NameClaim, "/arm_1/rfm/name", qos.NAME_CLAIM)
        hidden.publish(msg.NameClaim(stage=msg.NameClaim.SETTLED, process=5))
        here.wait(lambda: here.count("robots") == 0 and here.count("refused_name_taken") > before, "its giving way")
        here.peer.destroy_publisher(hidden)
        here.wait(lambda: here.count("robots") == 1, "the name's being free again")
        there.undeclare()
        robot.close()
        here.lose(again)


def test_a_door_before_its_router_waits_and_one_whose_router_goes_carries_on(ros_domain: int, port: int) -> None:
    """Nothing that was not carried is lost silently."""
    with floor(port) as here:
        here.wait(lambda: here.level == b"\2" and "no Zenoh router" in here.message, "a word on the router")
        first = router(port)
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        robot = client(port)
        there = robot.liveliness().declare_token(token(robot, ros_domain, "/arm_1/rfm/action_chunk"))
        here.wait(lambda: here.count("robots") == 1, "the robot")
        first.close()
        here.wait(lambda: here.level == b"\2" and here.count("robots") == 0, "a word on the loss")
        here.wait(lambda: here.count("to_robots_unconnected"), "the count of what was not carried")
        second = router(port)
        here.wait(lambda: here.count("robots") == 1, "the robot again")
        here.wait(lambda: "no Zenoh router" not in here.message, "the router again")
        there.undeclare()
        robot.close()
        second.close()


def test_no_flood_hides_who_comes_and_who_goes(port: int, routing: zenoh.Session) -> None:
    """Somebody whose leaving is missed would be carried for ever."""
    inbox, seen = Inbox(), list[tuple[str, bool]]()
    session = Session(configuration("", f"tcp/{ADDRESS}:{port}"), GraphNode(7, "", 0, "/", "door"), inbox)
    session.hear("7/**", lambda sample: None)
    session.watch(lambda token, gone: seen.append((token, gone)))
    robot = client(port)
    wait_for(lambda: len(inbox) == 1, "the door's own token")
    for _ in range(MAX_IN_LANE + 1):
        robot.put("7/flood", b"", congestion_control=ARRIVES)
    wait_for(lambda: len(inbox) == MAX_IN_LANE + 1 and inbox.overrun == {"overrun": 0, "overrun_shared": 1}, "a full lane")
    mine = token(robot, 7, "/arm_1/rfm/action_chunk")
    robot.liveliness().declare_token(mine).undeclare()
    wait_for(lambda: len(inbox) == MAX_IN_LANE + 3, "its coming and going")
    inbox.end()
    inbox.serve(lambda: None)
    assert seen[-2:] == [(mine, False), (mine, True)]
    robot.close(), session.close()


def test_a_robots_flood_displaces_nothing_but_its_own(port: int, routing: zenoh.Session) -> None:
    inbox, taken = Inbox(), list[bytes]()
    session = Session(configuration("", f"tcp/{ADDRESS}:{port}"), GraphNode(7, "", 0, "/", "door"), inbox)
    session.hear("7/**", lambda sample: taken.append(sample.payload.to_bytes()))
    flooding, other = client(port), client(port)
    for number in range(10 * MAX_IN_LANE):
        said = Attachment(number, 0, b"flooding".ljust(16)).written()
        flooding.put("7/observation", b"%d" % number, attachment=said, congestion_control=ARRIVES)
    wait_for(lambda: inbox.overrun["overrun_shared"] == 9 * MAX_IN_LANE, "the flood")
    other.put("7/observation", b"mine", attachment=Attachment(1, 0, b"other".ljust(16)).written(), congestion_control=ARRIVES)
    wait_for(lambda: len(inbox) == MAX_IN_LANE + 1, "the other's")
    inbox.end()
    inbox.serve(lambda: None)
    assert taken[1] == b"mine", "each in turn"
    assert [taken[0], *taken[2:]] == [b"%d" % number for number in range(9 * MAX_IN_LANE, 10 * MAX_IN_LANE)], "the newest, in order"
    flooding.close(), other.close(), session.close()


def test_where_all_lanes_hold_too_much_the_fullest_gives_way() -> None:
    inbox, taken = Inbox(), list[str]()
    for what in ("a1", "a2", "b1"):
        inbox.put(taken.append, what, MAX_WAITING_BYTES // 4, Lane(what[0]))
    inbox.put(taken.append, "b2", MAX_WAITING_BYTES // 2, Lane("b"))  # b has more than a: its own oldest goes
    inbox.put(taken.append, "c1", MAX_WAITING_BYTES // 8, Lane("c"))  # as full as b is a, which came first
    inbox.put(taken.append, "d1", MAX_WAITING_BYTES + 1, Lane("d"))  # for which nothing has to go
    inbox.drain(lambda: None)
    assert sorted(taken) == ["a2", "b2", "c1"] and inbox.overrun["overrun_shared"] == 3
    for i in range(MAX_LANES + 1):
        inbox.put(taken.append, "", 0, Lane(i))
    assert inbox.overrun["overrun_shared"] == 4 and len(inbox) == MAX_LANES


def test_who_calls_itself_by_thousands_of_names_takes_nothing_from_who_has_its_own() -> None:
    """A sender's identity is what it says: lanes of these have half of the room, and every other turn."""
    inbox, taken = Inbox(), list[str]()
    for i in range(2 * MAX_LANES):
        inbox.put(taken.append, "flood", MAX_WAITING_BYTES // MAX_LANES, Lane(b"%d" % i))
    for name in ("arm_1", "arm_2"):
        for number in range(3):
            inbox.put(taken.append, f"{name} {number}", MAX_WAITING_BYTES // 8, Lane(name, is_own=True))
    assert inbox.overrun == {"overrun": 0, "overrun_shared": MAX_LANES}
    inbox.drain(lambda: None)
    mine = [at for at, what in enumerate(taken) if what != "flood"]
    assert [taken[at] for at in mine] == [f"{name} {number}" for number in range(3) for name in ("arm_1", "arm_2")]
    assert mine[-1] <= 2 * len(mine) and len(taken) == MAX_LANES + len(mine)


def wait_for(until: Callable[[], Any], what: str) -> None:
    end_s = time.monotonic() + 90.0
    while not until():
        assert time.monotonic() < end_s, f"waited in vain for {what}"
        time.sleep(0.01)


def test_a_factory_has_one_door(ros_domain: int, port: int, routing: zenoh.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    with floor(port) as here:
        here.door.claim()
        monkeypatch.setattr(own_name_of_node, "CLAIM_S", 90.0)
        second = ZenohDoorNode(SPECS)
        with pytest.raises(ConfigurationError, match="another process is door 'zenoh_door' already"):
            second.claim()
        second.destroy_node()


@pytest.mark.parametrize(
    ("file", "router", "words"),
    [
        ("", "nonsense", "router: Zenoh cannot use it: .*write tcp/<host>:7447"),
        ("/no/such.json5", "", "/no/such.json5: Zenoh cannot use it: No such file"),
        ("broken.json5", "", "broken.json5: Zenoh cannot use it"),
    ],
)
def test_what_zenoh_cannot_use_is_named(tmp_path: Path, file: str, router: str, words: str) -> None:
    (tmp_path / "broken.json5").write_text('{mode: "clien')
    with pytest.raises(ConfigurationError, match=words) as refused:
        configuration(str(tmp_path / file) if file else "", router)
    assert ".cargo" not in str(refused.value)


def test_our_router_is_configured_as_rmw_zenohs_and_says_what_it_cannot_use(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shipped("config", "zenoh", "router.json5").read_text().replace("tcp/[::]:7447", f"tcp/{ADDRESS}:{port}")
    (tmp_path / "router.json5").write_text(text)
    monkeypatch.delenv(ENCLAVE, raising=False)
    assert zenoh_router_node.configuration_file() == shipped("config", "zenoh", "router.json5")
    monkeypatch.setenv(zenoh_router_node.CONFIG, str(tmp_path / "router.json5"))
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.executables", "zenoh_router_node"]
    running = subprocess.Popen([*command, "--ros-args", "-r", "__ns:=/rfm"], stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: not _refuses(port), "the router")
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == EXIT_CONFIGURATION and "no Zenoh router: " in second.stderr, second
    finally:
        running.terminate()
        assert running.wait(30) == 0, running.communicate()
    monkeypatch.setenv(ENCLAVE, str(tmp_path / "security" / "enclaves" / "router"))
    assert zenoh_router_node.configuration_file() == tmp_path / "security" / "zenoh" / "router.json5"
    own = tmp_path / "security" / "enclaves" / "router" / "router.json5"
    own.parent.mkdir(parents=True)
    own.touch()
    assert zenoh_router_node.configuration_file() == own, "where its enclave alone was taken to"


def _refuses(port: int) -> bool:
    with socket.socket() as knock:
        return bool(knock.connect_ex((ADDRESS, port)))


WITHOUT_ZENOH = """
import sys
from importlib.abc import MetaPathFinder
class Hidden(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "zenoh":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from ros2_rfm_serving.ros.zenoh_door_node import _make
_make()
"""


def test_a_door_without_its_extra_says_how_to_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_ZENOH], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode and "zenoh is missing; pip install 'ros2-rfm-serving[zenoh]'" in done.stderr, done


def serialized(message: Any) -> bytes:
    return bytes(serialize_message(message))


def put(session: zenoh.Session, address: Address, data: bytes, attachment: Attachment | None) -> None:
    session.put(address.key, data, attachment=attachment and attachment.written(), congestion_control=ARRIVES)


def token(session: zenoh.Session, domain: int, topic: str, kind: type = msg.ActionChunk) -> str:
    node = GraphNode(domain, str(session.info.zid()), 0, "/", "robot")
    return node.endpoint_token(1, Kind.SUBSCRIPTION, topic, passing.interface(kind), "::,2:,:,:,,")
