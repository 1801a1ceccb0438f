"""What Prometheus reads of a board, by its own client's parser."""

from __future__ import annotations

import copy
import json
import math
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.board import Board, ComponentRow, ProcessRow
from ros2_rfm_serving.monitoring.metrics.exporter import exporting
from ros2_rfm_serving.monitoring.metrics.families import MAX_NAMES, OTHER, BoardCollector
from ros2_rfm_serving.monitoring.metrics.health import not_alive, not_living, not_ready
from ros2_rfm_serving.types.histogram import LATENCY_BOUNDS_S, TICK_BOUNDS_S, Histogram

NOW_S = 100.0


def counted(*values: float, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> Histogram:
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)
    return histogram


def board(now_s: float = NOW_S) -> Board:
    """A robot and a server that say all there is to say, and one of each that is silent."""
    made = Board(["arm_1", "arm_2"], ["s1", "s2"])
    made.schedule_epoch, made.gap, made.schedule_seen_s, made.looked_s = 7, 0.04, now_s - 1.0, now_s - 0.5
    made.predicted_actions_hz, made.planned_servers = 12.0, frozenset({"s1"})
    arm, server = made.robots["arm_1"], made.servers["s1"]
    arm.state, arm.task, arm.server, arm.held_ticks = "STREAMING", "push", "s1", 3
    arm.seen_s = server.seen_s = server.progressed_s = now_s - 0.5
    arm.refused, arm.fallbacks = {"stale_action": 2}, {"hold": 1}
    arm.transitions = {"STREAMING to DEGRADED": 4, "STALLED to DEGRADED": 1}
    arm.components = {"system1": ComponentRow(slo_s=0.4, in_time=9, late=1)}
    arm.histograms = {
        "round_trip_s": {"system1": counted(0.003, 0.15, 0.15, 9.0)},
        "staleness_s": {"": counted(0.01)},
        **{name: {"": counted(0.01, bounds=TICK_BOUNDS_S)} for name in ("tick_s", "tick_late_s")},
    }
    server.state, server.model, server.served, server.load = "ready", "rfm/flow", 10, 0.5
    server.note(False, server.seen_s)
    server.refused = {"bad_shape": 5}
    server.histograms = {"queue_wait_s": {"": counted(0.01)}, "inference_s": {"": counted(0.02)}}
    recorder = {"recorder_messages": 900, "recorder_lost": 3, "recorder_bytes": 10**9, "recorder_problem": 0}
    made.processes = {
        ("/rfm/recorder", "a"): ProcessRow(seen_s=now_s - 4.0, numbers={"log_disk_full": 0, **recorder}),
        ("/arm_1/robot", "b"): ProcessRow(
            seen_s=now_s - 4.0,
            numbers={"log_disk_full": 1, "certificate_left_s": 86_400, "certificate_invalid": 0, "revocations_unusable": 1},
        ),
    }
    return made


def exported(of: Board, server: str = "") -> dict[str, Any]:
    return scraped(BoardCollector(of, lambda: NOW_S, server))


def scraped(collector: BoardCollector) -> dict[str, Any]:
    registry = CollectorRegistry()
    registry.register(collector)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples}


def test_counters_and_gauges_are_those_of_the_board() -> None:
    found = exported(board())
    robot, server = ("robot", "arm_1"), ("server", "s1")
    assert found["rfm_schedule_epoch",] == 7 and found["rfm_schedule_gap_ratio",] == 0.04
    assert found["rfm_server_up", server] == 1 and found["rfm_server_up", ("server", "s2")] == 0
    assert found["rfm_server_state", server, ("state", "ready")] == 1 and found["rfm_server_unanswered_seconds", server] == 0.5
    assert [key for key in found if key[0] == "rfm_robot_state"] == [("rfm_robot_state", robot, ("state", "streaming"))]
    assert found["rfm_server_replies_total", server] == 10 and found["rfm_server_load_ratio", server] == 0.5
    assert found["rfm_server_refused_total", ("reason", "bad_shape"), server] == 5
    assert found["rfm_robot_held_periods_total", robot] == 3
    assert found["rfm_robot_refused_total", ("reason", "stale_action"), robot] == 2
    assert found["rfm_robot_fallbacks_total", ("motion", "hold"), robot] == 1
    assert found["rfm_robot_transitions_total", robot, ("to", "degraded")] == 5
    assert found["rfm_robot_answers_total", ("component", "system1"), robot, ("slo", "missed")] == 1
    assert found["rfm_robot_info", robot, ("server", "s1"), ("task", "push")] == 1


