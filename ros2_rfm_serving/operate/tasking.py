"""Tasks for one robot of a running factory, followed to their end; and a list of the robots that accept tasks."""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.live import Live

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.activity import NO_MONITOR, activity, has_no_monitor
from ros2_rfm_serving.monitoring.plain import PlainTable, plain
from ros2_rfm_serving.operate.looking import await_factory
from ros2_rfm_serving.operate.running import console, observing, ros_domain

if TYPE_CHECKING:
    from ros2_rfm_serving.monitoring.board import Board, RobotRow
    from ros2_rfm_serving.monitoring.dashboard.closeup import Offers
    from ros2_rfm_serving.monitoring.dashboard.control import Answer
    from ros2_rfm_serving.ros.monitor.tasks import GivenTask
    from ros2_rfm_serving.ros.observer_node import ObserverNode

POLL_S, LINE_S, PLAIN_LINE_S = 0.1, 0.5, 10.0
"""`PLAIN_LINE_S`: maximum time between two lines without a terminal."""
CANCEL_S = 15.0
"""Time for a robot to report the end of a canceled task."""
SERVER_S = 10.0
"""Time to find the robot's action."""


@dataclass(frozen=True)
class Wish:
    """Request from the command line."""

    robot: str
    instruction: str
    budget_s: float
    reset: bool | None
    """None: reset where the robot offers it."""
    is_followed: bool


@dataclass
class Following:
    """Feedback of a task, written on the executor's thread."""

    feedback: Any = None
    began_s: float = 0.0


def list_robots(namespace: str, wait_s: float, stop: threading.Event) -> None:
    """Print every robot, its state, and its offers. Raises: `ConfigurationError` when no factory runs."""
    with _watching(namespace, wait_s, stop) as (board, node):
        offers = {robot: _offers(node, namespace, robot) for robot in sorted(board.robots)}
        now_s = time.monotonic()
        table = PlainTable("robot", "state", "task", "takes tasks", "reset", "judged", "what is in its way")
        for robot, offered in offers.items():
            row = board.robots[robot]
            told = activity(row, now_s, left=board.has_left(robot, now_s))
            task = row.task or next((route.task for route in board.routes if route.robot == robot), "")
            judged = "-" if not row.components else "no monitor" if has_no_monitor(row) else "by its monitor"
            takes, reset = ("yes" if one else "no" for one in offered)
            table.add_row(robot, told.state, task or "-", takes, reset, judged, told.obstacle or "-")
        console.print(table)


def give_task(wish: Wish, namespace: str, wait_s: float, stop: threading.Event) -> Answer:
    """Give the task and return how it ended or, where it is not followed, that it began.
    Raises: `ConfigurationError` when there is no such robot, or it accepts no tasks."""
    with _watching(namespace, wait_s, stop, wish.robot) as (board, node):
        _check_robot(wish.robot, board)
        following = Following(began_s=time.monotonic())
        given = _given(wish, namespace, node, following, stop)
        with _lines(wish, board, following) as show:
            return _wait(wish, given, show, stop)


@contextmanager
def _watching(namespace: str, wait_s: float, stop: threading.Event, robot: str = "") -> Iterator[tuple[Board, ObserverNode]]:
    """Observe a factory until `robot` was received; empty: until all were."""
    from ros2_rfm_serving.monitoring.board import Board

    board = Board([], [])
    with observing(board, namespace, discover=True) as node:
        await_factory(board, wait_s, stop, lambda: robot in board.robots and board.robots[robot].seen_s > 0)
        yield board, node


def _check_robot(robot: str, board: Board) -> None:
    """Raise `ConfigurationError` with the nearest name when there is no such robot."""
    if robot in board.robots:
        return
    near = difflib.get_close_matches(robot, board.robots, 1)
    is_server = " (that is a server)" if robot in board.servers else ""
    fix = f"did you mean {near[0]}? " if near else ""
    there = ", ".join(sorted(board.robots)) or "none"
    problem = f"no robot is called {robot!r}{is_server} in ROS domain {ros_domain()}"
    raise ConfigurationError(problem, key="ROBOT", fix=f"{fix}robots that are there: {there}")


def _offers(node: ObserverNode, namespace: str, robot: str) -> Offers:
    from ros2_rfm_serving.ros.monitor.eyes import offers_of
    from ros2_rfm_serving.ros.wire.qos import Names

    return offers_of(node, Names(namespace), robot)


