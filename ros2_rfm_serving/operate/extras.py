"""Optional dependencies of single verbs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ros2_rfm_serving.errors import ConfigurationError


@contextmanager
def needing(extra: str, verb: str) -> Iterator[None]:
    """Run imports of an optional dependency. Raises: `ConfigurationError` with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        fix = f"pip install 'ros2-rfm-serving[{extra}]'"
        raise ConfigurationError(f"{error.name} is missing", key=verb, fix=fix) from None
