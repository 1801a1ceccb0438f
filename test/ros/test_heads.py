"""Every head of the embedded policies, served over DDS: robots of other delays, conditioned as the head can, share batches, and
each gets what it would get alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import Conditioning

from .delayed_arms import ROBOTS, Arms, arms_of, get_what_they_would_get_alone

NONE, GUIDED, PREFIX = Conditioning.NONE, Conditioning.GUIDED, Conditioning.PREFIX
HEADS = {
    "metaworld_flow": (NONE, GUIDED, GUIDED, PREFIX),
    "metaworld_images_flow": (NONE, GUIDED, GUIDED, PREFIX),
    "metaworld_diffusion": (NONE, NONE, NONE, PREFIX),
    "metaworld_images": (NONE, NONE, NONE, NONE),
    "metaworld_autoregressive": (NONE, NONE, NONE, PREFIX),
}
"""How `ROBOTS` are conditioned; the last but one regresses"""
SAME = 1e-4


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arms]:
    from domain_coordinator import domain_id

    entries = [f"{name}: {{engine: bundle, bundle: {name}}}" for name in HEADS]
    with domain_id() as domain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain))
        given = {"models_folder": shipped("models"), "image_width_px": 96, "image_height_px": 96}
        with arms_of(tmp_path_factory.mktemp("models"), entries, **given) as fleet:
            yield fleet


@pytest.mark.thorough
@pytest.mark.parametrize("name", HEADS)
def test_robots_with_other_delays_share_batches_and_get_what_they_would_get_alone(name: str, arms: Arms) -> None:
    alone = load_engine(f"rfm/{name.replace('_', '-')}")
    arms.place(name, 1 + list(HEADS).index(name))
    ways = get_what_they_would_get_alone(arms, alone, SAME)
    assert tuple(ways[robot] for robot in ROBOTS) == HEADS[name]
