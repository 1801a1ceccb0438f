"""Records behave as frozen dataclasses do, but that nothing at run time keeps anybody from changing them: mypy does."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from lab.benchmarks.simulation import counting
from ros2_rfm_serving.dispatch import WaitingRequest
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.server.engine_queues import RunningBatch
from ros2_rfm_serving.types import (
    NO_ROWS,
    NO_VALUES,
    EngineReply,
    Guidance,
    HorizonRequest,
    InferenceRequest,
    RequestId,
    ServingStats,
)

ID = RequestId(robot="arm", component="system1", session_epoch=1, episode=2, sequence=3)
SERVED = ServingStats(0.1, 0.2, 3, 0, 0.5)
ROW = InferenceRequest(ID, "go", NO_VALUES, {}, 0, NO_ROWS)
WAITING = WaitingRequest(ROW, 0, 0.0, 0.0, 0.0, 0.0, TaskHistory())


def test_they_are_equal_and_found_by_value() -> None:
    assert {ID: 1}[replace(ID)] == 1 and replace(ID, sequence=4) != ID
    assert {SERVED: 1}[replace(SERVED)] == 1 and replace(SERVED, batch_size=4) != SERVED


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_they_can_be_copied_and_sent(again: object) -> None:
    assert callable(again) and (again(ID), again(SERVED)) == (ID, SERVED)


def test_nothing_is_added_to_them() -> None:
    with pytest.raises(AttributeError):
        SERVED.other = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [ID, ROW, EngineReply()])
def test_what_engines_are_given_or_make_stays_what_it_is(given: object) -> None:
    for name in (field.name for field in fields(given)):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(given, name, getattr(given, name))


@pytest.mark.parametrize("given", [ID, ROW, WAITING, RunningBatch((WAITING,), 0.0)])
def test_what_is_sealed_is_of_its_class_and_can_be_neither_changed_nor_emptied(given: object) -> None:
    assert type(given) in (RequestId, InferenceRequest, WaitingRequest, RunningBatch)
    for name in (field.name for field in fields(given)):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(given, name, None)
        with pytest.raises(FrozenInstanceError):
            delattr(given, name)


def test_what_is_sealed_takes_names_and_has_defaults() -> None:
    named = InferenceRequest(
        id=ID, instruction="go", state=NO_VALUES, images={}, inference_delay_steps=0, prefix_model=NO_ROWS, num_steps=3
    )
    assert named.prefix_robot is NO_ROWS and (named.guidance, named.horizon) == (Guidance(), HorizonRequest())
    assert (named.num_steps, ROW.num_steps, replace(ROW, instruction="stop").instruction) == (3, 0, "stop")
    with pytest.raises(TypeError, match="missing"):
        RequestId("arm", "system1", 1, 2)  # type: ignore[call-arg]


def test_what_is_sealed_is_made_at_once() -> None:
    """Every request makes some, and a frozen dataclass calls once for each of its fields."""
    with counting() as calls:
        InferenceRequest(ID, "go", NO_VALUES, {}, 0, NO_ROWS)
    assert sum(calls.values()) < 8


def test_an_answer_says_in_which_space_its_rows_are() -> None:
    with pytest.raises(TypeError, match="positional"):
        EngineReply(NO_ROWS, NO_ROWS)  # type: ignore[misc]
