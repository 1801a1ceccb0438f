"""The page's server by itself: what it answers to good and bad requests, over HTTP, without a graph."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import simplejpeg

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.monitoring.dashboard import app, connection, views
from ros2_rfm_serving.monitoring.dashboard.app import STATIC, Dashboard
from ros2_rfm_serving.monitoring.dashboard.checking import MAX_FILES, CheckResult, WantedCheck, read_check
from ros2_rfm_serving.monitoring.dashboard.closeup import Closeup, Offers, thumbnail
from ros2_rfm_serving.monitoring.dashboard.connection import MAX_CONNECTIONS
from ros2_rfm_serving.monitoring.dashboard.control import (
    ACTIONS,
    MAX_FAILURES,
    MAX_NOTED,
    NO_TASK,
    NOTED_WITHIN_S,
    Answer,
    Failures,
    WantedTask,
    read_order,
)
from ros2_rfm_serving.monitoring.dashboard.feed import BEHIND, MAX_PAGES, Feed
from ros2_rfm_serving.monitoring.dashboard.serving import serving
from ros2_rfm_serving.operate.page import read_door
from ros2_rfm_serving.security.tokens import Tokens, digest, read_tokens
from ros2_rfm_serving.types import ActionChunk, EncodedImage, RequestId, ServingStats
from test.unit.monitoring.dashboard.boards import board
from test.waiting import eventually

TOKEN = "a-long-enough-token"
GOOD = {"authorization": f"Bearer {TOKEN}"}
PAUSE = {"action": "pause", "target": "arm_1", "confirmed": True}


def jpeg(height: int = 480, width: int = 640) -> EncodedImage:
    rows = np.full((height, width, 3), 128, np.uint8)
    return EncodedImage(camera="side", format="jpeg", data=simplejpeg.encode_jpeg(rows))


class Graph:
    """At the seam to the graph: robots that do as they are told, and a camera."""

    def __init__(self) -> None:
        self.ordered: list[tuple[str, str, str]] = []
        self.wanted = NO_TASK
        self.end: Future[Answer] = Future()
        """Of a task that was given."""
        self.image: EncodedImage | None = jpeg()

    def closeup(self, robot: str) -> Closeup | None:
        return Closeup()

    def cameras(self, robot: str) -> list[str]:
        return ["side"]

    def picture(self, robot: str, camera: str) -> EncodedImage | None:
        return self.image

    def offers(self, robot: str) -> Offers:
        return Offers(tasks=True)

    def order(self, action: str, target: str, task: str, wanted: WantedTask = NO_TASK) -> Future[Answer]:
        self.ordered.append((action, target, task))
        self.wanted = wanted
        answer: Future[Answer] = Future()
        end = self.end if action == "task" else None
        answer.set_result(Answer(action != "abort", "it stands" if action != "abort" else "no task", end))
        return answer


class Page:
    def __init__(self) -> None:
        self.board, self.graph, self.noted = board(time.monotonic()), Graph(), list[dict[str, Any]]()
        tokens = Tokens({"ada": TOKEN})
        self.checked: list[WantedCheck] = []
        self.dashboard = Dashboard(self.board, self.graph, self.graph, tokens, self.note, self.check, self.why)

    def why(self, name: str) -> dict[str, Any]:
        return {"ok": not name, "findings": [{"cause": "dead camera", "about": name}]}

    def check(self, wanted: WantedCheck) -> CheckResult:
        self.checked.append(wanted)
        return CheckResult(valid=False, lines=["error: factory.yaml: no tasks"], command="rfm check factory.yaml")

    def note(self, kind: str, **body: object) -> None:
        self.noted.append({"kind": kind, **body})


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def client(page: Page) -> Iterator[httpx.Client]:
    with serving(page.dashboard, "127.0.0.1", 0) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


# --- acting ---


def test_an_order_takes_the_token_and_is_noted(page: Page, client: httpx.Client) -> None:
    answer = client.post("/api/control", json=PAUSE, headers=GOOD)
    assert answer.status_code == 200 and answer.json() == {"done": True, "message": "it stands"}
    assert page.graph.ordered == [("pause", "arm_1", "")]
    (note,) = page.noted
    assert (note["kind"], note["who"], note["action"], note["target"], note["outcome"]) == (
        "control",
        "ada",
        "pause",
        "arm_1",
        "done",
    )
    (event,) = page.dashboard.feed.events.since(0)
    assert (event.kind, event.name, event.what) == ("person", "arm_1", "pause by ada: done")
    assert client.post("/api/control", json={**PAUSE, "action": "abort"}, headers=GOOD).status_code == 409
    assert page.noted[-1]["outcome"] == "failed" and page.noted[-1]["message"] == "no task"


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer"}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}]
)
def test_without_the_token_nothing_is_done_and_it_is_noted(page: Page, client: httpx.Client, headers: dict[str, str]) -> None:
    assert client.post("/api/control", json=PAUSE, headers=headers).status_code == 401
    assert client.get("/api/whoami", headers=headers).status_code == 401
    assert page.graph.ordered == [] and page.noted[0]["outcome"] == "refused" and not page.noted[0]["who"]
    assert page.dashboard.feed.events.since(0) == [], "whoever guesses does not fill the event line"


def test_whoever_guesses_waits_and_the_page_is_still_there(page: Page, client: httpx.Client) -> None:
    for _ in range(MAX_FAILURES):
        assert client.post("/api/control", json=PAUSE, headers={"authorization": "Bearer guess"}).status_code == 401
    answer = client.post("/api/control", json=PAUSE, headers=GOOD)
    assert answer.status_code == 429 and 0 < int(answer.headers["retry-after"]) <= 60
    assert page.graph.ordered == [] and client.get("/api/schedule").status_code == 200


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}])
def test_another_sites_page_may_not_order(page: Page, client: httpx.Client, headers: dict[str, str]) -> None:
    assert client.post("/api/control", json=PAUSE, headers={**GOOD, **headers}).status_code == 403
    assert page.graph.ordered == [] and page.noted[0]["outcome"] == "refused"
    assert client.post("/api/control", json=PAUSE, headers={**GOOD, "origin": str(client.base_url).rstrip("/")}).status_code == 200


def test_a_name_of_somebody_elses_that_leads_here_is_refused(client: httpx.Client) -> None:
    assert client.get("/api/schedule", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"),
        (b"[" * 4000, "JSON"),
        (b"[]", "write"),
        (b'{"action": "explode", "target": "arm_1", "confirmed": true}', "action"),
        (b'{"action": ["pause"], "target": "arm_1", "confirmed": true}', "action"),
        (b'{"action": "pause", "target": "../arm_1", "confirmed": true}', "target"),
        (b'{"action": "pause", "target": 3, "confirmed": true}', "target"),
        (b'{"action": "pause", "target": "arm_1"}', "confirmed"),
        (b'{"action": "admit", "target": "arm_9", "confirmed": true}', "task"),
        (b'"' + b"x" * 20_000 + b'"', "bytes"),
        (b"\xff\xfe", "JSON"),
        (b'{"action": "task", "target": "arm_1", "instruction": 3, "confirmed": true}', "instruction"),
        (b'{"action": "task", "target": "arm_1", "instruction": "' + b"x" * 2001 + b'", "confirmed": true}', "instruction"),
        (b'{"action": "task", "target": "arm_1", "budget_s": NaN, "confirmed": true}', "budget_s"),
        (b'{"action": "task", "target": "arm_1", "budget_s": -1, "confirmed": true}', "budget_s"),
        (b'{"action": "task", "target": "arm_1", "budget_s": true, "confirmed": true}', "budget_s"),
        (b'{"action": "task", "target": "arm_1", "reset": "yes", "confirmed": true}', "reset"),
    ],
)
def test_bad_orders_are_refused_with_the_reason(page: Page, client: httpx.Client, body: bytes, word: str) -> None:
    answer = client.post("/api/control", content=body, headers={**GOOD, "content-type": "application/json"})
    assert answer.status_code == 400 and word in answer.json()["problem"]
    assert page.graph.ordered == [] and page.noted[0]["outcome"] == "refused"


def test_orders_to_nobody_are_refused(page: Page, client: httpx.Client) -> None:
    for action in ACTIONS:
        if action != "admit":
            answer = client.post("/api/control", json={"action": action, "target": "nobody", "confirmed": True}, headers=GOOD)
            assert answer.status_code == 409 and "nobody" in answer.json()["problem"]
    assert page.graph.ordered == []
    assert client.post("/api/control", content=json.dumps(PAUSE), headers={**GOOD, "content-type": "text/plain"}).status_code == 400
    assert client.get("/api/control", headers=GOOD).status_code == 405


def test_a_task_is_given_with_the_token_and_its_end_is_an_event(page: Page, client: httpx.Client) -> None:
    task = {"action": "task", "target": "arm_1", "instruction": "stack", "budget_s": 5, "reset": True, "confirmed": True}
    assert client.post("/api/control", json=task).status_code == 401 and page.graph.ordered == []
    assert client.post("/api/control", json=task, headers=GOOD).json() == {"done": True, "message": "it stands"}
    assert page.graph.ordered == [("task", "arm_1", "")] and page.graph.wanted == WantedTask("stack", 5.0, True)
    assert (page.noted[-1]["action"], page.noted[-1]["task"], page.noted[-1]["who"]) == ("task", "stack", "ada")
    page.graph.end.set_result(Answer(False, "its time was up"))
    assert eventually(lambda: page.noted[-1]["message"] == "its time was up")
    event = page.dashboard.feed.events.since(0)[-1]
    assert (event.name, event.what, event.why, event.cause) == ("arm_1", "task by ada: ended", "its time was up", "task")


CHECK = {"file": "factory.yaml", "texts": {"factory.yaml": "name: x", "robots/arm.yaml": "a: 1"}, "live": True}


def test_files_are_checked_with_the_token_alone(page: Page, client: httpx.Client) -> None:
    assert client.post("/api/check", json=CHECK).status_code == 401
    assert client.post("/api/check", json=CHECK, headers={**GOOD, "origin": "http://evil.example"}).status_code == 403
    assert page.checked == []
    told = client.post("/api/check", json=CHECK, headers=GOOD).json()
    assert told == {"valid": False, "lines": ["error: factory.yaml: no tasks"], "command": "rfm check factory.yaml"}
    assert page.checked == [WantedCheck("factory.yaml", CHECK["texts"], True)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"file": ""},
        {"file": "--help"},
        {"file": "a\nb.yaml"},
        {"file": "other.yaml"},
        {"live": 1},
        {"texts": []},
        {"texts": {"factory.yaml": 3}},
        {"texts": {"factory.yaml": "", "../../etc/cron.yaml": ""}},
        {"texts": {"factory.yaml": "", "/etc/cron.yaml": ""}},
        {"texts": {"factory.yaml": "", "typer.py": ""}},
        {"texts": {f"{i}.yaml": "" for i in range(MAX_FILES + 1)}},
    ],
)
def test_bad_checks_are_refused_with_the_reason(page: Page, client: httpx.Client, wrong: dict[str, Any]) -> None:
    answer = client.post("/api/check", json={**CHECK, **wrong}, headers=GOOD)
    assert (answer.status_code == 400 and next(iter(wrong)) in answer.json()["problem"]) or "texts" in answer.json()["problem"]
    assert page.checked == []
    with pytest.raises(ValueError):
        read_check(json.dumps({**CHECK, **wrong}).encode())


def test_causes_are_looked_for_with_the_token_alone(client: httpx.Client) -> None:
    assert client.post("/api/why", json={"name": "arm_1"}).status_code == 401
    found = client.post("/api/why", json={"name": "arm_1"}, headers=GOOD).json()
    assert found == {"ok": False, "findings": [{"cause": "dead camera", "about": "arm_1"}]}
    assert client.post("/api/why", json={}, headers=GOOD).json()["ok"]
    for wrong in ({"name": "--help"}, {"name": 3}, []):
        assert client.post("/api/why", json=wrong, headers=GOOD).status_code == 400


def test_every_refusal_is_explained(client: httpx.Client) -> None:
    told = client.get("/api/help/stale_action").json()
    assert told["meaning"].startswith("actions were older than") and "rfm plan" in told["remedy"]
    assert client.get("/api/help/gate_jump").json()["meaning"] == "chunks begin too far from the last command"
    assert client.get("/api/help/never_heard_of").json() == {
        "meaning": "never heard of",
        "remedy": "run `rfm why`: it names the cause, with figures",
    }


def test_failures_are_forgotten_after_a_while_and_bounded() -> None:
    failures = Failures()
    for i in range(5000):
        failures.add(f"address {i}", 0.0)
    for _ in range(MAX_FAILURES):
        failures.add("a", 10.0)
    assert failures.wait_s("a", 20.0) == 50.0 and failures.wait_s("a", 71.0) == 0.0 == failures.wait_s("b", 20.0)
    assert len(failures._failed_s) <= 1024


def test_token_files_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    for text, word in (
        ("", "no tokens"),
        ("ada short\n", "token 1"),
        (f"ada {TOKEN}\nada {TOKEN}x\n", "two of one name"),
        ("x\n", "token 1"),
    ):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(ConfigurationError, match=word):
            read_tokens(file)
    file.write_text(f"# people\nada {TOKEN}\n\nben {TOKEN}2\n")
    assert read_tokens(file) == {"ada": digest(TOKEN), "ben": digest(f"{TOKEN}2")}
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_tokens(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_tokens(tmp_path / "none")


def test_only_the_whole_token_counts() -> None:
    tokens = Tokens({"ada": TOKEN, "ben": TOKEN + "2"})
    assert tokens.holder(TOKEN) == "ada" and tokens.holder(TOKEN + "2") == "ben"
    assert not any(map(tokens.holder, ("", TOKEN[:-1], TOKEN + " ", "\ud800", "x" * 100_000)))
    assert read_order(json.dumps(PAUSE).encode()).target == "arm_1"


# --- looking ---


def test_pages_have_what_the_board_has(page: Page, client: httpx.Client) -> None:
    told = client.get("/api/robots/arm_1").json()
    assert told["components"]["system1"]["attained"] == 0.9 and told["cameras"] == ["side"] and told["decisions"] == []
    assert told["offers"] == {"tasks": True, "reset": False}
    assert told["note"] == "no monitor judges this task: it ends when its time is over, or is canceled"
    assert client.get("/api/servers/s1").json()["routes"][0]["robot"] == "arm_1"
    assert [route["component"] for route in client.get("/api/schedule").json()["routes"]] == ["system1", "monitor"]
    for path in (
        "/api/robots/nobody",
        "/api/servers/nobody",
        "/api/robots/nobody/cameras/any",
        "/api/other",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
    ):
        assert client.get(path).status_code == 404, path


def test_nothing_is_of_another_host_and_nothing_inline_runs(client: httpx.Client) -> None:
    index = client.get("/")
    assert "default-src 'self'" in index.headers["content-security-policy"]
    assert index.headers["x-content-type-options"] == "nosniff"
    texts = {file.name: file.read_text() for file in STATIC.rglob("*") if file.suffix in (".js", ".css", ".html", ".svg")}
    for name, text in texts.items():
        assert client.get(f"/static/{name}").status_code == 200 or client.get(f"/static/vendor/{name}").status_code == 200
        if not name.startswith("uPlot"):
            assert "innerHTML" not in text and "<style" not in text and " style=" not in text and "eval(" not in text, name
            foreign = [part for part in text.split() if "http" in part and "www.w3.org/2000/svg" not in part]
            assert not foreign, foreign
    assert (
        "MIT" in (STATIC / "vendor" / "uPlot.LICENSE").read_text()
        or "Permission is hereby granted" in (STATIC / "vendor" / "uPlot.LICENSE").read_text()
    )


def test_pictures_are_small_and_bad_ones_are_said(page: Page, client: httpx.Client) -> None:
    picture = client.get("/api/robots/arm_1/cameras/any")
    assert picture.status_code == 200 and picture.headers["content-type"] == "image/jpeg"
    height, width, *_ = simplejpeg.decode_jpeg_header(picture.content)
    assert (height, width) == (180, 240) and len(picture.content) < 20_000
    page.graph.image = None
    page.dashboard._pictures.clear()  # which are a second old at the most
    assert client.get("/api/robots/arm_1/cameras/side").status_code == 204
    page.graph.image = EncodedImage(camera="side", format="jpeg", data=b"\xff\xd8 no picture")
    assert client.get("/api/robots/arm_1/cameras/side").status_code == 502
    with pytest.raises(BadMessageError):
        thumbnail(EncodedImage(camera="side", format="jpeg", data=b""))


def test_a_closeup_shows_what_a_robot_was_sent() -> None:
    closeup, served = Closeup(), ServingStats(queue_wait_s=0.01, inference_s=0.02, batch_size=2, superseded=0, server_load=0.5)
    for sequence in range(100):
        rows = np.array([[0.0, np.nan], [1.0, 2.0]], np.float32)
        request = RequestId(robot="arm_1", component="system1", session_epoch=1, episode=3, sequence=sequence)
        chunk = ActionChunk(
            id=request, stamp_ns=0, server="s1", model_hash="", action_names=("x", "y"), chunk_model=rows, chunk_robot=rows,
            confidence=np.array([0.5, 1.0], np.float32), execution_horizon=1, inference_delay_steps=1, served=served, emulated=True,
        )  # fmt: skip
        closeup.take(chunk, float(sequence))
    view = closeup.view(100.0)
    assert view["chunk"]["columns"] == [[0.0, 1.0], [None, 2.0]] and view["chunk"]["emulated"] and view["chunk"]["ago_s"] == 1.0
    assert len(view["decisions"]) == 20 and view["decisions"][0]["sequence"] == 99 and view["decisions"][0]["queue_s"] == 0.01
    json.dumps(view, allow_nan=False)
    history: dict[str, Any] = {"ago_s": [-3.0, -2.0, -1.0, 0.0], "queue_s": [None, 0.5, 0.5, 0.5], "inference_s": [0.5] * 4}
    closeup.refine(history, 101.5)
    assert history["queue_s"] == [None, 0.01, 0.5, 0.5] and history["inference_s"] == [0.5, 0.02, 0.5, 0.5]


# --- many pages, slow pages ---


def test_a_slow_page_misses_frames_and_costs_no_memory() -> None:
    made = board()
    feed = Feed(made)

    async def run() -> list[bytes]:
        frames = feed.frames(100.0, 0.0)
        first = await anext(frames)
        assert first.startswith(b"event: full\n")
        for i in range(500):
            made.robots["arm_1"].action_rate_hz = float(i)
            made.robots["arm_1"].seen_s = 100.0 + i
            feed.tick(100.0 + i, 0.0)
            assert all(page.frames.qsize() <= BEHIND for page in feed._pages)
        later = [await anext(frames)]
        made.robots["arm_1"].action_rate_hz = 1000.0
        feed.tick(600.0, 0.0)
        later.append(await anext(frames))
        await frames.aclose()
        return later

    full, delta = asyncio.run(run())
    told = json.loads(full.partition(b"data: ")[2])
    assert full.startswith(b"event: full\n") and told["robots"]["arm_1"]["actions_hz"] == 499.0
    assert delta.startswith(b"event: delta\n")
    assert json.loads(delta.partition(b"data: ")[2])["robots"]["arm_1"]["actions_hz"] == 1000.0
    assert not feed._pages, "a page that has left is forgotten"


def test_pages_that_keep_up_are_told_what_changed_alone() -> None:
    made = board()
    feed = Feed(made)

    async def run() -> Any:
        frames = feed.frames(100.0, 0.0)
        await anext(frames)
        feed.tick(100.1, 0.0)
        made.robots["arm_1"].queue_depth = 9
        feed.tick(100.2, 0.0)
        told = json.loads((await anext(frames)).partition(b"data: ")[2])
        feed.end()
        with pytest.raises(StopAsyncIteration):
            await anext(frames)
        return told

    assert asyncio.run(run()) == {"robots": {"arm_1": {"queue": 9}}, "events": []}


def test_the_going_of_whoever_a_page_has_shown_is_an_event() -> None:
    made = board()
    feed = Feed(made)

    async def run() -> None:
        frames = feed.frames(100.0, 0.0)
        shown = json.loads((await anext(frames)).partition(b"data: ")[2])["servers"]
        assert not shown["s1"]["lost"]
        await frames.aclose()

    asyncio.run(run())
    made.servers["s1"].lost = True  # before the next tick
    feed.tick(100.1, 0.0)
    assert ("s1", "lost") in [(event.name, event.what) for event in feed.events.since(0)]


def test_more_pages_than_there_is_room_for_are_refused(page: Page) -> None:
    async def run() -> None:
        feed = page.dashboard.feed
        open_pages = [feed.frames(0.0, 0.0) for _ in range(MAX_PAGES)]
        for frames in open_pages:
            await anext(frames)
        assert feed.is_full
        for frames in open_pages:
            await frames.aclose()
        assert not feed.is_full

    asyncio.run(run())


# --- on a port ---


def test_it_is_served_to_many_and_ends_with_pages_open(page: Page) -> None:
    before = threading.active_count()
    begin_s = time.monotonic()
    with serving(page.dashboard, "127.0.0.1", 0) as url:
        streams = [urllib.request.urlopen(f"{url}api/stream", timeout=10) for _ in range(20)]
        for stream in streams:
            lines = [stream.readline(), stream.readline()]
            assert lines[0] == b"event: full\n" and json.loads(lines[1][6:])["robots"]["arm_1"]["actions_hz"] == 19.5
        idle = socket.create_connection(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])))
        port = int(url.rstrip("/").rpartition(":")[2])
        with pytest.raises(ConfigurationError, match="choose another port"), serving(Page().dashboard, "127.0.0.1", port):
            pass
    assert time.monotonic() - begin_s < 30.0
    for stream in streams:
        stream.close()
    idle.close()
    assert threading.active_count() <= before + 1


def test_an_empty_factory_is_shown_as_such() -> None:
    view = views.fleet(Board([], []), 0.0)
    assert view["robots"] == view["servers"] == view["tasks"] == {} and view["schedule"]["gap"] is None


def test_doors_are_ports_with_or_without_an_address() -> None:
    assert (
        read_door("8088") == ("127.0.0.1", 8088) and read_door("0.0.0.0:1") == ("0.0.0.0", 1) and read_door("[::1]:2") == ("::1", 2)
    )
    for wrong in ("", "x", "localhost:", "8088x", ":70000", "-1"):
        with pytest.raises(ConfigurationError, match="write a port"):
            read_door(wrong)


# --- people who mean harm ---


def test_strangers_do_not_fill_the_audit_log(page: Page, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(page.dashboard, "_now", lambda: now_s[0])
    for _ in range(40):
        client.post("/api/control", json=PAUSE, headers={"authorization": "Bearer guess"})
        client.get("/api/whoami", headers={"authorization": "Bearer guess"})
    assert len(page.noted) == MAX_NOTED and {note["action"] for note in page.noted} == {"", "unlock"}
    now_s[0] = NOTED_WITHIN_S + 1.0
    end_s = time.monotonic() + 30.0
    while len(page.noted) == MAX_NOTED and time.monotonic() < end_s:
        time.sleep(0.05)
    assert page.noted[-1]["outcome"] == "refused" and page.noted[-1]["message"] == "70 more attempts without a token"
    assert client.post("/api/control", json=PAUSE, headers=GOOD).status_code == 200 and page.noted[-1]["who"] == "ada"


def test_whoever_guesses_has_one_address_whatever_they_claim(page: Page, client: httpx.Client) -> None:
    guesses = [
        client.get("/api/whoami", headers={"authorization": "Bearer guess", "x-forwarded-for": f"10.0.0.{i}"})
        for i in range(MAX_FAILURES + 1)
    ]
    assert guesses[-1].status_code == 429 and {note["address"] for note in page.noted} == {"127.0.0.1"}


def test_connections_that_ask_nothing_give_way(page: Page) -> None:
    with serving(page.dashboard, "127.0.0.1", 0) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_CONNECTIONS + 20)]
        answers = [httpx.get(f"{url}api/schedule", trust_env=False, timeout=30.0).status_code for _ in range(3)]
        assert answers == [200, 200, 200]
        for one in idle:
            one.close()


def test_who_asks_nothing_is_let_go(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ASKS_WITHIN_S", 0.3)
    monkeypatch.setattr(app, "BODY_WITHIN_S", 0.3)
    head = f"POST /api/control HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n"
    looks = b"GET /static/style.css HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with serving(page.dashboard, "127.0.0.1", 0) as url:
        at = "127.0.0.1", int(url.rstrip("/").rpartition(":")[2])
        for begun in (b"", b"GET / HT", looks + b"GET / HT", f"{head}content-length: 50\r\n\r\n{{".encode()):
            with socket.create_connection(at, timeout=30.0) as slow:
                slow.sendall(begun)
                while slow.recv(65536):  # it ends
                    pass
        assert page.noted[-1]["message"].count("did not come within")


def test_who_takes_nothing_is_let_go(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TAKES_WITHIN_S", 0.3)
    with serving(page.dashboard, "127.0.0.1", 0) as url, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(30.0)
        deaf.connect(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])))
        deaf.sendall(b"GET /static/vendor/uPlot.iife.min.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 120)
        end_s = time.monotonic() + 30.0
        with pytest.raises(ConnectionError):
            while time.monotonic() < end_s:
                deaf.sendall(b"\r")
                time.sleep(0.1)
