"""Records behave as frozen dataclasses do, but that nothing at run time keeps anybody from changing them: mypy does."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from ros2_rfm_serving.types import NO_ROWS, NO_VALUES, EngineReply, InferenceRequest, RequestId, Served

ID = RequestId(robot="arm", component="system1", session_epoch=1, episode=2, sequence=3)
SERVED = Served(0.1, 0.2, 3, 0, 0.5)


def test_they_are_equal_and_found_by_value() -> None:
    assert {ID: 1}[replace(ID)] == 1 and replace(ID, sequence=4) != ID
    assert {SERVED: 1}[replace(SERVED)] == 1 and replace(SERVED, batch_size=4) != SERVED


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_they_can_be_copied_and_sent(again: object) -> None:
    assert callable(again) and (again(ID), again(SERVED)) == (ID, SERVED)


def test_nothing_is_added_to_them() -> None:
    with pytest.raises(AttributeError):
        SERVED.other = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [ID, InferenceRequest(ID, "go", NO_VALUES, {}, 0, NO_ROWS), EngineReply()])
def test_what_engines_are_given_or_make_stays_what_it_is(given: object) -> None:
    for name in (field.name for field in fields(given)):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(given, name, getattr(given, name))


def test_an_answer_says_in_which_space_its_rows_are() -> None:
    with pytest.raises(TypeError, match="positional"):
        EngineReply(NO_ROWS, NO_ROWS)  # type: ignore[misc]
