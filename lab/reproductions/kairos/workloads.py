"""Workloads of the reproduction of Kairos as data: policies and tasks (Kairos Table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ros2_rfm_serving.types import HorizonRequest


@dataclass(frozen=True, kw_only=True)
class Workload:
    name: str
    title: str
    model: str
    """Name of a shipped bundle."""
    tasks: tuple[str, ...]
    static: tuple[int, ...]
    """Horizons of the sweep, ascending."""
    thresholds: Mapping[str, tuple[float, ...]]
    """Policy -> thresholds of the sweep."""
    episodes: int
    """Recorded episodes per task and setting."""
    sees: bool = False
    """Whether its policy uses camera frames; the others read Meta-World's state, because rendering is most of the work."""
    num_steps: int | None = None
    """Solver steps; None: the bundle's."""
    noise_scale: float | None = None
    """Noise scale at the start of sampling; None: the bundle's."""
    disturbed: float = 0.0
    """Share of the episodes that are repeated with noise on executed actions."""

    @property
    def min_steps(self) -> int:
        """Return H_min: the smallest static horizon of the sweep (Kairos §3.1)."""
        return self.static[0]

    def settings(self) -> list[HorizonRequest]:
        """Return the settings of the sweep."""
        static = [self.horizon("static", steps) for steps in self.static]
        return static + [self.horizon(policy, t) for policy, values in self.thresholds.items() for t in values]

    def horizon(self, policy: str, value: float) -> HorizonRequest:
        if policy == "static":
            return HorizonRequest(policy=policy, steps=round(value), min_steps=self.min_steps)
        return HorizonRequest(policy=policy, threshold=value, min_steps=self.min_steps)


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
"""Tasks learnt from images in which images are needed (models/metaworld_images/MODEL_CARD.md)."""

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
