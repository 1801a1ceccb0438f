"""Results of one execution mode at one inference delay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Results of one mode at one delay."""

    mode: str
    delay_steps: int
    successes: dict[str, int]
    episodes: dict[str, int]
    steps: list[int]
    """Steps to success."""
    idle_steps: list[int]
    seam_jump: list[float]
    mean_squared_jerk: list[float]

    @property
    def success(self) -> tuple[int, int]:
        return sum(self.successes.values()), sum(self.episodes.values())
