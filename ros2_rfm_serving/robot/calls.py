"""Calls that go with actions: System 2 and whatever else the descriptor couples to System 1 (ROSA §3.4.1)."""

from __future__ import annotations

from collections.abc import Mapping

from ros2_rfm_serving.types import SYSTEM1

ROUNDING = 1e-9
"""Ten times 0.1 is one call."""


class CoupledCalls:
    """So many calls per System 1 call. An episode begins with one, so that no action runs without a plan."""

    def __init__(self, per_action: Mapping[str, float]) -> None:
        self._per_action = {component: ratio for component, ratio in per_action.items() if ratio > 0 and component != SYSTEM1}
        self._owed: dict[str, float] = {}
        self.begin()

    def __len__(self) -> int:
        """Components."""
        return len(self._per_action)

    def __contains__(self, component: str) -> bool:
        return component in self._per_action

    def begin(self) -> None:
        """A new episode."""
        self._owed = dict.fromkeys(self._per_action, 1.0)

    def acted(self) -> None:
        """System 1 was called. What could not keep up is not made up for: at most one call is still owed from before."""
        for component, ratio in self._per_action.items():
            self._owed[component] = min(self._owed[component], 1.0) + ratio

    def answered(self, component: str) -> None:
        """Only an answer settles a call: one that was lost is asked again."""
        self._owed[component] -= 1.0

    def owed(self, component: str) -> bool:
        return self._owed[component] >= 1.0 - ROUNDING
