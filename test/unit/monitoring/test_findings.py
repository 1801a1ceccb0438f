"""Which causes a look speaks for: a healthy factory for none, each trouble for its own alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ros2_rfm_serving.monitoring.board import ComponentRow, RobotRow, ServerRow
from ros2_rfm_serving.monitoring.findings.causes import CAUSES, concerning, findings
from ros2_rfm_serving.monitoring.findings.look import (
    ERROR,
    MAX_SAMPLES,
    OK,
    WARN,
    Diagnosis,
    Disk,
    HeardSchedule,
    Look,
    append_sample,
    grown,
    mean,
)
from ros2_rfm_serving.types import Placement, Route, Schedule, process_problems
from ros2_rfm_serving.types.histogram import Histogram
from ros2_rfm_serving.types.process_problems import CERTIFICATE_INVALID, CERTIFICATE_WARNING, LOG_DISK_FULL, LOG_DISK_SILENT

SECONDS, STATUS_S = 6.0, 0.5
WORDS = round(SECONDS / STATUS_S)
ROBOTS, SERVER, OTHER = ("arm_1", "arm_2"), "server_1", "server_2"
RATE, INFERENCE_S, WAIT_S, TRIP_S = 5, 0.03, 0.005, 0.05
"""RATE: requests of a robot per status period, of 2.5 s each: more than real, so that counts are whole."""


def histogram(count: int, each_s: float) -> Histogram:
    return Histogram(counts=[count] + [0] * 20, sum=count * each_s)


def robot(word: int) -> RobotRow:
    """What it says the so-manieth time."""
    asked = 1000 + RATE * word
    row = RobotRow(state="STREAMING", phase="executing", server=SERVER, scheduler=7, schedule_epoch=1)
    row.seen_s = STATUS_S * (word + 1)
    row.components = {"system1": ComponentRow(slo_s=0.4, in_time=asked)}
    row.histograms = {"round_trip_s": {"system1": histogram(asked, TRIP_S)}}
    row.refused = {"late_or_duplicate": 3, "request_timeout": 4}
    return row


def server(word: int) -> ServerRow:
    served = 5000 + RATE * len(ROBOTS) * word
    row = ServerRow(state="ready", load=0.3, served=served, superseded=2, scheduler=7, schedule_epoch=1, sessions=2)
    row.seen_s = STATUS_S * (word + 1)
    row.histograms = {"queue_wait_s": {"": histogram(served, WAIT_S)}, "inference_s": {"": histogram(served, INFERENCE_S)}}
    return row


def of_robot(**values: object) -> dict[str, str]:
    found: dict[str, object] = {"max_observation_age_s": 0.5, "state_age_s": 0.02, "state_topics": "/j", "model_mismatch": ""}
    found |= {"image_age_s front": 0.1, "image_topic front": "/i", "image_age_s side": 0.2, "image_topic side": "/k"}
    return {key: str(value) for key, value in (found | values).items()}


def of_server(**values: object) -> dict[str, str]:
    found: dict[str, object] = {"drift_rows": 1, "drift_profiled_s": 0.03, "drift_full_s": 0.03, "drift_measured_s": 0.031}
    return {key: str(value) for key, value in (found | values).items()}


def said(name: str, values: dict[str, str] | None = None, level: int = OK, message: str = "") -> list[Diagnosis]:
    return [Diagnosis(name=name, level=level, message=message, values=values or {}) for _ in range(6)]


def heard(scheduler: int = 7, factory: str = "one.yaml", times: int = 3) -> list[HeardSchedule]:
    placement = Placement(
        server=SERVER,
        model="m",
        components=("system1",),
        gpu_type="T",
        batching="fixed",
        batch_size=1,
        max_sessions=8,
        predicted_p99_s=0.1,
    )
    routes = tuple(
        Route(robot=r, component=component, server=SERVER, max_rate_hz=5.0, slo_s=0.4)
        for r in ROBOTS
        for component in ("system1", "monitor")
    )
    schedule = Schedule(
        epoch=1, placements=(placement,), routes=routes, predicted_actions_hz=10.0, policy="best", scheduler=scheduler
    )
    return [HeardSchedule(schedule=schedule, factory=factory, heard_s=2.0 * time) for time in range(1, times + 1)]


def healthy() -> Look:
    """Two robots of one server, over which the looker's clock went from 0 to 6 s."""
    look = Look(begun_s=0.0, ended_s=SECONDS, schedules=heard())
    look.robots = {name: [robot(word) for word in range(WORDS)] for name in ROBOTS}
    look.servers = {SERVER: [server(word) for word in range(WORDS)]}
    parts = {f"{name}: robot": of_robot() for name in ROBOTS} | {f"{SERVER}: server": of_server(), "scheduler: schedule": {}}
    look.diagnoses = {name: said(name, values) for name, values in parts.items()}
    look.clocks_s = {name: [0.001, -0.02] for name in (*ROBOTS, SERVER)}
    look.disk = Disk(folder="logs", size_bytes=10**12, free_bytes=10**11)
    return look


def caused(look: Look) -> list[tuple[str, str]]:
    return [(one.cause, one.about) for one in findings(look)]


# --- each cause, as it shows ----------------------------------------------------------------------------------------------


def each(look: Look, name: str, change: Callable[[int, ServerRow], object]) -> None:
    for word, row in enumerate(look.servers[name]):
        change(word, row)


