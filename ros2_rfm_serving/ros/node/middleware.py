"""Settings of the middleware with which every process of this package begins, however it is started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.shipped import shipped

PROFILES_FILE = "FASTDDS_DEFAULT_PROFILES_FILE"
OLDER_PROFILES_FILE = "FASTRTPS_DEFAULT_PROFILES_FILE"
FILE_IN_THIS_FOLDER = "DEFAULT_FASTDDS_PROFILES.xml"
"""File that Fast DDS reads by itself."""
_SERVES = "<discoveryProtocol>SERVER</discoveryProtocol>"
_LISTENS = re.compile(r"<udpv4><address>(.*?)</address><port>(\d+)</port>")
_IN_PARTITION = """\
    <data_{kind} profile_name="{kind}_in_partition" is_default_profile="true">
      <qos><partition><names><name>{partition}</name></names></partition></qos>
    </data_{kind}>
"""
_SERVER = """\
      <rtps>
        <builtin>
          <discovery_config>{mark}</discovery_config>
          <metatrafficUnicastLocatorList>
            <locator><udpv4><address>{address}</address><port>{port}</port></udpv4></locator>
          </metatrafficUnicastLocatorList>
        </builtin>
"""


def use_profile(name: str = "any_vendor.xml", environment: MutableMapping[str, str] = os.environ) -> bool:
    """Choose a profile of config/dds/; to be called before `rclpy.init`, in this process or for a child.

    The default profile leaves Fast DDS unchanged except that other vendors understand it. Other middlewares do not read it. Return
    False when the user has a profile, even an empty one, which is left alone."""
    if PROFILES_FILE in environment or OLDER_PROFILES_FILE in environment or Path(FILE_IN_THIS_FOLDER).exists():
        return False
    environment[PROFILES_FILE] = str(shipped("config", "dds", name))
    return True


def use_partition(partition: str, folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Extend the profile so that every endpoint is in a partition, and write it to `folder`; to be called after `use_profile`.
    Raises: `ConfigurationError` where the user's own profile or middleware contradicts it."""
    fix = (
        f"put `<partition><names><name>{partition}</name></names></partition>` into its writers' and readers' `<qos>`, or unset it"
    )
    if not is_read(environment):
        raise ConfigurationError("is set, and partitions are made with Fast DDS", key="RMW_IMPLEMENTATION", fix="unset it")
    chosen = environment.get(PROFILES_FILE) or environment.get(OLDER_PROFILES_FILE) or FILE_IN_THIS_FOLDER
    text = _read(Path(chosen))
    if f"<name>{partition}</name>" in text:
        return
    if not is_shipped(chosen):
        raise ConfigurationError(f"{chosen!r} leaves everything outside partition {partition!r}", key=PROFILES_FILE, fix=fix)
    parts = "".join(_IN_PARTITION.format(kind=kind, partition=partition) for kind in ("writer", "reader"))
    file = folder / f"{Path(chosen).stem}_in_{partition}.xml"
    _write(file, text.replace("  </profiles>", f"{parts}  </profiles>"))
    environment[PROFILES_FILE] = str(file.absolute())


def server_profile(address: str, port: int, folder: Path) -> Path:
    """Write a profile that makes a participant a discovery server, and return its file.

    The server has another identity at each start: a registered participant notices that the server's memory is gone, and
    registers anew. Raises: `ConfigurationError` when the file cannot be written."""
    server = _SERVER.format(mark=_SERVES, address=address, port=port)
    text = _read(shipped("config", "dds", "any_vendor.xml")).replace("      <rtps>\n", server, 1)
    _write(file := folder / "discovery_server.xml", text)
    return file.absolute()


def is_server_profile(file: str) -> bool:
    return Path(file).is_file() and _SERVES in _read(Path(file))


def server_address(file: str) -> str:
    """Return the address <address>:<port> on which a server profile listens; empty: the file is none."""
    found = _LISTENS.search(_read(Path(file))) if is_server_profile(file) else None
    return ":".join(found.groups()) if found else ""


def is_shipped(file: str) -> bool:
    return Path(file).parent == shipped("config", "dds")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"cannot be read: {error}", file=str(file), key=PROFILES_FILE) from None


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", file=str(file), fix="choose another folder") from None


def is_read(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the middleware reads such profiles; False: the user has chosen another one."""
    return environment.get("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp").startswith("rmw_fastrtps")
