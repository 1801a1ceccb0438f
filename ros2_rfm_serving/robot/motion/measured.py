"""Where a robot is measured to be, and whether its commands may set out from there."""

from __future__ import annotations

import numpy as np

from ros2_rfm_serving.robot.motion.shaping import CommandShaper
from ros2_rfm_serving.types import Array


class Measured:
    """The last control period's measurement, and whether the newest one fits to it."""

    def __init__(self, num_actions: int) -> None:
        self._num_actions = num_actions
        self._last: tuple[Array, float] | None = None
        """A position, and when."""
        self._is_steady = True
        """The newest one fits to that: an encoder that jumps for a sample is nowhere to set out from."""

    @property
    def position(self) -> Array | None:
        """[A]; None: not known."""
        return self._last[0] if self._last else None

    def usable(self, positions: Array | None) -> Array | None:
        """[A] what was measured, if it can be used."""
        fits = positions is not None and np.shape(positions) == (self._num_actions,) and np.isfinite(positions).all()
        return positions if fits else None

    def take(self, positions: Array | None, now_s: float, shaper: CommandShaper | None) -> None:
        """Once per control period. shaper: knows how far the robot may have come since the last one; None: nobody does."""
        if positions is None:
            self._is_steady, self._last = True, None
            return
        known, last = self.usable(positions), self._last
        self._is_steady = True
        if shaper and shaper.needs_position and known is not None and last is not None:
            self._is_steady = shaper.is_near(known, last[0], now_s - last[1])
        self._last = None if known is None else (known, now_s)

    def unfit_start(self, known: Array | None, shaper: CommandShaper) -> str:
        """Why no command may set out from `known`, [A], as the name of a counter; empty: it may."""
        if known is None:
            return "position_unknown"
        if not self._is_steady:
            return "position_unsteady"
        return "" if shaper.is_in_reach(known) else "position_out_of_limits"
