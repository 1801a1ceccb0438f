"""Episodes for training out of an audit log."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import simplejpeg

from ros2_rfm_serving.audit.codec import digest
from ros2_rfm_serving.audit.export.clock import frames_per_second
from ros2_rfm_serving.audit.export.episodes import episodes
from ros2_rfm_serving.audit.export.frames import Skipped, same_shape, shape_of
from ros2_rfm_serving.audit.export.labels import SCORE, STATUS, Labels
from ros2_rfm_serving.audit.export.story import NO_CLOCK, NO_EPISODE, NO_FRAME, NO_IMAGE, NO_RATE
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType
from test.unit.audit.story import EPOCH_S, Log, picture, readings, request, robot, row, tick, transition

JPEG = simplejpeg.encode_jpeg(np.zeros((16, 24, 3), np.uint8))
IMAGES = (picture("front", JPEG),)
BLOBS = {digest(JPEG): JPEG}


def asks(log: Log, t_s: float, command: object, why: dict[str, object], sequence: int, episode: int = 1) -> None:
    tick(log, t_s, command, why, sensors=readings(t_s, t_s, IMAGES), requests=[request(sequence, episode)])


def told(log: Log) -> None:
    """One episode: four actions, one of them held; then half a second of the next."""
    tick(log, 0.0, [0.0, 0.0], {"source": "fallback", "fallback": "hold", "reason": "waits for its chunk"})
    asks(log, 0.1, None, {"source": "none", "reason": "waits for its chunk"}, 1)
    tick(log, 0.2, [0.1, 1.0], row(0, 1))
    asks(log, 0.3, [0.2, 1.0], row(1, 1), 2)
    transition(log, 0.35, "STALLED", "requests fail", paused=True)
    tick(log, 0.4, [0.0, 0.0], {"source": "fallback", "fallback": "hold", "reason": "paused by a person"})
    transition(log, 0.45, "STREAMING")
    log.note("operator_command", 0.46, command="resume", operator="", answer="", done=True)
    tick(log, 0.5, [0.3, 1.0], row(0, 2))
    asks(log, 0.9, [0.5, 1.0], row(0, 1, episode=2), 1, episode=2)


def read(*logs: Log, blobs: dict[str, bytes] = BLOBS, labels: Labels | None = None, **more: object) -> tuple[list, Skipped]:
    skipped = Skipped()
    found = episodes([log.page() for log in logs], blobs.get, labels or Labels(), skipped, **more)  # type: ignore[arg-type]
    return list(found), skipped


def test_a_frame_per_command_with_state_images_source_and_interventions() -> None:
    log = robot()
    told(log)
    (first, second), skipped = read(log)
    assert (first.robot, first.number, first.action_names, first.rate_hz) == ("push_1", 1, ("x", "y"), 10.0)
    assert [frame.action.tolist()[0] for frame in first.frames] == pytest.approx([0.1, 0.2, 0.0, 0.3])
    assert [frame.fallback for frame in first.frames] == ["", "", "hold", ""]
    assert [frame.paused for frame in first.frames] == [False, False, True, False]
    assert [frame.person for frame in first.frames] == [False, False, False, True]
    assert [frame.failsafe for frame in first.frames] == ["", "", "STALLED", "STREAMING"]
    sources = [(frame.source.sequence, frame.source.row, frame.source.server) if frame.source else None for frame in first.frames]
    assert sources == [(1, 0, "server_1"), (1, 1, "server_1"), None, (2, 0, "server_1")]
    assert first.frames[0].images[0].data == JPEG and first.frames[0].camera_age_s == pytest.approx(0.15)
    assert first.frames[1].state == pytest.approx(0.3) and first.frames[0].instruction == "push it"
    assert (second.number, len(second.frames)) == (2, 1)
    assert skipped.frames[NO_EPISODE] == 1


def test_frames_without_recorded_images_are_counted() -> None:
    log = robot()
    told(log)
    found, skipped = read(log, blobs={})
    assert not found and skipped.frames == {NO_EPISODE: 1, NO_IMAGE: 5}


def test_success_is_the_worlds_word_or_else_the_monitors() -> None:
    def message(**fields: object) -> SimpleNamespace:
        return SimpleNamespace(header=SimpleNamespace(frame_id="push_1"), **fields)

    log = robot()
    told(log)
    status = message(task="push", episode=1, verdict="failed")
    labels = Labels().add([(STATUS, EPOCH_S, status)])
    (first, second), _ = read(log, labels=labels)
    assert (first.task, first.success, second.success) == ("push", False, None)

    log = robot()
    told(log)
    goes_on = [(SCORE, EPOCH_S + at, message(episode=9, success=False, finished=False)) for at in (0.25, 0.4)]
    (first, _), _ = read(log, labels=Labels().add(goes_on))
    assert first.success is None
    log = robot()
    told(log)
    won = (SCORE, EPOCH_S + 5.0, message(episode=9, success=True, finished=False))
    (first, _), _ = read(log, labels=labels.add([*goes_on, won]))
    assert first.success is True


def test_a_robot_that_was_started_again_counts_its_episodes_anew() -> None:
    def status(**fields: object) -> SimpleNamespace:
        return SimpleNamespace(header=SimpleNamespace(frame_id="push_1"), episode=1, **fields)

    told_of = [(STATUS, 10.0, status(task="push", verdict="done")), (STATUS, 90.0, status(task="sort", verdict="failed"))]
    labels = Labels().add(told_of)  # type: ignore[arg-type]
    assert (labels.task("push_1", 1, 12.0), labels.success("push_1", 1, 8.0, 12.0)) == ("push", True)
    assert (labels.task("push_1", 1, 91.0), labels.success("push_1", 1, 80.0, 91.0)) == ("sort", False)


def test_only_these_robots_and_tasks() -> None:
    logs = [robot("push_1"), robot("push_2")]
    for log in logs:
        told(log)
    found, _ = read(*logs, robots=["push_2"])
    assert {episode.robot for episode in found} == {"push_2"}
    log = robot()
    told(log)
    found, skipped = read(log, tasks=["door"])
    assert not found and skipped.episodes == {"of another task": 2}


def test_robots_that_do_not_fit_in_one_data_set_are_named() -> None:
    logs = [robot("push_1"), robot("arm_7", names=("a", "b"))]
    for log in logs:
        told(log)
    found, _ = read(*logs)
    with pytest.raises(ConfigurationError, match=r"push_1: actions \(x, y\).*arm_7: actions \(a, b\).*--robot"):
        list(same_shape(found, found[0], Skipped()))


def test_a_robot_that_was_paused_before_anybody_listened_is_paused() -> None:
    log = robot()
    task = {"phase": {"~": "types.states:TaskPhase", "member": "EXECUTING"}}
    state = {"state": {"~": "types.states:RobotState", "member": "STALLED"}}
    log.note("snapshot", 0.0, why="begin", format=2, state={"paused": True, "task": task, "failsafe": state})
    asks(log, 0.1, None, {"source": "none", "reason": "waits for its chunk"}, 1)
    tick(log, 0.2, [0.0, 0.0], {"source": "fallback", "fallback": "hold", "reason": "paused by a person"})
    transition(log, 0.25, "STREAMING")
    tick(log, 0.3, [0.1, 1.0], row(0, 1))
    ((first, second),) = [episode.frames for episode in read(log)[0]]
    assert (first.paused, first.failsafe) == (True, "STALLED") and (second.paused, second.failsafe) == (False, "STREAMING")


def test_two_robots_of_one_name_are_told_apart() -> None:
    logs, pages = [robot(), robot()], []
    logs[1].chain.run = 8
    for log in logs:
        asks(log, 0.1, None, {"source": "none", "reason": "waits for its chunk"}, 1)
    for step in range(4):
        for log in logs:
            tick(log, 0.2 + 0.1 * step, [0.1 * log.chain.run, float(step)], row(step, 1))
            pages.append(log.page())
    found = list(episodes(pages, BLOBS.get, Labels(), Skipped()))
    assert [[frame.action.tolist() for frame in one.frames] for one in found] == [
        [pytest.approx([0.1 * run, step]) for step in range(4)] for run in (7, 8)
    ]


def test_images_that_cannot_be_decoded_or_change_their_size_cost_their_frames_alone() -> None:
    """A broken camera, and another `max_image_size_px` at work."""
    broken, small = JPEG[: len(JPEG) // 4], simplejpeg.encode_jpeg(np.zeros((8, 12, 3), np.uint8))
    log = robot()
    for sequence, data in enumerate((JPEG, broken, b"none", small, JPEG)):
        t_s, images = 0.1 + sequence, (picture("front", data),)
        command, why = [float(sequence), 0.0], row(0, 1)
        tick(log, t_s, command, why, sensors=readings(t_s, t_s, images), requests=[request(sequence + 1)])
    found, skipped = read(log, blobs={digest(data): data for data in (JPEG, broken, b"none", small)})
    ((first, last),) = [episode.frames for episode in found]
    assert (first.action[0], last.action[0]) == (0.0, 4.0) and sum(skipped.frames.values()) == 3


def test_episodes_of_one_robot_in_another_shape_are_left_out_and_counted() -> None:
    small = simplejpeg.encode_jpeg(np.zeros((8, 12, 3), np.uint8))
    log = robot()
    for episode, data in enumerate((JPEG, small, JPEG), start=1):
        images = (picture("front", data),)
        asked = request(1, episode)
        tick(log, float(episode), [0.0, 0.0], row(0, 1, episode), sensors=readings(1.0, 1.0, images), requests=[asked])
    found, skipped = read(log, blobs={digest(JPEG): JPEG, digest(small): small})
    kept = list(same_shape(found, found[0], skipped))
    assert [episode.number for episode in kept] == [1, 3] and list(skipped.episodes.values()) == [1]


def test_damaged_records_cost_themselves_alone() -> None:
    log = robot()
    log.note("tick", 0.05, requests=[{"nothing": 1}])
    log.note("transition", 0.06)
    told(log)
    tick(log, 1.0, [0.1, 0.2, 0.3], row(1, 1, episode=2))
    tick(log, 1.1, [float("nan"), 0.2], row(2, 1, episode=2))
    found, skipped = read(log)
    assert skipped.frames["of another shape, or with numbers that are none"] == 2
    assert len(found) == 2 and skipped.frames["of records that cannot be read"] == 2


# --- the clock -------------------------------------------------------------------------------------------------------------


def commanded(log: Log, times_s: list[float], episode: int = 1) -> None:
    """Chunks executed at these times, the first of which comes with an image."""
    for number, t_s in enumerate(times_s):
        asked: dict[str, object] = {"sensors": readings(t_s, t_s, IMAGES), "requests": [request(1, episode)]}
        tick(log, t_s, [float(number), 0.0], row(number, 1, episode), **(asked if not number else {}))


@pytest.mark.parametrize("rate_hz", [20.0, 12.5, 33.3, 2.5, 0.4, 29.97, 7.5, 1.0, 62.5])
def test_a_data_set_has_the_declared_rate_whole_or_not(rate_hz: float) -> None:
    log = robot(rate_hz=rate_hz)
    commanded(log, [1.0 + step / rate_hz for step in range(25)])
    ((episode,), skipped) = read(log)
    assert shape_of(episode).rate_hz == rate_hz == frames_per_second(rate_hz, videos=False)
    assert len(episode.frames) == 25 and not any(skipped.resampled.values())


PACED = [(30.0, 25.0), (30.0, 50.0), (12.5, 10.0), (20.0, 19.0), (33.3, 25.0), (2.5, 2.0), (30.0, 10.0), (12.5, 4.0), (0.4, 0.1)]
"""Declared rates, and the pace of the commands."""


@pytest.mark.parametrize(("rate_hz", "paced_hz"), PACED)
def test_the_declared_rate_counts_and_commands_at_another_pace_are_resampled(rate_hz: float, paced_hz: float) -> None:
    log = robot(rate_hz=rate_hz)
    for episode in (1, 2):
        pace_hz = paced_hz * (1.0 + 0.04 * episode)
        commanded(log, [100.0 * episode + step / pace_hz for step in range(60)], episode)
    found, skipped = read(log)
    assert len({shape_of(episode).rate_hz for episode in found}) == 1 and not skipped.left_out
    assert any(skipped.resampled.values())
    for episode in found:
        since_s = [frame.t_s - episode.frames[0].t_s for frame in episode.frames]
        late_s = [abs(step / rate_hz - t_s) for step, t_s in enumerate(since_s)]
        assert max(late_s) <= 0.51 * max(1 / rate_hz, 1 / paced_hz)


def test_jitter_leaves_frames_as_they_are_and_a_missed_period_holds_the_nearest() -> None:
    rng = np.random.default_rng(3)
    log = robot(rate_hz=20.0)
    commanded(log, [1.0 + step / 20 + float(rng.uniform(-0.012, 0.012)) for step in range(80)])
    ((episode,), _) = read(log)
    assert [frame.action[0] for frame in episode.frames] == list(range(80))
    log = robot(rate_hz=20.0)
    commanded(log, [1.0 + step / 20 for step in range(40) if step != 7])
    ((episode,), skipped) = read(log)
    assert len(episode.frames) == 40 and skipped.resampled.total() == 1


@pytest.mark.parametrize("paced_hz", [7.0, 15.0, 24.0, 70.0])
@pytest.mark.parametrize(
    "declared",
    [{"command_type": CommandType.DELTA}, {"command_types": (CommandType.DELTA, CommandType.POSITION)}],
)
def test_resampled_displacements_are_neither_repeated_nor_lost(paced_hz: float, declared: dict[str, object]) -> None:
    """A displacement is made once, so the robot moved by the sum of all of them."""
    log = robot(rate_hz=20.0, **declared)
    commanded(log, [1.0 + step / paced_hz for step in range(50)])
    ((episode,), skipped) = read(log)
    assert any(skipped.resampled.values())
    moved = np.cumsum([frame.action[0] for frame in episode.frames])
    assert moved[-1] == sum(range(50)) and abs(len(moved) / 20.0 - 50 / paced_hz) < 0.15
    assert all(frame.action.dtype == np.float32 for frame in episode.frames)


def test_short_interruptions_keep_their_time() -> None:
    rng = np.random.default_rng(5)
    log = robot(rate_hz=30.0)
    times_s = 1.0 + np.cumsum(rng.choice([1.0, 2.6, 6.0], 200, p=[0.6, 0.3, 0.1])) / 30.0
    commanded(log, times_s.tolist())
    ((episode,), _) = read(log)
    assert abs(len(episode.frames) / 30.0 / (times_s[-1] - times_s[0]) - 1.0) < 0.01


def test_nothing_is_put_into_a_pause() -> None:
    log = robot(rate_hz=10.0)
    commanded(log, [1.0, 1.1, 1.2, 9.0, 9.1])
    ((episode,), _) = read(log)
    assert len(episode.frames) == 5


def test_commands_that_follow_no_clock_of_the_rate_are_left_out_and_not_multiplied() -> None:
    log = robot(rate_hz=50.0)
    commanded(log, [10.0 * step for step in range(20)])
    found, skipped = read(log)
    assert not found and skipped.left_out == {NO_CLOCK: 1}
    log = robot(rate_hz=float("inf"))
    commanded(log, [1.0 + step / 10 for step in range(20)])
    found, skipped = read(log, rate_hz=float("inf"))
    assert not found and skipped.left_out == {NO_RATE: 1}


def test_a_robot_that_declares_no_rate_is_left_out_unless_the_user_knows_it() -> None:
    log = robot(rate_hz=0.0)
    commanded(log, [1.0 + step / 10 for step in range(5)])
    found, skipped = read(log)
    assert not found and list(skipped.left_out.values()) == [1] and "--rate-hz" in next(iter(skipped.left_out))
    log = robot(rate_hz=0.0)
    commanded(log, [1.0 + step / 10 for step in range(5)])
    ((episode,), _) = read(log, rate_hz=12.5)
    assert episode.rate_hz == 12.5


def test_videos_have_whole_rates_which_may_be_one_percent_off() -> None:
    assert [frames_per_second(rate, videos=True) for rate in (20.0, 29.97, 33.3)] == [20, 30, 33]
    for rate in (12.5, 2.5, 0.4, 7.5):
        with pytest.raises(ConfigurationError, match="videos have whole rates"):
            frames_per_second(rate, videos=True)


def test_an_episode_without_a_single_image_is_counted_as_left_out() -> None:
    log = robot()
    told(log)
    _, skipped = read(log, blobs={})
    assert skipped.left_out == {NO_FRAME: 2}
    log = robot()
    told(log)
    _, skipped = read(log, tasks=["door"])
    assert not skipped.left_out