def says(look: Look, name: str, level: int = OK, message: str = "", **values: object) -> None:
    """What it says from now on; other values, and the problems of its process, stay."""
    more = {key.replace("__", " "): str(value) for key, value in values.items()}
    look.diagnoses[name] = [
        replace(one, level=level, message=message, values={**one.values, **more}) for one in look.diagnoses.get(name) or said(name)
    ]


def counts(look: Look, name: str, before: dict[str, str], after: dict[str, str]) -> None:
    """Values that change in the middle of the look."""
    words = look.diagnoses[name]
    both = [before] * (len(words) // 2) + [after] * (len(words) - len(words) // 2)
    look.diagnoses[name] = [replace(one, values={**one.values, **more}) for one, more in zip(words, both, strict=True)]


def nothing(look: Look) -> None:
    pass


def overloaded(look: Look) -> None:
    def change(word: int, row: ServerRow) -> None:
        row.load, row.superseded = 0.99, 10 * word
        row.histograms["queue_wait_s"] = {"": histogram(row.served, 0.2)}

    each(look, SERVER, change)
    slow_answers(look)


def slow_answers(look: Look) -> None:
    for rows in look.robots.values():
        for word, row in enumerate(rows):
            row.components["system1"].late = 2 * word  # some are never answered: the server has replaced them
            row.histograms["round_trip_s"] = {"system1": histogram(1000 + (RATE + 1) * word, 0.3)}


def just_reset(look: Look) -> None:
    """Its readings are forgotten, and the first new ones on their way."""
    forgot = [
        replace(one, values=of_robot() | {"image_age_s front": "inf", "state_age_s": "inf"})
        for one in look.diagnoses["arm_1: robot"][:2]
    ]
    look.diagnoses["arm_1: robot"][-2:] = forgot


def busy_and_in_time(look: Look) -> None:
    """A server that is used to the full by whom the schedule sends: that is what it is for."""
    each(look, SERVER, lambda word, row: setattr(row, "load", 0.97))


def lossy(look: Look) -> None:
    for word, row in enumerate(look.robots["arm_1"]):
        row.components["system1"].late = word  # and not one more round trip


def slow_network(look: Look) -> None:
    for word, row in enumerate(look.robots["arm_1"]):
        row.components["system1"].late = word
        row.histograms["round_trip_s"] = {"system1": histogram(1000 + (RATE + 1) * word, 0.6)}


def few_lost(look: Look) -> None:
    for word, row in enumerate(look.robots["arm_1"]):
        row.components["system1"].late = min(word, 2)


def greedy(look: Look) -> None:
    counts(look, f"{SERVER}: server", {"over_quota guest/system1": "900"}, {"over_quota guest/system1": "1500"})
    overloaded(look)


def judged(look: Look, server: str = SERVER, **answered: tuple[int, int]) -> None:
    """What a server of text models says of its answers, at the beginning of the look and at its end."""
    shown = {"last verdict_violation": "'Okay, the user', it was cut off", "last plan_violation": "'Okay', the answer is no plan"}
    both = [{key.replace("__", " "): str(values[i]) for key, values in answered.items()} for i in (0, 1)]
    counts(look, f"{server}: server", shown | both[0], shown | both[1])


def no_verdict_counts(look: Look) -> None:
    judged(look, answered__verdict=(100, 112), refused__verdict_violation=(90, 102))
    says(look, "arm_1: robot", WARN, "safety says nothing")


def no_plan_counts(look: Look) -> None:
    """What its planner answers never reaches a robot, which looks like a loss."""
    judged(look, refused__plan_violation=(3, 5))
    lossy(look)


def some_verdicts_count(look: Look) -> None:
    judged(look, answered__verdict=(100, 112), refused__verdict_violation=(3, 8))


def one_verdict_did_not_count(look: Look) -> None:
    judged(look, answered__verdict=(100, 112), refused__verdict_violation=(3, 4))


def verdicts_did_not_count_before(look: Look) -> None:
    judged(look, answered__verdict=(100, 112), refused__verdict_violation=(40, 40))


def hung(look: Look) -> None:
    each(look, SERVER, lambda word, row: (setattr(row, "served", 5000), setattr(row, "waiting", 1)))
    for rows in look.robots.values():
        for row in rows:
            row.state, row.components = "RECONNECTING", {"system1": ComponentRow(in_time=1000, late=int(2 * row.seen_s))}
    for name in ROBOTS:
        says(look, f"{name}: robot", WARN, f"{SERVER} answered none of 2 requests")


def hung_by_its_word(look: Look) -> None:
    each(look, SERVER, lambda word, row: word > 3 and (setattr(row, "state", "hung"), setattr(row, "detail", "the engine hangs")))


def slow_model(look: Look) -> None:
    """Nothing was answered during the look, and nothing was to be."""
    hung(look)
    placement = replace(look.schedules[-1].schedule.placements[0], predicted_p99_s=4.0)
    look.schedules = [replace(one, schedule=replace(one.schedule, placements=(placement,))) for one in look.schedules]
    for rows in look.robots.values():
        for row in rows:
            row.state, row.components = "STREAMING", {"system1": ComponentRow(in_time=1000)}
    for name in ROBOTS:
        says(look, f"{name}: robot")


def idle(look: Look) -> None:
    each(look, SERVER, lambda word, row: (setattr(row, "served", 5000), setattr(row, "load", 0.0)))
    for rows in look.robots.values():
        for row in rows:
            row.phase, row.components, row.histograms = "idle", {}, {}


def drifted(look: Look) -> None:
    def change(word: int, row: ServerRow) -> None:
        row.load, row.histograms["inference_s"] = 0.99, {"": histogram(row.served, 0.12)}
        row.histograms["queue_wait_s"] = {"": histogram(row.served, 0.4)}

    each(look, SERVER, change)
    says(look, f"{SERVER}: server", drift_measured_s=0.12)
    slow_answers(look)


def slower_with_time_to_spare(look: Look) -> None:
    """As the quickstart on a machine that others use, too."""
    says(look, f"{SERVER}: server", drift_measured_s=0.12)
    each(look, SERVER, lambda word, row: row.histograms.update(inference_s={"": histogram(row.served, 0.12)}))


def drifted_once(look: Look) -> None:
    """Of a size of batch that has not run since."""
    says(look, f"{SERVER}: server", drift_rows=3, drift_measured_s=0.12)


def slow_for_a_moment(look: Look) -> None:
    """The machine was busy during a few batches, and the newest reports have them."""
    counts(look, f"{SERVER}: server", {}, {"drift_measured_s": "0.12"})
    each(look, SERVER, lambda word, row: row.histograms.update(inference_s={"": histogram(row.served, 0.04)}))
    each(look, SERVER, lambda word, row: setattr(row, "load", 0.8))


def padded(look: Look) -> None:
    """An engine that fills every batch up to 8 rows."""
    says(look, f"{SERVER}: server", drift_measured_s=0.105, drift_full_s=0.1)
    each(look, SERVER, lambda word, row: row.histograms.update(inference_s={"": histogram(row.served, 0.105)}))


def changed(look: Look) -> None:
    says(look, "arm_1: robot", ERROR, "server_1 serves another model", model_mismatch="server_1 serves another model: a, not b")
    for row in look.robots["arm_1"]:
        row.state = "DEAD"


def camera(look: Look) -> None:
    says(look, "arm_1: robot", ERROR, "sensor readings are 7.0 s old for 6.0 s", image_age_s__front=7.0)


def camera_never(look: Look) -> None:
    says(look, "arm_1: robot", OK, image_age_s__side=math.inf)


def command_topic(look: Look) -> None:
    says(look, "arm_1: robot", WARN, "; nobody subscribes to /c", command_problem="nobody subscribes to /c", command_topic="/c")


def slow_camera(look: Look) -> None:
    """As its robot was told that it is."""
    says(look, "arm_1: robot", image_age_s__front=2.5, max_observation_age_s=3.0)


def resetting(look: Look) -> None:
    says(look, "arm_1: robot", image_age_s__front=math.inf, image_age_s__side=math.inf, state_age_s=math.inf)
    look.robots["arm_1"][-1].phase = "resetting"


def stopped_while_resetting(look: Look) -> None:
    """The simulation that is to be reset has ended: its messages have ceased, and the robot has forgotten the last ones."""
    resetting(look)
    says(look, "arm_1: robot", arrival_age_s__front=20.0, arrival_age_s__joints=20.0, topic__joints="/joints")


def joints(look: Look) -> None:
    says(look, "arm_1: robot", ERROR, "no state in time", state_age_s=9.0)


def published(sensor: str, **values: object) -> dict[str, object]:
    """What a robot says of a sensor whose messages come."""
    found: dict[str, object] = {"arrival_age_s": 0.02, "reading_age_s": 0.02, "time_source": "stamp", "clock_pace": 1.0}
    found |= {"clock_offset_s": -0.001} | ({} if sensor == "front" else {"topic": f"/{sensor}"}) | values
    return {f"{key}__{sensor}": value for key, value in found.items()}


def refused_joints(look: Look) -> None:
    problem = "joint 'elbow' has no velocity in /j (it has position alone)"
    says(look, "arm_1: robot", ERROR, problem, state_age_s=9.0, state_problem=problem, **published("joint_states"))


def refused_images(look: Look) -> None:
    problem = "format 'webp'; send jpeg or png"
    says(look, "arm_1: robot", image_age_s__front=math.inf, image_problem__front=problem, **published("front"))


def refused_and_gone(look: Look) -> None:
    """Both were refused, and nothing comes any more: that is what is wrong now."""
    gone = {"arrival_age_s": 30.0, "reading_age_s": 30.0}
    says(
        look, "arm_1: robot", state_age_s=30.0, state_problem="joint 'a' has no velocity in /j", **published("joint_states", **gone)
    )
    says(look, "arm_1: robot", image_age_s__front=math.inf, image_problem__front="not a PNG", **published("front", **gone))


def repeated_images(look: Look) -> None:
    says(look, "arm_1: robot", ERROR, "old", image_age_s__front=9.0, **published("front", reading_age_s=9.0))


def whole_seconds(look: Look) -> None:
    """Half of the images are old when they come, and the newest one is not."""
    values = published("front", old_share=0.494, stamp_step_s="1.000")
    for _ in range(3):
        says(look, "arm_1: robot", ERROR, "old", **values)


def seldom(look: Look) -> None:
    """A topic with a message every 4 s is published, and neither dead nor often enough."""
    values = published("front", arrival_age_s=3.9, reading_age_s=3.9, arrival_interval_s=4.0)
    says(look, "arm_1: robot", ERROR, "old", image_age_s__front=3.9, **values)


def seldom_and_gone(look: Look) -> None:
    values = published("front", arrival_age_s=9.0, reading_age_s=9.0, arrival_interval_s=4.0)
    says(look, "arm_1: robot", ERROR, "old", image_age_s__front=9.0, **values)


def late_now_and_then(look: Look) -> None:
    for share in (0.0, 0.3, 0.09):
        says(look, "arm_1: robot", **published("front", old_share=share))


def wrong_camera_type(look: Look) -> None:
    problem = "/front is published as sensor_msgs/msg/Image, and not as sensor_msgs/msg/CompressedImage"
    values = published("front", arrival_age_s=math.inf, reading_age_s=math.inf, type_problem=problem)
    says(look, "arm_1: robot", image_age_s__front=math.inf, **values)


def wrong_array_type(look: Look) -> None:
    values = published("array", arrival_age_s=9.0, reading_age_s=9.0, type_problem="/array is published as another type")
    says(look, "arm_1: robot", state_age_s=9.0, **values)


def late_joints(look: Look) -> None:
    """One part of two: the other one's topic is silent for no longer than it takes."""
    says(look, "arm_1: robot", state_age_s=9.0, state_problem="joint 'a' in /j was measured 9.0 s ago, by its stamp")
    says(look, "arm_1: robot", **published("joint_states", reading_age_s=9.0), **published("imu"))


def silent_part(look: Look) -> None:
    """The joints come, the IMU does not: its topic is named, and not theirs."""
    says(look, "arm_1: robot", state_age_s=9.0, state_problem="nothing came on /imu")
    says(look, "arm_1: robot", **published("joint_states"), **published("imu", arrival_age_s=math.inf, reading_age_s=math.inf))


def by_arrival(look: Look) -> None:
    says(look, "arm_1: robot", **published("front", time_source="arrival"), **published("joint_states", clock_pace=0.3))


def disk(look: Look) -> None:
    look.disk = Disk(folder="logs", size_bytes=10**12, free_bytes=10**9)


def of_process(look: Look, owner: str, kind: str, problem: str, level: int = WARN) -> None:
    """All statuses of a process carry the problem of the process, as they come from `/diagnostics`."""
    for name, words in look.diagnoses.items():
        if name.startswith(f"{owner}: "):
            look.diagnoses[name] = [published_status(one, kind, problem, level) for one in words]


def published_status(one: Diagnosis, kind: str, problem: str, level: int) -> Diagnosis:
    status = process_problems.DiagnosticEntry(one.level, one.message, {**one.process_problems, kind: problem})
    level, message, values = process_problems.with_process_problems(status, level)
    return Diagnosis.of(one.name, level, message, {**one.values, **values}, one.heard_s)


def full_log_disk(look: Look) -> None:
    """Where a scheduler, a server and a robot write their logs."""
    look.diagnoses.setdefault(f"{SERVER}: name", said(f"{SERVER}: name", {"claim": "held"}, OK, "nobody else has it"))
    for owner in (SERVER, "arm_1", "scheduler"):
        of_process(look, owner, LOG_DISK_FULL, "no room for logs in /logs: what is said there is lost")


def silent_log_disk(look: Look) -> None:
    of_process(look, "arm_2", LOG_DISK_SILENT, "no answer from the disk of /logs: whoever logs may wait for it")


def ending_certificate(look: Look) -> None:
    look.diagnoses.setdefault(f"{SERVER}: name", said(f"{SERVER}: name", {"claim": "held"}, OK, "nobody else has it"))
    of_process(look, SERVER, CERTIFICATE_WARNING, "own certificate ends in 5 days: rfm security rotate")


def ended_certificate(look: Look) -> None:
    of_process(look, SERVER, CERTIFICATE_INVALID, "own certificate has ended: rfm security rotate", ERROR)


def ended_certificate_refused(look: Look) -> None:
    """Nobody accepts what its server publishes."""
    ended_certificate(look)
    look.servers[SERVER] = []
    for name in ROBOTS:
        says(look, f"{name}: robot", WARN, f"{SERVER} is lost")


def lossy_recorder(look: Look) -> None:
    says(look, "recorder: recording", WARN, "12 messages were lost", lost=12, topics=40, folder="recordings/a")


def ended_recorder(look: Look) -> None:
    look.diagnoses["recorder: recording"] = [Diagnosis(name="recorder: recording", message="recording", heard_s=1.0)]


def one_recorder_of_two(look: Look) -> None:
    """The other one, on another machine, reports last, and all is well there."""
    lossy_recorder(look)
    lossy = look.diagnoses["recorder: recording"]
    well = [replace(one, level=OK, message="recording", values={**one.values, "folder": "recordings/b"}) for one in lossy]
    look.diagnoses["recorder: recording"] = [one for both in zip(lossy, well, strict=True) for one in both]


def disk_elsewhere(look: Look) -> None:
    says(look, "recorder: recording", ERROR, "nothing can be written: No space left on device")


def large_disk(look: Look) -> None:
    look.disk = Disk(folder="logs", size_bytes=10**15, free_bytes=10**13)


def no_schedule(look: Look) -> None:
    look.schedules = []


def step(look: Look) -> None:
    says(look, "arm_2: robot", clock_step_s=-3600.0, clock_step_age_s=12)


def apart(look: Look) -> None:
    look.clocks_s[SERVER] = [5.0, 5.1, 4.9]


def second_scheduler(look: Look) -> None:
    """Robots and servers refuse what it publishes, and say so."""
    look.schedules = [*look.schedules, *heard(9, "two.yaml")]
    for name in (*(f"{robot}: robot" for robot in ROBOTS), f"{SERVER}: server", "scheduler: schedule"):
        says(look, name, WARN, "another scheduler publishes schedules as well", rival_schedulers=1)


def successor(look: Look) -> None:
    """Of a scheduler that has just ended: its last word was still heard."""
    look.schedules = [*heard(7, times=1), *heard(9, times=3)]


def restarted_scheduler(look: Look) -> None:
    """In a longer look both were heard for some time, one after the other."""
    later = [replace(one, heard_s=one.heard_s + 10.0) for one in heard(9)]
    look.schedules, look.ended_s = [*heard(7), *later], SECONDS + 10.0
    for row in [rows[-1] for rows in (*look.robots.values(), *look.servers.values())]:
        row.seen_s += 10.0


def disputed(look: Look) -> None:
    says(look, f"{SERVER}: name", WARN, f"another process wants to be server '{SERVER}' as well", claim="disputed")


def disputed_a_while_ago(look: Look) -> None:
    """A second process ended some time before: what its owner says of it ends during the look."""
    disputed(look)
    name = f"{SERVER}: name"
    later = [replace(one, level=OK, message="nobody else has it", values={"claim": "held"}) for one in look.diagnoses[name][3:]]
    look.diagnoses[name] = [*look.diagnoses[name][:3], *later]


def silent_server(look: Look) -> None:
    look.servers[SERVER] = []
    for name in ROBOTS:
        says(look, f"{name}: robot", WARN, f"{SERVER} is lost")
    lossy(look)


def restarted_server(look: Look) -> None:
    each(look, SERVER, lambda word, row: setattr(row, "served", 10 * word if word > 5 else 5000 + word))


def failed_server(look: Look) -> None:
    each(look, SERVER, lambda word, row: (setattr(row, "state", "failed"), setattr(row, "detail", "no such file")))
    says(look, f"{SERVER}: server", ERROR, "no such file")


def planned_without(look: Look) -> None:
    """The scheduler says so as long as it lasts, and that is no trouble of its own."""
    failed_server(look)
    says(look, "scheduler: servers", WARN, f"planned without {SERVER}")


def scheduler_alone(look: Look) -> None:
    says(look, "scheduler: schedule", WARN, "2 robots wait")


def met_late(look: Look) -> None:
    """A robot that was found a second before the end."""
    look.robots["arm_3"], look.expected_s["arm_3"] = [], SECONDS - 1.0
    look.diagnoses["arm_3: robot"] = said("arm_3: robot", of_robot())


def lost_route(look: Look) -> None:
    """The scheduler has planned without a lost server, and the robot knows no server any more."""
    silent_server(look)
    schedule = replace(look.schedules[-1].schedule, epoch=2, placements=(), routes=())
    look.schedules = [replace(one, schedule=schedule) for one in look.schedules]
    for name, rows in look.robots.items():
        for row in rows:
            row.server = ""
        says(look, f"{name}: robot", WARN, "the schedule has no server for it")


def never_started(look: Look) -> None:
    """The scheduler plans without a server that nobody has heard, and a robot has no route for want of it."""
    schedule = look.schedules[-1].schedule
    schedule = replace(schedule, routes=tuple(route for route in schedule.routes if route.robot != "arm_2"))
    look.schedules = [replace(one, schedule=schedule) for one in look.schedules]
    look.servers[OTHER] = []
    for row in look.robots["arm_2"]:
        row.server = ""
    says(look, "arm_2: robot", WARN, "the schedule has no server for it")
    says(look, "scheduler: servers", WARN, f"planned without {OTHER}", lost=OTHER)


def lost_route_alone(look: Look) -> None:
    """The same, and the schedule still places a model on the lost server."""
    placements = look.schedules[-1].schedule.placements
    lost_route(look)
    look.schedules = [replace(one, schedule=replace(one.schedule, placements=placements)) for one in look.schedules]


def held_up(look: Look) -> None:
    """Robot and looker had no core for seconds: one old reading, before the images that waited are read; stamps that came late."""
    old = of_robot() | {"image_age_s front": "4.0", "state_age_s": "4.0"}
    look.diagnoses["arm_1: robot"][-1] = replace(look.diagnoses["arm_1: robot"][-1], values=old)
    look.clocks_s["arm_1"] = [-0.01, -1.7, -2.9, -1.2, -1.4]


def silent_robot(look: Look) -> None:
    look.robots["arm_2"] = [robot(0)]


def paused(look: Look) -> None:
    look.robots["arm_2"][-1].paused = True
    says(look, "arm_2: robot", WARN, "paused")


def waiting(look: Look) -> None:
    look.robots["arm_2"][-1].phase = "waiting"
    says(look, "arm_2: robot", ERROR, "waits for a person: unsafe")


def misfit(look: Look) -> None:
    says(look, "arm_2: robot", WARN, "server_1 refuses: other actions")


def dry_run(look: Look) -> None:
    says(look, "arm_1: robot", trial="dry run: commands are not published")


def unjudged(look: Look) -> None:
    for one in look.schedules:
        routes = tuple(route for route in one.schedule.routes if (route.robot, route.component) != ("arm_2", "monitor"))
        object.__setattr__(one, "schedule", replace(one.schedule, routes=routes))
    for rows in look.robots.values():
        for row in rows:
            row.phase = "executing"


def not_configured(look: Look) -> None:
    """Its process lives, and nothing else shows it."""
    silent_robot(look)
    says(look, "arm_2: configuration", ERROR, "limits.upper: 2 values for 3 actions; give one per action")


def unplanned(look: Look) -> None:
    """A robot that the descriptor does not name."""
    look.robots["guest_1"] = [replace(row, server="", state="CONNECTING") for row in look.robots["arm_1"]]
    says(look, "guest_1: robot", WARN, "the schedule has no server for it")


def refused_session(look: Look) -> None:
    problem = "server_1 refuses: action names and order: the robot has ('a', 'b'), the model ('b', 'a')"
    says(look, "arm_2: robot", WARN, problem)
    look.diagnoses["arm_2: robot"] = [
        replace(one, values={**one.values, "not served system1": problem}) for one in look.diagnoses["arm_2: robot"]
    ]


def degrees(look: Look) -> None:
    """A robot that refuses every action moves nothing, and says so."""
    for word, row in enumerate(look.robots["arm_1"]):
        row.refused = {**row.refused, "out_of_limits": 20 * word}
    says(look, "arm_1: robot", WARN, "the units are wrong", chunk_problem="57.3 for elbow, which may be -3.1 to 3.1")


def start_outside(look: Look) -> None:
    says(look, "arm_1: robot", WARN, "elbow is measured at 57", start_problem="'elbow' is measured at 57, outside of its limits")


def no_reset(look: Look) -> None:
    for row in look.robots["arm_1"]:
        row.phase = "resetting"
    says(look, "arm_1: robot", OK, reset_problem="waits for /arm_1/reset, which nobody offers")


def still(look: Look) -> None:
    says(look, "arm_1: robot", OK, still_problem="commands go out, and nothing moves", command_topic="/arm_1/command")


def rival(look: Look) -> None:
    says(look, "arm_1: robot", OK, command_rivals="/teleop publishes to /arm_1/command, too")


def limits_in_degrees(look: Look) -> None:
    says(look, "arm_1: robot", OK, limits_problem="the limits of elbow are -180 to 180, and it is measured at 0.4")


def no_clock(look: Look) -> None:
    says(look, "arm_1: robot", OK, clock_problem="use_sim_time is true, and nobody publishes /clock")


def slow_state(look: Look) -> None:
    says(look, "arm_1: robot", OK, state_rate_misfit="the state comes at 10 Hz, control_rate_hz is 50")


def busy_machine_in_time(look: Look) -> None:
    for name in ("arm_1: robot", "arm_2: robot", f"{SERVER}: server"):
        says(look, name, machine="cell", machine_load=9.5, machine_cores=2, core_wait_share=0.7)


def busy_machine(look: Look) -> None:
    busy_machine_in_time(look)
    counts(look, "arm_1: robot", {"ticks": "100", "missed_periods": "3"}, {"ticks": "160", "missed_periods": "53"})
    says(look, "arm_1: robot", tick_late_p99_ms=210.0)
    lossy(look)


def unread_requests(look: Look) -> None:
    each(look, SERVER, lambda word, row: row.refused.update(bad_shape=4 * word))
    says(look, f"{SERVER}: server", last__bad_shape="state has shape (7,), the model takes (8,)")


def few_unread_requests(look: Look) -> None:
    each(look, SERVER, lambda word, row: row.refused.update(bad_shape=min(word, 2), stale_epoch=word))


def lost_at_the_door(look: Look) -> None:
    says(look, "zenoh_door: door", OK)
    counts(look, "zenoh_door: door", {"refused_stale_hash": "2"}, {"refused_stale_hash": "40"})


def a_moment(look: Look) -> None:
    """What is over by itself is no trouble."""
    look.diagnoses["arm_2: robot"] = [
        replace(one, level=level) for one, level in zip(look.diagnoses["arm_2: robot"], (OK, OK, WARN, OK, OK, WARN), strict=True)
    ]


SEEN: list[tuple[Callable[[Look], None], list[tuple[str, str]]]] = [
    (nothing, []),
    (idle, [("no task", "arm_1")]),
    (unjudged, [("no monitor", "arm_2")]),
    (dry_run, [("tried out", "arm_1")]),
    (just_reset, []),
    (busy_and_in_time, []),
    (few_lost, []),
    (slow_model, []),
    (drifted_once, []),
    (slow_for_a_moment, []),
    (slower_with_time_to_spare, []),
    (padded, []),
    (slow_camera, []),
    (resetting, []),
    (large_disk, []),
    (successor, []),
    (a_moment, []),
    (one_verdict_did_not_count, []),
    (verdicts_did_not_count_before, []),
    (met_late, []),
    (restarted_scheduler, []),
    (held_up, []),
    (overloaded, [("overloaded server", SERVER)]),
    (lossy, [("lossy network", "arm_1")]),
    (slow_network, [("lossy network", "arm_1")]),
    (greedy, [("one robot asks too much", "guest")]),
    (no_verdict_counts, [("unusable answers", SERVER)]),
    (no_plan_counts, [("unusable answers", SERVER)]),
    (some_verdicts_count, [("unusable answers", SERVER)]),
    (hung, [("hung engine", SERVER)]),
    (hung_by_its_word, [("hung engine", SERVER)]),
    (drifted, [("drifted profile", SERVER)]),
    (changed, [("changed model", "arm_1")]),
    (camera, [("dead camera", "arm_1")]),
    (camera_never, [("dead camera", "arm_1")]),
    (refused_joints, [("refused readings", "arm_1")]),
    (refused_images, [("refused readings", "arm_1")]),
    (wrong_camera_type, [("refused readings", "arm_1")]),
    (wrong_array_type, [("refused readings", "arm_1")]),
    (refused_and_gone, [("dead camera", "arm_1"), ("dead joint states", "arm_1")]),
    (repeated_images, [("old readings", "arm_1")]),
    (whole_seconds, [("old readings", "arm_1")]),
    (late_now_and_then, []),
    (seldom, [("old readings", "arm_1")]),
    (seldom_and_gone, [("dead camera", "arm_1")]),
    (late_joints, [("old readings", "arm_1")]),
    (silent_part, [("dead joint states", "arm_1")]),
    (stopped_while_resetting, [("dead camera", "arm_1"), ("dead joint states", "arm_1")]),
    (by_arrival, []),
    (joints, [("dead joint states", "arm_1")]),
    (command_topic, [("commands not taken", "arm_1")]),
    (disk, [("full disk", "")]),
    (disk_elsewhere, [("full disk", "")]),
    (full_log_disk, [("full disk", "")]),
    (silent_log_disk, [("reported trouble", "arm_2")]),
    (ended_certificate, [("invalid certificate", SERVER)]),
    (ended_certificate_refused, [("invalid certificate", SERVER)]),
    (ending_certificate, [("certificate ends soon", SERVER)]),
    (lossy_recorder, [("incomplete recording", "recorder")]),
    (ended_recorder, [("incomplete recording", "recorder")]),
    (one_recorder_of_two, [("incomplete recording", "recorder")]),
    (no_schedule, [("scheduler gone", "")]),
    (step, [("clock step", "")]),
    (apart, [("clock step", "")]),
    (disputed, [("two factories in one domain", "")]),
    (disputed_a_while_ago, [("two factories in one domain", "")]),
    (second_scheduler, [("two factories in one domain", "")]),
    (silent_server, [("server gone", SERVER)]),
    (lost_route, [("server gone", SERVER)]),
    (lost_route_alone, [("server gone", SERVER)]),
    (never_started, [("server gone", OTHER)]),
    (restarted_server, [("server gone", SERVER)]),
    (failed_server, [("model not loaded", SERVER)]),
    (silent_robot, [("robot gone", "arm_2")]),
    (paused, [("robot waits for a person", "arm_2")]),
    (waiting, [("robot waits for a person", "arm_2")]),
    (misfit, [("reported trouble", "arm_2")]),
    (not_configured, [("not configured", "arm_2")]),
    (unplanned, [("not in the schedule", "guest_1")]),
    (refused_session, [("refused session", "arm_2")]),
    (degrees, [("unusable actions", "arm_1")]),
    (start_outside, [("unknown start", "arm_1")]),
    (no_reset, [("no reset service", "arm_1")]),
    (still, [("commands without motion", "arm_1")]),
    (rival, [("two publishers of commands", "arm_1")]),
    (limits_in_degrees, [("doubtful limits", "arm_1")]),
    (no_clock, [("no simulated clock", "arm_1")]),
    (slow_state, [("other state rate", "arm_1")]),
    (busy_machine, [("overloaded machine", "arm_1")]),
    (busy_machine_in_time, []),
    (unread_requests, [("refused messages", SERVER)]),
    (few_unread_requests, []),
    (lost_at_the_door, [("refused messages", "zenoh_door")]),
    (planned_without, [("model not loaded", SERVER)]),
    (scheduler_alone, [("reported trouble", "scheduler")]),
]


@pytest.mark.parametrize(("spoil", "expected"), SEEN, ids=[spoil.__name__ for spoil, _ in SEEN])
def test_a_trouble_is_named_and_what_follows_from_it_is_not(spoil: Callable[[Look], None], expected: list[tuple[str, str]]) -> None:
    look = healthy()
    spoil(look)
    found = findings(look)
    assert [(one.cause, one.about) for one in found] == expected
    assert all(one.evidence and all(one.evidence) and one.mend for one in found)


def test_every_cause_is_seen_above() -> None:
    assert {cause for _, expected in SEEN for cause, _ in expected} == {cause.name for cause in CAUSES}


def test_a_rule_finds_its_own_cause_alone_and_explains_known_ones() -> None:
    names = {cause.name for cause in CAUSES}
    assert len(names) == len(CAUSES) and all(set(cause.explains) <= names - {cause.name} for cause in CAUSES)
    for spoil, _ in SEEN:
        look = healthy()
        spoil(look)
        for cause in CAUSES:
            assert {one.cause for one in cause.rule(look)} <= {cause.name}


def test_nothing_is_known_of_whom_nobody_has_heard() -> None:
    assert caused(Look(begun_s=0.0, ended_s=3.0)) == []
    look = Look(begun_s=0.0, ended_s=6.0, schedules=heard())
    look.robots, look.servers = {name: [] for name in ROBOTS}, {SERVER: []}
    assert caused(look) == [("server gone", SERVER), ("robot gone", "arm_1"), ("robot gone", "arm_2")]


def test_of_one_robot_what_concerns_it() -> None:
    look = healthy()
    camera(look), disk(look)
    look.servers[OTHER] = []
    found = findings(look)
    assert {one.about for one in found} == {"arm_1", "", OTHER}
    assert {one.about for one in concerning(look, found, "arm_1")} == {"arm_1", ""}
    assert {one.about for one in concerning(look, found, SERVER)} == {"arm_1", ""}
    assert {one.about for one in concerning(look, found, "arm_2")} == {""}


def test_values_that_are_no_numbers_say_nothing() -> None:
    """Anybody may publish diagnostics."""
    look = healthy()
    wrong = {"refused__verdict_violation": "many", "answered__verdict": "", "last__verdict_violation": "x"}
    says(look, f"{SERVER}: server", over_quota__x="many", **wrong, drift_measured_s="long", drift_rows="")
    says(look, "arm_1: robot", image_age_s__front="", state_age_s="old", max_observation_age_s="none", clock_step_s="a lot")
    assert findings(look) == []


@pytest.mark.parametrize("limit_s", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_of_age_that_is_none_is_no_reason_to_call_readings_rare(limit_s: float) -> None:
    look = healthy()
    seldom(look), says(look, "arm_1: robot", max_observation_age_s=limit_s)
    assert not [line for one in findings(look) for line in one.evidence if "arrives every" in line]


@pytest.mark.parametrize(
    ("spoil", "evidence"),
    [
        (no_verdict_counts, "each of 12 verdicts of server_1 is a violation: 'Okay, the user', it was cut off"),
        (no_plan_counts, "each of 5 plans of server_1 is a violation: 'Okay', the answer is no plan"),
        (some_verdicts_count, "5 of 12 verdicts of server_1 are violations, the last one: 'Okay, the user', it was cut off"),
    ],
)
def test_violations_are_named_with_their_text_and_the_reason(spoil: Callable[[Look], None], evidence: str) -> None:
    look = healthy()
    spoil(look)
    assert findings(look)[0].evidence == (evidence,)


def test_counters_of_a_process_that_was_started_again() -> None:
    rows = [ServerRow(served=count) for count in (100, 110, 3, 8)]
    assert grown(rows, lambda row: row.served) == 10 + 3 + 5
    assert math.isnan(mean(rows, "inference_s")) and grown(rows[:1], lambda row: row.served) == 0


def test_thousands_that_are_silent_are_told_in_time() -> None:
    look = healthy()
    look.robots |= {f"gone_{i}": [] for i in range(3000)}
    assert len(findings(look)) == 3000


ODD = (0.0, -1.0, 0.3, 1e-9, 7.0, 1e30, math.nan, math.inf, -math.inf)
COUNTS = (0, 1, 5, 1000, 2**63)


@pytest.mark.parametrize("seed", range(200))
def test_no_word_of_anybody_is_too_odd(seed: int) -> None:
    """Statuses and diagnostics come from whoever may write to the graph."""
    rng, look = random.Random(seed), healthy()
    for rows in (*look.servers.values(), *look.robots.values()):
        for row in rows:
            row.refused = {"late_or_duplicate": rng.choice(COUNTS)}
            row.histograms = {
                name: {"": Histogram(counts=[rng.choice(COUNTS)] * 21, sum=rng.choice(ODD))}
                for name in ("queue_wait_s", "inference_s", "round_trip_s")
            }
            row.state = rng.choice(["ready", "ready", "hung", "failed", "STREAMING", "DEAD", "9"])
            if isinstance(row, ServerRow):
                row.load, row.served, row.superseded = rng.choice(ODD), rng.choice(COUNTS), rng.choice(COUNTS)
            else:
                row.components = {"system1": ComponentRow(in_time=rng.choice(COUNTS), late=rng.choice(COUNTS))}
                row.phase = rng.choice(["waiting", "executing", "resetting", ""])
    for before in list(look.diagnosed):
        values = {key: rng.choice([*map(str, ODD), "", "x"]) for key in before.values}
        look.diagnoses[before.name] = said(before.name, values, rng.randrange(256))
    look.clocks_s[SERVER] = [rng.choice(ODD) for _ in range(rng.randrange(3))]
    assert all(one.evidence and one.mend for one in findings(look))


def test_an_hour_of_statuses_takes_little_memory_and_loses_no_change() -> None:
    """One restart, one hang and one refused name, each within one status of thousands."""
    servers, robots, statuses = [], [], []
    for word in range(7200):
        row = replace(server(word), served=word if word > 3000 else 9000 + word, state="hung" if word == 1111 else "ready")
        append_sample(servers, row)
        append_sample(robots, robot(word))
        claim, level = ("disputed", WARN) if word == 2222 else ("held", OK)
        append_sample(statuses, Diagnosis(name="a: name", level=level, values={"claim": claim}, heard_s=float(word)))
    assert max(map(len, (servers, robots, statuses))) <= 2 * MAX_SAMPLES
    assert sum(row.state == "hung" for row in servers) == 1 and sum(one.values["claim"] == "disputed" for one in statuses) == 1
    assert grown(servers, lambda row: row.served) == 3000 + 3001 + (7199 - 3001)
    assert grown(robots, lambda row: row.components["system1"].in_time) == RATE * 7199
    assert [one.heard_s for one in statuses][-3:] == [7197.0, 7198.0, 7199.0] and statuses[0].heard_s == 0.0


def test_statuses_that_all_differ_are_all_kept() -> None:
    statuses: list[Diagnosis] = []
    for word in range(1000):
        append_sample(statuses, Diagnosis(name="a: name", level=word % 2))
    assert len(statuses) == 1000
