"""A real Zenoh router with what `rfm security init` wrote: who comes in, what passes, and what intruders cost the others."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zenoh

from ros2_rfm_serving.security.authority import Authority, utc_now
from ros2_rfm_serving.security.folder import Folder, write_private, write_public
from ros2_rfm_serving.security.issuing import revoke
from ros2_rfm_serving.security.zenoh import MAX_PUTS_HZ
from test.ports import free_port
from test.waiting import eventually

from .conftest import DOMAIN

A, B, SERVER = "pick_place_1", "push_1", "server_1"
KIND = "rfm_serving::msg::dds_::Any_/RIHS01_0"
OPENS_WITHIN_MS, REFUSED_WITHIN_MS = 5000, 700


LONGEST_S = 15.0
"""Generous: on a machine that does other things as well. Who is held up waits for minutes."""


def key(name: str) -> str:
    return f"{DOMAIN}/{name}/{KIND}"


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text().partition("\n")[2])
    return found


@dataclass
class Plant:
    """The router of a factory, and sessions of its members."""

    folder: Folder
    port: int
    stack: contextlib.ExitStack

    def session(self, member: str, within_ms: int = OPENS_WITHIN_MS, **tls: str) -> Any:
        """tls: other files than its own."""
        config = read(self.folder.enclave(member) / "zenoh.json5")
        config["connect"] = {"endpoints": [f"tls/localhost:{self.port}"], "timeout_ms": within_ms, "exit_on_failure": True}
        config["transport"]["link"]["tls"].update(tls)
        return self.stack.enter_context(zenoh.open(zenoh.Config.from_json5(json.dumps(config))))

    def hear(self, session: Any, name: str) -> list[bytes]:
        """What others send."""
        heard: list[bytes] = []
        session.declare_subscriber(
            key(name), lambda sample: heard.append(sample.payload.to_bytes()), allowed_origin=zenoh.Locality.REMOTE
        )
        return heard


@contextlib.contextmanager
def plant(folder: Folder) -> Iterator[Plant]:
    config, port = read(folder.router), free_port()
    text = json.dumps(config).replace(str(config["listen"]["endpoints"][0]), f"tls/127.0.0.1:{port}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(zenoh.open(zenoh.Config.from_json5(text)))
        yield Plant(folder, port, stack)


def placed(folder: Folder) -> Folder:
    """A copy names its own files."""
    for file in folder.root.glob("**/*.json5"):
        first, _, rest = file.read_text().partition("\n")
        config = json.loads(rest)
        tls = config["transport"]["link"]["tls"]
        for name, value in tls.items():
            if isinstance(value, str):
                tls[name] = str(folder.root / Path(*Path(value).parts[-3:]))
        file.write_text(f"{first}\n{json.dumps(config)}\n")
    return folder


@pytest.fixture(scope="module")
def running(written: Folder) -> Iterator[Plant]:
    with plant(written) as made:
        yield made


def test_a_robot_is_told_that_the_door_listens(running: Plant) -> None:
    """Or its publishers, which rmw_zenoh declares, would send nothing."""
    door, robot = running.session("door"), running.session(A)
    heard: list[str] = []
    for wanted in ("rfm/servers/*/observation", "*/rfm/status"):
        key_expr = f"{DOMAIN}/{wanted}/*/*"
        door.declare_subscriber(key_expr, lambda sample: heard.append(str(sample.key_expr)), allowed_origin=zenoh.Locality.REMOTE)
    for name in (f"rfm/servers/{SERVER}/observation", f"{A}/rfm/status"):
        publisher = robot.declare_publisher(key(name))
        assert eventually(lambda: publisher.matching_status.matching), name  # noqa: B023
        publisher.put(b"said")
        assert eventually(lambda: key(name) in heard), name  # noqa: B023
    forged = robot.declare_publisher(key(f"{B}/rfm/status"))
    time.sleep(0.5)
    forged.put(b"forged")
    robot.put(key(f"{A}/rfm/status"), b"said")
    assert eventually(lambda: len(heard) == 3) and key(f"{B}/rfm/status") not in heard


def test_robots_and_servers_hear_what_is_theirs_and_nobody_else_can_say_it(running: Plant) -> None:
    a, b, server = (running.session(name) for name in (A, B, SERVER))
    observed = running.hear(server, f"rfm/servers/{SERVER}/observation")
    chunks = running.hear(b, f"{B}/rfm/action_chunk")
    stolen = [running.hear(a, name) for name in (f"{B}/camera/front/image/compressed", f"{B}/rfm/action_chunk", "*/**")]
    shown = running.hear(running.session("dashboard"), f"{B}/camera/front/image/compressed")

    def passes() -> bool:
        a.put(key(f"rfm/servers/{SERVER}/observation"), b"of A")
        server.put(key(f"{B}/rfm/action_chunk"), b"for B")
        running_world.put(key(f"{B}/camera/front/image/compressed"), b"picture")
        a.put(key(f"{B}/rfm/action_chunk"), b"forged")  # robot A's certificate, for B
        a.put(key(f"{B}/rfm/status"), b"forged")
        a.put(key(f"{B}/command"), b"forged")
        a.put(key("rfm/schedule"), b"forged")
        b.put(key(f"{B}/rfm/action_chunk"), b"replayed")  # what B has heard before, said again by B itself
        return bool(observed and chunks and shown)

    running_world = running.session(f"{B}_world")
    forged = [
        running.hear(running.session(who), name) for who, name in (("dashboard", f"{B}/rfm/status"), (f"{B}_world", f"{B}/command"))
    ]
    forged.append(running.hear(server, "rfm/schedule"))
    assert eventually(passes)
    for _ in range(5):
        passes()
        time.sleep(0.05)
    assert set(observed) == {b"of A"} and set(chunks) == {b"for B"} and set(shown) == {b"picture"}
    assert not any(stolen) and not any(forged)


def test_the_door_is_the_factory_to_robots_on_zenoh_and_no_robot(running: Plant) -> None:
    a, door = running.session(A), running.session("door")
    observed, heard = list[str](), running.hear(a, f"{A}/rfm/action_chunk")
    take = lambda sample: observed.append(str(sample.key_expr))  # noqa: E731
    for pattern in (f"{DOMAIN}/rfm/servers/*/observation/*/*", f"{DOMAIN}/*/rfm/status/*/*", f"{DOMAIN}/**"):
        door.declare_subscriber(pattern, take, allowed_origin=zenoh.Locality.REMOTE)
    door.declare_queryable(f"{DOMAIN}/rfm/servers/{SERVER}/open_session/*/*", lambda query: query.reply(query.key_expr, b"yes"))
    names = (f"rfm/servers/{SERVER}/observation", f"{A}/rfm/status", f"{A}/command", f"{A}/rfm/audit")

    def passes() -> bool:
        for name in names:
            a.put(key(name), b"of A")
        door.put(key(f"{A}/rfm/action_chunk"), b"for A")
        return bool(heard) and {key(name) for name in names[:2]} <= set(observed)

    assert eventually(passes)
    assert set(observed) == {key(name) for name in names[:2]}, "nothing of a robot's own"
    asked = lambda: a.get(key(f"rfm/servers/{SERVER}/open_session"), timeout=5.0)  # noqa: E731
    assert eventually(lambda: any(reply.ok is not None for reply in asked()))


def test_a_robot_may_open_a_session_and_neither_be_admitted_nor_drain_a_server(running: Plant) -> None:
    a, server, scheduler, people = (running.session(name) for name in (A, SERVER, "scheduler", "operator"))
    asked: list[str] = []

    def serve(session: Any, name: str) -> None:
        def answer(query: Any) -> None:
            asked.append(name)
            query.reply(query.key_expr, b"yes")

        session.declare_queryable(key(name), answer)

    drain = f"rfm/servers/{SERVER}/model_server/change_state"
    serve(server, f"rfm/servers/{SERVER}/open_session")
    serve(server, drain)
    serve(scheduler, "rfm/admit_robot")

    def answered(session: Any, name: str) -> bool:
        return any(reply.ok is not None for reply in session.get(key(name), timeout=1.0))

    assert eventually(lambda: answered(a, f"rfm/servers/{SERVER}/open_session"))
    assert eventually(lambda: answered(people, drain)) and eventually(lambda: answered(people, "rfm/admit_robot"))
    asked.clear()
    assert not answered(a, drain) and not answered(a, "rfm/admit_robot") and not answered(a, "rfm/replan")
    assert asked == [], "nobody was asked"
    a.declare_queryable(key("rfm/admit_robot"), lambda query: query.reply(query.key_expr, b"forged"))
    time.sleep(0.3)
    replies = [reply.ok.payload.to_bytes() for reply in people.get(key("rfm/admit_robot"), timeout=30.0) if reply.ok is not None]
    assert replies == [b"yes"], "nor can it answer for the scheduler"


def test_the_graph_is_seen_by_all_and_nobody_is_in_it_for_another(running: Plant) -> None:
    a, people = running.session(A), running.session("operator")
    below = f"@ros2_lv/{DOMAIN}/z/0/1"
    mine = a.liveliness().declare_token(f"{below}/MP/%/%{A}/robot/%{A}%rfm%status/{KIND}/qos")
    theirs = a.liveliness().declare_token(f"{below}/MP/%/%{B}/robot/%{B}%rfm%status/{KIND}/qos")

    def graph() -> set[str]:
        return {str(reply.ok.key_expr) for reply in people.liveliness().get(f"@ros2_lv/{DOMAIN}/**", timeout=1.0) if reply.ok}

    assert eventually(lambda: any(f"%{A}%rfm%status" in one for one in graph()))
    assert not any(f"%{B}%rfm%status" in one for one in graph())
    mine.undeclare(), theirs.undeclare()


def test_without_a_certificate_of_this_authority_nobody_comes_in(running: Plant, tmp_path: Path) -> None:
    authority = Authority.load(running.folder.authority.read_bytes(), running.folder.authority_key.read_bytes())
    made = {
        "foreign": Authority.new("somebody", utc_now()).issue(A, ["localhost"], utc_now()),
        "ended": authority.issue(A, ["localhost"], utc_now() - timedelta(days=9), days=1),
    }
    for name, identity in made.items():
        write_private(tmp_path / name / "key.pem", identity.key_pem)
        write_public(tmp_path / name / "cert.pem", identity.certificate_pem)
        files = {"connect_private_key": str(tmp_path / name / "key.pem"), "connect_certificate": str(tmp_path / name / "cert.pem")}
        with pytest.raises(zenoh.ZError):
            running.session(A, REFUSED_WITHIN_MS, **files)
    config = read(running.folder.enclave(A) / "zenoh.json5")
    config["connect"] = {"endpoints": [f"tls/localhost:{running.port}"], "timeout_ms": REFUSED_WITHIN_MS, "exit_on_failure": True}
    config["transport"]["link"]["tls"] = {"root_ca_certificate": str(running.folder.authority)}
    for endpoint in (f"tls/localhost:{running.port}", f"tcp/localhost:{running.port}"):
        config["connect"]["endpoints"] = [endpoint]
        config["transport"]["link"]["protocols"] = [endpoint[:3]]
        with pytest.raises(zenoh.ZError):
            zenoh.open(zenoh.Config.from_json5(json.dumps(config)))


def test_who_is_revoked_may_say_nothing_any_more(folder: Folder) -> None:
    placed(folder)
    kept = {name: (folder.enclave(A) / name).read_bytes() for name in ("key.pem", "zenoh.json5")}
    revoke(folder, A, utc_now())
    placed(folder)
    for name, content in kept.items():  # whoever stole it has it still
        (folder.enclave(A) / name).write_bytes(content)
    with plant(folder) as made:
        a, b, server = (made.session(name) for name in (A, B, SERVER))
        observed = made.hear(server, f"rfm/servers/{SERVER}/observation")

        def heard() -> bool:
            a.put(key(f"rfm/servers/{SERVER}/observation"), b"of A")
            b.put(key(f"rfm/servers/{SERVER}/observation"), b"of B")
            return b"of B" in observed

        assert eventually(heard) and not time.sleep(0.2)
        assert set(observed) == {b"of B"}


def test_a_flood_and_messages_of_50_mb_cost_their_sender_alone(running: Plant) -> None:
    a, b, server = (running.session(name) for name in (A, B, SERVER))
    sizes: list[int] = []
    name, mine = f"rfm/servers/{SERVER}/observation", b"of B" + bytes(20_000)
    server.declare_subscriber(key(name), lambda sample: sizes.append(len(sample.payload)))
    assert eventually(lambda: b.put(key(name), mine) or sizes)
    time.sleep(0.3)
    sizes.clear()
    a.put(key(name), bytes(50 << 20), congestion_control=zenoh.CongestionControl.BLOCK)
    began_s, sent, flood, lasted_s = time.monotonic(), 0, 0, 0.0
    while lasted_s < 1.0 or flood < 3 * MAX_PUTS_HZ * lasted_s:
        for _ in range(1000):
            a.put(key(name), b"flood")
        b.put(key(name), mine)
        flood, sent = flood + 1000, sent + 1
        time.sleep(0.02)
        lasted_s = time.monotonic() - began_s
    assert eventually(lambda: sizes.count(len(mine)) == sent), "all of B's arrive"
    assert sizes.count(5) <= 1.5 * MAX_PUTS_HZ * lasted_s, "of A's, what any robot may send"
    assert max(sizes) < 1 << 20
    assert eventually(lambda: a.put(key(name), b"again!") or 6 in sizes), "and it is not shut out"


def test_under_a_robots_own_name_nobody_else_asks_a_server_for_anything(running: Plant) -> None:
    """Who sends is told by the name: no identity that another takes, and no flood, is in a robot's way there."""
    a, b, door = (running.session(name) for name in (A, B, "door"))
    own = f"{B}/rfm/servers/{SERVER}"
    observed = list[bytes]()
    door.declare_subscriber(
        f"{DOMAIN}/*/rfm/servers/*/observation/*/*",
        lambda sample: observed.append(sample.payload.to_bytes()),
        allowed_origin=zenoh.Locality.REMOTE,
    )
    door.declare_queryable(
        f"{DOMAIN}/*/rfm/servers/{SERVER}/open_session/*/*", lambda query: query.reply(query.key_expr, b"yes"), complete=True
    )
    publisher = b.declare_publisher(key(f"{own}/observation"))
    querier = b.declare_querier(key(f"{own}/open_session"), target=zenoh.QueryTarget.ALL_COMPLETE, timeout=2.0)
    assert eventually(lambda: publisher.matching_status.matching and querier.matching_status.matching), "it is told of the door"

    def passes() -> bool:
        for _ in range(50):
            a.put(key(f"{own}/observation"), b"of A")
        publisher.put(b"of B")
        return b"of B" in observed

    assert eventually(passes)
    assert eventually(lambda: any(reply.ok is not None for reply in querier.get()))
    assert not any(reply.ok is not None for reply in a.get(key(f"{own}/open_session"), timeout=1.0))
    assert set(observed) == {b"of B"}
    heard = running.hear(a, f"{own}/observation")
    publisher.put(b"of B")
    time.sleep(0.3)
    assert not heard


