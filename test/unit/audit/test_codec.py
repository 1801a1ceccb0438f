"""Whatever the brain holds comes back as it was, whoever wrote the recording."""

import contextlib
import math
import random
from collections import Counter, defaultdict, deque

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.robot import RobotBrain
from ros2_rfm_serving.types import EncodedImage, ExecutionReport, ObservationRequest, RequestId, RobotState
from test.unit.fakes import CONTRACT
from test.unit.robot.robots import CONFIG

ID = RequestId(robot="push_1", component="system1", session_epoch=2**63 + 5, episode=3, sequence=9)


def back(value, write=codec.plain, **more):
    return codec.value(orjson.loads(orjson.dumps(write(value), option=orjson.OPT_SERIALIZE_NUMPY)), **more)


VALUES = [None, True, 7, 2**64 - 1, "é", 0.1, math.inf, -math.inf, (1, (2.5, "x")), [1, 2], {"a": 1}, {("a", 1): 2}, {"~": 1}]
NOUNS = [ID, RobotState.DEAD, ExecutionReport(remaining_s=-0.25)]
CONTAINERS = [Counter(a=2), deque([1, 2], maxlen=2), {1, 2}, frozenset({3}), b"short"]


@pytest.mark.parametrize("value", VALUES + NOUNS + CONTAINERS)
@pytest.mark.parametrize("write", [codec.plain, codec.whole])
def test_values_come_back(value, write) -> None:
    again = back(value, write)
    assert again == value and type(again) is type(value)


@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=9),
    st.sampled_from(["float32", "float64", "float16"]),
)
def test_arrays_come_back_bit_by_bit(numbers: list[float], dtype: str) -> None:
    with np.errstate(over="ignore"):
        array = np.asarray(numbers, dtype)
    again = back(array)
    assert again.dtype == array.dtype and again.tobytes() == array.tobytes()


def test_empty_arrays_keep_their_shape() -> None:
    assert back(np.zeros((0, 7), np.float32)).shape == (0, 7)


def test_images_lie_elsewhere() -> None:
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

    def __init__(self, read) -> None:
        super().__init__(camera="c", format="jpeg", data=b"")
        del self.__dict__["data"]
        object.__setattr__(self, "read", read)

    def __getattr__(self, name: str):
        if name == "data":
            return self.read()
        raise AttributeError(name)


@pytest.mark.parametrize("write", [codec.plain, codec.whole])
def test_what_extends_a_record_elsewhere_is_recorded_as_that_record(write) -> None:
    image = back(Encoded(lambda: b"short"), write)
    assert image == EncodedImage(camera="c", format="jpeg", data=b"short") and type(image) is EncodedImage


def test_what_extends_something_that_changes_is_not_recorded() -> None:
    other = type("OtherBrain", (RobotBrain,), {"__module__": "somewhere"})
    with pytest.raises(TypeError, match=r"somewhere\.OtherBrain cannot be recorded"):
        codec.whole(object.__new__(other))


def test_a_whole_keeps_what_is_one_object() -> None:
    shared = [1]
    first, second = back([shared, shared, [1]], codec.whole)[:2]
    assert first is second
    cycle: list[object] = []
    cycle.append(cycle)
    again = back(cycle, codec.whole)
    assert again[0] is again


def test_a_generator_goes_on_where_it_was() -> None:
    generator = random.Random("x")
    generator.random()
    assert back(generator, codec.whole).random() == generator.random()


def test_defaults_of_defaultdicts_come_back() -> None:
    again = back(defaultdict(int, {"a": 1}), codec.whole)
    assert again["b"] == 0 and again["a"] == 1


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:eval", "robot.brain:math.inf", "types.messages:np.load", "..os:system", "robot:", ":", 7]
)
def test_nothing_else_is_made(name: object) -> None:
    with pytest.raises(RfmError):
        codec.value({"~": name, "command": "true"})


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["~", "@", "items", "rows", "shape", "base64", "is", "of", "name", "member", "state", "maxlen"]),
                inner
                | st.sampled_from(
                    [
                        "list",
                        "deque",
                        "float32",
                        "bytes",
                        "method",
                        "function",
                        "partial",
                        "Random",
                        "@",
                        "types.messages:RequestId",
                    ]
                ),
                max_size=4,
            )
        ),
    )
)
def test_garbage_is_refused_and_does_nothing(found: object) -> None:  # fmt: skip
    with contextlib.suppress(RfmError):
        codec.value(found)


def test_what_is_not_ours_cannot_be_recorded() -> None:
    with pytest.raises(TypeError, match="cannot be recorded"):
        codec.plain(random)


def test_numbers_of_numpy_stay_numbers_of_numpy() -> None:
    """`float32 array * float64 number` is another array than with a float of Python's."""
    for number in (np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True), np.float64("nan")):
        again = back({"x": number})["x"]
        assert type(again) is type(number) and again.tobytes() == number.tobytes()


def test_a_set_is_written_in_the_same_order_whoever_writes_it() -> None:
    """Its own order is that of hashes, which differ from process to process."""
    names = [f"server_{i}" for i in range(20)]
    written = [codec.whole(set(order)) for order in (names, names[::-1])]
    assert written[0] == written[1] and written[0]["items"] == sorted(names)


def test_a_value_from_before_it_had_all_its_fields_has_their_defaults() -> None:
    written = codec.plain(CONTRACT)
    del written["pipelines"]
    assert codec.value(written) == CONTRACT
    del written["model"]
    with pytest.raises(RfmError, match="lacks model"):
        codec.value(written)


def test_a_generator_takes_little_room() -> None:
    assert len(orjson.dumps(codec.whole(random.Random(1)))) < 4000


@pytest.mark.parametrize("change", [{"hat": 1}, {"_queue": 1, "hat": 2}])
def test_an_object_with_other_attributes_is_refused_with_their_names(change: dict[str, int]) -> None:
    written = codec.whole(RobotBrain(CONFIG)._talk.due)
    with pytest.raises(RfmError, match="hat, which this version has not"):
        codec.value({**written, **change})
    with pytest.raises(RfmError, match="lacks waits"):
        codec.value({key: value for key, value in written.items() if key != "waits"})


@pytest.mark.parametrize(
    ("of", "name"), [("text", "format"), ({"~": "function", "name": "types.arrays:empty"}, "__globals__"), (1, "real")]
)
def test_no_method_but_ours_is_reached(of: object, name: str) -> None:
    with pytest.raises(RfmError, match="no method of ours"):
        codec.value({"~": "method", "of": of, "name": name})


def test_methods_of_ours_come_back() -> None:
    again = back(RobotBrain(CONFIG)._talk.due.may_pop, codec.whole)
    assert again() is False
