"""Records behave as frozen dataclasses do, but that nothing at run time keeps anybody from changing them: mypy does."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from ros2_rfm_serving.types import RequestId, Served

ID = RequestId(robot="arm", component="system1", session_epoch=1, episode=2, sequence=3)


def test_they_are_equal_and_found_by_value() -> None:
    assert {ID: 1}[replace(ID)] == 1 and replace(ID, sequence=4) != ID


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_they_can_be_copied_and_sent(again: object) -> None:
    served = Served(0.1, 0.2, 3, 0, 0.5)
    assert callable(again) and (again(ID), again(served)) == (ID, served)


def test_nothing_is_added_to_them() -> None:
    with pytest.raises(AttributeError):
        ID.other = 1  # type: ignore[attr-defined]
