"""Zenoh's configurations, as Zenoh itself takes them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zenoh

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory, load_factory
from ros2_rfm_serving.operate.zenoh import Options, files, largest_bytes, shipped_text
from test.ports import free_port

NAMES = ["README.md", "client.json5", "machine_router.json5", "router.json5", "session.json5"]
OBSERVATION, CHUNK, PLAN, OTHER = (
    f"42/{name}/T/H" for name in ("rfm/servers/s1/observation", "a/rfm/action_chunk", "f/a/rfm/plan", "x")
)
URGENT = (zenoh.Priority.INTERACTIVE_HIGH, zenoh.CongestionControl.DROP, True)
DROPPED = (zenoh.Priority.DATA, zenoh.CongestionControl.DROP, False)
PATIENT = (zenoh.Priority.DATA, zenoh.CongestionControl.BLOCK, False)


@pytest.fixture
def hosts(repository: Path) -> Factory:
    return load_factory(repository / "config" / "factory_hosts.yaml")


def get(text: str, key: str) -> Any:
    return json.loads(zenoh.Config.from_json5(text).get_json(key))


@contextmanager
def opened(*texts: str) -> Iterator[list[zenoh.Session]]:
    with ExitStack() as stack:
        sessions = []
        for text in texts:
            sessions.append(zenoh.open(zenoh.Config.from_json5(text)))
            stack.callback(sessions[-1].close)
        yield sessions


def until(condition: Callable[[], Any], what: str) -> None:
    end_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end_s, f"waited in vain for {what}"
        time.sleep(0.02)


def moved(text: str, port: int) -> str:
    """To another port: several tests run side by side."""
    return text.replace(":7447", f":{port}")


def qualities(here: zenoh.Session, there: zenoh.Session) -> dict[str, tuple[Any, ...]]:
    """Of what one publishes as bluntly as it can, and the other hears."""
    heard: dict[str, tuple[Any, ...]] = {}

    def note(sample: zenoh.Sample) -> None:
        heard[str(sample.key_expr)] = (sample.priority, sample.congestion_control, sample.express)

    ears = there.declare_subscriber("42/**", zenoh.handlers.Callback(note, indirect=False))
    mouths = [here.declare_publisher(key, congestion_control=PATIENT[1]) for key in (OBSERVATION, CHUNK, PLAN, OTHER)]
    until(lambda: all(mouth.matching_status.matching for mouth in mouths), "a match")
    for mouth in mouths:
        mouth.put(b"x")
    until(lambda: len(heard) == 4, "the messages")
    ears.undeclare()
    return heard


def test_whoever_publishes_chunks_are_urgent_and_never_block_and_observations_are_dropped() -> None:
    """By the publisher's own session, and by the router for who has another one."""
    port = free_port()
    plain = f'{{mode: "client", connect: {{endpoints: ["tcp/127.0.0.1:{port}"]}}, scouting: {{multicast: {{enabled: false}}}}}}'
    router, session = (moved(shipped_text(name), port).replace("[::]", "127.0.0.1") for name in ("router.json5", "session.json5"))
    with opened(router, session, session, plain, plain) as (_, here, there, stranger, other):
        wanted = {OBSERVATION: DROPPED, CHUNK: URGENT, PLAN: URGENT, OTHER: PATIENT}
        assert qualities(here, there) == wanted
        assert qualities(stranger, other) == wanted


def test_what_is_too_large_does_not_pass_the_router() -> None:
    port = free_port()
    router = moved(shipped_text("router.json5"), port).replace("[::]", "127.0.0.1").replace("16000000", "1000")
    plain = f'{{mode: "client", connect: {{endpoints: ["tcp/127.0.0.1:{port}"]}}, scouting: {{multicast: {{enabled: false}}}}}}'
    heard: list[int] = []
    with opened(router, plain, plain) as (_, here, there):
        there.declare_subscriber("42/**", zenoh.handlers.Callback(lambda sample: heard.append(len(sample.payload)), indirect=False))
        mouths = [here.declare_publisher(key) for key in (OBSERVATION, CHUNK)]
        until(lambda: all(mouth.matching_status.matching for mouth in mouths), "a match")
        for mouth, size in ((mouths[0], 1001), (mouths[0], 1000), (mouths[1], 1001)):
            mouth.put(bytes(size))
        until(lambda: sorted(heard) == [1000, 1001], f"what passes, of {heard}")


