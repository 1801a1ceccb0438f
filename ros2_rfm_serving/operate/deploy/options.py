"""Options of `rfm deploy`, and the paths in its files."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError

ETC = "/etc/rfm_serving"
"""Folder of the factory's files on a machine or in a container."""
PREFIX = "/opt/rfm_serving"
"""Prefix of the environment in the images."""
USER_ID = 10001
"""User of all processes in the images; no user of a machine has this id."""
ACCOUNT = "rfm_serving"
"""User of the systemd units."""
CACHE = "/var/cache/rfm_serving"
"""Folder of servers in containers for files that outlive them, such as compiled kernels."""
PROBE_PORT = 9464
"""Port of `rfm metrics`, whose /readyz and /livez the probes request."""
DOOR_TOKEN = "RFM_DOOR_TOKEN"
"""Environment variable with the token of the servers' websocket gateways."""


class Kind(enum.Enum):
    KUBERNETES = "kubernetes"
    COMPOSE = "compose"
    SYSTEMD = "systemd"


@dataclass(frozen=True, kw_only=True)
class Options:
    kind: Kind
    namespace: str = ""
    """Namespace of all topics of the factory."""
    domain: str = "0"
    """ROS domain, unless the descriptor has one."""
    log_level: str = "info"
    foreman: bool = True
    profiles: Path | None = None
    """Folder of profiles and models.yaml; None: the shipped one."""
    host_network: bool = False
    door: int = 0
    """Port of the servers' websocket gateways, rising where they share addresses; 0: none."""
    metrics: int = PROBE_PORT
    """Port of `rfm metrics`; with several that share addresses, the first of them."""
    image: str = "rfm_serving"
    """Images are named <image>/robot, <image>/server, <image>/simulator."""
    tag: str = "latest"
    cache_claim: str = ""
    """Kubernetes: PersistentVolumeClaim of the servers' cache, which all their nodes can write to; empty: it ends with its pod."""
    etc: str = ETC
    """systemd: folder for the files on the machine."""
    security: Path | None = None
    """Folder of `rfm security init`; None: no certificates."""
    prefix: str = ""
    """systemd: prefix of the installation there; empty: as here."""

    def __post_init__(self) -> None:
        if self.kind is Kind.SYSTEMD and self.host_network:
            raise ConfigurationError(
                "is for containers: units have the network of their host", key="--host-network", fix="leave it out"
            )
        for name in ("etc", "prefix"):
            path = getattr(self, name)
            if path and not re.fullmatch(r"/[\w./+@:-]+", path, re.ASCII):
                fix = "give an absolute path of letters, digits and ._-+@:"
                raise ConfigurationError(f"{path!r} cannot stand in a unit", key=f"--{name}", fix=fix)
        if self.cache_claim and self.kind is not Kind.KUBERNETES:
            raise ConfigurationError("is a claim of Kubernetes", key="--cache-claim", fix="leave it out")
        if not re.fullmatch(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?", self.cache_claim):
            raise ConfigurationError(
                f"{self.cache_claim!r} names no claim", key="--cache-claim", fix="write small letters, digits and -"
            )
        if not re.fullmatch(r"\w[\w.-]{0,127}", self.tag, re.ASCII):
            raise ConfigurationError(f"{self.tag!r} is no tag", key="--tag", fix="write letters, digits and ._-")
        if not re.fullmatch(r"[a-z0-9]([a-z0-9._/:-]*[a-z0-9])?", self.image):
            raise ConfigurationError(f"{self.image!r} names no images", key="--image", fix="write registry/name, in small letters")

    @property
    def files(self) -> str:
        """Folder in which a process finds the files."""
        return ETC if self.in_containers else self.etc

    @property
    def keystore(self) -> str:
        """Folder in which a process finds its enclave, below `enclaves/`."""
        return f"{self.files}_security"

    def enclave(self, member: str) -> str:
        return f"{self.keystore}/enclaves/{member}"

    @property
    def installation(self) -> str:
        """Prefix of rfm_serving for a process; empty: the present one."""
        return PREFIX if self.in_containers else self.prefix

    @property
    def in_containers(self) -> bool:
        return self.kind is not Kind.SYSTEMD

    @property
    def shares_addresses(self) -> bool:
        """True if all processes of a host share addresses."""
        return self.host_network or not self.in_containers
