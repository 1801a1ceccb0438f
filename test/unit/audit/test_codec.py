"""Every value that is recorded comes back as it was, and nothing else is made."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import random
import typing
from collections import deque
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.values import RECORDED, ROBOT_EVENTS, SERVER_EVENTS, VALUES
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.robot import RobotConfig, RobotCore, TickResult, events
from ros2_rfm_serving.server import events as server_events
from ros2_rfm_serving.types import EncodedImage, ExecutionReport, ObservationRequest, RequestId, RobotState
from test.unit.fakes import CONTRACT
from test.unit.robot.robots import CONFIG

ID = RequestId(robot="push_1", component="system1", session_epoch=2**63 + 5, episode=3, sequence=9)


def stored(value: object) -> Any:
    return orjson.loads(orjson.dumps(codec.plain(value), option=orjson.OPT_SERIALIZE_NUMPY))


def back(value: object, **more: Any) -> Any:
    return codec.value(stored(value), **more)


VALUES_OF_PYTHON = [
    None,
    True,
    7,
    2**64 - 1,
    "é",
    0.1,
    math.inf,
    -math.inf,
    (1, (2.5, "x")),
    [1, 2],
    {"a": 1},
    {("a", 1): 2},
    deque([1, (2, 3)], 4),
]
OTHERS = [{"~": 1}, {1, 2}, frozenset({3}), b"short", ID, RobotState.DEAD, ExecutionReport(remaining_s=-0.25), CONFIG]


@pytest.mark.parametrize("value", VALUES_OF_PYTHON + OTHERS)
def test_values_come_back(value: object) -> None:
    again = back(value)
    assert again == value and type(again) is type(value)


def test_a_map_that_cannot_change_comes_back_as_a_map() -> None:
    assert back(events.CountsAdded(MappingProxyType({"late": 2}))) == events.CountsAdded({"late": 2})


@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=9),
    st.sampled_from(["float32", "float64", "float16"]),
)
def test_arrays_come_back_bit_by_bit(numbers: list[float], dtype: str) -> None:
    with np.errstate(over="ignore"):
        array = np.asarray(numbers, dtype)
    again = back(array)
    assert again.dtype == array.dtype and again.tobytes() == array.tobytes()


def test_arrays_that_are_not_contiguous_come_back() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert np.array_equal(back(array), array)


def test_empty_arrays_keep_their_shape() -> None:
    assert back(np.zeros((0, 7), np.float32)).shape == (0, 7)


def test_images_stand_elsewhere() -> None:
    image = bytes(range(256)) * 4
    request = ObservationRequest(
        id=ID,
        stamp_ns=5,
        instruction="",
        state=np.ones(3, np.float32),
        images=(EncodedImage(camera="c", format="jpeg", data=image),),
    )
    assert back(request).images[0].data == b""
    assert back(request, blob={codec.digest(image): image}.get).images[0].data == image


class Encoded(EncodedImage):
    """An image of another room, which has its bytes when they are first read, and more attributes than are recorded."""

    def __init__(self, read: Any) -> None:
        super().__init__(camera="c", format="jpeg", data=b"")
        del self.__dict__["data"]
        object.__setattr__(self, "read", read)

    def __getattr__(self, name: str) -> Any:
        if name == "data":
            return self.read()
        raise AttributeError(name)


def test_a_value_whose_class_extends_a_recorded_one_is_recorded_as_that() -> None:
    image = back(Encoded(lambda: b"short"))
    assert image == EncodedImage(camera="c", format="jpeg", data=b"short") and type(image) is EncodedImage


@pytest.mark.parametrize("value", [random, object(), RobotCore(CONFIG), RobotCore(CONFIG).tick, lambda: 1, np.array(["x"])])
def test_anything_else_cannot_be_recorded(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be recorded"):
        codec.plain(value)


def test_numbers_of_numpy_stay_numbers_of_numpy() -> None:
    """`float32 array * float64 number` is another array than with a float of Python's."""
    for number in (np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True), np.float64("nan")):
        again = back({"x": number})["x"]
        assert type(again) is type(number) and again.tobytes() == number.tobytes()


def test_a_set_is_written_in_the_same_order_by_every_process() -> None:
    """Its own order is that of hashes, which differ from process to process."""
    names = [f"server_{i}" for i in range(20)]
    written = [codec.plain(set(order)) for order in (names, names[::-1])]
    assert written[0] == written[1] and written[0]["items"] == sorted(names)