def test_a_factory_has_its_own_addresses_and_sizes(hosts: Factory, repository: Path) -> None:
    written = files(hosts, Options())
    assert sorted(written) == NAMES and written == files(hosts, Options())
    assert get(written["router.json5"], "listen/endpoints") == ["tcp/10.77.0.1:7447", "tcp/127.0.0.1:7447"]
    assert get(written["machine_router.json5"], "listen/endpoints") == ["tcp/127.0.0.1:7447"]
    assert get(written["machine_router.json5"], "connect/endpoints") == ["tcp/10.77.0.1:7447"]
    assert get(written["session.json5"], "connect/endpoints") == ["tcp/127.0.0.1:7447"]
    assert (get(written["client.json5"], "mode"), get(written["client.json5"], "connect/endpoints")) == (
        "client",
        ["tcp/10.77.0.1:7447"],
    )
    (limit,) = get(written["router.json5"], "low_pass_filter")
    assert limit["size_limit"] == largest_bytes(hosts) == 1_000_000  # simulated cameras are small
    task = hosts.tasks["push"].model_copy(update={"image_size_px": (2048, 2048)})
    large = hosts.model_copy(update={"tasks": {**hosts.tasks, "push": task}})
    assert largest_bytes(large) > 2 * 0.5 * 2048**2
    for name in NAMES[1:]:
        assert get(written[name], "transport/shared_memory/enabled") is True
        assert get(written[name], "scouting/multicast/enabled") is False
        assert get(files(hosts, Options(shared_memory=False))[name], "transport/shared_memory/enabled") is False
    alone = files(load_factory(repository / "config" / "factory_quickstart.yaml"), Options())
    assert get(alone["router.json5"], "listen/endpoints") == ["tcp/127.0.0.1:7447"]


def test_over_tls_only_those_with_a_certificate_come_in(hosts: Factory, tmp_path: Path) -> None:
    certificates(tmp_path)
    port = free_port()
    written = files(hosts, Options(address="127.0.0.1", port=port, tls=str(tmp_path)))
    router = written["router.json5"].replace(', "tcp/127.0.0.1:7447"', "")
    assert get(router, "listen/endpoints") == [f"tls/127.0.0.1:{port}"]
    nobody = written["client.json5"].replace(f"{tmp_path}/own.", f"{tmp_path}/other.")
    with opened(router, written["client.json5"]) as (_, client):
        assert client.info.routers_zid()
        with pytest.raises(zenoh.ZError):
            zenoh.open(zenoh.Config.from_json5(nobody))


def certificates(folder: Path) -> None:
    """own: by the authority that ca.pem is of; other: by itself."""
    run = lambda *words: subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)  # noqa: E731
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    run("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=plant")
    for name in ("own", "other"):
        run("req", *curve[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    (folder / "more").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    signing = ("-days", "2", "-extfile", "more")
    run("x509", "-req", "-in", "own.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "own.pem", *signing)
    run("x509", "-req", "-in", "other.csr", "-signkey", "other.key", "-out", "other.pem", *signing)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"address": 'x"]'}, "is no address"), ({"address": "a b"}, "is no address"), ({"tls": 'x"'}, "absolute path")],
)
def test_what_cannot_stand_in_a_configuration_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Options(**given)  # type: ignore[arg-type]


def test_the_command_writes_them_and_overwrites_nothing(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "zenoh"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "ros2_rfm_serving.cli",
        "zenoh",
        str(repository / "config" / "factory_hosts.yaml"),
    ]
    wrote = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=True, timeout=60)
    assert "5 files" in wrote.stdout and sorted(file.name for file in folder.iterdir()) == NAMES
    (folder / "router.json5").write_text("{}")
    again = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False, timeout=60)
    assert again.returncode == 2 and "says something else" in again.stderr and (folder / "router.json5").read_text() == "{}"
