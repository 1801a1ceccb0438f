"""What a writer notes, when it goes out, and that nothing hangs on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ros2_rfm_serving.audit.chain import COULD_NOT_GO_ON, Checked, Page, records
from ros2_rfm_serving.audit.journal import (
    MAX_PAGE_BYTES,
    NO_SUBSCRIBER,
    PAGE_PERIOD_S,
    RETRY_S,
    SEAL_PERIOD_S,
    SNAPSHOT_PERIOD_S,
    SPREAD_S,
    Journal,
)

STEP_S = 0.05


class Desk:
    """A journal, whoever gets its pages, and a clock."""

    def __init__(self, *runs: int) -> None:
        self.pages: list[Page] = []
        self.sent_s: list[float] = []
        self.now_s = 0.0
        self.whole: Any = {"x": 1}
        self.broken = False
        draws: Iterator[int] = itertools.chain(runs, itertools.count(1000))
        self.journal = Journal("robot/r1", "robot", send=self._send, stamp_s=lambda: 1e9 + self.now_s, draw=lambda: next(draws))
        self.journal.describes(begin=lambda: {"config": "config"}, snapshot=lambda: {"state": self.whole})

    def _send(self, page: Page) -> None:
        if self.broken:
            raise OSError("cannot publish")
        self.pages.append(page)
        self.sent_s.append(self.now_s)

    def run(self, seconds: float, *, notes: bool = True) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            if notes and self.journal.on:
                self.journal.note("tick", self.now_s, self.tick)
            self.journal.tend(self.now_s)

    def tick(self) -> Mapping[str, Any]:
        return {"command": [0.5]}

    def begin(self) -> None:
        self.journal.listeners(1, self.now_s)
        self.run(PAGE_PERIOD_S + SPREAD_S + STEP_S)
        assert self.journal.on

    def kinds(self, *runs: int) -> list[str]:
        return [record["kind"] for page in self.pages if not runs or page.run in runs for record in records(page)]

    def flaws(self, run: int) -> list[str]:
        checked = Checked("robot/r1", run)
        for page in self.pages:
            if page.run == run:
                checked.add(page)
        checked.end()
        return [flaw.problem for flaw in checked.flaws]


def test_nobody_listens_and_nothing_is_even_described() -> None:
    desk = Desk()
    desk.run(30.0)
    desk.journal.note("tick", desk.now_s, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    assert not desk.pages and desk.journal.records == desk.journal.failures == 0


def test_a_chain_begins_with_all_that_there_is() -> None:
    desk = Desk(5, 6)
    desk.begin()
    first, second = list(records(desk.pages[0]))[:2]
    assert first["kind"] == "begin" and first["config"] == "config" and first["after"] is None and first["versions"]["numpy"]
    assert first["stamp"] == pytest.approx(1e9 + first["t"])
    assert second["kind"] == "snapshot" and second["state"] == {"x": 1} and second["why"] == "begin"
    assert first["format"] == second["format"] == 2


def test_pages_seals_and_snapshots_come_in_their_time() -> None:
    desk = Desk()
    desk.begin()
    desk.run(30.0)
    gaps = [after - before for before, after in itertools.pairwise(desk.sent_s)]
    assert max(gaps) <= PAGE_PERIOD_S + STEP_S + 1e-6 and min(gaps) >= PAGE_PERIOD_S - 1e-6
    kinds = desk.kinds()
    assert kinds.count("sealed") == pytest.approx(30.0 / SEAL_PERIOD_S, abs=1)
    assert kinds.count("snapshot") == pytest.approx(1 + 30.0 / SNAPSHOT_PERIOD_S, abs=1)


def test_what_somebody_will_ask_about_goes_out_at_once() -> None:
    desk = Desk()
    desk.begin()
    desk.run(PAGE_PERIOD_S)
    sent = len(desk.pages)
    desk.journal.note("operator_command", desk.now_s, lambda: {"command": "pause"}, urgent=True)
    desk.journal.tend(desk.now_s)
    assert len(desk.pages) == sent + 1 and desk.kinds()[-1] == "operator_command"


def test_a_page_never_grows_large() -> None:
    desk = Desk()
    desk.begin()
    sent = len(desk.pages)
    for _ in range(30):
        desk.journal.note("event", desk.now_s, lambda: {"event": "x" * 50_000})  # nobody tends it
    sizes = [sum(map(len, page.lines)) for page in desk.pages[sent:]]
    assert len(sizes) >= 4 and max(sizes) < MAX_PAGE_BYTES + 51_000


def test_writers_that_hear_of_a_listener_together_begin_one_after_the_other() -> None:
    began = []
    for number in range(20):
        desk = Desk(1 + 53 * number, 7)
        desk.begin()
        began.append(desk.sent_s[0])
    assert len(set(began)) > 5 and max(began) - min(began) <= SPREAD_S + STEP_S


def test_who_comes_too_gets_a_snapshot_and_who_goes_ends_nothing() -> None:
    desk = Desk()
    desk.begin()
    desk.journal.listeners(2, desk.now_s)
    desk.run(PAGE_PERIOD_S + STEP_S)
    assert [record["why"] for page in desk.pages for record in records(page) if record["kind"] == "snapshot"] == [
        "begin",
        "subscriber",
    ]
    desk.journal.listeners(1, desk.now_s)
    assert desk.journal.on


def test_when_the_last_one_goes_the_chain_is_closed_and_the_next_one_says_so() -> None:
    desk = Desk(1, 7, 1, 8)
    desk.begin()
    desk.journal.listeners(0, desk.now_s)
    assert not desk.journal.on and desk.kinds()[-1] == "closed" and not desk.flaws(7)
    last = list(records(desk.pages[-1]))[-1]
    desk.run(3.0)
    desk.begin()
    begin = next(record for page in desk.pages if page.run == 8 for record in records(page))
    assert begin["after"] == {"run": 7, "records": last["n"] + 1, "hash": last["hash"], "why": NO_SUBSCRIBER}


@pytest.mark.parametrize("bad", [object(), {1: 2}, 2**80, "\ud800"])
def test_what_cannot_be_written_ends_the_chain_and_another_one_begins(bad: object) -> None:
    desk = Desk(1, 7, 8)
    desk.begin()
    desk.journal.note("tick", desk.now_s, lambda: {"x": bad})
    assert desk.journal.failures == 1 and not desk.journal.on and desk.journal.problem
    (flaw,) = desk.flaws(7)
    assert desk.kinds(7)[-1] == "closed" and "the chain breaks off" in flaw and desk.journal.problem in flaw
    desk.run(RETRY_S + 2 * STEP_S)
    assert desk.journal.on and desk.kinds(8)[:2] == ["begin", "snapshot"]


def test_a_chain_that_breaks_off_is_counted_and_another_begins_at_once() -> None:
    desk = Desk(1, 7, 8)
    desk.begin()
    desk.journal.break_off(desk.now_s, "it was too much")
    assert desk.journal.on and (desk.journal.failures, desk.journal.problem) == (1, "it was too much")
    desk.run(1.0)
    (flaw,) = desk.flaws(7)
    assert flaw.endswith(f"{COULD_NOT_GO_ON}: it was too much") and desk.kinds(8)[:2] == ["begin", "snapshot"]


def test_what_raises_while_it_is_described_harms_nobody() -> None:
    desk = Desk(1, 7, 8)
    desk.begin()
    desk.tick = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    desk.run(10.0)
    assert 5 < desk.journal.failures < 15 and "ZeroDivisionError" in desk.journal.problem


def test_a_page_that_cannot_be_sent_ends_the_chain_and_another_one_begins_when_it_can() -> None:
    desk = Desk(1, 7)
    desk.begin()
    desk.broken = True
    desk.run(5.0)
    failures = desk.journal.failures
    assert failures > 1 and "cannot publish" in desk.journal.problem
    desk.broken = False
    desk.run(RETRY_S + 1.0)
    assert desk.journal.on and desk.journal.failures == failures
    assert desk.pages[-1].run != 7 and not [flaw for flaw in desk.flaws(desk.pages[-1].run) if "not closed" not in flaw]


def test_a_brain_that_cannot_be_written_is_tried_again_now_and_then() -> None:
    desk = Desk()
    desk.whole = object()
    desk.journal.listeners(1, 0.0)
    desk.run(10.0)
    assert not desk.journal.on and 5 < desk.journal.failures < 15
    desk.whole = {}
    desk.run(2.0)
    assert desk.journal.on


def test_a_record_that_is_deferred_comes_in_its_order_and_is_described_before_the_next_one() -> None:
    desk, described = Desk(), list[int]()

    def describe(number: int) -> dict[str, int]:
        described.append(number)
        return {"number": number}

    desk.journal.defer("tick", desk.now_s, describe, 9)
    desk.begin()
    for number in range(3):
        desk.journal.defer("tick", desk.now_s, describe, number)
    assert not described
    desk.journal.note("event", desk.now_s, lambda: {"number": 3})
    assert described == [0, 1, 2]
    for number in range(4, 100):
        desk.journal.defer("tick", desk.now_s, describe, number)
    assert len(described) > 20, "they do not wait for ever"
    desk.journal.close(desk.now_s, "the end")
    numbers = [record["number"] for page in desk.pages for record in records(page) if "number" in record]
    assert numbers == list(range(100))


def test_a_deferred_record_that_cannot_be_written_ends_the_chain_before_it() -> None:
    desk = Desk(1, 5, 6)
    desk.begin()
    desk.journal.defer("tick", desk.now_s, lambda: {"number": 1})
    desk.journal.defer("tick", desk.now_s, lambda: {"number": object()})
    desk.journal.defer("tick", desk.now_s, lambda: {"number": 3})
    desk.run(PAGE_PERIOD_S)
    assert desk.journal.failures == 1 and desk.kinds(5)[-2:] == ["tick", "closed"]
    desk.run(2.0)
    assert desk.kinds(6)[0] == "begin"
