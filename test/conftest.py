"""Shared by all tests: nothing of a test reaches another one's ROS graph, or this machine's."""

from __future__ import annotations

import faulthandler
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ros2_rfm_serving import compiled
from test.domains import next_domain

if os.environ.get(compiled.SWITCH) == "yes":  # `make compiled`: before anything else is imported
    assert compiled.use(), "rfm compile, of this very source"

os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
os.environ.setdefault("ROS_LOG_DIR", "/tmp/rfm_serving_test_logs")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side on few cores: PyTorch's threads would wait for one another,
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # and, in the processes that tests start too, take a core for it

# An example that a busy machine keeps waiting is not a slow one.
settings.register_profile("unhurried", parent=settings.default, deadline=None)
settings.load_profile("unhurried")

REPOSITORY = Path(__file__).resolve().parents[1]
GRACE_S = 180.0
"""Beyond the time limit of a test: it includes the 120 s for which the teardown of a server waits."""
OWN_VARIABLES = ("RFM_", "ROS_", "RMW_", "FASTDDS_", "FASTRTPS_", "CYCLONEDDS_")
_stderr: list[int] = []
"""Descriptor of the real stderr, which pytest does not capture."""


def pytest_configure() -> None:
    _stderr.append(os.dup(2))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End a run in which a test hangs past its time limit, with every thread's stack.

    pytest-timeout raises in Python, once. That does not happen while a call of the middleware holds Python's global lock, as a
    `publish` does that waits for a subscriber that was killed; and nothing ends a teardown that hangs after it. A thread of C does.
    """
    if not (limit_s := time_limit_s(item)) or item.config.getoption("usepdb"):
        return (yield)
    faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True, file=_stderr[0])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def time_limit_s(item: pytest.Item) -> float:
    """Return the time limit of a test, 0 for none: of its mark, of the command line, or of pyproject.toml."""
    if marker := item.get_closest_marker("timeout"):
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    given = item.config.getoption("timeout")
    return float(given if given is not None else item.config.getini("timeout"))


@pytest.fixture(autouse=True)
def _environment_is_put_back() -> Iterator[None]:
    """No test leaves the next one a certificate, a domain or a profile.

    A variable stays where two `MonkeyPatch` set it and are not undone in the reverse order.
    """
    before = own_variables()
    yield
    after = own_variables()
    for name in after.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    if after != before:
        changed = sorted(name for name in after.keys() | before.keys() if after.get(name) != before.get(name))
        warnings.warn(f"a test has left the environment changed: {', '.join(changed)}", stacklevel=1)


def own_variables() -> dict[str, str]:
    """Return the environment variables that this package or its middleware reads."""
    return {name: value for name, value in os.environ.items() if name.startswith(OWN_VARIABLES)}


@pytest.fixture(scope="session", autouse=True)
def _only_others_are_signalled() -> Iterator[None]:
    """A process that is looked for and not there must not be 0 or -1: that is whoever runs the tests, stopped without a word."""
    kill, killpg = os.kill, os.killpg

    def kill_one(pid: int, number: int) -> None:
        assert pid > 0, f"signal {number} for process {pid}"
        kill(pid, number)

    def kill_group(group: int, number: int) -> None:
        assert group > 1 and group != os.getpgrp(), f"signal {number} for group {group}"
        killpg(group, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", kill_one)
        patch.setattr(os, "killpg", kill_group)
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def ros_domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A domain that no other test on this machine uses meanwhile, nor the last one in this process, whose participant may
    linger: a service of the same name would be ready at once, and a request to it lost."""
    from domain_coordinator import domain_id

    with domain_id(selector=next_domain) as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        yield int(domain)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        room = Path(item.path).relative_to(REPOSITORY / "test").parts[0]
        if room in ("ros", "system"):
            item.add_marker(getattr(pytest.mark, room))
