"""Settings of the middleware that every process of ours begins with, however it is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from ros2_rfm_serving.shipped import shipped

PROFILES_FILE = "FASTDDS_DEFAULT_PROFILES_FILE"
OLDER_PROFILES_FILE = "FASTRTPS_DEFAULT_PROFILES_FILE"
FILE_IN_THIS_FOLDER = "DEFAULT_FASTDDS_PROFILES.xml"
"""Which Fast DDS reads by itself."""


def use_profile(name: str = "any_vendor.xml", environment: MutableMapping[str, str] = os.environ) -> bool:
    """Before `rclpy.init`, here or in a child: a profile of config/dds/. By default Fast DDS as it comes, but so that other vendors
    understand it. Other middlewares do not read this.

    False: a profile of the user's own is left alone, an empty one too.
    """
    if PROFILES_FILE in environment or OLDER_PROFILES_FILE in environment or Path(FILE_IN_THIS_FOLDER).exists():
        return False
    environment[PROFILES_FILE] = str(shipped("config", "dds", name))
    return True


def is_read(environment: Mapping[str, str] = os.environ) -> bool:
    """False: the user has chosen a middleware that knows no such profiles."""
    return environment.get("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp").startswith("rmw_fastrtps")
