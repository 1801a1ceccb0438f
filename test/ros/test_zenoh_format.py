"""rmw_zenoh's format: the examples of its design document, and what zenoh-ros2-sdk, by others, makes of the same."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message
from rfm_serving import msg
from zenoh_ros2_sdk import attachment as sdk_attachment
from zenoh_ros2_sdk import keyexpr as sdk_keys
from zenoh_ros2_sdk.entity import EndpointEntity, EntityKind, NodeEntity
from zenoh_ros2_sdk.qos import QosDurability, QosProfile, QosReliability

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.factory.graph_names import Names, own_name
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.zenoh import passing
from ros2_rfm_serving.ros.zenoh.format import GID_BYTES, Address, Attachment, Interface, Kind, Node, endpoint_of, gid_of, qos_text
from ros2_rfm_serving.ros.zenoh.inward import sender_of
from ros2_rfm_serving.ros.zenoh.tally import Sequences, Tally
from test.zenoh_robot import hash_of

STRING = Interface.of("std_msgs/msg/String", "RIHS01_df668c740482bbd48fb39d76a70dfd4bd59db1288021743503259e948f6b1a18")
ADD = Interface.of("example_interfaces/srv/AddTwoInts", "RIHS01_e118de6bf5eeb66a2491b5bda11202e7b68f198d6f67922cf30364858239c81a")
OF_TEN, OF_SEVEN = "::,10:,:,:,,", "::,7:,:,:,,"
WORDS = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)


@pytest.mark.parametrize(
    ("address", "key"),
    [
        (Address(0, "/chatter", STRING), f"0/chatter/std_msgs::msg::dds_::String_/{STRING.hash}"),
        (Address(0, "/robot1/chatter", STRING), f"0/robot1/chatter/std_msgs::msg::dds_::String_/{STRING.hash}"),
        (Address(2, "/add_two_ints", ADD), f"2/add_two_ints/example_interfaces::srv::dds_::AddTwoInts_/{ADD.hash}"),
    ],
)
def test_keys_of_the_design_document(address: Address, key: str) -> None:
    assert address.key == key and Address.read(key) == address


@pytest.mark.parametrize(
    ("session", "name", "kind", "topic", "interface", "text"),
    [
        ("aac3178e146ba6f1fc6e6a4085e77f21", "listener", Kind.SUBSCRIPTION, "/chatter", STRING, OF_TEN),
        ("8b20917502ee955ac4476e0266340d5c", "talker", Kind.PUBLISHER, "/chatter", STRING, OF_SEVEN),
        ("f9980ee0495eaafb3e38f0d19e2eae12", "add_two_ints_server", Kind.SERVICE, "/add_two_ints", ADD, OF_TEN),
        ("e1dc8d1b45ae8717fce78689cc655685", "add_two_ints_client", Kind.CLIENT, "/add_two_ints", ADD, OF_TEN),
    ],
)
def test_tokens_of_the_design_document(session: str, name: str, kind: Kind, topic: str, interface: Interface, text: str) -> None:
    node = Node(2, session, 0, "/", name)
    written = (
        f"@ros2_lv/2/{session}/0/10/{kind.value}/%/%/{name}/{topic.replace('/', '%')}/{interface.name}/{interface.hash}/{text}"
    )
    assert node.token == f"@ros2_lv/2/{session}/0/0/NN/%/%/{name}" and endpoint_of(node.token) is None
    assert node.endpoint_token(10, kind, topic, interface, text) == written
    assert endpoint_of(written) == (session, kind, Address(2, topic, interface))


def test_the_sdk_writes_the_same_tokens_keys_and_attachments() -> None:
    theirs = NodeEntity(domain_id=7, session_id="ab12", node_id=3, node_name="arm", namespace="/plant/line_2")
    ours = Node(7, "ab12", 3, "/plant/line_2", "arm")
    assert ours.token == sdk_keys.node_liveliness_keyexpr(theirs)
    kinds = zip(list(Kind)[1:], (EntityKind.PUBLISHER, EntityKind.SUBSCRIPTION, EntityKind.SERVICE, EntityKind.CLIENT), strict=True)
    for (kind, other), reliable, latched in itertools.product(kinds, (True, False), (True, False)):
        profile = QosProfile(
            reliability=QosReliability.RELIABLE if reliable else QosReliability.BEST_EFFORT,
            durability=QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
            history_depth=2,
        )
        text = qos_text(reliable=reliable, latched=latched, depth=2)
        assert text == profile.encode() and QosProfile.decode(text) == profile
        end = EndpointEntity(theirs, 5, other, "/arm/rfm/plan", STRING.name, STRING.hash, text)
        assert ours.endpoint_token(5, kind, "/arm/rfm/plan", STRING, text) == sdk_keys.endpoint_liveliness_keyexpr(end)
    key = sdk_keys.topic_keyexpr(7, "/arm/rfm/plan", STRING.name, STRING.hash)
    assert Address(7, "/arm/rfm/plan", STRING).key == key
    gid = gid_of(ours.token)
    written = sdk_attachment.Attachment(sequence_id=9, timestamp_ns=1 << 60, gid=gid).to_bytes()
    assert Attachment(9, 1 << 60, gid).written() == written and Attachment.read(written) == (9, 1 << 60, gid)


def test_hashes_are_those_that_others_compute_from_the_text() -> None:
    """Of all that passes: without them nobody hears anybody."""
    topics = [passing.SCHEDULE, passing.STATUS, passing.OBSERVATION, passing.ROBOT_STATUS, *passing.TO_ROBOT.values()]
    for kind in [topic.message for topic in topics]:
        assert passing.interface(kind).hash == hash_of(f"rfm_serving/msg/{kind.__name__}")
    for kind in [kind for leaf, kind in passing.SERVICES.items() if leaf != "describe"]:  # the SDK takes no empty requests
        assert passing.interface(kind).hash == hash_of(f"rfm_serving/srv/{kind.__name__}")


def test_what_is_latched_or_best_effort_is_told_so() -> None:
    told = {name: passing.told(getattr(qos, name)) for name in ("SCHEDULE", "REPLY", "OBSERVATION_RECEIVED")}
    assert told == {"SCHEDULE": ":1:,1:,:,:,,", "REPLY": "::,2:,:,:,,", "OBSERVATION_RECEIVED": "2::,64:,:,:,,"}
    assert passing.told(QoSProfile(depth=42)) == "::,:,:,:,,"


@pytest.mark.parametrize("key", ["", "0", "0/a/b", "x/a/b/c", "0//", "-1/a/b/c", "12345/a/b/c", "²/a/b/c", "/a/b/c"])
def test_keys_that_are_none(key: str) -> None:
    with pytest.raises(BadMessageError, match="is not <domain>"):
        Address.read(key)


@pytest.mark.parametrize(
    "data", [b"", bytes(32), bytes(34), bytes(33), Attachment(-1, 0, bytes(GID_BYTES)).written(), bytes(1 << 20)]
)
def test_attachments_that_are_none(data: bytes) -> None:
    with pytest.raises(BadMessageError) as refused:
        Attachment.read(data)
    assert refused.value.kind == "bad_attachment"


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_no_text_breaks_the_reading_of_a_token(text: str) -> None:
    for token in (text, f"@ros2_lv/0/a/0/1/MS/{text}", f"@ros2_lv/0/a/0/1/MS/%/%/n/{text}/t/h/q"):
        try:
            endpoint_of(token)
        except BadMessageError as error:
            assert error.kind in ("bad_token", "bad_key")


@settings(max_examples=25)
@given(st.integers(0, 232), st.lists(WORDS, min_size=1, max_size=4), WORDS, st.sampled_from(list(Kind)[1:]))
def test_what_is_written_is_read(domain: int, name: list[str], node: str, kind: Kind) -> None:
    address = Address(domain, "/" + "/".join(name), STRING)
    assert Address.read(address.key) == address
    token = Node(domain, "a1", 2, "/ns", node).endpoint_token(1, kind, address.name, STRING, OF_TEN)
    assert endpoint_of(token) == ("a1", kind, address)


@settings(max_examples=25)
@given(st.text("abcö_", max_size=9), st.text("xyz", max_size=9))
def test_an_observations_robot_is_read_without_reading_the_rest(frame: str, robot: str) -> None:
    message = msg.Observation(id=msg.RequestId(robot=robot, component="system1"), instruction="go")
    message.header.frame_id = frame
    assert sender_of(bytes(serialize_message(message))) == robot


def test_gaps_are_counted_and_no_number_is_in_the_way_of_the_next() -> None:
    tally, one, other = Tally(), bytes(GID_BYTES), bytes([1] * GID_BYTES)
    sequences = Sequences(tally, "lost")
    assert [sequences.take(Attachment(n, 0, one), "/a") for n in (3, 4, 8)] == [0, 0, 3]
    assert sequences.take(Attachment(1, 0, other), "/a") == sequences.take(Attachment(1, 0, one), "/b") == 0
    assert [sequences.take(Attachment(n, 0, one), "/a") for n in (8, 1 << 60, 9, 10, 12)] == [0, 0, 0, 0, 1]
    assert tally.taken() == {"lost": 4, "out_of_turn": 2}, "8 again, and 9 after one that was made up"


@pytest.mark.parametrize("root", ["", "/hall", "/plant/line_2"])
def test_own_names_are_made_and_read(root: str) -> None:
    names = Names(root)
    name = names.server("s1", "observation")
    assert names.shared(own_name(name, "arm_1")) == (name, "arm_1")
    for other in (name, names.robot("arm_1", "rfm/status"), names.schedule, own_name(name, "a/b"), "/else/arm_1/rfm/servers/s1/x"):
        assert names.shared(other) == (other, "")
