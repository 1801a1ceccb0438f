"""Settings of the middleware that every process of ours begins with, however it is started."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from ros2_rfm_serving.shipped import shipped

PROFILES_FILE = "FASTDDS_DEFAULT_PROFILES_FILE"
OLDER_PROFILES_FILE = "FASTRTPS_DEFAULT_PROFILES_FILE"
FILE_IN_THIS_FOLDER = "DEFAULT_FASTDDS_PROFILES.xml"
"""Which Fast DDS reads by itself."""


def use_any_vendor_profile(environment: MutableMapping[str, str] = os.environ) -> None:
    """Before `rclpy.init`: Fast DDS talks so that other vendors understand it. Other middlewares do not read this.

    A profile of the user's own is left alone, an empty one too.
    """
    if not (PROFILES_FILE in environment or OLDER_PROFILES_FILE in environment or Path(FILE_IN_THIS_FOLDER).exists()):
        environment[PROFILES_FILE] = str(shipped("config", "dds", "any_vendor.xml"))
