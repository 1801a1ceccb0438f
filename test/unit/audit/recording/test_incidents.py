"""What is an incident, and what a flight recorder writes of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ros2_rfm_serving.audit import chain
from ros2_rfm_serving.audit.bag import PAGE, Bag
from ros2_rfm_serving.audit.folder_lock import FolderLock
from ros2_rfm_serving.audit.recording.flight import Flight, FlightLimits, Memory
from ros2_rfm_serving.audit.recording.incident_folders import prune
from ros2_rfm_serving.audit.recording.incidents import Cause, Incidents, Watch
from ros2_rfm_serving.audit.recording.intake import Sample, Topic
from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.audit.recording.recorder import Limits, Recorder
from ros2_rfm_serving.audit.recording.topics import Selection
from ros2_rfm_serving.types.states import RobotState, ServerState, TaskPhase
from test.unit.audit import recorded
from test.unit.audit.recording.test_recorder import validate

T = 1_790_000_000_000_000_000
TEXT = "std_msgs/msg/String"


def robot(name: str = "r", **fields: Any) -> Any:
    empty = {
        "phase": int(TaskPhase.EXECUTING),
        "state": int(RobotState.STREAMING),
        "stop_reason": "",
        "reason": "",
        "paused": False,
    }
    return SimpleNamespace(header=SimpleNamespace(frame_id=name), **{**empty, "held_ticks": 0, "refused": [], **fields})


def server(state: ServerState, name: str = "s") -> Any:
    return SimpleNamespace(header=SimpleNamespace(frame_id=name), state=int(state), detail="it failed")


def goals(*statuses: int) -> Any:
    found = [
        SimpleNamespace(status=status, goal_info=SimpleNamespace(goal_id=SimpleNamespace(uuid=bytes([number] * 16))))
        for number, status in enumerate(statuses)
    ]
    return SimpleNamespace(status_list=found)


@pytest.mark.parametrize(
    ("then", "kind"),
    [
        (robot(phase=int(TaskPhase.STOPPED), stop_reason="system1 is late"), "hold"),
        (robot(phase=int(TaskPhase.WAITING), stop_reason="safety objects: a hand"), "safety_stop"),
        (robot(state=int(RobotState.STALLED), reason="no chunk for 2 s"), "hold"),
        (robot(state=int(RobotState.DEAD), reason="another model"), "hold"),
        (robot(paused=True), "person"),
        (robot(held_ticks=30), "slo_burst"),
        (robot(refused=[SimpleNamespace(count=25)]), "slo_burst"),
        (robot(phase=int(TaskPhase.STOPPING)), ""),
        (robot(state=int(RobotState.DEGRADED), held_ticks=3), ""),
    ],
)
def test_a_robot_tells_what_happened(then: Any, kind: str) -> None:
    watch = Watch()
    assert list(watch.robot(robot(), 0.0)) == []
    assert [cause.kind for cause in watch.robot(then, 0.5)] == ([kind] if kind else [])
    assert list(watch.robot(then, 1.0)) == []  # as before: it is told once


def test_how_somebody_is_when_it_is_heard_first_is_no_incident() -> None:
    watch = Watch()
    assert list(watch.robot(robot(phase=int(TaskPhase.WAITING), paused=True, held_ticks=900), 0.0)) == []


def test_a_server_is_lost_when_it_says_so_or_nothing() -> None:
    watch = Watch()
    assert list(watch.server(server(ServerState.READY), 0.0)) == [] and list(watch.quiet(1.9)) == []
    assert list(watch.quiet(2.1)) == [Cause("server_lost", "s", "silent for 2 s")] and list(watch.quiet(9.0)) == []
    assert list(watch.server(server(ServerState.READY), 10.0)) == []
    assert [cause.kind for cause in watch.server(server(ServerState.HUNG), 10.5)] == ["server_lost"]


def test_while_the_recorder_was_stopped_nobody_was_silent() -> None:
    watch = Watch()
    assert list(watch.server(server(ServerState.READY), 0.0)) == [] and list(watch.quiet(0.5)) == []
    assert list(watch.quiet(40.0)) == [] and list(watch.quiet(41.0)) == [], "it has not read yet what was said meanwhile"
    assert [cause.who for cause in watch.quiet(41.7)] == ["s"]


def test_an_aborted_goal_and_a_persons_word_count() -> None:
    watch = Watch()
    topic = "/push_1/execute_task/_action/status"
    assert list(watch.goals(topic, goals(2))) == []
    assert [(cause.kind, cause.who) for cause in watch.goals(topic, goals(6))] == [("abort", "push_1")]
    assert list(watch.goals(topic, goals(6, 2))) == []
    said = list(watch.records("robot/push_1", [{"kind": "tick"}, {"kind": "operator_command", "command": "abort"}]))
    assert said == [Cause("person", "push_1", "abort")]


def test_slow_loss_is_no_burst() -> None:
    watch = Watch()
    assert all(not list(watch.robot(robot(held_ticks=number), float(number))) for number in range(100))


def test_causes_close_together_are_one_incident_and_so_many_an_hour() -> None:
    incidents = Incidents(after_s=10.0, per_hour=2)
    hold = Cause("hold", "r", "")
    assert incidents.add(hold, 0.0) and incidents.add(hold, 5.0) is None
    assert incidents.over(14.9) is None and incidents.over(15.0) is not None and incidents.over(15.0) is None
    assert incidents.add(hold, 100.0) and incidents.over(110.0)
    assert incidents.add(hold, 200.0) is None and incidents.suppressed == 1
    assert incidents.add(hold, 3600.0) is not None


def test_one_in_which_ever_more_happens_ends_too() -> None:
    incidents = Incidents(after_s=10.0, per_hour=9)
    ended = None
    for second in range(200):
        incidents.add(Cause("hold", "r", ""), float(second))
        ended = ended or incidents.over(float(second))
    assert ended is not None and ended.ends_s == 120.0


def test_the_memory_is_bounded_in_time_and_bytes_and_keeps_what_was_said_once() -> None:
    once = Topic("/once", TEXT, "", "durability: transient_local")
    often = Topic("/often", TEXT, "")
    memory = Memory(2.0, 10_000)
    memory.keep([Sample(once, T, b"schedule")], 0.0)
    for number in range(100):
        memory.keep([Sample(often, T + number * 100_000_000, b"x")], number * 0.1)
    assert 1.9 <= memory.span_s(9.9) <= 2.1
    memory.keep([Sample(often, T + 9_900_000_000, bytes(6000)), Sample(often, T + 9_900_000_000, bytes(6000))], 9.9)
    assert memory.size <= 10_000
    assert memory.take()[0].data == b"schedule" and memory.size == 0


STATUS = Topic("/r/rfm/status", "rfm_serving/msg/RobotStatus", recorded.definition("rfm_serving/msg/RobotStatus"))
WORD = Topic("/word", TEXT, recorded.definition(TEXT))


def flight(folder: Path, per_hour: int = 5) -> Flight:
    def begin(where: Path, limits: Limits, about: dict[str, Any]) -> Recorder:
        return Recorder(
            where,
            limits,
            Ledger("test", 5, 0.0, {"stamp": 0.0, **about}),
            Topic("/rfm/recorder/audit", PAGE, recorded.definition(PAGE)),
        )

    return Flight(folder, FlightLimits(before_s=3.0, after_s=2.0, memory_bytes=1 << 20, per_hour=per_hour), Limits(), begin)


def fly(one: Flight, seconds: float, stops_at_s: float, begins_s: float = 0.0) -> None:
    for turn in range(int(seconds * 5)):
        at_s = begins_s + turn * 0.2
        time_ns = T + int(at_s * 1e9)
        phase = int(TaskPhase.STOPPED if stops_at_s <= at_s < stops_at_s + 1.0 else TaskPhase.EXECUTING)
        head = recorded.made("std_msgs/msg/Header", frame_id="r")
        status = recorded.cdr(STATUS.type, header=head, phase=phase, stop_reason="system1 is late")
        one.work(
            [Sample(WORD, time_ns, recorded.cdr(TEXT, data=f"{at_s:.1f}")), Sample(STATUS, time_ns, status)], {}, at_s, time_ns
        )


def test_what_led_to_an_incident_is_written_with_what_followed(tmp_path: Path) -> None:
    one = flight(tmp_path)
    fly(one, 10.0, stops_at_s=1e9)
    assert list(tmp_path.iterdir()) == [] and 2.5 < one.told.held_s < 3.1
    fly(one, 20.0, stops_at_s=14.0, begins_s=10.0)
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("_hold_r")
    bag = Bag(folder)
    words = [float(bag.read(message).data) for message in bag.messages(TEXT)]
    assert 10.9 <= words[0] <= 11.2 and 15.8 <= words[-1] <= 16.2 and not bag.damages
    first = next(record for page in bag.pages() for record in chain.records(page))
    assert first["kind"] == "began" and first["cause"] == {"kind": "hold", "who": "r", "why": "system1 is late"}
    assert one.told.incidents == 1
    for page in bag.pages():
        for record in chain.records(page):
            validate(record)


def test_what_happens_meanwhile_is_noted_in_the_incident(tmp_path: Path) -> None:
    one = flight(tmp_path)
    fly(one, 4.0, stops_at_s=3.0)
    one.ask()
    fly(one, 4.0, stops_at_s=1e9, begins_s=4.0)
    (folder,) = tmp_path.iterdir()
    noted = [record for page in Bag(folder).pages() for record in chain.records(page)]
    assert [record["cause"]["kind"] for record in noted if record["kind"] == "cause"] == ["person"]


def test_a_person_may_ask_for_it(tmp_path: Path) -> None:
    one = flight(tmp_path)
    fly(one, 5.0, stops_at_s=1e9)
    one.ask()
    fly(one, 1.0, stops_at_s=1e9, begins_s=5.0)
    one.close(6.0, T + 6_000_000_000)
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("_person") and 3.5 < (Bag(folder).ends_ns - Bag(folder).begins_ns) / 1e9 < 5.0


def test_the_oldest_incidents_go(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"20260101-00000{number}_hold_r").mkdir()
        (tmp_path / f"20260101-00000{number}_hold_r" / "a.mcap").write_bytes(bytes(100))
    (tmp_path / "of_others").mkdir()
    assert prune(tmp_path, 0, 0.0, 0.0) == []
    assert prune(tmp_path, 250, 0.0, 0.0) == [f"20260101-00000{number}_hold_r" for number in range(3)]
    assert prune(tmp_path, 0, 60.0, 1e12) == ["20260101-000003_hold_r"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["20260101-000004_hold_r", "of_others"]


def test_what_belongs_to_a_factory_is_recorded() -> None:
    graph = {
        "/hall/push_1/rfm/status": "rfm_serving/msg/RobotStatus",
        "/hall/push_1/joint_states": "sensor_msgs/msg/JointState",
        "/hall/push_1/camera/top/image/compressed": "sensor_msgs/msg/CompressedImage",
        "/hall/push_1/rfm/markers": "visualization_msgs/msg/MarkerArray",
        "/hall/push_1/execute_task/_action/status": "action_msgs/msg/GoalStatusArray",
        "/hall/rfm/servers/s/observation": "rfm_serving/msg/Observation",
        "/hall/rfm/recorder/audit": PAGE,
        "/hall/other/chatter": TEXT,
        "/push_1/rfm/status": "rfm_serving/msg/RobotStatus",
        "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
        "/tf": "tf2_msgs/msg/TFMessage",
        "/rosout": "rcl_interfaces/msg/Log",
    }
    listed = [(topic, [kind]) for topic, kind in graph.items()]
    wanted = {topic for topic in graph if topic.startswith("/hall/")} | {"/diagnostics", "/tf"}
    wanted -= {
        "/hall/push_1/camera/top/image/compressed",
        "/hall/push_1/rfm/markers",
        "/hall/rfm/recorder/audit",
        "/hall/other/chatter",
    }
    assert Selection(namespace="hall").of(listed).keys() == wanted
    assert Selection(namespace="hall", cameras=True).of(listed).keys() == wanted | {"/hall/push_1/camera/top/image/compressed"}
    more = Selection(namespace="hall", topics=("/hall/*/chatter",), exclude=("/tf",))
    assert more.of(listed).keys() == (wanted | {"/hall/other/chatter"}) - {"/tf"}
    assert Selection().of([("/two", [TEXT, PAGE])]) == {}


def test_a_folder_that_could_not_be_made_costs_that_incident_alone(tmp_path: Path) -> None:
    one = flight(tmp_path / "flights")
    (tmp_path / "flights").rmdir()
    (tmp_path / "flights").write_text("somebody's file")
    fly(one, 4.0, stops_at_s=3.0)
    assert one.told.incidents == 0 and one.told.problem
    (tmp_path / "flights").unlink()
    fly(one, 8.0, stops_at_s=7.0, begins_s=4.0)
    assert one.told.incidents == 1 and not one.told.problem


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_clock_that_is_set_costs_nothing_of_the_last_seconds(step_s: int) -> None:
    memory = Memory(2.0, 1 << 20)
    for number in range(100):
        time_ns = T + number * 100_000_000 + (step_s * 1_000_000_000 if number >= 95 else 0)
        memory.keep([Sample(WORD, time_ns, b"x")], number * 0.1)
    assert 20 <= len(memory.take()) <= 21


def test_what_another_recorder_writes_and_what_lies_behind_a_link_stays(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"20260101-00000{number}_hold_r").mkdir()
        (tmp_path / f"20260101-00000{number}_hold_r" / "a.mcap").write_bytes(bytes(100))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "20250101-000000_hold_r").symlink_to(tmp_path / "elsewhere")
    lock = FolderLock(tmp_path / "20260101-000000_hold_r")
    assert prune(tmp_path, 250, 0.0, 0.0) == ["20260101-000001_hold_r", "20260101-000002_hold_r"]
    lock.release()
