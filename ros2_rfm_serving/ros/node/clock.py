"""Clock of a process, importable without ROS: threads of a server also run without a node (`rfm bench gpu`)."""

from __future__ import annotations

import time

clock = time.monotonic
"""The only clock of a process. The core never reads it; nodes pass its readings on."""
