"""The policies and tasks that Kairos is tried with, as data (Kairos Table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ros2_rfm_serving.types import Horizon


@dataclass(frozen=True, kw_only=True)
class Workload:
    name: str
    title: str
    model: str
    """Of the shipped bundles."""
    tasks: tuple[str, ...]
    static: tuple[int, ...]
    """Horizons of the sweep, rising."""
    thresholds: Mapping[str, tuple[float, ...]]
    """Of the sweep, by policy."""
    episodes: int
    """That are recorded per task and setting."""
    sees: bool = False
    """Its policy is given camera frames; the others' is told all by Meta-World's state, and drawing is most of the work."""
    num_steps: int | None = None
    """Of the solver; None: the bundle's."""
    noise_scale: float | None = None
    """That sampling starts from; None: the bundle's."""
    disturbed: float = 0.0
    """Share of the episodes that are run once more with noise on what is executed."""

    @property
    def min_steps(self) -> int:
        """H_min: the smallest static horizon of the sweep (Kairos §3.1)."""
        return self.static[0]

    def settings(self) -> list[Horizon]:
        """Of the sweep."""
        static = [self.horizon("static", steps) for steps in self.static]
        return static + [self.horizon(policy, t) for policy, values in self.thresholds.items() for t in values]

    def horizon(self, policy: str, value: float) -> Horizon:
        if policy == "static":
            return Horizon(policy=policy, steps=round(value), min_steps=self.min_steps)
        return Horizon(policy=policy, threshold=value, min_steps=self.min_steps)


FOUR = ("reach", "push", "pick-place", "door-open")
TWO = FOUR[:2]
TEN = (
    "drawer-open",
    "drawer-close",
    "button-press-topdown",
    "button-press",
    "window-open",
    "window-close",
    "faucet-close",
    "handle-press",
    "handle-press-side",
    "coffee-button",
)
"""Of those that are learnt from images, the ones in which images are needed (models/metaworld_images/MODEL_CARD.md)."""

_ALL = (
    Workload(
        name="flow",
        title="flow matching, five steps from the mean of the noise, chunks of 24",
        model="metaworld_flow",
        tasks=FOUR,
        static=(4, 6, 8, 10, 12, 16, 20, 24),
        thresholds={
            "confidence": (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.5),
            "curvature": (0.1, 0.2, 0.3, 0.5, 0.8, 1.2),
        },
        episodes=100,
        disturbed=0.2,
    ),
    Workload(
        name="images",
        title="flow matching from images, five steps from the mean of the noise, chunks of 24",
        model="metaworld_images_flow",
        tasks=TEN,
        static=(4, 8, 16, 24),
        thresholds={"confidence": (0.1, 0.3, 0.8)},
        episodes=10,
        sees=True,
    ),
    Workload(
        name="diffusion",
        title="diffusion, ten DDIM steps from the mean of the noise, chunks of 24",
        model="metaworld_diffusion",
        tasks=TWO,
        static=(4, 8, 12, 16, 24),
        thresholds={"confidence": (-0.85, -0.8, -0.7, -0.55, -0.3, 0.0, 0.5)},
        episodes=20,
        num_steps=10,
        noise_scale=0.0,
    ),
    Workload(
        name="autoregressive",
        title="tokens one by one, chunks of 8",
        model="metaworld_autoregressive",
        tasks=TWO,
        static=(2, 3, 4, 6, 8),
        thresholds={"confidence": (-0.7, -0.4, 0.0, 1.0, 3.0)},
        episodes=20,
    ),
)
WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in _ALL}
