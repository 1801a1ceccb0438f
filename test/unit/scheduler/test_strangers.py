"""Of robots that nobody knows a few are heard at a time, and all by turns."""

from __future__ import annotations

from ros2_rfm_serving.scheduler.unregistered_robots import LEAST_LOOKS, LEAST_PLACES, REST_LOOKS, TURNS, UnregisteredRobots


def names(number: int, prefix: str = "stranger") -> set[str]:
    return {f"{prefix}_{i}" for i in range(number)}


def test_as_many_as_there_are_places_are_heard_all_the_time() -> None:
    strangers, those = UnregisteredRobots(), names(LEAST_PLACES)
    assert all(strangers.look(those, 4) == those for _ in range(3)) and not strangers.num_waiting
    assert strangers.look(names(3), 4) == names(3), "who has left"
    assert strangers.look(names(1000), 900) > names(3) and strangers.num_heard == 900, "the larger the fleet, the more"


def test_of_more_a_few_are_heard_and_each_has_its_turn() -> None:
    strangers, those, ever = UnregisteredRobots(), names(300), set[str]()
    before = ever = set(strangers.look(those, 4))
    since = dict.fromkeys(before, 0)
    for look in range(1, LEAST_LOOKS + 300 // TURNS):
        now = set(strangers.look(those, 4))
        assert len(now) == LEAST_PLACES and len(now - before) <= TURNS
        assert all(look - since[name] >= LEAST_LOOKS for name in before - now)
        since |= dict.fromkeys(now - before, look)
        before, ever = now, ever | now
    assert ever == those
    rested = [set(strangers.look(those, 4)) for _ in range(10 * REST_LOOKS)]
    assert LEAST_PLACES + 9 <= len(set().union(*rested)) <= LEAST_PLACES + 10, "by and by"
    assert strangers.num_waiting == 300 - LEAST_PLACES


def test_who_comes_late_has_its_turn_and_places_that_become_free_are_taken_at_once() -> None:
    strangers = UnregisteredRobots()
    strangers.look(names(LEAST_PLACES), 4)
    late = names(LEAST_PLACES) | {"late"}
    assert ["late" in strangers.look(late, 4) for _ in range(LEAST_LOOKS)] == [False] * (LEAST_LOOKS - 1) + [True]
    first = set(strangers.look(names(1000), 4))
    assert not first & strangers.look(names(1000) - first, 4) and strangers.num_heard == LEAST_PLACES


def test_a_fleet_that_shrinks_takes_places_away() -> None:
    strangers = UnregisteredRobots()
    strangers.look(names(500), 400)
    assert len(strangers.look(names(500), 4)) == LEAST_PLACES and strangers.num_waiting == 500 - LEAST_PLACES
