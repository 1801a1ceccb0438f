"""What it takes to go over from one schedule to another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Migration:
    """What a move to another schedule costs and gains."""

    moved_servers: tuple[str, ...]
    """They load another model."""
    moved_robots: tuple[str, ...]
    """At least one of their routes changes its server."""
    lost_actions: float
    """While the new models load, of the robots that were on those servers; and of each that moves, while it does."""
    gained_actions: float
    """Until the horizon; none where it is within the rounding of what is predicted."""

    @property
    def worth_it(self) -> bool:
        return self.gained_actions > self.lost_actions
