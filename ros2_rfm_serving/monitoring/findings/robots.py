"""Causes in a robot, or in its network."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ros2_rfm_serving.monitoring.board import RobotRow
from ros2_rfm_serving.monitoring.findings.finding import Finding
from ros2_rfm_serving.monitoring.findings.look import Diagnosis, Look, answers, grown, mean, number, refused
from ros2_rfm_serving.monitoring.findings.servers import late_answers
from ros2_rfm_serving.monitoring.metrics.health import SILENT_AFTER_S

DEAD_AFTER_S = 2.0
"""Minimum age at which a sensor counts as dead; twice the robot's own limit if that is longer."""
SLOWEST_S = 10.0
"""Longest interval between two messages of a topic that counts as published."""
DEAD_WORDS, LATE_WORDS = 3, 2
"""Numbers of diagnoses, a second apart, that have to agree. A robot that is reset forgets its readings, and has none for a moment.
A robot whose process was held up reports old readings once, before it reads the waiting ones."""
FEWEST_LOST, LOST = 3, 0.03
"""Minimum number and share of requests without an answer."""
FEWEST_LATE, LATE = 3, 0.05
"""Minimum number and share of answers beyond the SLO."""
RARE = 1.2
"""Ratio of a sensor's message interval to the maximum age of a reading above which its messages are too rare."""
OLD = 0.1
"""Minimum share of a sensor's messages that are old at arrival."""
ON_THE_WAY = 0.5
"""Share of a round trip above which the network is the cause, and not the server."""


def gone(look: Look) -> Iterator[Finding]:
    for robot, rows in look.robots.items():
        if (silent_s := look.silent_s(robot, rows)) > SILENT_AFTER_S:
            yield Finding(
                cause="robot gone",
                about=robot,
                evidence=(f"no status was received from {robot} for {silent_s:.1f} s; a robot publishes one twice a second",),
                mend=f"check its log and its machine; release a robot that has left for good: {_call(robot, 'release')}",
            )


def changed_model(look: Look) -> Iterator[Finding]:
    for robot in look.robots:
        said = look.diagnosis(f"{robot}: robot")
        if said and (mismatch := said.values.get("model_mismatch")):
            yield Finding(
                cause="changed model",
                about=robot,
                concerns=tuple(server for server in sorted(look.servers_of(robot)) if mismatch.startswith(f"{server} ")),
                evidence=(f"{robot} reports: {mismatch}",),
                mend=f"restore the right model; or accept the new one: {_call(robot, 'resume')}, then give it a new task",
            )


def dead_camera(look: Look) -> Iterator[Finding]:
    for robot, said in _sensing(look, while_reset=True):
        for camera, age_s in said[-1].named("image_age_s").items():
            if not _is_dead(said, f"image_age_s {camera}") or _is_published(said[-1], camera) or _type_problem(said[-1], camera):
                continue
            if _is_reset(look, robot) and not _has_ceased(said[-1], camera):
                continue
            topic = said[-1].values.get(f"image_topic {camera}", "")
            yield Finding(
                cause="dead camera",
                about=robot,
                evidence=(
                    f"the newest image of camera {camera} is {_age(said[-1], age_s, camera)}, on {topic}",
                    f"{robot} sends no request with an image older than {_limit_s(said[-1]):g} s",
                    *_topic_problems(said[-1], [camera]),
                ),
                mend=f"check the camera and its driver: `rfm topic hz {topic}`. {robot} continues by itself with new images",
            )


def dead_joints(look: Look) -> Iterator[Finding]:
    for robot, said in _sensing(look, while_reset=True):
        if not _is_dead(said, "state_age_s"):
            continue
        parts = [part for part, _ in _parts(said[-1])]
        if _is_reset(look, robot) and not any(_has_ceased(said[-1], part) for part in parts):
            continue
        silent = [part for part in parts if not _is_published(said[-1], part) and not _type_problem(said[-1], part)]
        if not silent and parts:
            continue
        age_s, topics = said[-1].number("state_age_s"), said[-1].values.get("state_topics", "")
        if silent:
            topics = " ".join(said[-1].values[f"topic {part}"] for part in silent)
        yield Finding(
            cause="dead joint states",
            about=robot,
            evidence=(
                f"the newest state of {robot} is {_age(said[-1], age_s, *silent)}, on {topics}",
                f"{robot} stops when its state is older than {_limit_s(said[-1]):g} s",
                *_topic_problems(said[-1], silent),
            ),
            mend=f"check the arm's driver and joint_state_broadcaster: `rfm topic hz {topics.split(' ')[-1]}`",
        )