def test_histograms_are_cumulative_and_end_with_all() -> None:
    found, labels = exported(board()), (("component", "system1"),)
    assert found[("rfm_robot_round_trip_seconds_count", *labels, ("robot", "arm_1"))] == 4
    assert found[("rfm_robot_round_trip_seconds_sum", *labels, ("robot", "arm_1"))] == pytest.approx(9.303)
    buckets = {float(key[1][1]): value for key, value in found.items() if key[0] == "rfm_server_queue_wait_seconds_bucket"}
    assert buckets.keys() == {*LATENCY_BOUNDS_S, math.inf}
    assert buckets[0.005] == 0 and buckets[0.01] == buckets[5.0] == buckets[math.inf] == 1
    late = {float(key[1][1]): value for key, value in found.items() if key[0] == "rfm_robot_tick_late_seconds_bucket"}
    assert late == {0.05: 1, 0.2: 1, math.inf: 1}


def fleet_trips(collector: BoardCollector) -> dict[float, float]:
    """Upper bound -> how many round trips of all robots."""
    found = scraped(collector)
    return {float(dict(key[1:])["le"]): value for key, value in found.items() if key[0] == "rfm_fleet_round_trip_seconds_bucket"}


def test_round_trips_of_a_fleet_are_by_their_full_ranges_and_never_fall() -> None:
    """A robot that leaves takes nothing away, one that comes back brings nothing again, one that was started again counts anew."""
    made = board()
    collector = BoardCollector(made, lambda: NOW_S)
    assert fleet_trips(collector)[math.inf] == 0, "what was before the exporter began is no news"
    arm = made.robots["arm_1"]
    trips = arm.histograms["round_trip_s"]["system1"] = counted(0.003, 0.15, 0.15, 9.0, 0.15, 0.6)
    assert fleet_trips(collector) == {bound: float(bound >= 0.15) + (bound >= 0.75) for bound in (*LATENCY_BOUNDS_S, math.inf)}
    made.forget("arm_1")
    assert fleet_trips(collector)[math.inf] == 2
    made.robots["arm_1"] = arm
    assert fleet_trips(collector)[math.inf] == 2
    arm.histograms["round_trip_s"]["system1"] = counted(0.003)
    assert fleet_trips(collector)[math.inf] == 3 and trips.counts[-1] == 1


COMPONENTS = ("system1", "system2", "safety", "monitor")


def fleet(robots: int, components: int) -> Board:
    """Robots that work, and to which as much has happened as does in a shift: two refusals, a fallback, a change of state."""
    names = [f"arm_{number}" for number in range(robots)]
    made = Board(names, [])
    for name in names:
        row = made.robots[name] = copy.deepcopy(board().robots["arm_1"])
        row.components = {one: ComponentRow(slo_s=0.4, in_time=9, late=1) for one in COMPONENTS[:components]}
        row.histograms["round_trip_s"] = {one: counted(0.1) for one in COMPONENTS[:components]}
        row.refused = {"stale_action": 2, "request_timeout": 1}
    return made


@pytest.mark.parametrize(("components", "series"), [(1, 28), (2, 32), (4, 40)])
def test_a_robot_has_so_many_series(components: int, series: int, repository: Path) -> None:
    """20, and four for each component; one for each refusal, fallback and state that it had. docs/fleet.md has the figure."""
    few, many = (len(exported(fleet(robots, components))) for robots in (10, 300))
    assert (many - few) / 290 == series == 20 + 4 * components + 4
    assert many < 300 * series + 150, "a fleet of 300"
    text = (repository / "docs" / "fleet.md").read_text()
    assert "20 per robot, 4 for each of its components" in text


@pytest.mark.parametrize("series", [1, 3])
def test_a_process_has_so_many_series(series: int) -> None:
    """Of its log disk, and of its certificate. docs/fleet.md has the figure of 300 robots that each have a process."""
    numbers = dict(list({"log_disk_full": 0.0, "certificate_left_s": 9e6, "certificate_invalid": 0.0}.items())[:series])
    one, many = (fleet(300, 4) for _ in range(2))
    many.processes = {(f"/arm_{number}/robot", "a"): ProcessRow(seen_s=NOW_S, numbers=numbers) for number in range(300)}
    assert len(exported(many)) - len(exported(one)) == 300 * series


