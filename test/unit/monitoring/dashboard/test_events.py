"""Who was lost, held, refused, replanned, and why, from successive looks at a board."""

from __future__ import annotations

from ros2_rfm_serving.monitoring.board import Board, Failover
from ros2_rfm_serving.monitoring.dashboard.events import HELD_PERIODS, KEPT, REFUSED_PERIOD_S, SETTLES_S, EventLine
from test.unit.monitoring.dashboard.boards import NOW_S, board, route


class Watched:
    """A board that is looked at every half second, at which robots and servers speak."""

    def __init__(self) -> None:
        self.board, self.line, self.now_s = board(), EventLine(), NOW_S
        self.line.look(self.board, self.now_s, 0.0)

    def look(self, *, arm: bool = True, server: bool = True, seconds: float = 0.5, **changed: object) -> list[tuple[str, str, str]]:
        """(who, what, why) of what this look found; changed: fields of arm_1."""
        before, self.now_s = self.line.last, self.now_s + seconds
        self.board.schedule_seen_s = self.now_s
        vars(self.board.robots["arm_1"]).update(changed)
        if arm:
            self.board.robots["arm_1"].seen_s = self.now_s
        if server:
            self.board.servers["s1"].seen_s = self.now_s
        self.line.look(self.board, self.now_s, self.now_s)
        return [(event.name, event.what, event.why) for event in self.line.since(before)]


def test_what_was_there_is_no_event_and_neither_is_quiet() -> None:
    watched = Watched()
    assert not watched.line.since(0)
    assert watched.look() == [] == watched.look()


def test_a_change_of_state_comes_with_its_reason() -> None:
    watched = Watched()
    assert watched.look(state="DEGRADED", reason="s1 is late") == [("arm_1", "degraded", "s1 is late")]
    assert watched.look(state="STREAMING", reason="") == [("arm_1", "streaming", "")]
    assert watched.look(paused=True) == [("arm_1", "paused", "")]
    assert watched.look(paused=False, phase="waiting", stop_reason="unsafe") == [
        ("arm_1", "resumed", ""),
        ("arm_1", "waits for a person", "unsafe"),
    ]


def test_the_silent_are_lost_and_come_back() -> None:
    watched = Watched()
    assert watched.look(arm=False, seconds=4.0) == [("arm_1", "lost", "silent for 4 s")]
    assert watched.look(arm=False) == []
    assert watched.look() == [("arm_1", "back", "")]
    watched.look(seconds=SETTLES_S)
    watched.board.robots["arm_2"].seen_s = watched.now_s
    assert watched.look() == [("arm_2", "heard for the first time", "")]


def test_who_is_released_has_left_and_is_not_lost() -> None:
    watched = Watched()
    watched.board.planned_robots = frozenset(["arm_2"])
    assert watched.look(arm=False, seconds=4.0) == [("arm_1", "left", "no schedule has a route of it")]
    assert watched.look(arm=False) == []
    assert watched.look() == [("arm_1", "back", "")]


def test_a_server_that_is_killed_is_lost_at_once_and_one_that_counts_anew_was_restarted() -> None:
    watched = Watched()
    watched.board.servers["s1"].lost = True
    assert watched.look(server=False) == [("s1", "lost", "its liveliness ended")]
    watched.board.servers["s1"].lost = False
    assert watched.look() == [("s1", "back", "")]
    server = watched.board.servers["s1"]
    server.served, server.state, server.detail = 0, "loading", "loading rfm/flow"
    assert watched.look() == [("s1", "restarted", "it counts its replies anew"), ("s1", "loading", "loading rfm/flow")]


def test_who_holds_is_told_once_until_it_moves_again() -> None:
    watched = Watched()
    assert watched.look(held_ticks=2) == [] == watched.look(), "a period or two are none of anybody's business"
    assert watched.look(held_ticks=2 + HELD_PERIODS) == []
    assert watched.look(held_ticks=20) == [("arm_1", "held", "no action that may be executed")]
    assert watched.look(held_ticks=30) == [] == watched.look(arm=False), "nothing new was said"
    assert watched.look() == [("arm_1", "moves again", "after 28 held control periods")]
    watched.look(held_ticks=40)
    assert watched.look(held_ticks=50, state="STALLED", reason="no chunk") == [("arm_1", "stalled", "no chunk")]


def test_refusals_for_one_reason_are_one_event_for_a_while() -> None:
    watched = Watched()
    old = "actions were older than `max_action_age_s` before they could be executed"
    assert watched.look(refused={"stale_action": 1}) == [("arm_1", "refused", f"{old} (stale_action, 1 in all)")]
    assert watched.look(refused={"stale_action": 5, "late": 1}) == [("arm_1", "refused", "late (late, 1 in all)")]
    watched.look(seconds=REFUSED_PERIOD_S)
    assert watched.look(refused={"stale_action": 9, "late": 1}) == [("arm_1", "refused", f"{old} (stale_action, 9 in all)")]


def test_a_schedule_says_what_it_changes() -> None:
    watched = Watched()
    watched.board.placed_epoch, watched.board.routes = 8, (route("arm_1", server="s2"), route("arm_3"))
    ((who, what, why),) = watched.look()
    assert (who, what) == ("schedule 8", "replanned") and why == "with arm_3; arm_1 system1: s1 to s2"
    watched.board.scheduler, watched.board.placed_epoch = 6, 1
    assert watched.look() == [("schedule 1", "replanned", "by another scheduler; nobody moves")]
    watched.look(failovers=[Failover("s1", "s2", 1.0)])
    assert watched.line.since(0)[-1].what == "turned to its standby"


def test_two_schedulers_are_told_once() -> None:
    watched = Watched()
    watched.board.disputed_s = watched.now_s
    assert [what for _, what, _ in watched.look()] == ["two schedulers"] and watched.look() == []
    watched.board.disputed_s = watched.now_s - 100.0
    assert [what for _, what, _ in watched.look()] == ["one scheduler again"]


def test_a_silent_scheduler_is_told() -> None:
    watched = Watched()
    watched.now_s += 10.0
    watched.line.look(watched.board, watched.now_s, 0.0)
    assert "scheduler lost" in [event.what for event in watched.line.since(0)]
    assert ("", "scheduler back", "") in watched.look()


def test_it_is_bounded_however_long_words_are_and_whoever_leaves() -> None:
    watched = Watched()
    for i in range(2 * KEPT):
        watched.look(state=f"STATE {i % 7}", reason="x" * 10_000)
    events = watched.line.since(0)
    assert len(events) == KEPT and all(len(event.why) <= 300 for event in events)
    watched.board.forget("arm_1")
    watched.line.look(watched.board, watched.now_s, 0.0)
    assert "arm_1" not in watched.line._robots


def test_an_empty_board_has_no_events() -> None:
    line = EventLine()
    line.look(Board([], []), 0.0, 0.0)
    assert line.since(0) == [] and line.last == 0


def test_messages_of_nobody_who_may_say_them_are_an_event_now_and_then() -> None:
    watched = Watched()
    for name in ("arm_1", "arm_1", "s1", "schedule"):
        watched.board.refuse(name)
    told = watched.look()
    assert [(name, what) for name, what, _ in told] == [(name, "unproven messages, not shown") for name in ("arm_1", "s1", "")]
    assert "2 in all" in told[0][2] and {e.kind for e in watched.line.since(0)} == {"robot", "server", "schedule"}
    watched.board.refuse("arm_1")
    assert watched.look() == [], "an intruder fills no page"
    watched.board.refuse("arm_1")
    assert "4 in all" in watched.look(seconds=REFUSED_PERIOD_S)[0][2]
