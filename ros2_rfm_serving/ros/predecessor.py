"""Recovery of the schedule of a scheduler's predecessor, from the servers of a running factory that follow it."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rclpy.node import Node
from rclpy.task import Future
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import BadMessageError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import SCHEDULER, check_answer, screen, verifier_of_process
from ros2_rfm_serving.ros.node.runtime import clock, executor
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.security.proof import PUBLIC_KEY_BYTES, Verifies
from ros2_rfm_serving.types import Schedule

ASKED = 16
"""Maximum number of servers that are asked; any one of them knows the whole schedule."""
ANSWER_S = 5.0
"""Time limit for the reply of a server whose status is on the graph, on a busy machine."""

MOST_EPOCHS = 1 << 31
"""Highest plausible epoch: half of the wire's range.
A scheduler that counts from 1 never reaches it, and one that continued from there would run out of epochs."""


class Left(NamedTuple):
    schedule: Schedule | None = None
    """Schedule that servers follow; None: they follow none."""
    missing: tuple[str, ...] = ()
    """Servers that the schedule does without and that are absent now as well."""


def found_in_force(names: qos.Names, servers: Sequence[str], seconds: float, log: Any) -> Left:
    """Search for a followed schedule for this long, before anything else runs in the process."""
    asker = Node("scheduler_asks", enable_rosout=False, start_parameter_services=False)
    ears = {server: _ear(asker, names.server(server, "status")) for server in servers}
    try:
        found = _of_most(_told(_asked(asker, names, ears, seconds, log), log))
        absent = set(servers) - _there(ears)
    finally:
        asker.destroy_node()
    return Left(found, tuple(sorted(absent - {p.server for p in found.placements}))) if found else Left()


def _ear(asker: Node, topic: str) -> Any:
    """Subscribe to a server's status.
    Unlike the graph, a subscription does not match a server of the same name in another partition."""
    return asker.create_subscription(msg.ServerStatus, topic, lambda status: None, qos.SERVER_STATUS, raw=True)


def _asked(asker: Node, names: qos.Names, ears: Mapping[str, Any], seconds: float, log: Any) -> list[Future]:
    clients = {
        server: asker.create_client(srv.GetSchedule, names.server(server, "get_schedule"), qos_profile=qos.CONTROL)
        for server in list(ears)[:ASKED]
    }
    asked: dict[str, Future] = {}
    verifier = verifier_of_process()
    spinner, begin_s, there = executor(), clock(), set[str]()
    spinner.add_node(asker)
    try:
        while sum(future.done() for future in asked.values()) < len(clients) or len(there) < len(ears):
            there = _there(ears)
            waits = any(server not in asked or not asked[server].done() for server in there & clients.keys())
            if clock() - begin_s > seconds + (ANSWER_S if waits else 0.0):
                break
            for server in [s for s, client in clients.items() if s not in asked and client.service_is_ready()]:
                asked[server] = ask_in_force(server, clients[server], verifier, log)
            try:
                spinner.spin_once(timeout_sec=0.05)
            except Exception as error:  # raised by the middleware while it reads a reply
                log.warning(f"an answer cannot be read: {error!r}")
    finally:
        spinner.shutdown()
    return [future for future in asked.values() if future.done()]


def ask_in_force(server: str, client: Any, verifier: Verifies | None, log: Any) -> Future:
    """Ask a server for its active schedule.
    With a certificate, only a reply that this server has signed for this very request counts."""
    request = srv.GetSchedule.Request()
    if verifier is None:
        return client.call_async(request)
    drawn = secrets.token_bytes(PUBLIC_KEY_BYTES)
    request.proof.public_key = drawn

    def is_answer(answer: Any) -> bool:
        try:
            check_answer(drawn, verifier, server, SCHEDULER, answer)
        except UnprovenError as error:
            log.warning(f"{server}: {error}")
            return False
        return True

    future = client.call_async(request)
    screen(future, is_answer)
    return future


def _there(ears: Mapping[str, Any]) -> set[str]:
    return {server for server, ear in ears.items() if ear.get_publisher_count()}


def _told(answers: Iterable[Future], log: Any) -> list[Schedule]:
    schedules = []
    for answer in answers:
        try:
            message = answer.result().schedule
        except Exception as error:  # any error of the middleware; other servers know the same schedule
            log.warning(f"a server's answer has failed: {error!r}")
            continue
        if message.epoch > MOST_EPOCHS:
            log.warning(f"a server follows schedule {message.epoch}, which no scheduler can have counted to: it does not go on")
        elif message.epoch:
            try:
                schedules.append(convert.schedule_from(message))
            except BadMessageError as error:
                log.warning(f"a server follows a schedule that cannot be read: {error}")
    return schedules


def _of_most(schedules: Sequence[Schedule]) -> Schedule | None:
    """Return the newest schedule of the scheduler that most servers follow."""
    counts = Counter(schedule.scheduler for schedule in schedules)
    return max(schedules, key=lambda schedule: (counts[schedule.scheduler], schedule.epoch), default=None)
