"""Goal-coupled calls: System 2 and whatever else the descriptor couples to System 1 (ROSA §3.4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from ros2_rfm_serving.types import SYSTEM1
from ros2_rfm_serving.types.state import kept

ROUNDING = 1e-9
"""Rounding tolerance: ten times 0.1 is one call."""


class CoupledCalls:
    """Calls that are due per System 1 call. An episode begins with one, so that no action is executed without a plan.

    `initial_share`, [0, 1): share of the next call that is due from the beginning. Different shares keep robots that begin together
    from planning together ever after.
    """

    KEPT: ClassVar = kept(served_components="_served", num_due="_num_due")

    def __init__(self, per_action: Mapping[str, float], initial_share: float = 0.0) -> None:
        self._per_action = {component: ratio for component, ratio in per_action.items() if ratio > 0 and component != SYSTEM1}
        self._initial_share = initial_share
        self._served: frozenset[str] = frozenset()
        self._num_due: dict[str, float] = {}
        self.due: frozenset[str] = frozenset()
        """Components with a call that is due."""
        self.begin()

    def restored(self) -> None:
        """Compute which calls are due."""
        self._settle()

    def __contains__(self, component: str) -> bool:
        return component in self._per_action

    def serve(self, components: Iterable[str]) -> None:
        """Set the components with a route in the schedule; no call of others is ever due."""
        self._served = frozenset(components).intersection(self._per_action)
        self._settle()

    def begin(self) -> None:
        """Begin a new episode."""
        self._num_due = dict.fromkeys(self._per_action, 1.0 + self._initial_share)
        self._settle()

    def on_system1_call(self) -> None:
        """Note a call of System 1. A component that cannot keep up makes up for one call at most."""
        if self._per_action:
            for component, ratio in self._per_action.items():
                self._num_due[component] = min(self._num_due[component] + ratio, 1.0 + max(1.0, ratio))
            self._settle()

    def on_reply(self, component: str) -> None:
        """Note an answer, which alone settles a call: a lost one is requested again. A late answer may find no call to settle."""
        if component in self.due:
            self._num_due[component] -= 1.0
            self._settle()

    def _settle(self) -> None:
        self.due = frozenset([component for component in self._served if self._num_due[component] >= 1.0 - ROUNDING])
