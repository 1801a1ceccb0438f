"""A head that is lost, comes back, or does not: what is said and done about it, without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.on_ray.head import RAYS_PATIENCE, Head, State
from ros2_rfm_serving.operate.on_ray.words import Answer, Begin, Joined, Look, Order, Recall, Recalled, Refused, Told

ADDRESS = "10.0.0.1:6379"
THERE = Joined(ADDRESS, "10.0.0.9", ())
STEP_S = 0.5


@dataclass
class Speaker:
    ended: str = ""
    orders: list[Order] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def send(self, order: Order) -> None:
        self.orders.append(order)

    def heard(self) -> Iterator[Answer]:
        while self.answers:
            yield self.answers.pop(0)

    def wait(self, seconds: float) -> Answer | None:
        return self.answers.pop(0) if self.answers else None

    def end(self, patience_s: float = 0.0) -> None:
        self.ended = self.ended or "SIGKILL"


class Story:
    def __init__(self, patience_s: float = 120.0, *, is_local: bool = False) -> None:
        self.now_s, self.is_there, self.has_room = 1000.0, True, True
        self.links = [Speaker()]
        self.said: list[str] = []
        self.told: list[Told] = []
        self.head = Head(
            self.links[0],
            ADDRESS,
            connect=self._connect,
            again=self._again,
            patience_s=patience_s,
            is_local=is_local,
            knocks=lambda address: self.is_there,
        )

    @property
    def link(self) -> Speaker:
        return self.links[-1]

    def go_on(self, seconds: float = STEP_S) -> list[str]:
        """What was said meanwhile."""
        before, end_s = len(self.said), self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += STEP_S
            events, told = self.head.watch(self.now_s)
            self.said += events
            self.told += told
        return self.said[before:]

    def _connect(self) -> Speaker:
        self.links.append(Speaker())
        return self.link

    def _again(self, there: Joined) -> Begin:
        if not self.has_room:
            raise ConfigurationError("no node has room for gpu_a")
        return Begin((), Path("logs"), again=True)


def lost(story: Story) -> Story:
    assert story.go_on(30.0) == []
    story.is_there = False
    (said,) = story.go_on(10.0)
    assert f"the head of the Ray cluster at {ADDRESS} does not answer" in said and story.head.state is State.LOST
    return story


def test_a_lost_head_is_told_once_with_what_goes_on_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAYS_PATIENCE, "45")
    story = lost(Story())
    assert "for 45 s by Ray's own word" in story.said[0] and "120 s (--ray-patience)" in story.said[0]
    story.link.answers = [Told(("server_1: ended",), {})]
    assert story.go_on(20.0) == [] and story.told == [Told(("server_1: ended",), {})], "what goes on is heard meanwhile"
    story.link.ended = "exit code 1"
    assert story.go_on(20.0) == ["Ray has given up its lost head: servers end, and robots stand until it is back"]


def test_a_head_that_was_out_of_sight_for_a_moment_is_not_lost() -> None:
    story = Story()
    story.go_on(10.0)
    story.is_there = False
    story.go_on(2.0)
    story.is_there = True
    assert story.go_on(30.0) == [] and len(story.links) == 1


def test_a_head_that_is_back_and_knows_what_it_knew_changes_nothing() -> None:
    story = lost(Story())
    story.is_there = True
    story.go_on(3.0)
    assert story.link.orders == [Recall()]
    story.link.answers = [Recalled(is_known=True)]
    assert story.go_on(1.0) == [f"the head of the Ray cluster at {ADDRESS} is back, and knows what it knew"]
    assert story.go_on(60.0) == [] and len(story.links) == 1 and story.head.has_begun


@pytest.mark.parametrize("how", ["it says so", "it says nothing", "who spoke with it has ended"])
def test_on_a_head_that_knows_nothing_all_is_begun_anew(how: str) -> None:
    story = lost(Story())
    if how == "who spoke with it has ended":
        story.link.ended = "exit code 1"
        story.go_on(10.0)
    story.is_there = True
    story.go_on(3.0)
    if how == "it says so":
        story.link.answers = [Recalled(is_known=False)]
    story.go_on(12.0)
    assert len(story.links) == 2 and story.links[0].ended, "whoever spoke with the head that is lost has to end"
    assert not story.head.has_begun, "and nobody could be told to end meanwhile"
    story.link.answers = [THERE]
    (said,) = story.go_on(1.0)
    assert "is there again" in said and "started anew" in said
    assert story.link.orders == [Begin((), Path("logs"), again=True)] and story.head.state is State.AT_WORK
    assert story.go_on(60.0) == []


def test_nodes_that_come_one_after_the_other_are_waited_for() -> None:
    story = lost(Story())
    story.link.ended, story.is_there, story.has_room = "exit code 1", True, False
    story.go_on(3.0)
    for _ in range(3):
        story.link.answers = [THERE]
        assert story.go_on(1.0) == []
    assert story.link.orders == [Look()] * 3 and story.head.state is State.JOINING
    story.has_room, story.link.answers = True, [THERE]
    assert "started anew" in story.go_on(1.0)[0]


def test_a_cluster_that_refuses_is_asked_again_and_given_up_with_its_reason() -> None:
    story = lost(Story(patience_s=60.0))
    story.link.ended, story.is_there = "exit code 1", True
    for _ in range(200):
        story.go_on()
        if story.head.state is State.JOINING:
            story.link.answers = [Refused("no Ray cluster: not yet", "", "")]
    assert story.head.state is State.GIVEN_UP and 5 < len(story.links) < 30, len(story.links)
    (said,) = [said for said in story.said if "given up:" in said]
    assert said == f"no head of the Ray cluster at {ADDRESS} for 60 s, given up: no Ray cluster: not yet"
    assert all(link.ended for link in story.links) and not story.head.has_begun


def test_a_head_that_stays_away_is_given_up_when_patience_ends_and_not_before() -> None:
    story = lost(Story(patience_s=120.0))
    story.go_on(105.0)
    assert story.head.state is State.LOST
    story.go_on(20.0)
    assert story.head.state is State.GIVEN_UP and len(story.links) == 1


def test_a_cluster_that_hangs_is_left_and_joined_once_more() -> None:
    story = lost(Story(patience_s=300.0))
    story.link.ended, story.is_there = "exit code 1", True
    story.go_on(3.0)
    assert len(story.links) == 2
    story.go_on(70.0)
    assert len(story.links) == 3 and story.links[1].ended


def test_a_head_that_is_lost_again_and_again_has_one_patience() -> None:
    story = lost(Story(patience_s=60.0))
    for _ in range(40):
        story.link.ended, story.is_there = "exit code 1", True
        story.go_on(3.0)
        story.link.answers = [THERE]
        story.go_on(1.0)
        if story.head.state is State.GIVEN_UP:
            break
    assert story.head.state is State.GIVEN_UP and story.now_s < 1000.0 + 45.0 + 70.0


def test_a_local_cluster_does_not_come_back_and_another_one_is_started() -> None:
    story = Story(is_local=True)
    story.go_on(10.0)
    story.is_there = False
    said = story.go_on(10.0)
    assert len(said) == 1 and "servers end" in said[0] and len(story.links) == 2
    story.link.answers, story.is_there = [THERE._replace(address="10.0.0.1:7000")], True
    assert "10.0.0.1:7000" in story.go_on(1.0)[0] and story.head.address == "10.0.0.1:7000"
