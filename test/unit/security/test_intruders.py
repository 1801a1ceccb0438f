"""Strangers at a door of ours: what a listening socket and the exporter put up with."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.monitoring.dashboard.serving import serving
from ros2_rfm_serving.monitoring.metrics import http
from ros2_rfm_serving.monitoring.metrics.exporter import exporting
from ros2_rfm_serving.security.authority import Authority, Identity, utc_now
from ros2_rfm_serving.security.doorstep import MAX_WAITING, listen
from ros2_rfm_serving.security.folder import Folder, write_private, write_public
from ros2_rfm_serving.security.tls import ServerTls, client_context
from test.unit.monitoring.dashboard.test_app import GOOD, PAUSE, Page
from test.waiting import eventually


def get(url: str, trusted: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(url, timeout=20, context=trusted) as answer:
        return str(answer.read().decode())


def put(enclave: Path, identity: Identity) -> None:
    write_private(enclave / "key.pem", identity.key_pem)
    write_public(enclave / "cert.pem", identity.certificate_pem)


def test_before_a_door_there_is_room_for_so_many_and_who_waits_longest_makes_room() -> None:
    with contextlib.closing(listen("127.0.0.1", 0, max_waiting=3)) as step, contextlib.ExitStack() as open_ones:
        step.setblocking(True)
        clients, accepted = [], []
        for _ in range(6):
            clients.append(open_ones.enter_context(socket.create_connection(step.getsockname(), 5)))
            accepted.append(step.accept())
            open_ones.enter_context(accepted[-1][0])
            if len(clients) == 1:
                step.let_in(accepted[0][1])
        assert (step.turned_away, step.gone, step.num_waiting) == (2, 2, 3)
        assert clients[1].recv(1) == b"" and clients[2].recv(1) == b"", "those that waited longest"
        clients[0].sendall(b"x")
        assert accepted[0][0].recv(1) == b"x", "who was let in stays"
        accepted[5][0].close()
        step.sweep()
        assert (step.turned_away, step.gone, step.num_waiting) == (2, 3, 2)


def test_only_this_authoritys_doors_are_trusted_and_none_that_has_ended(written: Folder, tmp_path: Path) -> None:
    with exporting(Board([], []), "127.0.0.1", 0, tmp_path, tls=ServerTls(written.enclave("observer"), "--tls")) as url:
        assert "rfm_exporter_refused_total" in get(url, client_context(written.authority, "ca"))
        foreign = tmp_path / "ca.pem"
        write_public(foreign, Authority.new("somebody", utc_now()).identity.certificate_pem)
        for trusted in (client_context(foreign, "ca"), ssl.create_default_context()):
            with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
                get(url, trusted)
        with pytest.raises(OSError):
            get(url.replace("https", "http"))
        told = get(url, client_context(written.authority, "ca"))
        assert 'rfm_exporter_refused_total{reason="broken"}' in told
    authority = Authority.load(written.authority.read_bytes(), written.authority_key.read_bytes())
    put(tmp_path / "old", authority.issue("observer", ["127.0.0.1"], utc_now() - timedelta(days=9), days=1))
    ended = exporting(Board([], []), "127.0.0.1", 0, tmp_path, tls=ServerTls(tmp_path / "old", "--tls"))
    with ended as url, pytest.raises(OSError, match="expired"):
        get(url, client_context(written.authority, "ca"))


def test_a_new_certificate_is_in_force_without_a_restart_and_half_a_one_is_not(written: Folder, tmp_path: Path) -> None:
    authority = Authority.load(written.authority.read_bytes(), written.authority_key.read_bytes())
    first, second = (authority.issue("observer", ["127.0.0.1"], utc_now()) for _ in range(2))
    put(tmp_path, first)
    with exporting(Board([], []), "127.0.0.1", 0, tmp_path, tls=ServerTls(tmp_path, "--tls")) as url:
        address = ("127.0.0.1", int(url.split(":")[2].split("/")[0]))

        def presented() -> bytes:
            return ssl.get_server_certificate(address, timeout=20).replace("\n", "").encode()

        assert presented() == first.certificate_pem.replace(b"\n", b"")
        write_public(tmp_path / "cert.pem", second.certificate_pem)
        assert presented() == first.certificate_pem.replace(b"\n", b""), "its key is not there yet"
        write_private(tmp_path / "key.pem", second.key_pem)
        assert presented() == second.certificate_pem.replace(b"\n", b"")


def test_a_folder_without_a_certificate_or_with_an_open_key_is_refused(written: Folder, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--tls: cannot be used.*enclaves/<member>"):
        ServerTls(tmp_path, "--tls")
    put(tmp_path, Authority.new("somebody", utc_now()).identity)
    (tmp_path / "key.pem").chmod(0o644)
    with pytest.raises(ConfigurationError, match="others on this machine may read it; chmod 600"):
        ServerTls(tmp_path, "--tls")
    with pytest.raises(ConfigurationError, match=r"ca\.cert\.pem"):
        client_context(tmp_path / "none", "options.ca_file")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(http, "WITHIN_S", 1.0)
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 4)
    yield


@pytest.mark.parametrize("encrypted", [False, True])
def test_slow_strangers_take_no_scrape_from_prometheus(hurried: None, written: Folder, tmp_path: Path, encrypted: bool) -> None:
    """A byte now and then for ever, from more than there is room for: who is slow is gone in a second, whatever it sends."""
    tls = ServerTls(written.enclave("observer"), "--tls") if encrypted else None
    trusted = client_context(written.authority, "ca") if encrypted else None
    threads = threading.active_count()
    with exporting(Board([], []), "127.0.0.1", 0, tmp_path, tls=tls) as url, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        slow = [stack.enter_context(socket.create_connection(address, 5)) for _ in range(12)]
        ending = threading.Event()

        def drip() -> None:
            while not ending.wait(0.1):
                for one in slow:
                    with contextlib.suppress(OSError):
                        one.sendall(b"\x16" if encrypted else b"G")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:

            def scraped() -> str:
                with contextlib.suppress(OSError):
                    return get(url, trusted)
                return ""

            told = eventually(scraped)
            assert threading.active_count() <= threads + 2 + 2 * 4 + 1
            assert 'rfm_exporter_refused_total{reason="gave_way"}' in told
            assert eventually(lambda: 'rfm_exporter_refused_total{reason="slow"}' in scraped() or encrypted)
        finally:
            ending.set()
            dripping.join(5)


@pytest.mark.parametrize("nth", [1, 2])
def test_connections_for_which_there_was_no_thread_leave_their_room(
    hurried: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """nth: of a connection's threads: the one that answers, the one that ends it."""
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if isinstance(thread, threading.Timer) == (nth == 2):
            raise RuntimeError("can't start new thread")
        start(thread)

    with exporting(Board([], []), "127.0.0.1", 0, tmp_path) as url:
        address = ("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        monkeypatch.setattr(threading.Thread, "start", fails)
        for _ in range(8):
            with socket.create_connection(address, 5) as one:
                assert one.recv(1) == b"", "it is told"
        monkeypatch.setattr(threading.Thread, "start", start)
        assert 'rfm_exporter_refused_total{reason="broken"} 8.0' in get(url)


def test_a_page_with_tls_stays_open_while_strangers_never_finish_their_handshake(written: Folder) -> None:
    page = Page()
    trusted = client_context(written.authority, "ca")
    with (
        serving(page.dashboard, "127.0.0.1", 0, ServerTls(written.enclave("dashboard"), "--tls")) as url,
        httpx.Client(base_url=url, trust_env=False, verify=trusted, timeout=20) as client,
        client.stream("GET", "/api/stream") as stream,
        contextlib.ExitStack() as stack,
    ):
        lines, port = stream.iter_lines(), int(url.rpartition(":")[2].strip("/"))
        assert url.startswith("https:") and next(lines)
        for _ in range(MAX_WAITING + 60):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)).sendall(b"\x16")
        assert client.get("/api/schedule").status_code == 200 and next(lines) is not None
        answer = client.post("/api/control", json=PAUSE, headers={"authorization": "Bearer guess"})
        assert answer.status_code == 401 and page.noted[-1]["outcome"] == "refused"
        assert client.post("/api/control", json=PAUSE, headers=GOOD).status_code == 200


