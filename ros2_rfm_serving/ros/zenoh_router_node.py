"""Zenoh router, for installations without rmw_zenoh's. It is no ROS node, and only forwards messages of others.

Its configuration is the one that `rfm security` wrote beside its certificate, else ZENOH_ROUTER_CONFIG_URI, else
config/zenoh/router.json5.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION, HELP_FLAGS, Ending, end_with_parent, leave
from ros2_rfm_serving.security.own import enclave_of_environment
from ros2_rfm_serving.shipped import shipped

CONFIG = "ZENOH_ROUTER_CONFIG_URI"
LOOK_PERIOD_S = 0.2
USAGE = """\
usage: ros2 run rfm_serving zenoh_router_node

{about}
Exit code: 0 after SIGINT or SIGTERM; 78 when its configuration cannot be used."""


def configuration_file() -> Path:
    """Return the router's configuration file. Raises: `ConfigurationError`."""
    if enclave := enclave_of_environment():
        own = enclave / "router.json5"  # a machine may have received nothing but its enclave
        return own if own.is_file() else enclave.parents[1] / "zenoh" / "router.json5"
    return Path(os.environ.get(CONFIG) or shipped("config") / "zenoh" / "router.json5")


def opened(file: Path) -> Any:
    """Open a Zenoh session as a router. Raises: `ConfigurationError`."""
    try:
        import zenoh
    except ModuleNotFoundError as error:
        fix = "pip install 'ros2-rfm-serving[zenoh]'"
        raise ConfigurationError(f"{error.name} is missing", key="zenoh_router_node", fix=fix) from None
    try:
        return zenoh.open(zenoh.Config.from_file(str(file)))
    except zenoh.ZError as error:
        problem = f"no Zenoh router: {str(error).partition(' at /')[0]}"
        raise ConfigurationError(problem, file=str(file), fix=f"free its port, or name another file in {CONFIG}") from None


def main() -> NoReturn:
    if HELP_FLAGS & set(sys.argv[1:]):
        print(USAGE.format(about=__doc__))
        raise SystemExit(0)
    end_with_parent()
    ending = Ending()
    try:
        router = opened(configuration_file())
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        leave(EXIT_CONFIGURATION)
    ending.in_order()
    while not ending.asked:
        time.sleep(LOOK_PERIOD_S)
    router.close()
    leave(0)


if __name__ == "__main__":
    main()
