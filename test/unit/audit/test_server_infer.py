"""Recorded batches run again: the same bytes by the same engine, and what stands in the way of it is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ros2_rfm_serving.audit.servers import engines
from ros2_rfm_serving.audit.servers.engines import differences, elsewhere, environment
from ros2_rfm_serving.audit.servers.infer import ALONE_LIMIT, Inference, Inferred
from ros2_rfm_serving.audit.servers.observations import Observations
from ros2_rfm_serving.audit.servers.rerun import measure
from ros2_rfm_serving.engines.base import Engine, SamplingConfig
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import Conditioning, EncodedImage, EngineReply, InferenceRequest, ObservationRequest, SessionRequest
from test.unit.audit.servers import Kept
from test.unit.engines.test_engines import small_policy
from test.unit.fakes import JPEG, observation

ROBOTS = ("a", "b", "c")
SAMPLING = SamplingConfig(fixed_shapes=(1, 2, 4))


class RoughEngine(FlowEngine):
    """In a batch it is off by a little, and the state's last bit matters `steepness` times as much as it should."""

    OFF = np.float32(3e-5)

    def __init__(self, steepness: float) -> None:
        super().__init__(small_policy(), SAMPLING)
        self._steepness = np.float32(steepness)

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        off = self.OFF if len(requests) > 1 else np.float32(0)
        return [
            replace(reply, chunk_model=np.zeros_like(reply.chunk_model) + self._steepness * request.state[0] + off)
            for request, reply in zip(requests, super().infer(requests), strict=True)
        ]


def served(
    num_rounds: int = 4, engine: Engine | None = None, batching: str = "fixed"
) -> tuple[list[dict[str, Any]], list[ObservationRequest], Engine]:
    """Batches of three, filled up to four, and what was asked. Rows that go on one by one come a turn after each other."""
    engine = engine or FlowEngine(small_policy(), SAMPLING)
    contract, server = engine.contract, ModelServer(ServerConfig(name="s", batch_size=4, batching=batching), engine)
    kept, asked, rng = Kept(server), [], np.random.default_rng(0)
    kept.written.follow(server, {"entry": {"engine": "bundle"}})
    kept.journal.anew(1e6, "with its engine")
    width = len(contract.action_names)
    wanted = {"action_names": contract.action_names, "cameras": contract.cameras, "state_size": contract.state_size}
    epochs = {
        robot: server.open_session(
            SessionRequest(robot=robot, component="system1", conditioning=Conditioning.PREFIX, **wanted)
        ).session_epoch
        for robot in ROBOTS
    }
    answered = 0
    for sequence in range(1, num_rounds + 1):
        for robot, epoch in epochs.items():
            prefix = rng.random((1, width), np.float32)
            images = tuple(EncodedImage(camera=camera, format="jpeg", data=JPEG) for camera in contract.cameras)
            request = replace(
                observation(epoch, sequence, robot, images=images, prefix_model=prefix, prefix_robot=prefix),
                state=rng.random(contract.state_size, np.float32),
                inference_delay_steps=1,
            )
            asked.append(request)
            server.submit(request, float(sequence))
            if server.loop.is_iteration_level() or (batching == "continuous" and sequence == 1):
                answered += len(server.loop.step(lambda: float(sequence)))  # noqa: B023
        while not server.is_idle:
            answered += len(server.loop.step(lambda: float(sequence)))  # noqa: B023
    assert answered == 3 * num_rounds
    records = kept.records()
    begins = max(number for number, record in enumerate(records) if record["kind"] == "begin")
    return records[begins:], asked, engine


def again(records: list[dict[str, Any]], asked: list[ObservationRequest], engine: Engine) -> Inferred:
    observations = Observations()
    for request in asked:
        observations.add(request)
    inference = Inference("server/s", lambda begin: engine, observations)
    for record in records:
        inference.feed(record)
    return inference.result


def test_the_same_engine_gives_the_same_bytes_and_each_row_alone_about_the_same() -> None:
    records, asked, engine = served()
    assert {record["padded_rows"] for record in records if record["kind"] == "batch" and record["result"]} == {4}
    found = again(records, asked, engine)
    assert (found.batches, found.rows, found.same, found.unrecorded, found.skipped) == (4, 12, 12, 0, 0)
    assert found.alone <= ALONE_LIMIT and not found.notes and not found.different


