"""What the page is told equals the board; of the silent it is told nothing; and what changed is enough to keep up."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from ros2_rfm_serving.monitoring.dashboard import views
from ros2_rfm_serving.monitoring.dashboard.history import KEPT_S, RATE_WINDOW_S, History, Mean, Rate, Ring
from ros2_rfm_serving.monitoring.dashboard.refusing import RECENT_S, RecentRefusals
from test.unit.monitoring.dashboard.boards import NOW_S, board, counted, route


def test_figures_are_those_of_the_board() -> None:
    view = views.fleet(board(), NOW_S)
    arm, server = view["robots"]["arm_1"], view["servers"]["s1"]
    assert (arm["actions_hz"], arm["chunks_hz"], arm["staleness_s"], arm["p50_s"]) == (19.5, 4.25, 0.125, 0.0625)
    assert (arm["state"], arm["task"], arm["successes"], arm["episodes"], arm["stale"]) == ("STREAMING", "push", 1, 2, False)
    assert arm["emulated"] and server["emulated"], "nobody is to take an emulated model for a real one"
    assert (server["load"], server["p99_s"], server["slo_s"], server["robots"]) == (0.5, 0.3, 0.4, 1)
    assert (view["schedule"]["planned_hz"], view["schedule"]["real_hz"], view["schedule"]["gap"]) == (5.0, 4.25, 0.04)
    assert view["tasks"]["push"] == {
        "robots": 1,
        "episodes": 2,
        "successes": 1,
        "low": pytest.approx(0.0945, abs=1e-3),
        "high": pytest.approx(0.9055, abs=1e-3),
    }


def test_a_robot_says_what_it_does_and_what_is_in_its_way() -> None:
    made, recent = board(), RecentRefusals()
    arm = made.robots["arm_1"]

    def told() -> tuple[str, ...]:
        view = views.fleet(made, NOW_S, recent)["robots"]["arm_1"]
        return tuple(view[key] for key in ("shown", "level", "does", "obstacle", "help"))

    assert told() == ("streaming", "good", "push-it", "", "")
    arm.instruction, arm.retries = "push the puck", 1
    assert told()[2] == "push the puck, attempt 2"
    arm.phase = "idle"
    assert told() == ("ready, idle", "good", "has no task", "", ""), "without a task nothing streams"
    arm.state, arm.reason = "CONNECTING", "action names differ"
    assert told() == ("connecting", "warning", "has no task", "action names differ", "connecting")
    arm.state, arm.reason, arm.phase, arm.stop_reason = "STREAMING", "", "waiting", "safety objects"
    assert told() == ("waits for a person", "error", "waits for a person to resume or abort", "safety objects", "waiting")
    recent.sample(made, NOW_S)
    arm.refused = {"stale_action": 3, "stale_episode": 1}
    recent.sample(made, NOW_S)
    refusing = [{"reason": "stale_action", "meaning": "actions were older than `max_action_age_s` before they could be executed"}]
    assert views.fleet(made, NOW_S, recent)["robots"]["arm_1"]["refusing"] == refusing
    assert recent.of("arm_1", NOW_S + RECENT_S + 1.0) == []


def test_of_the_silent_there_are_no_figures() -> None:
    late_s = NOW_S + 10.0
    view = views.fleet(board(), late_s)
    for one in (*view["robots"].values(), *view["servers"].values()):
        assert one["stale"] and one["state"] is None and one["p99_s"] is None
        assert all(one.get(key) is None for key in ("actions_hz", "staleness_s", "load", "batch", "waiting", "queue"))
    assert view["robots"]["arm_1"]["silent_s"] == 10 and view["robots"]["arm_2"]["silent_s"] is None
    assert view["schedule"]["stale"] and view["schedule"]["real_hz"] is None
    assert view["robots"]["arm_1"]["successes"] == 1, "what was counted stays"


def test_the_page_names_the_dispatch_policy_that_a_server_runs() -> None:
    made = board()
    made.servers["s1"].dispatch = "swift"
    assert views.fleet(made, NOW_S)["servers"]["s1"]["dispatch"] == "swift"
    assert views.fleet(made, NOW_S + 10.0)["servers"]["s1"]["dispatch"] == "swift", "a silent server had it"


def test_words_of_others_are_bounded() -> None:
    made = board()
    for name in ("reason", "task", "verdict", "stop_reason", "server"):
        setattr(made.robots["arm_1"], name, "x" * 1_000_000)
    made.routes = ()
    made.servers["s1"].detail = made.servers["s1"].model = made.factory = made.policy = "x" * 1_000_000
    assert len(json.dumps(views.fleet(made, NOW_S))) < 11_000


def test_a_lost_server_has_no_figures_at_once() -> None:
    made = board()
    made.servers["s1"].lost = True
    server = views.fleet(made, NOW_S)["servers"]["s1"]
    assert server["lost"] and server["load"] is None and server["silent_s"] == 0


def merged(before: Any, changed: Any) -> Any:
    """As store.js does."""
    after = copy.deepcopy(before)
    for part, rows in changed.items():
        if part == "schedule":
            after.setdefault(part, {}).update(rows)
            continue
        for name, row in rows.items():
            if row is None:
                after[part].pop(name)
            else:
                after.setdefault(part, {}).setdefault(name, {}).update(row)
    return after


def test_differences_lead_from_one_view_to_the_next() -> None:
    made = board()
    view: dict[str, Any] = {}
    for step in range(4):
        if step == 1:
            made.robots["arm_1"].staleness_s = math.nan
        if step == 2:
            made.forget("arm_1")
        if step == 3:
            made.add(servers=["s3"])
        after = views.fleet(made, NOW_S + 0.5 * step)
        changed = views.difference(view, after)
        view = merged(view, json.loads(json.dumps(changed, allow_nan=False)))
        assert view == json.loads(json.dumps(after))
    assert views.difference(view, view) == {}


def test_whoever_asks_its_standby_is_seen_to() -> None:
    made = board()
    made.routes = (route("arm_1", standby="s2"), route("arm_1", "monitor", standby="s2"))
    made.robots["arm_1"].server = "s2"
    assert [told["on_standby"] for told in views.routes(made, History(), NOW_S)] == [True, False]
    assert [told["on_standby"] for told in views.routes(made, History(), NOW_S + 10.0)] == [False, False], "nobody knows"


def test_planned_and_real_rates() -> None:
    made, history = board(), History()
    for second in range(20):
        made.robots["arm_1"].seen_s = NOW_S + second
        made.robots["arm_1"].components["system1"].in_time = 4 * second
        history.sample(made, NOW_S + second)
    made.robots["arm_1"].seen_s = NOW_S + 19
    system1, monitor = views.routes(made, history, NOW_S + 19)
    assert (system1["planned_hz"], system1["real_hz"], system1["server"]) == (5.0, 4.0, "s1")
    assert not system1["on_standby"] and not monitor["on_standby"]
    assert monitor["real_hz"] is None and monitor["attained"] is None, "nobody has answered: nothing is made up"


def test_latency_is_split_by_what_was_counted_meanwhile() -> None:
    made, history = board(), History()
    arm, server = made.robots["arm_1"], made.servers["s1"]
    trips, waits, runs = counted(0.5), counted(0.1), counted(0.1)
    for second in range(3):
        arm.seen_s = server.seen_s = NOW_S + second
        arm.histograms = {"round_trip_s": {"system1": counted(0.5, *[0.1] * second)}}
        server.histograms = {
            "queue_wait_s": {"": counted(0.1, *[0.02] * second)},
            "inference_s": {"": counted(0.1, *[0.03] * second)},
        }
        history.sample(made, NOW_S + second)
    history.sample(made, NOW_S + 3)
    told = views.robot_page(made, history, "arm_1", NOW_S + 3)["history"]
    assert told["ago_s"] == [-3.0, -2.0, -1.0, 0.0]
    assert told["round_trip_s"] == [None, pytest.approx(0.1), pytest.approx(0.1), None], "nobody spoke in the last second"
    assert told["queue_s"][1] == pytest.approx(0.02) and told["inference_s"][1] == pytest.approx(0.03)
    assert trips.sum and waits.sum and runs.sum
    assert views.server_page(made, history, "s1", NOW_S + 3)["history"]["load"] == [0.5, 0.5, 0.5, None]


def test_history_is_bounded_and_survives_restarts() -> None:
    ring = Ring(1)
    for second in range(int(3 * KEPT_S)):
        ring.add(float(second), [second])
    ago_s, values = ring.columns(3 * KEPT_S - 1)
    assert len(values) == KEPT_S and values[-1] == 3 * KEPT_S - 1 and ago_s[0] == 1 - KEPT_S
    mean, rate = Mean(), Rate()
    assert math.isnan(mean.step(counted(1.0, 1.0))) and mean.step(counted(1.0, 1.0, 4.0)) == 4.0
    assert math.isnan(mean.step(counted(2.0))), "its process began anew"
    for second, count in ((0, 0), (1, 10), (2, 3), (3, 5)):
        rate.read(second, count)
    assert rate.per_s == 2.0
    for second in range(4, 100):
        rate.read(second, 5 + 7 * second)
    assert rate.per_s == pytest.approx(7.0) and len(rate._read) <= RATE_WINDOW_S + 1