def refused_readings(look: Look) -> Iterator[Finding]:
    """Yield the sensors whose messages arrive and cannot be used."""
    for robot, said in _sensing(look):
        newest = said[-1]
        cameras = [camera for camera in newest.named("image_age_s") if _is_published(newest, camera)]
        problems = {f"camera {camera}": newest.values.get(f"image_problem {camera}", "") for camera in cameras}
        counts = {f"camera {camera}": newest.number(f"image_refused {camera}") for camera in cameras}
        parts = [part for part, _ in _parts(newest)]
        if any(_is_published(newest, part) for part in parts) and not any(_is_old(said, part) for part in parts):
            problems["its state"] = newest.values.get("state_problem", "")
            counts["its state"] = newest.number("state_refused")
        yield from _other_types(robot, newest)
        for sensor, problem in problems.items():
            if problem and not problem.startswith("nothing came on"):
                yield Finding(
                    cause="refused readings",
                    about=robot,
                    evidence=(
                        f"{robot} receives messages for {sensor} and refuses them: {problem}",
                        *_refused_so_far(sensor, counts[sensor]),
                    ),
                    mend="State and Cameras in docs/reference/integrate.md list what a robot accepts, and how to change it",
                )


def _refused_so_far(sensor: str, num: float) -> Iterator[str]:
    if num > 0:
        yield f"{num:,.0f} {'images' if sensor != 'its state' else 'messages'} refused so far"


def _topic_problems(said: Diagnosis, sensors: list[str]) -> Iterator[str]:
    """Yield the problems that the ROS graph shows of topics without messages."""
    for sensor in sensors:
        if problem := said.values.get(f"topic_problem {sensor}"):
            yield problem


def _other_types(robot: str, newest: Diagnosis) -> Iterator[Finding]:
    """Yield the topics that are published with messages of another type than the robot subscribes to."""
    for sensor, problem in newest.texts("type_problem").items():
        yield Finding(
            cause="refused readings",
            about=robot,
            evidence=(f"{robot} receives no messages for {sensor}: {problem}",),
            mend="set the type in the robot's file (`camera_type`, `camera_types`, `state_type`), or choose a topic of that type",
        )


def old_readings(look: Look) -> Iterator[Finding]:
    """Yield the sensors whose messages arrive and are all or often old by their stamps, or too rare."""
    for robot, said in _sensing(look):
        newest = said[-1]
        for sensor in (*newest.named("image_age_s"), *(part for part, _ in _parts(newest))):
            if _is_rare(said, sensor):
                yield _rare(robot, newest, sensor)
                continue
            if not (found := _old_by_stamps(said, sensor)):
                continue
            ahead_s, pace = (newest.values.get(f"{name} {sensor}", "?") for name in ("clock_offset_s", "clock_pace"))
            if step_s := newest.values.get(f"stamp_step_s {sensor}"):
                found += f"; several messages have the same stamp, and the next stamp is {step_s} s later"
            yield Finding(
                cause="old readings",
                about=robot,
                evidence=(
                    found,
                    f"the sender's clock is {ahead_s} s ahead of the robot's and shows {pace} s per second",
                ),
                mend=(
                    "a driver repeats readings or stamps them in whole seconds, a simulation is paused, or a network is slow;"
                    f" if the stamps are wrong, set `arrival_time_sensors: [{sensor}]` in the robot's file"
                ),
            )