def test_rows_that_went_on_step_by_step_do_so_again_in_the_company_that_they_had() -> None:
    engine = SteppingEngine(small_policy(), SAMPLING)
    records, asked, _ = served(engine=engine, batching="continuous")
    assert {record["result"]["served"]["batch_size"] for record in records if record["kind"] == "reply"} == {3}
    entered = [record["event"]["num_steps"] for record in records if record.get("event", {}).get("~") == "BatchesPerceived"]
    assert entered and all(len(numbers) == 1 for numbers in entered)
    found = again(records, asked, engine)
    assert (found.batches, found.rows, found.same, found.unrecorded, found.skipped) == (12, 12, 12, 0, 0)
    assert found.alone <= ALONE_LIMIT and not found.notes and not found.different and not engine.ready()


def test_who_was_in_company_with_a_row_that_was_not_recorded_is_not_compared() -> None:
    engine = SteppingEngine(small_policy(), SAMPLING)
    records, asked, _ = served(engine=engine, batching="continuous")
    found = again(records, asked[1:], engine)
    assert found.unrecorded == 3 and found.rows == found.same == 9 and not engine.ready()


def test_a_row_that_is_another_one_alone_is_found() -> None:
    found = again(*served(engine=RoughEngine(0.0)))
    assert found.same == found.rows == 12 and found.alone == pytest.approx(RoughEngine.OFF) and found.on_edge == 0


def test_a_row_that_its_last_bit_moves_further_is_told_apart() -> None:
    """1e-7 of the state is as much as a difference of 3e-5 here: no sum in single precision is nearer."""
    found = again(*served(num_rounds=1, engine=RoughEngine(1e3)))
    assert found.same == found.rows == 3 and found.alone <= ALONE_LIMIT
    assert found.on_edge == len(found.notes) > 0 and "the last bit of its state" in found.notes[0]


def test_another_engine_gives_other_bytes() -> None:
    records, asked, _ = served()
    found = again(records, asked, FlowEngine(small_policy(), replace(SAMPLING, seed=1)))
    assert found.rows == 12 and found.same == 0 and found.different[0][0] == asked[0].id


def test_how_far_other_bytes_are_is_measured_where_there_is_something_to_compare() -> None:
    """An engine may fail today where it answered then, and a bag may hold what is no chunk: neither ends the others."""
    now, result = np.zeros((2, 2), np.float32), Inferred("server/s")
    measure(result, now, SimpleNamespace(data=[0.0, 0.0, 0.25, 0.0], rows=2, columns=2))
    assert result.off == 0.25 and not result.notes
    measure(result, EngineReply().chunk_model, SimpleNamespace(data=[0.0] * 4, rows=2, columns=2))
    measure(result, now, SimpleNamespace(data=[0.0] * 6, rows=3, columns=2))
    measure(result, now, SimpleNamespace(data=[0.0], rows=2**31, columns=2**31))
    assert result.off == 0.25 and len(result.notes) == 3


def test_what_was_not_recorded_is_counted_and_so_is_what_is_another_picture_or_state() -> None:
    records, asked, engine = served()
    other = replace(asked[4], state=asked[4].state + 1)
    pictures = replace(asked[7], images=tuple(replace(image, data=bytes(image.data) + b"\0") for image in asked[7].images))
    found = again(records, [*asked[1:4], other, *asked[5:7], pictures, *asked[8:]], engine)
    assert found.unrecorded == (3 if asked[7].images else 2) and found.batches == 4 - found.unrecorded and found.same == found.rows


def test_behind_a_gap_nothing_runs_until_the_next_snapshot() -> None:
    records, _, engine = served()
    inference = Inference("server/s", lambda begin: engine, Observations())
    for record in records:
        if record["kind"] == "batch":
            inference.gap()
        inference.feed(record)
    assert inference.result.skipped == 4 and not inference.result.batches


def test_an_engine_that_cannot_be_built_is_said_once() -> None:
    records, _, _ = served()

    def none(begin: Mapping[str, Any]) -> Engine:
        raise RfmError("its weights are not here")

    inference = Inference("server/s", none, Observations())
    for record in records:
        inference.feed(record)
    assert inference.result.notes == ["its weights are not here"] and inference.result.skipped == 4


@pytest.mark.parametrize("engine", ["emulated", "remote", "openai", "vllm", ""])
def test_what_was_computed_elsewhere_or_not_at_all_is_said(engine: str) -> None:
    assert elsewhere({"engine": {"entry": {"engine": engine}}} if engine else {})


def test_other_software_and_hardware_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {**environment(), "torch": "1.0", "processor": "another"}
    assert differences({"environment": environment()}) == []
    told = " ".join(differences({"environment": recorded}))
    assert "torch 1.0" in told and "processor another" in told
    monkeypatch.setattr(engines, "environment", dict)
    assert any("here none" in one for one in differences({"environment": recorded}))
