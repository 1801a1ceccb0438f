"""Well-formed messages and files that say impossible things; and what fuzzing found, by name."""

from __future__ import annotations

import io
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from rclpy.serialization import serialize_message

from ros2_rfm_serving import wire
from ros2_rfm_serving.dispatch.dispatcher import DISPATCH_POLICIES
from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, ProfileError
from ros2_rfm_serving.factory import parse_factory
from ros2_rfm_serving.factory.nodes import NodeSpec, node_list, write_parameters
from ros2_rfm_serving.profiles import HEADER, parse_profiles
from ros2_rfm_serving.server import ModelServer, ServerConfig, images
from ros2_rfm_serving.server.openpi.observation import state_of
from ros2_rfm_serving.types import EncodedImage, ExecutionReport
from test.fuzz.targets import descriptor, gateway, messages, profiles
from test.fuzz.targets import images as pictures
from test.fuzz.targets.server import Foreign
from test.unit.fakes import JPEG, observation, session_request
from test.unit.mutations import VALUES, duplicated

QUICK = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
KEYS = st.sampled_from(
    ["prompt", "observation/state", "state", "observation", "images", "observation/images/front", "front", "arm", "hand", "depth",
     "prev_chunk_left_over", "inference_delay", "execution_report", "session", "episode", "reset", "\ufffe", "", b"state", 7]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "conditioning",
        "guidance",
        "horizon",
        "slo_s",
        "robot",
        "component",
        "action_names",
        "cameras",
        "schema_version",
        "state_size",
    ]
)


# --- the gateway ----------------------------------------------------------------------------------------------------------


@settings(QUICK, max_examples=80)
@given(st.integers(0, 7), st.lists(st.tuples(KEYS, VALUES), max_size=5))
def test_any_map_is_answered_or_refused(kind: int, changes: list[tuple[Any, Any]]) -> None:
    """Keys may be there twice, and need not be text."""
    pack = wire.packer().pack
    items = [*gateway.observation(gateway.SPECS[kind % len(gateway.SPECS)]).items(), *changes]
    gateway.check(bytes([kind]) + duplicated(items, pack))


@settings(QUICK, max_examples=60)
@given(
    st.dictionaries(WORDS, VALUES, min_size=1, max_size=3), st.dictionaries(st.sampled_from(["executing_s", "remaining_s"]), VALUES)
)
def test_a_session_may_say_anything_of_itself(words: dict[str, Any], report: dict[str, Any]) -> None:
    message = gateway.observation(gateway.SPECS[0], session=words, execution_report=report)
    gateway.check(b"\0" + wire.packer().pack(message))


@pytest.mark.parametrize("value", [["a"] * 4000 + ["x" * 1_000_000], [b"a"] * 4000 + [b"x" * 1_000_000], [[1, "2"]], [None]])
def test_a_state_of_texts_is_refused_before_numpy_makes_room_for_the_longest(value: list[Any]) -> None:
    with pytest.raises(BadMessageError) as refused:
        state_of([value])
    assert refused.value.kind == "bad_shape"


# --- images ---------------------------------------------------------------------------------------------------------------