def commands_not_taken(look: Look) -> Iterator[Finding]:
    for robot in look.robots:
        said = look.diagnosis(f"{robot}: robot")
        if said and (problem := said.values.get("command_problem")):
            topic = said.values.get("command_topic", "")
            yield Finding(
                cause="commands not taken",
                about=robot,
                evidence=(f"{robot} reports: {problem}",),
                mend=(
                    "start the controller, or correct `sink`, `sink_topic`, `sink_joints` or the controller's parameters: "
                    f"`rfm topic list {topic}` shows who subscribes, and Controllers in docs/reference/integrate.md"
                ),
            )


def _is_rare(said: list[Diagnosis], sensor: str) -> bool:
    """Return whether messages arrive less often than the robot needs readings."""
    name = f"arrival_interval_s {sensor}"
    return len(said) == DEAD_WORDS and all(
        _is_published(one, sensor) and 0.0 < RARE * _limit_s(one) < one.number(name) <= SLOWEST_S for one in said
    )


def _rare(robot: str, newest: Diagnosis, sensor: str) -> Finding:
    interval_s, limit_s = newest.number(f"arrival_interval_s {sensor}"), _limit_s(newest)
    return Finding(
        cause="old readings",
        about=robot,
        evidence=(f"a message of {sensor} arrives every {interval_s:.1f} s, and {robot} uses no reading older than {limit_s:g} s",),
        mend=f"publish {sensor} more than {1.0 / limit_s:.2g} times a second, or raise `max_observation_age_s`",
    )


def _old_by_stamps(said: list[Diagnosis], sensor: str) -> str:
    """Return the age of a sensor's readings as text; empty: they are new."""
    newest = said[-1]
    if _is_old(said, sensor):
        came_s, age_s = newest.number(f"arrival_age_s {sensor}"), newest.number(f"reading_age_s {sensor}")
        return f"the last message of {sensor} arrived {came_s:.1f} s ago, and its reading is {age_s:.1f} s old by its stamp"
    share = newest.number(f"old_share {sensor}")
    if len(said) < DEAD_WORDS or not all(_is_published(one, sensor) and one.number(f"old_share {sensor}") >= OLD for one in said):
        return ""
    return f"{share:.0%} of the messages of {sensor} were older than {_limit_s(newest):g} s by their stamps when they arrived"


def _is_old(said: list[Diagnosis], sensor: str) -> bool:
    """Return whether the readings in all of the last diagnoses are old by their stamps."""
    limit_s = max(DEAD_AFTER_S, 2.0 * _limit_s(said[-1]))
    return len(said) >= LATE_WORDS and all(
        _is_published(one, sensor)
        and limit_s < one.number(f"reading_age_s {sensor}") < math.inf
        and one.values.get(f"time_source {sensor}") != "arrival"
        for one in said
    )


def _type_problem(said: Diagnosis, sensor: str) -> str:
    """Return why no messages of a published topic arrive; empty: unknown."""
    return said.values.get(f"type_problem {sensor}", "")


def _parts(said: Diagnosis) -> list[tuple[str, str]]:
    """Return (part of the state, its topic); empty: the robot does not report them."""
    return [(key.removeprefix("topic "), topic) for key, topic in said.values.items() if key.startswith("topic ")]


def _is_published(said: Diagnosis, sensor: str) -> bool:
    """Return whether messages have arrived recently relative to their usual interval, whatever they contain."""
    interval_s = said.number(f"arrival_interval_s {sensor}")
    usual_s = interval_s if interval_s <= SLOWEST_S else 0.0
    return said.number(f"arrival_age_s {sensor}") <= max(DEAD_AFTER_S, 2.0 * _limit_s(said), 2.0 * usual_s)


def _has_ceased(said: Diagnosis, sensor: str) -> bool:
    """Return whether the robot reports that it has received no message for a while. A reset clears readings, but not this time."""
    return said.number(f"arrival_age_s {sensor}") > max(DEAD_AFTER_S, 2.0 * _limit_s(said)) and not _is_published(said, sensor)