def test_what_is_said_to_many_robots_at_once_is_no_flood(running: Plant) -> None:
    """A batch of chunks leaves a server in one moment, and the door says what all servers say."""
    heard = {robot: running.hear(running.session(robot), f"{robot}/rfm/action_chunk") for robot in (A, B)}
    for who in (SERVER, "door"):
        speaker = running.session(who)

        def reached(speaker: Any = speaker) -> bool:
            time.sleep(0.05)
            for robot in heard:
                speaker.put(key(f"{robot}/rfm/action_chunk"), b"first")
                time.sleep(0.05)
            return all(heard.values())

        def arrives(speaker: Any = speaker) -> bool:
            """All of it. What is dropped as a flood is dropped each time, what a busy machine has no room for now and then."""
            time.sleep(0.3)
            for chunks in heard.values():
                chunks.clear()
            for _ in range(10):
                for robot in heard:
                    for component in (b"left", b"right"):
                        speaker.put(key(f"{robot}/rfm/action_chunk"), component)
                time.sleep(0.02)
            return bool(eventually(lambda: all(len(chunks) == 20 for chunks in heard.values()), 3.0))

        assert eventually(reached)
        assert eventually(arrives), (who, heard)
        for chunks in heard.values():
            chunks.clear()


@pytest.mark.parametrize("many", [200, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_silent_connections_hold_up_nobody_who_is_in(written: Folder, many: int) -> None:
    """A robot that is in is heard meanwhile, in time. What comes within a millisecond of the one before, as after a moment in which
    the machine did something else, the router drops: where there were too few to tell, it goes on until nine in ten of the last are
    heard."""
    name, sent, took_s = f"rfm/servers/{SERVER}/observation", list[float](), dict[float, float]()
    with plant(written) as running, contextlib.ExitStack() as stack:
        b, server = running.session(B), running.session(SERVER)

        def take(sample: zenoh.Sample) -> None:
            sent_s = float(sample.payload.to_string())
            took_s[sent_s] = time.monotonic() - sent_s

        def send() -> None:
            sent.append(time.monotonic())
            b.put(key(name), str(sent[-1]), congestion_control=zenoh.CongestionControl.BLOCK)

        server.declare_subscriber(key(name), take)
        assert eventually(lambda: send() or took_s)
        time.sleep(0.5)
        sent.clear(), took_s.clear()
        mine: list[socket.socket] = []
        for _ in range(many):
            with contextlib.suppress(OSError):
                mine.append(stack.enter_context(socket.create_connection(("127.0.0.1", running.port), 1)))
                mine[-1].sendall(b"\x16")
            if len(mine) > 300:
                mine.pop(0).close()
            if not sent or time.monotonic() - sent[-1] > 10 / MAX_PUTS_HZ:
                send()
        meanwhile = tuple(sent)

        def steadily() -> bool:
            time.sleep(0.02)
            send()
            return len(sent) > 25 and len(took_s.keys() & set(sent[-25:-5])) >= 18

        if len(meanwhile) >= 20:
            assert eventually(lambda: len(took_s.keys() & set(meanwhile)) >= 0.9 * len(meanwhile)), (len(took_s), len(meanwhile))
        assert eventually(steadily) and max(took_s.values()) < LONGEST_S, (len(took_s), len(sent), max(took_s.values()))


def test_newcomers_come_in_once_silent_connections_are_gone(written: Folder) -> None:
    """Zenoh's acceptor rests for a tenth of a second after each handshake that fails: ten thousand of them shut the router to
    newcomers for a quarter of an hour, which is a firewall's to prevent (docs/reference/security.md)."""
    with plant(written) as running, contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port), 20)).sendall(b"\x16")
        stack.close()

        def comes_in() -> bool:
            with contextlib.suppress(zenoh.ZError):
                return running.session(A) is not None
            return False

        assert eventually(comes_in, 60.0)
