"""What a snapshot keeps of an object, and how an object goes on from it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.types.state import Stateful, kept, restore, state_of


class Wheel:
    KEPT: ClassVar = kept(angle_rad="_angle")

    def __init__(self) -> None:
        self._angle, self.turns = 0.0, 0

    def turn(self, angle: float) -> None:
        self._angle += angle
        self.restored()

    def restored(self) -> None:
        self.turns = int(self._angle // 6.0)


class Cart:
    KEPT: ClassVar = kept(
        "left", "trail", "counts", "seen", "load", spare="_spare", noise="_rng", wheels_by_name="_wheels", by_use="_by_use"
    )

    def __init__(self) -> None:
        self.left, self._spare = Wheel(), None
        self.shared = self.left
        self.trail: deque[float] = deque(maxlen=2)
        self.counts: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.load: list[str] = []
        self._rng = random.Random(1)
        self._wheels = {"front": Wheel()}
        self._by_use: defaultdict[str, Wheel] = defaultdict(Wheel)

    def drive(self) -> None:
        self.left.turn(7.0)
        self.trail.extend([1.0, 2.0, self._rng.random()])
        self.counts["drive"] += 1
        self.seen.add("yard")
        self.load.append("box")
        self._wheels["front"].turn(1.0)
        self._by_use["steering"].turn(13.0)


class Train:
    """Its parts are made before they can be restored."""

    KEPT: ClassVar = kept(carts="_carts")

    def __init__(self) -> None:
        self._carts: dict[str, Cart] = {}

    def state(self) -> dict[str, Any]:
        return state_of(self, self.KEPT)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._carts = {name: Cart() for name in state["carts"]}
        restore(self, self.KEPT, state)


def test_an_object_goes_on_from_its_state_with_what_it_shares() -> None:
    first, second = Cart(), Cart()
    first.drive()
    restore(second, Cart.KEPT, state_of(first, Cart.KEPT))
    assert second.left is second.shared and second.left.turns == 1, "parts stay, and what follows from their values is set"
    assert state_of(second, Cart.KEPT) == state_of(first, Cart.KEPT)
    assert second.trail.maxlen == 2 and type(second.counts) is Counter and second._by_use["steering"].turns == 2
    first.drive()
    second.drive()
    assert state_of(second, Cart.KEPT) == state_of(first, Cart.KEPT)


def test_a_state_is_of_plain_values_under_plain_names_and_stays_as_it_is() -> None:
    cart = Cart()
    cart.drive()
    taken = state_of(cart, Cart.KEPT)
    cart.drive()
    assert taken["left"] == {"angle_rad": 7.0} and taken["counts"] == {"drive": 1} and taken["load"] == ["box"]
    assert taken["wheels_by_name"] == {"front": {"angle_rad": 1.0}} and taken["seen"] == {"yard"}
    assert type(taken["counts"]) is dict and type(taken["trail"]) is list and len(taken["noise"][1]) == 625


def test_parts_that_are_made_anew_are_restored() -> None:
    first, second = Train(), Train()
    first._carts["a"] = Cart()
    first._carts["a"].drive()
    assert isinstance(first, Stateful)
    second.restore(first.state())
    assert second.state() == first.state()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hat": 1}, "the snapshot of Cart has hat, which this version does not know"),
        ({"load": None, "hat": 1}, "has hat"),
        ({"left": {"angle": 1.0}}, "the snapshot of Wheel has angle, which this version does not know and lacks angle_rad"),
        ({"left": 7}, "the snapshot of Wheel is 7, and no state"),
        ({"wheels_by_name": {"rear": {"angle_rad": 1.0}}}, "the snapshot of Cart.wheels_by_name is of rear, not of front"),
        ({"by_use": None}, "the snapshot of Cart.by_use is None, and no state"),
    ],
)
def test_a_state_of_something_else_is_refused_by_name(change: dict[str, Any], problem: str) -> None:
    cart = Cart()
    with pytest.raises(RfmError, match=problem):
        restore(cart, Cart.KEPT, {**state_of(cart, Cart.KEPT), **change})
    with pytest.raises(RfmError, match="lacks load"):
        restore(cart, Cart.KEPT, {name: value for name, value in state_of(cart, Cart.KEPT).items() if name != "load"})