def _given(wish: Wish, namespace: str, node: ObserverNode, following: Following, stop: threading.Event) -> GivenTask:
    """Give the task. Raises: `ConfigurationError`."""
    from ros2_rfm_serving.monitoring.dashboard.control import WantedTask
    from ros2_rfm_serving.ros.monitor.tasks import GivenTask
    from ros2_rfm_serving.ros.node.doorkeeper import prover_of_process, verifier_of_process
    from ros2_rfm_serving.ros.node.task_client import TaskClient
    from ros2_rfm_serving.ros.node.timers import every
    from ros2_rfm_serving.ros.wire.qos import Names

    wanted = WantedTask(wish.instruction, wish.budget_s, _is_reset(wish, namespace, node, stop))
    prover, verifier = prover_of_process(), verifier_of_process()
    made: Future[GivenTask] = Future()

    def poll() -> None:
        """Advance the task, on the executor's thread, as everything that the client does."""
        if not made.done():
            try:
                client = TaskClient(node, wish.robot, Names(namespace), prover, verifier)
            except RuntimeError as error:
                fix = "use an enclave that may give tasks, such as DIR/enclaves/operator"
                made.set_exception(ConfigurationError(f"the DDS permissions here allow no tasks: {error}", fix=fix))
                timer.cancel()
                return
            take = lambda feedback: setattr(following, "feedback", feedback)  # noqa: E731
            made.set_result(GivenTask(client, wanted, found_within_s=SERVER_S, on_feedback=take))
        task = made.result()
        if stop.is_set():
            task.cancel()
        task.poll()

    timer = every(node, POLL_S, poll)
    return made.result()


def _is_reset(wish: Wish, namespace: str, node: ObserverNode, stop: threading.Event) -> bool:
    """Return whether to reset. Raises: `ConfigurationError` for a requested reset that is not available."""
    end_s = time.monotonic() + SERVER_S
    while not (offers := _offers(node, namespace, wish.robot)).tasks and time.monotonic() < end_s and not stop.wait(POLL_S):
        pass
    if wish.reset and not offers.reset:
        fix = "leave --reset out, or start what brings the robot and its workpiece to the start"
        raise ConfigurationError(f"{wish.robot} offers no reset (service <robot>/reset)", key="--reset", fix=fix)
    return offers.reset if wish.reset is None else wish.reset


def _wait(wish: Wish, given: GivenTask, show: Callable[[], None], stop: threading.Event) -> Answer:
    """Wait for the end, or for the begin of a task that is not followed. After Ctrl-C, which cancels it, wait for its end."""
    last = given.ended if wish.is_followed else given.begun
    canceled_s = 0.0
    while not last.done():
        show()
        if stop.is_set():
            last, canceled_s = given.ended, canceled_s or time.monotonic()
            if time.monotonic() - canceled_s > CANCEL_S:
                raise ConfigurationError(f"{wish.robot} does not confirm within {CANCEL_S:g} s that its task is canceled")
        wait([last], timeout=POLL_S)
    return last.result()


@contextmanager
def _lines(wish: Wish, board: Board, following: Following) -> Iterator[Callable[[], None]]:
    """Show a live line on a terminal; elsewhere print a line for each change."""
    if not wish.is_followed:
        yield lambda: None
        return
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda: live.update(plain(_line(wish.robot, board, following)), refresh=True)
        return
    printed = _Printed()
    yield lambda: printed.show(wish.robot, board, following)


class _Printed:
    """Printer of lines where the output is no terminal."""

    def __init__(self) -> None:
        self._words: tuple[str, ...] = ()
        self._at_s = -PLAIN_LINE_S

    def show(self, robot: str, board: Board, following: Following) -> None:
        now_s, feedback = time.monotonic(), following.feedback
        if feedback is None:
            return
        words = (feedback.phase, feedback.verdict, feedback.subgoal, _obstacle(board.robots.get(robot)))
        if words != self._words or now_s - self._at_s >= PLAIN_LINE_S:
            self._words, self._at_s = words, now_s
            console.print(plain(_line(robot, board, following)), soft_wrap=True)


def _line(robot: str, board: Board, following: Following) -> str:
    feedback, row = following.feedback, board.robots.get(robot)
    took = f"{time.monotonic() - following.began_s:.0f} s"
    if feedback is None:
        return f"{robot}: waits for the robot, {took}"
    parts = [feedback.phase, took, f"{feedback.progress:.0%} of its time"]
    if feedback.verdict:
        parts.append(f"verdict {feedback.verdict}")
    if row is not None:
        parts.append(f"{row.chunk_rate_hz:.1f} chunks/s")
    if feedback.retries:
        parts.append(f"attempt {feedback.retries + 1}")
    obstacle = _obstacle(row)
    told = f"{robot}: {', '.join(parts)}; {feedback.subgoal or 'its own instruction'}"
    return f"{told}; in its way: {obstacle}" if obstacle else told


def _obstacle(row: RobotRow | None) -> str:
    if row is None:
        return ""
    return activity(row, time.monotonic()).obstacle or (NO_MONITOR if has_no_monitor(row) else "")
