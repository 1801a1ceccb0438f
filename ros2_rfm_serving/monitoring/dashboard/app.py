"""ASGI application of the page and its requests. Reading is open to every client; commands need a token."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.monitoring.dashboard import views
from ros2_rfm_serving.monitoring.dashboard.checking import MAX_CHECK_BYTES, Check, Why, read_check, read_why
from ros2_rfm_serving.monitoring.dashboard.closeup import Looking, thumbnail
from ros2_rfm_serving.monitoring.dashboard.control import (
    MAX_BODY_BYTES,
    ON_ROBOTS,
    ON_SERVERS,
    Answer,
    Failures,
    Holders,
    Note,
    Order,
    Orders,
    Strangers,
    read_order,
)
from ros2_rfm_serving.monitoring.dashboard.events import GOOD, WARNING
from ros2_rfm_serving.monitoring.dashboard.feed import PERIOD_S, Feed, packed
from ros2_rfm_serving.monitoring.explanations import explanation

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANSWER_S = 70.0
"""Time limit of a command: a robot that does not fit requires replanning of the whole factory."""
BODY_WITHIN_S = 10.0
"""Time limit for the body of a command."""
MAX_KEY = 100
"""Maximum characters of a key of `explanation`."""
PICTURE_PERIOD_S = 1.0
"""Refresh period of one camera; earlier requests get the same picture."""
HEADERS = {
    b"content-security-policy": b"default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none';"
    b" form-action 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
}


class Dashboard:
    """ASGI application of one board. now: clock of the board."""

    def __init__(
        self,
        board: Board,
        graph: Looking,
        orders: Orders,
        tokens: Holders,
        note: Note,
        check: Check | None = None,
        why: Why | None = None,
    ) -> None:
        """Create the page. check: checks a user's files, as `rfm check`. why: finds causes of problems, as `rfm why`. None: not
        offered."""
        self.feed, self._check, self._why = Feed(board), check, why
        self._checking = asyncio.Lock()
        """Lock that permits one check or search for causes at a time, because each is a process."""
        self._ends: set[asyncio.Task[None]] = set()
        """Running tasks that were given through the page."""
        self._board, self._graph, self._orders, self._tokens, self._note = board, graph, orders, tokens, note
        self._failures, self._strangers = Failures(), Strangers()
        self._pictures: dict[tuple[str, str], tuple[float, bytes]] = {}
        self._shrinking = ThreadPoolExecutor(1, "pictures")
        self._now: Callable[[], float] = time.monotonic

    def app(self, hosts: list[str]) -> ASGIApp:
        """Return the application. hosts: accepted host names of requests; a foreign name that resolves here is refused."""
        routes = [
            Route("/", self._index),
            Route("/api/stream", self._stream),
            Route("/api/schedule", self._schedule),
            Route("/api/robots/{name}", self._robot),
            Route("/api/robots/{name}/cameras/{camera}", self._picture),
            Route("/api/servers/{name}", self._server),
            Route("/api/help/{key}", self._help),
            Route("/api/whoami", self._whoami),
            Route("/api/control", self._control, methods=["POST"]),
            Route("/api/check", self._run_check, methods=["POST"]),
            Route("/api/why", self._run_why, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        guards = [Middleware(Guarded), Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)]
        return Starlette(routes=routes, middleware=guards, lifespan=self._life)

    def end(self) -> None:
        """End the streams of open pages. It runs on the loop's thread."""
        self.feed.end()

    @contextlib.asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        ticking = asyncio.create_task(self._tick())
        yield
        ticking.cancel()
        self._shrinking.shutdown(wait=False)

    async def _tick(self) -> None:
        while True:
            now_s = self._now()
            self.feed.tick(now_s, time.time())
            if unsaid := self._strangers.unsaid(now_s):
                self._note_order("", "", Order("", ""), "refused", f"{unsaid} more attempts without a token")
            await asyncio.sleep(PERIOD_S)

    # --- views ---

    async def _index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def _stream(self, request: Request) -> Response:
        if self.feed.is_full:
            return _problem(503, "too many pages are open")
        return StreamingResponse(self.feed.frames(self._now(), time.time()), media_type="text/event-stream")

    async def _schedule(self, request: Request) -> Response:
        now_s = self._now()
        return _json({"routes": views.routes(self._board, self.feed.history, now_s)})

    async def _robot(self, request: Request) -> Response:
        name, now_s = request.path_params["name"], self._now()
        if name not in self._board.robots:
            return _problem(404, "no robot of this name is known")
        closeup = self._graph.closeup(name)
        near = closeup.view(now_s) if closeup else {"chunk": None, "decisions": None}
        page = views.robot_page(self._board, self.feed.history, name, now_s)
        if closeup:
            closeup.refine(page["history"], now_s)
        offers = self._graph.offers(name)
        return _json({**page, **near, "cameras": self._graph.cameras(name), "offers": offers._asdict()})

    async def _server(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._board.servers:
            return _problem(404, "no server of this name is known")
        return _json(views.server_page(self._board, self.feed.history, name, self._now()))

    async def _picture(self, request: Request) -> Response:
        """Return a camera image; the camera `any` is the first one."""
        robot, camera = request.path_params["name"], request.path_params["camera"]
        if robot not in self._board.robots:
            return _problem(404, "no robot of this name is known")
        if camera == "any":
            camera = next(iter(self._graph.cameras(robot)), "")
        made_s, picture = self._pictures.get((robot, camera), (float("-inf"), b""))
        if self._now() - made_s > PICTURE_PERIOD_S:
            try:
                picture = await asyncio.get_running_loop().run_in_executor(self._shrinking, self._make_picture, robot, camera)
            except BadMessageError as error:
                return _problem(502, str(error))
            self._pictures[robot, camera] = self._now(), picture
        if not picture:
            del self._pictures[robot, camera]
            return Response(status_code=204)
        return Response(picture, media_type="image/jpeg", headers={"cache-control": "no-store"})

    def _make_picture(self, robot: str, camera: str) -> bytes:
        """Return a thumbnail; empty: there is none. It runs on the thread of pictures, because raw images take time.
        Raises: `BadMessageError` for an image that cannot be used."""
        image = self._graph.picture(robot, camera) if camera else None
        return thumbnail(image) if image else b""

    async def _help(self, request: Request) -> Response:
        return _json(dict(explanation(request.path_params["key"][:MAX_KEY])._asdict()))

    # --- commands ---

    async def _whoami(self, request: Request) -> Response:
        who, refusal = self._admit(request)
        if refusal:
            self._tell(request, "", Order("unlock", ""), "refused", bytes(refusal.body).decode())
        return refusal or _json({"name": who})

    async def _control(self, request: Request) -> Response:
        """Execute a command. Every outcome is noted; attempts without a valid token only up to a limit."""
        who, refusal = self._admit(request)
        order, problem = Order("", ""), ""
        if not refusal:
            try:
                order = read_order(await _body(request, MAX_BODY_BYTES))
                problem = self._problem_of(order)
            except ValueError as error:
                refusal = _problem(400, str(error))
            except ClientDisconnect:
                refusal = _problem(400, "the body broke off")
        if refusal:
            self._tell(request, who, order, "refused", bytes(refusal.body).decode())
            return refusal
        if problem:
            self._tell(request, who, order, "refused", problem)
            return _problem(409, problem)
        answer = await self._carry_out(order)
        self._tell(request, who, order, "done" if answer.done else "failed", answer.message)
        if answer.end is not None:
            following = asyncio.create_task(self._follow(request, who, order, answer.end))
            self._ends.add(following)
            following.add_done_callback(self._ends.discard)
        return _json({"done": answer.done, "message": answer.message}, 200 if answer.done else 409)

    async def _follow(self, request: Request, who: str, order: Order, end: Future[Answer]) -> None:
        """Report the end of a task that began."""
        answer = await asyncio.wrap_future(end)
        self._tell(request, who, order, "succeeded" if answer.done else "ended", answer.message)

    async def _run_check(self, request: Request) -> Response:
        """Check a user's files. It needs the token: a named file is read on this machine, and a check takes seconds of it."""
        if self._check is None:
            return _problem(404, "this page checks no files; `rfm check` does")
        check = self._check
        return await self._run(request, "check", read_check, lambda wanted: check(wanted)._asdict())

    async def _run_why(self, request: Request) -> Response:
        """Find the causes of problems. It needs the token, because it is a process that runs for several seconds."""
        if self._why is None:
            return _problem(404, "this page looks for no causes; `rfm why` does")
        return await self._run(request, "why", read_why, self._why)

    async def _run(self, request: Request, what: str, read: Callable[[bytes], Any], work: Callable[[Any], views.View]) -> Response:
        """Run a check on another thread, one at a time. read: raises `ValueError`."""
        who, refusal = self._admit(request)
        if refusal:
            self._tell(request, who, Order(what, ""), "refused", bytes(refusal.body).decode())
            return refusal
        try:
            wanted = read(await _body(request, MAX_CHECK_BYTES))
        except ValueError as error:
            return _problem(400, str(error))
        except ClientDisconnect:
            return _problem(400, "the body broke off")
        if self._checking.locked():
            return _problem(429, "another check runs; wait for its end")
        async with self._checking:
            return _json(await asyncio.get_running_loop().run_in_executor(None, work, wanted))

    def _admit(self, request: Request) -> tuple[str, Response | None]:
        """Return the holder of the request's token, or the refusal."""
        address, now_s = request.client.host if request.client else "", self._now()
        if _from_elsewhere(request):
            return "", _problem(403, "another site's page asked for this")
        if wait_s := self._failures.wait_s(address, now_s):
            return "", _problem(429, f"too many wrong tokens; wait {wait_s:.0f} s", {"retry-after": f"{wait_s:.0f}"})
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        who = self._tokens.holder(token.strip()) if kind.lower() == "bearer" else ""
        if not who:
            self._failures.add(address, now_s)
            return "", _problem(401, "the token is missing or wrong", {"www-authenticate": "Bearer"})
        return who, None

    def _problem_of(self, order: Order) -> str:
        if order.action in ON_ROBOTS and order.target not in self._board.robots:
            return f"no robot {order.target} is known"
        if order.action in ON_SERVERS and order.target not in self._board.servers:
            return f"no server {order.target} is known"
        return ""

    async def _carry_out(self, order: Order) -> Answer:
        asked = asyncio.wrap_future(self._orders.order(order.action, order.target, order.task, order.wanted))
        try:
            return await asyncio.wait_for(asked, ANSWER_S)
        except (TimeoutError, asyncio.TimeoutError):
            return Answer(False, f"no answer within {ANSWER_S:g} s; it may still come about")

    def _tell(self, request: Request, who: str, order: Order, outcome: str, message: str) -> None:
        if who or self._strangers.is_noted(self._now()):
            self._note_order(who, request.client.host if request.client else "", order, outcome, message)
        if who:
            what = f"{order.action or 'an order'} by {who}: {outcome}"
            level = GOOD if outcome in ("done", "succeeded") else WARNING
            cause = "task" if order.action in ("task", "cancel") else "order"
            self.feed.events.add(level, "person", order.target, what, message, cause=cause)

    def _note_order(self, who: str, address: str, order: Order, outcome: str, message: str) -> None:
        task = order.task or order.wanted.instruction
        said = {"who": who, "address": address, "action": order.action, "target": order.target, "task": task}
        self._note("control", **said, outcome=outcome, message=message)


class Guarded:
    """Middleware that adds security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = {name.lower() for name, _ in message["headers"]}
                caching = [] if b"cache-control" in told else [(b"cache-control", b"no-cache")]
                message["headers"] = [*message["headers"], *HEADERS.items(), *caching]
            await send(message)

        await self._app(scope, receive, guarded)


def _from_elsewhere(request: Request) -> bool:
    """Return whether another site's page sent the request, as browsers report it."""
    origin = request.headers.get("origin")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    return origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()


async def _body(request: Request, most_bytes: int) -> bytes:
    """Return the body of a request. Raises: `ValueError` when it is too long or too slow, or its type is not JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ValueError("content-type: application/json")
    try:
        return await asyncio.wait_for(_bounded_body(request, most_bytes), BODY_WITHIN_S)
    except (TimeoutError, asyncio.TimeoutError):
        raise ValueError(f"the body did not come within {BODY_WITHIN_S:g} s") from None


async def _bounded_body(request: Request, most_bytes: int) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise ValueError(f"the body has more than {most_bytes} bytes")
    return body


def _json(value: views.View, status: int = 200) -> Response:
    return Response(packed(value), status, {"cache-control": "no-store"}, "application/json")


def _problem(status: int, problem: str, headers: dict[str, str] | None = None) -> Response:
    return Response(packed({"problem": problem}), status, {"cache-control": "no-store", **(headers or {})}, "application/json")
