"""The soak's parts: faults from a seed, and what counts as flat."""

from __future__ import annotations

import subprocess
import time
from itertools import pairwise

import pytest

from ros2_rfm_serving.audit.log import AuditLog, Entry, Key
from test.soak.faults import CUT, KILL, KINDS, QUIET_S, REST_S, cuts_of, drawn
from test.soak.sampling import LEAST_S, WARM_S, Life, Sample, Samples
from test.soak.serving import replaced_early, served, without_any

PROCESSES, ROBOTS = ("scheduler", "server_1", "arm_1"), ("arm_1",)


@pytest.mark.parametrize("seed", range(20))
def test_faults_are_drawn_from_their_seed(seed: int) -> None:
    faults = drawn(3600.0, seed, PROCESSES, ROBOTS)
    assert faults == drawn(3600.0, seed, PROCESSES, ROBOTS) != drawn(3600.0, seed + 1, PROCESSES, ROBOTS)
    assert {fault.kind for fault in faults} == set(KINDS), "an hour sees all of them"
    assert faults[0].at_s >= QUIET_S and faults[-1].at_s <= 3600.0 - QUIET_S
    assert all(one.at_s + one.lasts_s < other.at_s for one, other in pairwise(faults))
    for name in PROCESSES:
        killed = [fault.at_s for fault in faults if fault.kind == KILL and fault.whom == name]
        assert all(other - one >= REST_S for one, other in pairwise(killed)), "its supervisor would give it up"


def test_cuts_are_the_robots_own(seed: int = 3) -> None:
    faults = drawn(3600.0, seed, PROCESSES, ROBOTS)
    text = cuts_of("arm_1", faults, 20.0)
    assert text.startswith("cut=") and text.count("-") == sum(fault.kind == CUT for fault in faults)
    assert cuts_of("arm_2", faults, 20.0) == ""


def life(rss_mb: tuple[float, float], files: tuple[float, float] = (40, 40)) -> Life:
    return Life("server_1", 600.0, rss_mb, files)


def test_what_grows_is_not_flat() -> None:
    assert life((200.0, 210.0)).is_flat and life((500.0, 545.0)).is_flat
    assert not life((200.0, 225.0)).is_flat and not life((200.0, 200.0), (40, 50)).is_flat


def test_each_process_has_its_own_life() -> None:
    samples = Samples()
    for second in range(400):
        pid = 1 if second < 200 else 2  # killed, and started again
        samples._of["server_1", pid].append(Sample(float(second), 100.0 + second / 100, 40))
    lives = samples.lives()
    assert len(lives) == 2 and all(one.seconds >= LEAST_S for one in lives)
    assert lives[0].seconds <= 200.0 - WARM_S + 1
    samples._of["arm_1", 3] = [Sample(float(second), 100.0, 40) for second in range(60)]
    assert len(samples.lives()) == 2, "a life too short says nothing"


def test_a_process_that_is_seen_late_has_started_when_it_was_started() -> None:
    """What counts from its start, its cuts, is else looked for at another time: by 7 s, on a busy machine."""
    before_s = time.monotonic()
    with subprocess.Popen(["sleep", "60"]) as process:
        after_s = time.monotonic()
        time.sleep(1.0)
        samples = Samples()
        samples.take(time.monotonic(), {"arm_1": process.pid})
        process.kill()
    (start_s,) = samples.starts_s("arm_1")
    assert before_s - 30.0 <= start_s <= after_s + 0.1 and samples.starts_s("arm_2") == []


def test_time_without_any_server_is_counted_once() -> None:
    windows = [(0.0, 10.0), (5.0, 12.0), (20.0, 30.0)]
    assert without_any(0.0, 30.0, windows) == 8.0 and without_any(6.0, 11.0, windows) == 0.0
    assert without_any(25.0, 40.0, windows) == 10.0 and without_any(13.0, 14.0, []) == 1.0
    assert without_any(-5.0, 2.0, windows) == 5.0


def test_a_request_that_was_replaced_before_it_was_looked_at_is_accounted_for() -> None:
    def received(sequence: int, name: str) -> Entry:
        request = {"robot": "arm_1", "component": "system1", "session_epoch": 7, "episode": 2, "sequence": sequence}
        return Entry("server/server_1", 1, 1.0, 1.0, "event", {"event": {"~": name, "request": request}, "result": None})

    log = AuditLog([])
    log.by_writer["server/server_1"] = [
        received(1, "RequestReceived"),
        received(2, "RequestReceived"),
        received(1, "RequestSuperseded"),
    ]
    assert replaced_early(log) == {Key("arm_1", "system1", 7, 2, 1)}


def test_a_server_serves_its_model_from_its_being_ready_to_its_last_word() -> None:
    def said(writer: str, run: int, at_s: float, kind: str, **body: object) -> Entry:
        return Entry(writer, run, at_s, at_s, kind, body)

    engine = {"model": "policy"}
    log = AuditLog([])
    log.by_writer["server/server_1"] = [
        said("server/server_1", 1, 1.0, "begin", engine=None),
        said("server/server_1", 2, 2.0, "begin", engine=engine),
        said("server/server_1", 2, 3.0, "transition", to="ready"),
        said("server/server_1", 2, 9.0, "snapshot"),
        said("server/server_1", 3, 20.0, "begin", engine=engine),  # the recorder came later
        said("server/server_1", 3, 25.0, "snapshot"),
        said("server/server_1", 4, 30.0, "begin", engine={"model": "judge"}),
        said("server/server_1", 4, 35.0, "snapshot"),
    ]
    assert served(log, "policy") == [(3.0, 9.0), (20.0, 25.0)] and served(log, "judge") == [(30.0, 35.0)]
