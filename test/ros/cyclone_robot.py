"""A robot without ROS, on Eclipse Cyclone DDS: knows the .msg files, hears topics, sends observations, gets action chunks.

python cyclone_robot.py MSG_FOLDER SERVER ROBOT < session_epoch     prints one JSON object per message that it hears
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.annotations import final
from cyclonedds.idl.types import array, float32, float64, int8, int16, int32, int64, sequence, uint8, uint16, uint32, uint64
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

NUMBERS = (float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64)
PRIMITIVES = {"bool": bool, "byte": uint8, "string": str, **{number.__metadata__[0]: number for number in NUMBERS}}
OTHERS = {
    "builtin_interfaces/Time": "int32 sec\nuint32 nanosec",
    "std_msgs/Header": "builtin_interfaces/Time stamp\nstring frame_id",
    "sensor_msgs/CompressedImage": "std_msgs/Header header\nstring format\nuint8[] data",
}
"""Messages of other packages that ours have as fields."""
XCDR1 = Policy.DataRepresentation(use_cdrv0_representation=True, use_xcdrv2_representation=False)


@functools.cache
def message_type(name: str) -> Any:
    """`package/Name` as what ROS calls it on the wire: `package::msg::dds_::Name_`, a final structure."""
    package, _, short = name.partition("/")
    text = OTHERS.get(name) or (Path(sys.argv[1]) / f"{short}.msg").read_text()
    fields = re.findall(r"^([\w/]+(?:\[\d*\])?) (\w+)\s*(?:#.*)?$", text, re.MULTILINE)  # constants have a `=`
    body = {"__annotations__": {field: _type(kind) for kind, field in fields}, "__module__": __name__}
    keywords = {"typename": f"{package}::msg::dds_::{short}_"}
    return final(dataclass(types.new_class(short, (IdlStruct,), keywords, lambda namespace: namespace.update(body))))


def _type(kind: str) -> Any:
    if kind.endswith("]"):
        inner, _, size = kind[:-1].partition("[")
        return array[_type(inner), int(size)] if size else sequence[_type(inner)]
    return PRIMITIVES.get(kind) or message_type(kind if "/" in kind else f"rfm_serving/{kind}")


def blank(kind: Any, **values: Any) -> Any:
    """A message whose other fields are as rosidl leaves them."""
    made = {}
    for name, hint in kind.__annotations__.items():
        empty = {bool: False, str: ""}.get(hint)
        is_list, is_struct = "sequence" in str(hint), isinstance(hint, type) and issubclass(hint, IdlStruct)
        size = next((one.length for one in getattr(hint, "__metadata__", ()) if isinstance(one, array)), 0)
        empty = [0] * size if size else empty
        made[name] = values.get(name, empty if empty is not None else [] if is_list else blank(hint) if is_struct else 0)
    return kind(**made)


def qos(depth: int, durability: Any = Policy.Durability.Volatile) -> Qos:
    return Qos(Policy.Reliability.Reliable(duration(seconds=1)), Policy.History.KeepLast(depth), durability, XCDR1)


def main(server: str, robot: str) -> None:
    here = DomainParticipant(int(os.environ["ROS_DOMAIN_ID"]))

    def topic(name: str, kind: str) -> Topic[Any]:
        return Topic(here, f"rt{name}", message_type(f"rfm_serving/{kind}"))

    heard = {
        "Schedule": DataReader(here, topic("/rfm/schedule", "Schedule"), qos=qos(1, Policy.Durability.TransientLocal)),
        "ServerStatus": DataReader(here, topic(f"/rfm/servers/{server}/status", "ServerStatus"), qos=qos(1)),
        "RobotStatus": DataReader(here, topic("/arm_1/rfm/status", "RobotStatus"), qos=qos(1)),
        "ActionChunk": DataReader(here, topic(f"/{robot}/rfm/action_chunk", "ActionChunk"), qos=qos(2)),
    }
    observations = DataWriter(here, topic(f"/rfm/servers/{server}/observation", "Observation"), qos=qos(1))
    epoch, jpeg = int(sys.stdin.readline()), sys.stdin.readline().strip()
    sequence_number, end_s = 0, time.monotonic() + 60
    observation, request, image = (
        message_type(n) for n in ("rfm_serving/Observation", "rfm_serving/RequestId", "sensor_msgs/CompressedImage")
    )
    while time.monotonic() < end_s:
        sequence_number += 1
        identity = blank(request, robot=robot, component="system1", session_epoch=epoch, episode=1, sequence=sequence_number)
        picture = blank(image, format="jpeg", data=bytes.fromhex(jpeg))
        picture.header.frame_id = "front"
        message = blank(observation, id=identity, instruction="go", state=[0.25, 0.5, -1.0], images=[picture], stamp_ns=7)
        observations.write(message)
        for kind, reader in heard.items():
            for sample in reader.take(N=10):
                print(json.dumps({"kind": kind, **summary(kind, sample)}), flush=True)
        time.sleep(0.1)


def summary(kind: str, sample: Any) -> dict[str, Any]:
    if kind == "ActionChunk":
        rows = sample.chunk_robot
        return {"sequence": sample.id.sequence, "stamp_ns": sample.stamp_ns, "first": list(rows.data[: rows.columns])}
    if kind == "Schedule":
        return {"epoch": sample.epoch, "routes": [route.robot for route in sample.routes]}
    return {"state": sample.state}


if __name__ == "__main__":
    main(*sys.argv[2:])