# --- what is no value ---


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:eval",
        "types.messages:RequestId",
        "robot.brain:RobotBrain",
        "RobotBrain",
        "..os:system",
        ":",
        "",
        7,
        [],
    ],
)
def test_nothing_else_is_made(name: object) -> None:
    with pytest.raises(RfmError):
        codec.value({"~": name, "command": "true"})


def test_a_name_that_this_version_does_not_know_is_refused_with_it() -> None:
    with pytest.raises(RfmError, match="'HoverCraft' is no value that this version records"):
        codec.value({"config": {"~": "HoverCraft", "skirts": 1}})


def test_fields_that_are_missing_or_unknown_are_refused_with_their_names() -> None:
    written = stored(CONTRACT)
    del written["pipelines"]
    with pytest.raises(
        RfmError, match="ModelContract as it was recorded has hat, which this version does not know and lacks pipeli"
    ):
        codec.value({**written, "hat": 1})


def test_a_member_that_this_version_does_not_know_is_refused_with_it() -> None:
    with pytest.raises(RfmError, match="RobotState has no member 'FLYING'"):
        codec.value({"~": "RobotState", "member": "FLYING"})


KEYS = ["~", "@", "items", "rows", "shape", "base64", "is", "of", "name", "member", "state", "sha256"]
TAGS = ["list", "set", "dict", "float32", "bytes", "scalar", "float", "@", "RequestId", "RobotState", "Rung", "FallbackStep"]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner | st.sampled_from(TAGS), max_size=4)
        ),
    )
)
def test_garbage_is_refused_and_does_nothing(found: object) -> None:
    with contextlib.suppress(RfmError):
        codec.value(found)


# --- names ---


def test_a_name_has_one_class_and_a_class_has_one_name() -> None:
    assert len(set(RECORDED.values())) == len(RECORDED) == len(ROBOT_EVENTS) + len(SERVER_EVENTS) + len(VALUES)
    for name, kind in RECORDED.items():
        assert name.isidentifier() and name[0].isupper() and name not in codec.CONTAINERS
        assert dataclasses.is_dataclass(kind) or issubclass(kind, (enum.Enum, tuple))


def test_every_event_has_its_name() -> None:
    for known, room in ((ROBOT_EVENTS, events), (SERVER_EVENTS, server_events)):
        assert set(known.values()) == set(typing.get_args(room.Event))
        assert all(name == kind.__name__ for name, kind in known.items())


def parts_of(kind: Any) -> set[type]:
    """Classes of ours that a value of this class may hold, by the types of its fields."""
    if arguments := typing.get_args(kind):
        return set().union(*map(parts_of, arguments))
    if not isinstance(kind, type) or not kind.__module__.startswith("ros2_rfm_serving"):
        return set()
    return {kind}


@pytest.mark.parametrize("name", [name for name, kind in RECORDED.items() if not issubclass(kind, enum.Enum)])
def test_every_part_of_a_recorded_value_has_a_name(name: str) -> None:
    kind = RECORDED[name]
    hints = typing.get_type_hints(kind)
    fields = codec.field_names(kind)
    assert set().union(*(parts_of(hints[field]) for field in fields)) <= set(RECORDED.values())


def test_the_table_has_no_more_than_what_is_recorded() -> None:
    """Events, decisions and configurations with all that they hold; `test_snapshots.py` restores the values of snapshots."""
    reached: set[type] = set()
    todo: list[Any] = [*ROBOT_EVENTS.values(), *SERVER_EVENTS.values(), RobotConfig, TickResult]
    while todo:
        kind = todo.pop()
        if kind not in reached:
            reached.add(kind)
            if not issubclass(kind, enum.Enum):
                hints = typing.get_type_hints(kind)
                todo += set().union(*(parts_of(hints[field]) for field in codec.field_names(kind)))
    others = {name for name, kind in RECORDED.items() if kind not in reached}
    snapshots = {"Admission", "ChunkOrigin", "CommandSource", "ConnectionState", "ModelIdentity", "RequestInFlight", "TaskResult"}
    servers = {"EngineLimits", "Interval", "SolverStepDecision"}
    assert others == {"RobotState", "ScheduleVerdict", "TaskPhase", *snapshots, *servers}
