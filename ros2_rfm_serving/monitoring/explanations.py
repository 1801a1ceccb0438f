"""Explanations of states, losses and refusal counters, with remedies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ros2_rfm_serving.monitoring.counters import COUNTERS


class Explanation(NamedTuple):
    meaning: str
    remedy: str


NETWORK = "check the radio or cable between robot and server; docs/networks.md has profiles that bear loss"
OVERLOAD = "the server is slower than planned, or too many robots ask it: `rfm why` says which"

_SITUATIONS = {
    "connecting": Explanation(
        "the robot has no session or no first chunk yet, or is not in the schedule",
        "wait for its server to load the model; if it lasts, its reason says what differs, and `rfm why` the cause",
    ),
    "degraded": Explanation("requests fail or are late, and actions are left", OVERLOAD + "; " + NETWORK),
    "stalled": Explanation(
        "the robot needs an action, and none may be executed", "run `rfm why`: readings, network or server are the usual causes"
    ),
    "reconnecting": Explanation("the session is lost and is being opened again", NETWORK + "; look whether its server runs"),
    "dead": Explanation(
        "no server answered for too long, or its server has another model than before",
        "start the server, or bring back the model; the robot needs a new task afterwards",
    ),
    "lost": Explanation(
        "nothing is received any more", "look at the process, its log and its machine; `rfm doctor` checks the network"
    ),
    "held": Explanation("the robot had no action to execute for several control periods", OVERLOAD + "; " + NETWORK),
    "stopped": Explanation("a fallback has stopped the task", "the reason beside it says why; the robot goes on by itself"),
    "waiting": Explanation("the robot waits for a person", "look at the robot; then resume its task, or abort it"),
    "scheduler": Explanation(
        "the scheduler is silent, or there are two", "start the scheduler; of two, stop one: `rfm why` names both"
    ),
}
EXPLANATIONS: Mapping[str, Explanation] = MappingProxyType(
    {**_SITUATIONS, **{name: Explanation(counter.meaning, counter.fix) for name, counter in COUNTERS.items()}}
)


def explanation(reason: str) -> Explanation:
    """Return the explanation of a counter, a state or a loss; an unknown one is described by its name."""
    unknown = Explanation(reason.replace("_", " "), "run `rfm why`: it names the cause, with figures")
    return EXPLANATIONS.get(reason, unknown)
