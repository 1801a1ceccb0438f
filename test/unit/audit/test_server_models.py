"""A server of each model that ships is recorded and decides again what it decided, whichever architecture and batching it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import (
    MONITOR,
    SYSTEM1,
    Conditioning,
    EncodedImage,
    ModelContract,
    ObservationRequest,
    OutputKind,
    PipelineConfig,
    SessionRequest,
    empty,
)
from test.unit.audit.servers import Kept, again
from test.unit.fakes import JPEG, observation, shipped_bundles

ROUNDS, MOST_STEPS = 4, 40


def recorded(folder: Path, batching: str, pipelining: PipelineConfig | None) -> Kept:
    """Return the records of two robots that ask a few times each, with a snapshot in between."""
    engine = load_embedded("m", folder)
    contract, server = engine.contract, ModelServer(ServerConfig(name="s", batch_size=2, batching=batching), engine)
    kept = Kept(server)
    acts = contract.output is OutputKind.ACTION_CHUNK
    names, conditioning = contract.action_names, Conditioning.NONE
    fits = {"action_names": names if acts else (), "cameras": contract.cameras, "state_size": contract.state_size}
    component = SYSTEM1 if acts else MONITOR
    asked = [SessionRequest(robot=robot, component=component, conditioning=conditioning, **fits) for robot in ("a", "b")]
    epochs = {one.robot: server.open_session(replace(one, pipelining=pipelining)).session_epoch for one in asked}
    for sequence in range(1, ROUNDS + 1):
        for robot, epoch in epochs.items():
            server.submit(_observation(contract, robot, component, epoch, sequence), float(sequence))
        for _ in range(MOST_STEPS):  # rows of a pipelined session go on with its next frame
            if not server.is_idle:
                server.loop.step(lambda: float(sequence))  # noqa: B023
        kept.snapshot()
    return kept


def _observation(contract: ModelContract, robot: str, component: str, epoch: int, sequence: int) -> ObservationRequest:
    images = tuple(EncodedImage(camera=camera, format="jpeg", data=JPEG) for camera in contract.cameras)
    prefix = empty(0, len(contract.action_names))
    made = observation(epoch, sequence, robot, images=images, prefix_model=prefix, prefix_robot=prefix)
    return replace(made, id=replace(made.id, component=component), state=np.zeros(contract.state_size, np.float32))


@pytest.mark.parametrize("name", shipped_bundles())
def test_each_model_that_ships_is_decided_again(repository: Path, name: str) -> None:
    records = recorded(repository / "models" / name, "fixed", None).records()
    result = again(records)
    assert result.difference is None and not result.refused, (result.at, result.difference, result.notes)
    assert sum(record["kind"] == "reply" and record["result"] is not None for record in records) >= 2 * ROUNDS - 2


@pytest.mark.parametrize("name", ["metaworld_flow", "metaworld_autoregressive", "metaworld_staged_flow"])
@pytest.mark.parametrize("pipelining", [None, PipelineConfig(pp_perception=1, pp_generation=2)])
def test_rows_that_join_and_leave_are_decided_again(repository: Path, name: str, pipelining: PipelineConfig | None) -> None:
    records = recorded(repository / "models" / name, "continuous", pipelining).records()
    result = again(records)
    assert result.difference is None and not result.refused, (result.at, result.difference, result.notes)
    assert any(record["kind"] == "reply" and record["result"] is not None for record in records)