def test_processes_have_their_certificates_log_disks_and_recordings() -> None:
    made = board()
    found, recorder, arm = (
        exported(made),
        (("host", "a"), ("process", "/rfm/recorder")),
        (("host", "b"), ("process", "/arm_1/robot")),
    )
    assert found[("rfm_recorder_up", *recorder)] == 1 and found[("rfm_recorder_messages_total", *recorder)] == 900
    assert found[("rfm_recorder_lost_messages_total", *recorder)] == 3 and found[("rfm_recorder_problem", *recorder)] == 0
    assert found[("rfm_certificate_left_seconds", *arm)] == 86_400 and found[("rfm_certificate_invalid", *arm)] == 0
    assert found[("rfm_revocations_unusable", *arm)] == 1 and ("rfm_revocations_unusable", *recorder) not in found
    assert found[("rfm_log_disk_full", *arm)] == 1 and ("rfm_recorder_up", *arm) not in found
    for row in made.processes.values():
        row.seen_s = NOW_S - 60.0
    found = exported(made)
    assert found[("rfm_recorder_up", *recorder)] == 0 and found[("rfm_recorder_lost_messages_total", *recorder)] == 3
    assert ("rfm_certificate_left_seconds", *arm) not in found
    for row in made.processes.values():
        row.seen_s = NOW_S - 3600.0
    assert not [key for key in exported(made) if "recorder" in key[0]], "one that was ended on purpose is forgotten"


def test_who_is_silent_has_no_gauges_and_keeps_its_counters() -> None:
    silent = board()
    silent.servers["s1"].seen_s = silent.robots["arm_1"].seen_s = NOW_S - 10.0
    found = exported(silent)
    assert found["rfm_server_up", ("server", "s1")] == 0 and found["rfm_robot_up", ("robot", "arm_1")] == 0
    assert ("rfm_server_load_ratio", ("server", "s1")) not in found
    assert found["rfm_server_replies_total", ("server", "s1")] == 10


def test_who_was_never_heard_has_no_counters_that_would_jump_when_it_is() -> None:
    found = exported(board())
    assert found["rfm_robot_up", ("robot", "arm_2")] == 0 == found["rfm_server_up", ("server", "s2")]
    of_these = {key[0] for key in found if ("robot", "arm_2") in key or ("server", "s2") in key}
    assert of_these == {f"rfm_{kind}_{word}" for kind in ("robot", "server") for word in ("up", "silent_seconds")}


def test_the_silence_of_one_that_was_never_heard_begins_when_it_was_first_asked_for() -> None:
    made, now_s = board(), [NOW_S]
    collector = BoardCollector(made, lambda: now_s[0])
    silent = ("rfm_server_silent_seconds", ("server", "s2"))
    assert scraped(collector)[silent] == 0
    now_s[0] += 60.0
    found = scraped(collector)
    assert found[silent] == 60.0 and found["rfm_robot_silent_seconds", ("robot", "arm_2")] == 60.0
    assert found["rfm_server_silent_seconds", ("server", "s1")] == 60.5
    made.servers["s2"].seen_s = now_s[0]
    assert silent not in scraped(collector), "one that is heard has no silence"


def test_a_schedule_that_was_never_received_is_missing_since_the_exporter_started() -> None:
    """An exporter that starts again while the scheduler is down has an age for the alert to read."""
    made, now_s = board(), [NOW_S]
    made.schedule_seen_s = -math.inf
    collector, age = BoardCollector(made, lambda: now_s[0]), ("rfm_schedule_age_seconds",)
    now_s[0] += 45.0
    found = scraped(collector)
    assert found[age] == 45.0 and ("rfm_schedule_epoch",) not in found
    made.schedule_seen_s = now_s[0] - 1.0
    assert scraped(collector)[age] == 1.0


def test_what_lasts_has_its_duration() -> None:
    """A robot without an action to execute, in whichever state, and a server in its state and behind the schedule."""
    made = board()
    arm, server = made.robots["arm_1"], made.servers["s1"]

    def standing_s() -> float:
        found: float = exported(made)["rfm_robot_standing_seconds", ("robot", "arm_1")]
        return found

    for state, at_s, lasts_s in (
        ("STREAMING", 80.0, 0),
        ("STALLED", 85.0, 15),
        ("RECONNECTING", 90.0, 15),
        ("DEAD", 99.0, 15),
        ("CONNECTING", 99.5, 0),
    ):
        arm.state = state
        arm.note(at_s)
        arm.seen_s = NOW_S
        assert standing_s() == lasts_s
    for state, behind, at_s, state_s, behind_s in (
        ("draining", False, 80.0, 20, 0),
        ("draining", True, 85.0, 20, 15),
        ("failed", True, 90.0, 10, 15),
        ("failed", False, 99.0, 10, 0),
        ("ready", False, 99.75, 0.25, 0),
    ):
        server.state = state
        server.note(behind, at_s)
        server.seen_s = NOW_S
        found = exported(made)
        assert found["rfm_server_state_seconds", ("server", "s1")] == state_s
        assert found["rfm_server_behind_schedule_seconds", ("server", "s1")] == behind_s