@contextlib.contextmanager
def crowd(port: int, many: int, held: int = 300) -> Iterator[None]:
    """Open silent connections, of which the last `held` stay open in the body: a server that closes some of them is not noticed."""
    with contextlib.ExitStack() as stack:
        mine: list[socket.socket] = []
        for _ in range(many):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            with contextlib.suppress(OSError):
                one.sendall(b"\x16")  # the first byte of a handshake that goes on for ever
            mine.append(one)
            if len(mine) > held:
                mine.pop(0).close()
        yield


class Looking:
    """Somebody who asks a door now and then, while others do it harm: how long each answer took."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.took_s: list[float] = []
        self.failed = 0
        self._ask, self._ending = ask, threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Looking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(60)

    def _work(self) -> None:
        while not self._ending.wait(0.02):
            begin_s = time.monotonic()
            try:
                self._ask()
                self.took_s.append(time.monotonic() - begin_s)
            except (OSError, httpx.HTTPError):
                self.failed += 1


SILENT = [400, pytest.param(10_000, marks=pytest.mark.thorough)]


@pytest.mark.parametrize("many", SILENT)
def test_thousands_of_silent_connections_keep_no_probe_out(written: Folder, tmp_path: Path, many: int) -> None:
    """Else whoever reaches the port has every server started again: its probes would fail."""
    trusted, threads = client_context(written.authority, "ca"), threading.active_count()
    with exporting(Board([], []), "127.0.0.1", 0, tmp_path, tls=ServerTls(written.enclave("observer"), "--tls")) as url:
        with Looking(lambda: get(url, trusted)) as prometheus:
            while len(prometheus.took_s) + prometheus.failed < 20:
                with crowd(int(url.split(":")[2].split("/")[0]), many):
                    assert 'refused_total{reason="gave_way"}' in get(url, trusted), (
                        "its turn comes after more than there is room for"
                    )
        assert max(prometheus.took_s) < 10.0
        assert len(prometheus.took_s) > 3 * prometheus.failed, "whose turn it is to give way has asked for nothing"
        assert eventually(lambda: threading.active_count() <= threads + 4)


@pytest.mark.parametrize("many", SILENT)
def test_thousands_of_silent_connections_hold_up_nobody_who_looks_at_a_page(written: Folder, many: int) -> None:
    page, trusted = Page(), client_context(written.authority, "ca")
    with (
        serving(page.dashboard, "127.0.0.1", 0, ServerTls(written.enclave("dashboard"), "--tls")) as url,
        httpx.Client(base_url=url, trust_env=False, verify=trusted, timeout=20) as client,
    ):
        assert client.get("/api/schedule").status_code == 200
        with Looking(lambda: client.get("/api/schedule").raise_for_status()) as looking:
            while len(looking.took_s) + looking.failed < 5:
                with crowd(int(url.rpartition(":")[2].strip("/")), many):
                    client.get("/api/schedule").raise_for_status()
        assert not looking.failed and max(looking.took_s) < 10.0
        with httpx.Client(base_url=url, trust_env=False, verify=trusted, timeout=20) as newcomer:
            assert newcomer.get("/api/schedule").status_code == 200


def test_a_door_says_nothing_after_the_handshake_on_its_own(tmp_path: Path) -> None:
    """A session ticket would meet the first words of a client that reads in one thread and writes in another: OpenSSL is not made
    for that, and the client's words, or the answer, were lost."""
    authority = Authority.new("plant", utc_now())
    put(tmp_path, authority.issue("server_1", ["127.0.0.1"], utc_now()))
    write_public(tmp_path / "ca.pem", authority.identity.certificate_pem)
    to_door, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusted = client_context(tmp_path / "ca.pem", "test")
    client = trusted.wrap_bio(to_client, to_door, server_hostname="127.0.0.1")
    door = ServerTls(tmp_path, "tls").context.wrap_bio(to_door, to_client, server_side=True)
    for one in (client, door, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            one.do_handshake()
    door.do_handshake()
    assert client.version() == "TLSv1.3" and not to_client.pending
