"""Validation of `cores` in a group of servers, and search for servers that share cores."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from ros2_rfm_serving.factory.cores import cores_of, cores_text
from ros2_rfm_serving.factory.descriptor import Factory
from ros2_rfm_serving.factory.yaml_source import KeyPath, YamlSource

KEY, NUMBER = "cores", "num_servers"
FIX = "give numbers and ranges of cores, such as 0-3,8"


def check_cores(source: YamlSource, path: KeyPath, group: Any) -> None:
    """Check the cores of a group. group: its data, found at `path`. Raises: `ConfigurationError`."""
    cores = group.get(KEY) if isinstance(group, dict) else None
    if not cores and not isinstance(cores, str):
        return
    if not isinstance(cores, list):
        fix = f"write a list, of each server its own: {KEY}: [0-3, 4-7]"
        raise source.error((*path, KEY), f"is no list of cores by server (found {cores!r})", fix)
    for i, own in enumerate(cores):
        if type(own) not in (int, str):
            raise source.error((*path, KEY, i), f"is no text (found {own!r})", FIX)
        try:
            found = cores_of(str(own))
        except ValueError as error:
            raise source.error((*path, KEY, i), str(error), FIX) from None
        if not found:
            raise source.error((*path, KEY, i), f"names no core (found {own!r})", FIX)
    number = group.get(NUMBER)
    if type(number) is int and 1 <= number != len(cores):
        fix = f"name cores for each server of the group, or correct `{NUMBER}`"
        raise source.error((*path, KEY), f"has {len(cores)} entries, and `{NUMBER}` is {number}", fix)


def shared_cores(factory: Factory) -> Iterator[str]:
    """Yield a warning for each two servers of one machine that use the same cores: each slows the other, which plans do not
    predict."""
    hosts = {server: seat.host for server, seat in factory.gpu_assignments.items()}
    named = {server: cores_of(text) for server, text in factory.cores.items() if text}
    for (one, own), (other, others) in combinations(named.items(), 2):
        if hosts.get(one) == hosts.get(other) and (both := own & others):
            where = f" of {hosts[one]}" if hosts.get(one) else ""
            yield f"{one} and {other} both keep to core {cores_text(both)}{where}: each is slower there than its profile says"
