"""What goes wrong on a device costs whom it concerns, and what comes after it runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from ros2_rfm_serving.engines.base import VelocityModel
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.memory import in_halves
from ros2_rfm_serving.errors import ModelError, OutOfMemoryError
from ros2_rfm_serving.types import EngineReply
from test.gpu import rig


@pytest.mark.parametrize("name", ["smolvla", "groot_n1_6", "evo1"])
def test_a_row_of_nan_touches_no_other(name: str, device: str) -> None:
    engine = rig.recorded(name, device)
    asked = rig.requests(engine, 4)
    spoilt = replace(asked[2], state=np.full_like(asked[2].state, np.nan))
    well = rig.chunks(engine, asked)
    answers = engine.infer([*asked[:2], spoilt, asked[3]])
    for row in (0, 1, 3):
        answer = answers[row]
        assert isinstance(answer, EngineReply)
        np.testing.assert_allclose(answer.chunk_model, well[row], atol=1e-5)
    bad = answers[2]
    assert isinstance(bad, ModelError) or not np.isfinite(bad.chunk_model).any(), "the server refuses it"
    np.testing.assert_allclose(rig.chunks(engine, asked), well, atol=1e-5)


def test_a_batch_of_nan_alone_is_an_error_and_the_next_one_runs(device: str) -> None:
    engine = rig.recorded("smolvla", device)
    asked = rig.request(engine, 1)
    with pytest.raises(ModelError, match="not finite"):
        engine.infer([replace(asked, state=np.full_like(asked.state, np.nan))])
    assert np.isfinite(rig.chunks(engine, [asked])).all()


class Hungry:
    """A model that takes memory for each row of what is free: 0.4 of it on a GPU, on a CPU nothing or more than there can be."""

    def __init__(self, model: VelocityModel, device: str) -> None:
        self._model, self._device, self.tried = model, device, list[int]()

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def perceive(self, requests: list) -> object:  # type: ignore[type-arg]
        self.tried.append(len(requests))
        ballast = torch.empty(_ballast(len(requests), self._device), dtype=torch.uint8, device=self._device)
        context = self._model.perceive(requests)
        del ballast
        return context


def _ballast(rows: int, device: str) -> int:
    if device == "cpu":
        return 1 << 55 if rows > 2 else 1 << 10
    free, _ = torch.cuda.mem_get_info(device)
    return int(0.4 * free * rows)


def test_a_batch_that_memory_does_not_suffice_for_is_halved_once(device: str) -> None:
    plain = rig.eager("smolvla", device)
    hungry = Hungry(plain.model, device)
    engine = FlowEngine(hungry, plain.sampling)  # type: ignore[arg-type]
    asked = rig.requests(plain, 4)
    np.testing.assert_allclose(rig.chunks(engine, asked), rig.chunks(plain, asked), atol=rig.EXACT)
    assert hungry.tried == [4, 2, 2]


def test_what_does_not_fit_in_halves_either_is_refused_and_the_next_batch_runs(device: str) -> None:
    plain = rig.eager("smolvla", device)
    engine = FlowEngine(Hungry(plain.model, device), plain.sampling)  # type: ignore[arg-type]
    with pytest.raises(OutOfMemoryError, match="batch of 8"):
        engine.infer(rig.requests(plain, 8))
    assert rig.chunks(engine, rig.requests(plain, 1)).shape[0] == 1


def test_the_devices_own_error_is_the_one_that_is_looked_for(device: str) -> None:
    tried: list[int] = []

    def run(rows: list[int]) -> list[int]:  # type: ignore[override]
        tried.append(len(rows))
        torch.empty(1 << 55, dtype=torch.uint8, device=device)
        return rows

    with pytest.raises(OutOfMemoryError):
        in_halves(run, [1, 2])  # type: ignore[arg-type]
    assert tried == [2, 1]


LOST = """
import sys, torch
device = sys.argv[1]
from test.gpu import rig
engine = rig.eager("smolvla", device)
asked = rig.requests(engine, 1)
rig.chunks(engine, asked)
table = torch.zeros(4, 4, device=device)
failed = 0
for attempt in range(2):
    try:
        torch.nn.functional.embedding(torch.tensor([99], device=device), table)
        if device != "cpu": torch.cuda.synchronize()
    except (IndexError, RuntimeError):
        failed += 1
try:
    engine.infer(asked)
    print("answers", failed)
except Exception as error:
    print("lost", type(error).__name__, failed)
"""


def test_a_device_that_is_lost_is_an_error_of_every_later_call_and_never_an_answer(device: str) -> None:
    """An assertion on a GPU spoils the process's context for good; on a CPU it is one error, and nothing else."""
    ended = subprocess.run([sys.executable, "-c", LOST, device], capture_output=True, text=True, timeout=280, check=False)
    said = ended.stdout.splitlines()[-1].split() if ended.stdout.strip() else []
    assert said[:1] == (["answers"] if device == "cpu" else ["lost"]), (ended.stdout, ended.stderr[-2000:])
    assert int(said[-1]) >= 1
