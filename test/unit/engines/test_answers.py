"""Engines are foreign code: what they raise or return reaches the server as a `ModelError`, and costs as little as it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ros2_rfm_serving.engines.answers import answers_of
from ros2_rfm_serving.errors import EngineError, ModelError, OutOfMemoryError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import EngineReply, InferenceRequest
from test.unit.fakes import CONTRACT, FakeEngine, observation, rows, session_request

GOOD = EngineReply(chunk_model=rows(), chunk_robot=rows())


class Foreign(FakeEngine):
    """Its second row is whatever the test wants."""

    def __init__(self, second: Callable[[], Any]) -> None:
        super().__init__()
        self.second = second

    def infer(self, requests: Sequence[InferenceRequest]) -> Any:
        answers: list[Any] = super().infer(requests)
        answers[1] = self.second()
        return answers


def wrong(**fields: Any) -> Callable[[], Any]:
    return lambda: replace(GOOD, **fields)


def on_a_device() -> torch.Tensor:
    return torch.zeros(4, 2, device="meta")  # as on a GPU, its numbers are not in this process's memory


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (lambda: None, "a row of NoneType"),
        (rows, "a row of ndarray"),
        (wrong(chunk_robot=None), r"a chunk of shape \(\)"),
        (lambda: replace(GOOD, chunk_robot=on_a_device(), chunk_model=on_a_device()), "chunk_model is a Tensor on meta"),
        (lambda: replace(GOOD, updates=on_a_device()), "updates is a Tensor on meta"),
        (wrong(updates=np.zeros((4, 2), np.float32)), r"updates of shape \(4, 2\)"),
        (wrong(updates=np.zeros((1, 3, 4, 2), np.float32)), r"updates of shape \(1, 3, 4, 2\)"),
        (wrong(updates=np.zeros((3, 5, 2), np.float32)), r"updates of shape \(3, 5, 2\)"),
        (wrong(chunk_robot=[[0.0, 1.0], [2.0]]), "chunk_robot is a list"),
        (wrong(verdict=None), "words, not NoneType"),
        (wrong(score="sure"), "score is a str"),
        (wrong(chunk_model=np.zeros((4, 3), np.float32)), "for 2 actions"),
    ],
)
def test_a_row_that_is_no_answer_is_an_engine_error_in_its_place(second: Callable[[], Any], said: str) -> None:
    engine = Foreign(second)
    requests = [request(sequence) for sequence in (1, 2, 3)]
    first, bad, third = answers_of(engine, requests)  # type: ignore[arg-type]
    assert isinstance(first, EngineReply) and isinstance(third, EngineReply)
    assert isinstance(bad, EngineError)
    with pytest.raises(EngineError, match=said):
        raise bad


def request(sequence: int) -> InferenceRequest:
    travelled = observation(1, sequence)
    return InferenceRequest(
        id=travelled.id, instruction="", state=travelled.state, images={}, inference_delay_steps=0, prefix_model=rows()
    )


def test_what_numpy_understands_is_taken() -> None:
    given = EngineReply(chunk_model=torch.ones(4, 2), chunk_robot=rows().astype(np.float64), score=np.float32(0.5))  # type: ignore[arg-type]
    (answer, _) = answers_of(Foreign(lambda: GOOD), [request(1), request(2)])  # type: ignore[arg-type]
    assert isinstance(answer, EngineReply) and answer.chunk_model is not None
    (_, taken) = answers_of(Foreign(lambda: given), [request(1), request(2)])  # type: ignore[arg-type]
    assert isinstance(taken, EngineReply)
    assert type(taken.chunk_model) is np.ndarray and taken.chunk_robot.dtype == np.float32 and type(taken.score) is float


@pytest.mark.parametrize("raised", [RuntimeError("CUDA error"), KeyError("weights"), MemoryError("on the host"), StopIteration()])
def test_whatever_an_engine_raises_is_an_engine_error(raised: Exception) -> None:
    class Broken(FakeEngine):
        def infer(self, requests: Sequence[InferenceRequest]) -> Any:
            raise raised

    with pytest.raises(EngineError, match=type(raised).__name__):
        answers_of(Broken(), [request(1)])  # type: ignore[arg-type]


@pytest.mark.parametrize("answers", [[], [GOOD, GOOD], None, 7])
def test_one_answer_for_each_request(answers: Any) -> None:
    class Miscounting(FakeEngine):
        def infer(self, requests: Sequence[InferenceRequest]) -> Any:
            return answers

    with pytest.raises(EngineError):
        answers_of(Miscounting(), [request(1)])  # type: ignore[arg-type]


def test_an_engines_own_model_error_stays_what_it_is() -> None:
    class Full(FakeEngine):
        def infer(self, requests: Sequence[InferenceRequest]) -> Any:
            raise OutOfMemoryError("full")

    with pytest.raises(OutOfMemoryError):
        answers_of(Full(), [request(1)])  # type: ignore[arg-type]
    (_, refused) = answers_of(Foreign(lambda: ModelError("too long")), [request(1), request(2)])  # type: ignore[arg-type]
    assert type(refused) is ModelError


@pytest.mark.parametrize("second", [lambda: None, lambda: replace(GOOD, updates=on_a_device()), wrong(updates=np.zeros((3, 5, 2)))])
def test_the_server_goes_on(second: Callable[[], Any]) -> None:
    """The row is lost and counted, its neighbours are answered, and so is the next request."""
    engine = Foreign(second)
    target = ModelServer(ServerConfig(name="s1", batch_size=3), engine)  # type: ignore[arg-type]
    epochs = {robot: target.open_session(session_request(robot)).session_epoch for robot in ("r1", "r2", "r3")}
    answered = []
    for sequence in (1, 2):
        for robot, epoch in epochs.items():
            target.submit(observation(epoch, sequence, robot), float(sequence))
        answered.append([reply.id.robot for reply in target.loop.step(lambda: 3.0)])
        engine.second = lambda: GOOD
    assert answered == [["r1", "r3"], ["r1", "r2", "r3"]]
    assert target.refused == {"bad_output": 1} and CONTRACT.action_names
