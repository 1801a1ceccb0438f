"""A robot with a session of its own that asks far too often, in a process of its own: every observation is newer, and sealed.

python -m test.ros.valid_flood RATE_HZ TEMPLATE KEY; two files: an observation of its session, as bytes, and the key of its seals.
Until its standard input ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg

from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.proofs import sealed_observation
from test.ros.flood import beside, speaking


def main(rate_hz: float, template: Path, key: Path) -> None:
    observation, seal_by = deserialize_message(template.read_bytes(), msg.Observation), key.read_bytes()

    def newer() -> Any:
        observation.id.sequence += 1
        return sealed_observation(observation, seal_by)

    with speaking(rate_hz, msg.Observation, qos.Names().server("s1", "observation"), qos.OBSERVATION_SENT) as say:
        say(newer, listeners=1)


@contextmanager
def valid_flood(folder: Path, observation: Any, key: bytes, rate_hz: float = 1000.0) -> Iterator[Callable[[], str]]:
    """While the block runs. The function: how often it has asked, once it is over."""
    template, seal_by = folder / "observation.bin", folder / "key.bin"
    template.write_bytes(serialize_message(observation))
    seal_by.write_bytes(key)
    with beside("test.ros.valid_flood", str(rate_hz), str(template), str(seal_by)) as told:
        yield told


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
