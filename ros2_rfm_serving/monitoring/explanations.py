"""What states, losses and counters of refusals mean and what to do about each, in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Explanation(NamedTuple):
    meaning: str
    remedy: str


READINGS = "docs/integrate.md, sections State and Cameras, says what a robot accepts; `rfm why` shows the offending value"
NETWORK = "check the radio or cable between robot and server; docs/networks.md has profiles that bear loss"
OVERLOAD = "the server is slower than planned, or too many robots ask it: `rfm why` says which"
RESTART = "a few after a restart or a new schedule are normal; if the number keeps growing, look for a second process of this name"
CERTIFICATE = "check the certificates: `rfm security check DIR`; docs/security.md says what each member may do"
LIMITS = "compare units and limits of the robot's file with the model's actions; `rfm why` shows the offending value"
MODEL = "the model and the robot's file do not agree: `rfm check` compares them"
CLIENT = "correct the client that connects to the websocket door; the server's log names it"
QUOTA = "send fewer requests, or raise the rate in the descriptor and plan again"

_SENSORS = {
    "bad_image": "an image is broken, or its size does not fit its bytes",
    "bad_encoding": "an image has an encoding that is not supported",
    "image_too_large": "an image is larger than is accepted",
    "image_too_costly": "an image would take too long to decode",
    "no_depth_range": "a depth image came, and no depth range is declared for this camera",
    "bad_state": "a message of the state cannot be used",
    "incomplete_state": "a message of the state lacks a joint or a part",
    "missing_field": "a message lacks a field that the robot needs, such as velocities",
    "old_observation": "a reading was too old to be sent",
    "sensor_skew": "readings of one observation were taken too far apart",
}
_ANSWERS = {
    "request_timeout": "a request had no answer in time",
    "late_or_duplicate": "an answer came after its request was given up, or twice",
    "late_answer": "an answer came later than its SLO",
    "late_refetch": "a server asked for a newer observation too late",
    "stale_action": "an action was too old to be executed",
    "late_session": "the answer to the opening of a session came too late",
}
_FORMER = {
    "stale_epoch": "a message was of a former session",
    "stale_episode": "an answer was of a former episode",
    "stale_sequence": "a request was older than one that had arrived before",
    "stale_schedule": "an older schedule than the one in force came",
    "rival_schedule": "another scheduler publishes schedules as well",
    "unknown_session": "a request was of a session that the server does not have",
    "untimely_schedule": "a schedule was not of now",
    "lost_on_the_way": "messages were lost between sender and receiver",
    "draining": "the server was draining",
    "episode_not_reset": "a server did not confirm the new episode",
}
_PROOFS = {"unproven": "a message had no valid proof of its sender", "certificate_ended": "a certificate has ended"}
_MODEL = {
    "wrong_context": "a chunk does not say which observations it was computed from",
    "bad_session": "robot and model do not fit",
    "bad_shape": "an array has another shape than the model or the robot expects",
    "bad_cameras": "an observation has other cameras than the session",
    "bad_array": "an array cannot be read",
    "non_finite": "a number was NaN or infinite",
    "non_finite_output": "the model answered with NaN or infinity",
    "bad_output": "the model's answer was no array of the right shape",
    "engine_error": "the engine failed while it computed a batch",
    "other_instruction": "a request had another instruction than the session",
    "delay_too_long": "the inference delay is longer than the model bridges",
}
_LIMITS = {
    "out_of_limits": "an action was outside of the limits by more than the tolerance, and its chunk was refused",
    "sink_failed": "a command could not be published",
}
_QUOTAS = {
    "over_quota": "a robot sent more requests than its quota allows",
    "opens_over_quota": "a client opened sessions more often than its quota allows",
    "infer_over_quota": "a client of Infer sent more requests than its quota allows",
    "intake_full": "requests came faster than they could be read",
}
_GROUPS: tuple[tuple[Mapping[str, str], str], ...] = (
    (_SENSORS, READINGS),
    (_ANSWERS, OVERLOAD + "; " + NETWORK),
    (_FORMER, RESTART),
    (_PROOFS, CERTIFICATE),
    (_MODEL, MODEL),
    (_LIMITS, LIMITS),
    (_QUOTAS, QUOTA),
)
_FAMILIES = {
    "gate_": Explanation("a chunk failed a check of the gate ({rest})", LIMITS),
    "gateway_": Explanation("the websocket door refused a client ({rest})", CLIENT),
    "bad_": Explanation("a message could not be read ({rest})", "run the same version of this software on all machines"),
}
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
    {
        **_SITUATIONS,
        **{reason: Explanation(meaning, remedy) for group, remedy in _GROUPS for reason, meaning in group.items()},
    }
)


PASSING = frozenset(_FORMER)
"""Refusals that a reset, a restart or a new schedule brings by itself: they are events, and in nobody's way."""


def explanation(reason: str) -> Explanation:
    """Return what a counter, a state or a loss means; one that is not known is described by its name."""
    if known := EXPLANATIONS.get(reason):
        return known
    for prefix, family in _FAMILIES.items():
        if reason.startswith(prefix):
            return family._replace(meaning=family.meaning.format(rest=reason.removeprefix(prefix).replace("_", " ")))
    return Explanation(reason.replace("_", " "), "run `rfm why`: it names the cause, with figures")
