"""Implementation of `rfm replay --publish`: playback of a recording to the graph, until it is over or Ctrl-C."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.operate.running import console, prepare_environment, ros_domain, spinning, stop_signals


@dataclass(frozen=True, kw_only=True)
class Playing:
    rate: float = 1.0
    """Recorded seconds per second."""
    loop: bool = False
    prefix: str = ""
    """Prefix of every topic; empty: original names."""
    domain: int = -1
    """ROS domain; -1: ROS_DOMAIN_ID or 0."""
    unverified: bool = False
    """Also play a recording that was changed after it was written."""


def publish(bag: Path, asked: Playing) -> None:
    """Play a recording. Raises: `ConfigurationError` when a factory runs under the same names, when no topic can be shown, or
    when the recording was changed."""
    if asked.rate <= 0:
        raise ConfigurationError(f"is {asked.rate:g}", key="--rate", fix="give recorded seconds per second: more than 0")
    prepare_environment(asked.domain)
    from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.trust import check_unchanged
    from ros2_rfm_serving.ros.monitor.player import Player

    with spinner("verifying the recording"):
        recording, stop = Bag(bag), threading.Event()
        lines = check_unchanged(recording, "replay --publish", anyway=asked.unverified)
    for line in lines:
        console.print(plain(line), soft_wrap=True)
    seconds = (recording.ends_ns - recording.begins_ns) / 1e9
    with stop_signals(stop), spinning(lambda: Player(recording, asked.prefix)) as player:
        player.offer(stop)
        for topic, why in player.left_out.items():
            console.print(plain(f"{topic} is left out: {why}"), soft_wrap=True)
        console.print(
            plain(f"{seconds:.0f} s to {len(player.topics)} topics of ROS domain {ros_domain()}, {asked.rate:g} x; Ctrl-C ends it")
        )
        while not stop.is_set():
            player.play(asked.rate, stop)
            if not asked.loop or not player.topics:
                break
        console.print(plain(f"{player.played} messages played"))
