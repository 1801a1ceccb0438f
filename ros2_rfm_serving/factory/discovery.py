"""Discovery of a factory's processes on several machines, and isolation of factories on one network. Ours.

discovery: {mode, domain, namespace, partition, servers, port, peers}
"""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from ros2_rfm_serving.factory.machines import Address
from ros2_rfm_serving.factory.section import Section

MAX_DOMAIN = 232
"""Largest ROS domain that has DDS ports."""


class DiscoveryMode(enum.Enum):
    MULTICAST = "multicast"
    """Every process announces itself to all others, where the network lets multicast through."""
    PEERS = "peers"
    """Every process announces itself to the declared hosts, one by one, with up to 32 processes of this project per host."""
    SERVER = "server"
    """Every process registers with Fast DDS's discovery servers, at least one of which must run to find others."""


class Discovery(Section):
    mode: DiscoveryMode = DiscoveryMode.MULTICAST
    domain: int | None = Field(default=None, ge=0, le=MAX_DOMAIN)
    """ROS domain: factories in different domains use different ports. None: ROS_DOMAIN_ID, or 0."""
    namespace: str = Field(default="", pattern=r"^/?([A-Za-z]\w*(/[A-Za-z]\w*)*)?$")
    """Namespace of all topics of the factory."""
    partition: str = Field(default="", pattern=r"^[\w.-]{0,100}$")
    """DDS partition: no process outside it receives any topic of the factory, of the same name or not. Fast DDS only. Empty:
    none."""
    servers: tuple[str, ...] = ()
    """`mode: server`: hosts that run a discovery server; empty: only the scheduler's."""
    port: Annotated[int, Field(ge=1024, le=65535)] = 11811
    """UDP port of the discovery servers."""
    peers: tuple[Address, ...] = ()
    """`mode: peers`: machines that are no hosts of the descriptor, such as robots' own computers."""
