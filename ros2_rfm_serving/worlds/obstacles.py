"""Foreign objects in a work area: a person's hand with its forearm, or a thing. They are drawn into the scene that cameras see."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
HAND, THING = "hand", "thing"
KINDS = (HAND, THING)

_CENTRE_M, _SPREAD_M = np.array([0.0, 0.68, 0.12]), np.array([0.22, 0.17, 0.09])
"""Centre and spread of obstacles: the work area, from the table to where the arm's hand begins."""
_DARK_SKIN, _LIGHT_SKIN = np.array([0.24, 0.14, 0.09]), np.array([0.98, 0.83, 0.72])
_FINGERS = 4


@dataclass(frozen=True, kw_only=True)
class _Geom:
    shape: int
    """mjtGeom"""
    size_m: Vector
    """[3]"""
    at_m: Vector
    """[3]"""
    axes: Vector
    """[3, 3] rotation"""
    rgb: Vector
    """[3]"""


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """A few bodies without mass: cameras see them, and they touch nothing."""

    kind: str
    geoms: tuple[_Geom, ...]

    def draw(self, scene: mujoco.MjvScene) -> None:
        for geom in self.geoms:
            if scene.ngeom == scene.maxgeom:
                return
            rgba = np.append(geom.rgb, 1.0).astype(np.float32)
            mujoco.mjv_initGeom(scene.geoms[scene.ngeom], geom.shape, geom.size_m, geom.at_m, geom.axes.ravel(), rgba)
            scene.ngeom += 1


def draw_obstacle(rng: np.random.Generator, kind: str = "") -> Obstacle:
    """Return a new obstacle of a kind, or of any: size, colour, place and attitude are random."""
    kind = kind or (HAND if rng.random() < 0.7 else THING)
    at_m = _CENTRE_M + rng.uniform(-1, 1, 3) * _SPREAD_M
    return Obstacle(kind=kind, geoms=_hand(rng, at_m) if kind == HAND else _thing(rng, at_m))


def _hand(rng: np.random.Generator, at_m: Vector) -> tuple[_Geom, ...]:
    """Return palm, fingers and thumb, and a forearm that points to its person, away from the middle of the table."""
    rgb = _skin(rng) if rng.random() < 0.85 else rng.uniform(0.0, 1.0, 3)  # or a glove
    sleeve = rng.uniform(0.0, 1.0, 3) if rng.random() < 0.5 else rgb
    scale = rng.uniform(0.8, 1.25)
    forward = _unit(-np.append(at_m[:2] - _CENTRE_M[:2], 0.0) + rng.normal(0.0, 0.12, 3))
    side = _unit(np.cross(forward, _unit(rng.normal([0.0, 0.0, 1.0], 0.4))))
    axes = np.stack([side, forward, np.cross(side, forward)], axis=1)
    palm = _Geom(
        shape=mujoco.mjtGeom.mjGEOM_ELLIPSOID, size_m=scale * np.array([0.042, 0.05, 0.018]), at_m=at_m, axes=axes, rgb=rgb
    )
    curl = rng.uniform(-0.5, 0.2)
    fingers = [
        _capsule(at_m + axes @ (scale * np.array([x, 0.04, 0.0])), forward + curl * axes[:, 2] + 0.3 * x / 0.03 * side, scale, rgb)
        for x in np.linspace(-0.03, 0.03, _FINGERS)
    ]
    thumb = _capsule(at_m + axes @ (scale * np.array([0.04, 0.0, 0.0])), forward + rng.uniform(0.6, 1.4) * side, scale, rgb)
    wrist_m = at_m - scale * 0.045 * forward
    forearm = _capsule(wrist_m, -forward + rng.normal(0.0, 0.1, 3), scale, sleeve, radius_m=0.026, length_m=0.3)
    return (palm, *fingers, thumb, forearm)


def _thing(rng: np.random.Generator, at_m: Vector) -> tuple[_Geom, ...]:
    """Return a box, a can or a ball."""
    shape = rng.choice([mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_SPHERE])
    axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return (_Geom(shape=int(shape), size_m=rng.uniform(0.03, 0.07, 3), at_m=at_m, axes=axes, rgb=rng.uniform(0.0, 1.0, 3)),)


def _capsule(
    start_m: Vector, direction: Vector, scale: float, rgb: Vector, *, radius_m: float = 0.01, length_m: float = 0.06
) -> _Geom:
    along = _unit(direction)
    other = _unit(np.cross(along, [0.3, 0.5, 0.8]))
    axes = np.stack([other, np.cross(along, other), along], axis=1)
    half_m = scale * length_m / 2
    return _Geom(
        shape=mujoco.mjtGeom.mjGEOM_CAPSULE,
        size_m=np.array([scale * radius_m, half_m, half_m]),
        at_m=start_m + half_m * along,
        axes=axes,
        rgb=rgb,
    )


def _skin(rng: np.random.Generator) -> Vector:
    share = rng.random()
    return np.clip((1 - share) * _DARK_SKIN + share * _LIGHT_SKIN + rng.normal(0.0, 0.03, 3), 0.0, 1.0)


def _unit(vector: npt.ArrayLike) -> Vector:
    values = np.asarray(vector, np.float64)
    length = float(np.linalg.norm(values))
    return values / length if length > 0.0 else np.array([0.0, 1.0, 0.0])
