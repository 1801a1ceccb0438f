"""Plans whole factories for the scheduler node: at once, or in the background."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ros2_rfm_serving.factory import Catalogue, Factory, Robot
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import Planned, start_fleet
from ros2_rfm_serving.types import Schedule


class _Background(NamedTuple):
    future: Future[Planned]
    needed: bool


class Planner:
    """By the profiles of a folder. One plan at a time is made in the background; a newer one takes its place."""

    def __init__(self, profiles: Path, policy: str) -> None:
        """Raises: `RfmError` for profiles that cannot be used."""
        self.policy = policy
        self._profile, self._catalogue = load_profiles(profiles), Catalogue.load(profiles / "models.yaml")
        self._solver = ThreadPoolExecutor(max_workers=1, thread_name_prefix="solver")
        self._background: _Background | None = None

    @property
    def is_busy(self) -> bool:
        """Something is made in the background, or was made and not taken yet."""
        return self._background is not None

    def plan(self, factory: Factory, robots: Sequence[Robot], previous: Schedule | None = None) -> Planned:
        """The epoch after `previous`. Raises: `RfmError`."""
        policy = self.policy
        fleet = start_fleet(
            factory,
            robots,
            self._profile,
            self._catalogue,
            epoch=previous.epoch + 1 if previous else 1,
            previous=previous,
            policy=policy,
        )
        return Planned(fleet, factory, previous, policy)

    def begin(self, factory: Factory, robots: Sequence[Robot], previous: Schedule, *, needed: bool = False) -> None:
        """needed: some of these robots are not served without."""
        self.forget()
        self._background = _Background(self._solver.submit(self.plan, factory, robots, previous), needed)

    def take(self) -> tuple[Planned, bool] | None:
        """What was made in the background, and whether it was needed; None: not yet, or nothing. Raises: `RfmError`."""
        if self._background is None or not self._background.future.done():
            return None
        made, self._background = self._background, None
        return made.future.result(), made.needed

    def forget(self) -> None:
        if self._background is not None:
            self._background.future.cancel()
        self._background = None

    def end(self) -> None:
        self._solver.shutdown(wait=False, cancel_futures=True)