def _sensing(look: Look, *, while_reset: bool = False) -> Iterator[tuple[str, list[Diagnosis]]]:
    """Yield each robot that reports, with its last diagnoses. while_reset: include robots that are being reset, without
    readings."""
    for robot, rows in look.robots.items():
        said = look.diagnoses.get(f"{robot}: robot", [])[-DEAD_WORDS:]
        is_reset = bool(rows) and _is_reset(look, robot) and not (said and said[-1].values.get("reset_problem"))
        if said and rows and look.silent_s(robot, rows) <= SILENT_AFTER_S and (while_reset or not is_reset):
            yield robot, said


def _is_reset(look: Look, robot: str) -> bool:
    return look.robots[robot][-1].phase == "resetting"


def _is_dead(said: list[Diagnosis], age: str) -> bool:
    """Return whether the last `LATE_WORDS` diagnoses show a dead sensor; one that never had a reading needs `DEAD_WORDS`."""
    if math.isinf(said[-1].number(age)):
        return len(said) == DEAD_WORDS and all(math.isinf(one.number(age)) for one in said)
    late = said[-LATE_WORDS:]
    return len(late) == LATE_WORDS and all(one.number(age) > max(DEAD_AFTER_S, 2.0 * _limit_s(one)) for one in late)


def _limit_s(said: Diagnosis) -> float:
    return said.number("max_observation_age_s")


def _age(said: Diagnosis, age_s: float, *sensors: str) -> str:
    """Return the age of a reading as text. A reset clears the reading; then the age is that of the last message."""
    age_s = min([age_s, *(came_s for sensor in sensors if math.isfinite(came_s := said.number(f"arrival_age_s {sensor}")))])
    return "missing: none was ever received" if math.isinf(age_s) else f"{age_s:.1f} s old"


def lossy_network(look: Look) -> Iterator[Finding]:
    for robot, rows in look.robots.items():
        late, asked = late_answers([rows])
        lost, away_s = _lost(look, robot, rows), _on_the_way_s(look, robot, rows)
        trip_s = mean(rows, "round_trip_s")
        slow = late >= max(FEWEST_LATE, LATE * asked) and away_s > ON_THE_WAY * trip_s
        if lost >= max(FEWEST_LOST, LOST * asked) or slow:
            servers = ", ".join(sorted(look.servers_of(robot)))
            yield Finding(
                cause="lossy network",
                about=robot,
                evidence=(
                    f"{lost:.0f} of {asked:.0f} requests of {robot} had no answer, although {servers} kept answering",
                    f"the round trip takes {1e3 * trip_s:.0f} ms, of which {1e3 * away_s:.0f} ms are spent on the network",
                ),
                mend="check the radio or cable between them; the profiles in config/dds/ tolerate loss (docs/networks.md)",
            )


def _lost(look: Look, robot: str, rows: list[RobotRow]) -> float:
    """Return the unanswered requests that are not explained by the server, where newer ones did not replace them."""
    asked = grown(rows, answers(lambda one: one.in_time + one.late))
    came = number(rows, "round_trip_s") + grown(rows, refused("late_or_duplicate", "stale_episode", "stale_epoch"))
    replaced = sum(grown(look.servers.get(server, []), lambda row: row.superseded) for server in look.servers_of(robot))
    return max(0.0, asked - came - replaced)


def _on_the_way_s(look: Look, robot: str, rows: list[RobotRow]) -> float:
    """Return the mean network time of a round trip; NaN: unknown."""
    there = [look.servers.get(server, []) for server in look.servers_of(robot)]
    inside = [mean(server, "queue_wait_s") + mean(server, "inference_s") for server in there]
    return max(0.0, mean(rows, "round_trip_s") - max(inside, default=math.nan))


def waits_for_a_person(look: Look) -> Iterator[Finding]:
    for robot, rows in look.robots.items():
        if rows and (rows[-1].phase == "waiting" or rows[-1].paused):
            said = look.diagnosis(f"{robot}: robot")
            yield Finding(
                cause="robot waits for a person",
                about=robot,
                evidence=(f"{robot} reports: {(said.message if said else '') or 'paused'}",),
                mend=f"check the robot; then {_call(robot, 'resume')}, or {_call(robot, 'abort')}",
            )


def _call(robot: str, verb: str) -> str:
    """Return the operator's shell command, which is the same with and without certificates."""
    return f"`rfm order {robot} {verb}`"