def test_a_server_fails_until_its_model_is_loaded_however_often_and_long_it_tries() -> None:
    made = board()
    server = made.servers["s1"]
    for state, at_s, failing_s in (
        ("loading", 10.0, 0.0),  # the first attempt: nothing has failed yet
        ("failed", 20.0, 80.0),
        ("loading", 30.0, 80.0),
        ("failed", 50.0, 80.0),
        ("loading", 60.0, 80.0),  # of another process, which a supervisor started
        ("ready", 90.0, 0.0),
        ("loading", 95.0, 0.0),
        ("failed", 97.0, 3.0),
    ):
        server.state = state
        server.note(False, at_s)
        server.seen_s = NOW_S
        assert exported(made)["rfm_server_failing_seconds", ("server", "s1")] == failing_s


def test_each_hang_counts_once_and_a_server_that_never_hung_has_a_zero() -> None:
    """A counter that began with its first event would have no increase."""
    made, of_it = board(), ("rfm_server_hangs_total", ("server", "s1"))
    server = made.servers["s1"]
    for state, hangs in (("ready", 0), ("hung", 1), ("hung", 1), ("loading", 1), ("ready", 1), ("hung", 2)):
        server.state = state
        server.note(False, NOW_S)
        assert exported(made)[of_it] == hangs
    server.seen_s = NOW_S - 60.0
    assert exported(made)[of_it] == 2, "a server that ended for it is silent"


def test_a_schedule_of_the_same_epoch_and_another_scheduler_is_another_one() -> None:
    made = board()
    made.scheduler, row = 5, made.servers["s1"]
    row.schedule_epoch, row.scheduler = 7, 5
    assert made.is_followed_by(row)
    row.scheduler = 6
    assert not made.is_followed_by(row)
    row.scheduler, row.schedule_epoch = 5, 6
    assert not made.is_followed_by(row)


def test_names_from_the_graph_make_no_more_than_so_many_series() -> None:
    much = board()
    much.robots["arm_1"].refused = {f"reason_{i:04}": 1 for i in range(5000)}
    reasons = {key: value for key, value in exported(much).items() if key[0] == "rfm_robot_refused_total"}
    assert len(reasons) == MAX_NAMES + 1 and sum(reasons.values()) == 5000
    assert reasons["rfm_robot_refused_total", ("reason", OTHER), ("robot", "arm_1")] == 5000 - MAX_NAMES


def test_a_server_of_its_own_port_is_alone() -> None:
    found = exported(board(), "s1")
    assert not [key for key in found if "s2" in str(key) or "robot" in key[0] or "schedule_gap" in key[0]]
    assert found["rfm_server_up", ("server", "s1")] == 1


def test_rules_and_dashboards_ask_for_what_is_exported(repository: Path) -> None:
    rules = yaml.safe_load((repository / "config/prometheus/rules.yml").read_text())
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
    dashboards = sorted((repository / "config/grafana").glob("*.json"))
    for file in dashboards:
        asked += [target["expr"] for panel in json.loads(file.read_text())["panels"] for target in panel["targets"]]
    assert len(dashboards) == 2 and len(asked) > 40
    there = {key[0] for key in exported(board())} | {"rfm_disk_free_bytes", "rfm_disk_size_bytes"}
    used = {name for expr in asked for name in re.findall(r"(?<!:)\brfm_\w+\b(?!:)", expr)} - {"rfm_factory"}
    assert used <= there, used - there
    assert {name for expr in asked for name in re.findall(r"component:[\w:]+", expr)} <= recorded


