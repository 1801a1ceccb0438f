"""How the processes of a factory find each other on several machines, and how two factories on one network do not. Ours.

discovery: {mode, domain, namespace, partition, servers, port, peers}
"""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from ros2_rfm_serving.factory.hosts import Address
from ros2_rfm_serving.factory.section import Section

MAX_DOMAIN = 232
"""Beyond it DDS has no ports."""


class Mode(enum.Enum):
    MULTICAST = "multicast"
    """Everybody announces itself to everybody, where the network lets multicast through."""
    PEERS = "peers"
    """Every process announces itself to the declared hosts, one by one. Up to 32 processes of ours per host."""
    SERVER = "server"
    """Every process registers with Fast DDS's discovery servers, of which one at least must be there to find others."""


class Discovery(Section):
    mode: Mode = Mode.MULTICAST
    domain: int | None = Field(default=None, ge=0, le=MAX_DOMAIN)
    """ROS domain: factories in different ones use different ports. None: ROS_DOMAIN_ID, or 0."""
    namespace: str = Field(default="", pattern=r"^/?([A-Za-z]\w*(/[A-Za-z]\w*)*)?$")
    """Of all topics of the factory."""
    partition: str = Field(default="", pattern=r"^[\w.-]{0,100}$")
    """DDS partition: nobody outside it hears any topic of the factory, of the same name or not. Fast DDS only. Empty: none."""
    servers: tuple[str, ...] = ()
    """`mode: server`: hosts that run a discovery server; empty: the scheduler's alone."""
    port: Annotated[int, Field(ge=1024, le=65535)] = 11811
    """Of the discovery servers, UDP."""
    peers: tuple[Address, ...] = ()
    """`mode: peers`: machines that are no hosts of the descriptor, such as robots' own computers."""
