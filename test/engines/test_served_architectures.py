"""Published architectures at toy size, served over DDS: robots of other delays, one guided, one continuing a prefix where the model
was trained to, share batches, and each gets what it would get alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ros2_rfm_serving.engines.architectures.engine import load_architecture
from ros2_rfm_serving.engines.architectures.names import ARCHITECTURES
from ros2_rfm_serving.types import Conditioning
from test.engines.parity.common import RECORDED as ALL
from test.ros.delayed_arms import Arms, arms_of, get_what_they_would_get_alone

RECORDED = [name for name in ALL if name in ARCHITECTURES]
"""One of each; who else recorded it makes no difference to the loop"""
NODE = ("-c", "import test.engines.operators; from ros2_rfm_serving.ros import model_server_node as node; node.main()")
SAME = 1e-4
"""Toys' chunks are a few units large; rows in company take other kernels"""
ROUNDED = 5e-2
"""Where activations are of 8 bits, a value between two steps goes either way: up to 1.6e-2 in 100 chunks of the toy, in float64"""


@pytest.fixture(scope="module")
def arms(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arms]:
    from domain_coordinator import domain_id

    folder = tmp_path_factory.mktemp("models")
    entries = [f"{name}: {{engine: bundle, bundle: {name}/bundle, parity: at_start}}" for name in RECORDED]
    for name, made in folders.items():
        (folder / name).symlink_to(made)
    with domain_id() as domain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain))
        with arms_of(folder, entries, NODE, models_folder=folder, image_width_px=64, image_height_px=64) as fleet:
            yield fleet


def test_none_is_left_out() -> None:
    assert set(RECORDED) == set(ARCHITECTURES)


@pytest.mark.parametrize("name", RECORDED)
def test_robots_with_other_delays_share_batches_and_get_what_they_would_get_alone(
    name: str, arms: Arms, folders: dict[str, Path]
) -> None:
    alone = load_architecture(name, folders[name] / "bundle")
    arms.place(name, 1 + RECORDED.index(name))
    ways = get_what_they_would_get_alone(arms, alone, ROUNDED if name == "bitvla" else SAME)
    assert (ways["r1"] is Conditioning.GUIDED) == (name != "bitvla"), "all but the one that regresses are guided"