SCRAPES, SLOWEST_S = 4, 60
"""As many scrapes a window has to hold, at the slowest interval: with fewer `rate` may have nothing, and an alert never fires."""
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def test_windows_of_rules_hold_enough_scrapes_at_any_interval(repository: Path) -> None:
    rules = yaml.safe_load((repository / "config/prometheus/rules.yml").read_text())
    windows = [
        (rule.get("alert", rule.get("record")), int(length) * UNITS_S[unit])
        for group in rules["groups"]
        for rule in group["rules"]
        for length, unit in re.findall(r"\[(\d+)([smhd])\]", rule["expr"])
    ]
    assert len(windows) > 10 and not [one for one in windows if one[1] < SCRAPES * SLOWEST_S]


def test_boards_follow_the_scrape_interval_and_tell_factories_apart(repository: Path) -> None:
    for file in (repository / "config/grafana").glob("*.json"):
        made = json.loads(file.read_text())
        assert "factory" in [variable["name"] for variable in made["templating"]["list"]]
        for panel in made["panels"]:
            for target in panel["targets"]:
                expr = target["expr"]
                assert set(re.findall(r"\[([^\]]+)\]", expr)) <= {"$__rate_interval"}, expr
                selectors = re.findall(r"\b(?:rfm_\w+|component:[\w:]+)(\{[^}]*\})?", expr)
                assert selectors and all('instance=~"$factory"' in one for one in selectors), expr
                assert all("instance" in by for by in re.findall(r"\bby \(([^)]*)\)", expr)) and "sum(" not in expr, expr
                assert "{{instance}}" in target["legendFormat"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda b: None, ""),
        (lambda b: setattr(b.servers["s1"], "seen_s", NOW_S - 5.0), "s1: no status is received from it"),
        (lambda b: setattr(b.servers["s1"], "lost", True), "s1: no status is received from it"),
        (lambda b: setattr(b.servers["s1"], "state", "hung"), "s1: hung"),
        (lambda b: setattr(b, "schedule_seen_s", -math.inf), "no schedule is received"),
        (lambda b: setattr(b, "looked_s", NOW_S - 20.0), "the graph was last read 20.0 s ago"),
        (lambda b: setattr(b, "looked_s", -math.inf), "the graph has not been read yet"),
        (
            lambda b: (setattr(b.servers["s1"], "waiting", 3), setattr(b.servers["s1"], "progressed_s", NOW_S - 30.0)),
            "s1: 3 requests wait, and none was answered for 30 s",
        ),
    ],
)
def test_ready_is_who_makes_progress(change: Any, problem: str) -> None:
    made = board()
    made.forget("s2")
    change(made)
    assert not_ready(made, NOW_S) == ([problem] if problem else [])
    assert bool(not_alive(made, NOW_S)) == ("graph" in problem)


def asked_for(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_who_only_needs_time_lives_without_being_ready() -> None:
    """A probe that starts what loads again would never end."""
    made = board()
    made.servers["s1"].state = "loading"
    assert not_ready(made, NOW_S, "s1") and not not_living(made, NOW_S, "s1")
    made.schedule_seen_s = NOW_S - 60.0
    assert not_living(made, NOW_S) == ["no schedule is received"] and not not_living(made, NOW_S, "s1")
    made.servers["s1"].lost = True
    assert not_living(made, NOW_S, "s1") == ["s1: no status is received from it"]


def test_over_http(tmp_path: Path) -> None:
    made = board(time.monotonic())
    with exporting(made, "127.0.0.1", 0, tmp_path / "not_there_yet") as url:
        port, root = int(url.split(":")[2].partition("/")[0]), url.removesuffix("/metrics")
        status, text = asked_for(url)
        assert status == 200 and 'rfm_server_up{server="s1"} 1.0' in text and "rfm_disk_free_bytes" in text and "process_" in text
        assert asked_for(f"{root}/healthz") == (200, '{"ok": true, "problems": []}\n')
        assert asked_for(f"{root}/readyz") == (503, '{"ok": false, "problems": ["s2: no status is received from it"]}\n')
        assert asked_for(f"{root}/readyz/s1") == (200, '{"ok": true, "problems": []}\n')
        assert asked_for(f"{root}/livez")[0] == asked_for(f"{root}/livez/s1")[0] == 200
        assert asked_for(f"{root}/livez/s2") == (503, '{"ok": false, "problems": ["s2: no status is received from it"]}\n')
        assert asked_for(f"{root}/livez/s3")[0] == asked_for(f"{root}/readyz/s3")[0] == 503, "nobody is named so"
        assert asked_for(f"{root}/other")[0] == 404
        with (
            pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} cannot be listened on"),
            exporting(made, "127.0.0.1", port, tmp_path),
        ):
            pass