def progressive(num_scans: int) -> bytes:
    """A progressive JPEG whose last scan is there so many times more."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(file, "jpeg", progressive=True)
    data = file.getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * num_scans + data[-2:]


def camera(data: bytes, **changes: Any) -> EncodedImage:
    return EncodedImage(**{"camera": "front", "format": "jpeg", "data": data, **changes})


@pytest.mark.parametrize("look", [images.decode, images.check])
def test_a_jpeg_of_a_thousand_scans_is_refused_before_it_is_decoded(look: Any) -> None:
    look(camera(progressive(0)))
    with pytest.raises(BadMessageError, match="scans"):
        look(camera(progressive(1000)))


def test_headers_that_only_we_would_see_hide_no_scans() -> None:
    """A fill byte before a comment, taken for a marker, would lead past the real headers to harmless ones in a comment."""
    data = progressive(1000)
    frame, far = data.index(b"\xff\xc2"), 4 + 0xFE00
    before = b"\xff\xd8\xff\xff\xfe\x00\x04\x00\x00" + data[2:frame]
    harmless = bytes.fromhex("ffc0000b0800100010010111 00ffda0008010100003f00")
    room = far - len(before) - 4
    comment = b"\xff\xfe" + (2 + room + len(harmless)).to_bytes(2, "big") + bytes(room) + harmless
    with pytest.raises(BadMessageError, match="scans"):
        images.check(camera(before + comment + data[frame:]))


@pytest.mark.parametrize("size", [(64, 0), (0, 64), (0, 0)])
def test_pixels_without_a_height_or_a_width_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(BadMessageError):
        images.decode(camera(b"", format="rgb8", height_px=size[0], width_px=size[1]))


@settings(QUICK, max_examples=60)
@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_a_jpeg_may_lie_about_its_size(height: int, width: int) -> None:
    at = JPEG.index(b"\xff\xc0") + 5
    lying = JPEG[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + JPEG[at + 4 :]
    pictures.check(pictures.HEAD.pack(0, 0, 0) + lying)


# --- reports --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", DISPATCH_POLICIES)
@pytest.mark.parametrize("report", [(0.0, -1e30), (0.1, -30.0), (1.0, 1e6), (0.0, 1e30), (math.inf, math.nan)])
def test_whatever_a_robot_says_of_itself_the_others_are_served(policy: str, report: tuple[float, float]) -> None:
    target = ModelServer(ServerConfig(name="s", dispatch=policy, profile_s=(0.1,)), Foreign())
    epochs = {robot: target.open_session(session_request(robot, cameras=())).session_epoch for robot in ("liar", "good")}
    said = ExecutionReport(executed_steps=4, executing_s=report[0], remaining_s=report[1])
    served: list[str] = []
    for i in range(1, 41):
        target.submit(observation(epochs["liar"], i, "liar", images=(), report=said), 100 + 0.3 * i)
        if i == 4:
            target.submit(observation(epochs["good"], i, "good", images=()), 100 + 0.3 * i)
        times = iter((100 + 0.3 * i, 100.2 + 0.3 * i))
        served += [reply.id.robot for reply in target.loop.step(lambda times=times: next(times))]  # type: ignore[misc]
    assert "good" in served and len(served) == 40


# --- files ----------------------------------------------------------------------------------------------------------------

SHIPPED = yaml.safe_load((descriptor.CONFIG / "factory_rosa_fig3.yaml").read_text(encoding="utf-8"))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(), st.text(max_size=6), st.sampled_from([10**400, "x" * 300])
)
TREES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(SCALARS, inner, max_size=3)), max_leaves=6
)
TEXTS = st.sampled_from(
    ["2026-02-30", "!!bool x", '!!int ""', "!!timestamp x", "!!float x", "9" * 5000, "&x [*x]", "[" * 1500, "? [a]", '"\\ud800"',
     "<<: [1]", "!!binary z", "!!python/object:os.system {}", "*unknown", "\0", "1e999", ".nan", "{a: 1, a: 2}", '"a\\0b"']
)  # fmt: skip


@st.composite
def factories(draw: st.DrawFn) -> bytes:
    """A shipped descriptor with another value somewhere, or another text."""
    tree = yaml.safe_load(yaml.safe_dump(SHIPPED))
    node: Any = tree
    while True:
        key = draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))
        if not isinstance(node[key], (dict, list)) or not node[key] or draw(st.integers(0, 2)) == 0:
            break
        node = node[key]
    node[key] = draw(st.one_of(TREES, st.just("PLACE")))
    return yaml.safe_dump(tree, allow_unicode=True).replace("PLACE", draw(TEXTS)).encode(errors="replace")


@settings(QUICK, max_examples=30)
@given(factories())
def test_any_value_anywhere_in_a_descriptor_is_taken_or_explained(data: bytes) -> None:
    descriptor.check(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 2026-02-30", "impossible date"),
        ("a: !!bool x", "impossible date"),
        ('a: !!int ""', "impossible date"),
        ("a: !!timestamp x", "impossible date"),
        ("a: " + "9" * 5000, "impossible date"),
        ("a: &x [*x]", "nested too deeply"),
        ("{a: " * 1000, "nested too deeply"),
        ("? [a]\n: b", "unhashable key"),
        (r'a: "\ud800"', "impossible .* character"),
        (r'"\ud800": a', "impossible .* character"),
        ("\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(9)), "aliases of aliases"),
    ],
)
def test_what_yaml_cannot_mean_is_explained(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_factory(text, "f.yaml")


CELLS = st.sampled_from(
    ["", "0", "-1", "nan", "inf", "1e999", "9" * 5000, "²", "1_0", '"', "\0", "a\rb", "x" * 200_000, "fixed", "poisson"]
)


@settings(QUICK, max_examples=80)
@given(st.lists(st.tuples(st.integers(0, len(HEADER)), CELLS), min_size=1, max_size=3), st.booleans())
def test_any_cell_of_a_profile_is_taken_or_explained(changes: list[tuple[int, str]], keep: bool) -> None:
    good = ["m", "g", "fixed", "1", "1", "1", "1", "1", "1", "1", "periodic"]
    cells = [*good, ""][: len(good)]
    for at, cell in changes:
        cells[at : at + 1] = [cell]
    lines = [",".join(HEADER), *([",".join(good)] if keep else []), ",".join(cells)]
    profiles.check("\n".join(lines).encode())


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "..", ""])
def test_a_robot_file_that_cannot_be_is_explained(name: str) -> None:
    tree = {**SHIPPED, "pick_and_place_simple": {**SHIPPED["pick_and_place_simple"], "robot": name}}
    with pytest.raises(ConfigurationError, match="no file"):
        node_list(parse_factory(yaml.safe_dump(tree)), descriptor.CONFIG, work={})


@pytest.mark.parametrize("text", ["", "a", "- 1", "a: b", "a: {b: c}", "a: {ros__parameters: [1]}", "a: ["])
def test_robot_parameters_that_are_none_are_explained(tmp_path: Path, text: str) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"robot\.yaml:1"):
        write_parameters(NodeSpec(name="n", executable="e", params_file=str(file)), tmp_path / "out.yaml")


def test_a_batch_size_of_5000_digits_is_refused() -> None:
    with pytest.raises(ProfileError, match="batch_size"):
        parse_profiles(f"{','.join(HEADER)}\nm,g,fixed,{'9' * 5000},1,1,1,1,1,1,periodic\n")


def test_what_a_frame_nests_is_bounded() -> None:
    deep: Any = 0
    for _ in range(wire.MAX_CONTAINERS + 1):
        deep = [deep]
    with pytest.raises(BadMessageError):
        wire.unpack(msgpack.packb({"a": deep}))


# --- messages -------------------------------------------------------------------------------------------------------------

SCALAR_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.one_of(st.text(max_size=6), st.sampled_from(["r1", "system1", "action_chunk", "linear", "guided", "x" * 5000])),
    "boolean": st.booleans(),
    "float": st.floats(width=32),
    "double": st.floats(),
    "octet": st.binary(min_size=1, max_size=1),
    **{f"int{bits}": st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}


def fields(kind: Any) -> st.SearchStrategy[Any]:
    """Messages of a kind, any value in any field."""
    return st.builds(kind, **{name: field(kind_of) for name, kind_of in kind.get_fields_and_field_types().items()})


def field(kind: str) -> st.SearchStrategy[Any]:
    if kind.startswith("sequence<"):
        return st.lists(field(kind[len("sequence<") : -1].split(",")[0]), max_size=3)
    if kind.endswith("]"):
        inner, _, size = kind[:-1].partition("[")
        return st.lists(field(inner), min_size=int(size), max_size=int(size))
    if "/" in kind:
        package, name = kind.split("/")
        return fields(getattr(import_module(f"{package}.msg"), name))
    return SCALAR_FIELDS[kind]


@pytest.mark.parametrize("index", range(len(messages.KINDS)))
def test_any_value_in_any_field_of_a_message_is_read_or_refused(index: int) -> None:
    @settings(QUICK, max_examples=30)
    @given(fields(messages.KINDS[index].message))
    def check(message: Any) -> None:
        messages.check(bytes([index]) + serialize_message(message))

    check()
