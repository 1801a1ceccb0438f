"""Refused messages: every counter of refusal, what it means, and what mends it.

A robot and a server count what they refuse by name, in their status, and keep the last reason of each name in `/diagnostics`
(`last <counter>`). The tables have an entry for each of these names; a test compares them with the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ros2_rfm_serving.monitoring.findings.finding import Finding
from ros2_rfm_serving.monitoring.findings.look import Diagnosis, Look, Row, grown, refused

FEWEST = 3
"""Refusals in a look; fewer are those of a beginning or an end."""


@dataclass(frozen=True)
class Advice:
    meaning: str
    """What is refused and why, after the number and the name of the counter."""
    fix: str
    fewest: int = FEWEST


@dataclass(frozen=True)
class NamedElsewhere:
    """The counter is part of another cause."""

    causes: tuple[str, ...]


def _of(*causes: str) -> NamedElsewhere:
    return NamedElsewhere(causes)


READINGS = _of("refused readings")
LATE = _of("lossy network", "overloaded server", "drifted profile")
CHUNKS = _of("unusable actions")
SETTLES = "it settles by itself; where it goes on, two processes use one name: `rfm status` and the logs of both"
CLIENT = "mend the client that sends it: the protocol is in docs/gateway.md, and the evidence has the last error"
LOG = "the server's log has the traceback; mend the engine or the policy that it names"

CERTIFICATES = "issue the certificates again (`rfm security rotate`), and copy each enclave to its machine: docs/security.md"
VERSIONS = "both sides need the same version of rfm_serving, and the door a current rmw_zenoh_cpp: docs/zenoh.md"
REQUESTS = "the evidence has the last error: correct the robot's file, or the client that sends them"
FAILED, GATEWAY, ZENOH = (
    "requests failed inside the server",
    "messages of gateway clients cannot be used",
    "messages from Zenoh cannot be read",
)

Table = Mapping[str, Advice | NamedElsewhere]

COMMON: Table = {
    "stale_epoch": Advice("messages belong to a session that is over", SETTLES, fewest=20),
    "stale_episode": Advice("messages belong to an episode that is over", SETTLES, fewest=20),
    "rival_schedule": _of("two factories in one domain"),
    "stale_schedule": Advice("schedules were older than the one in force", SETTLES, fewest=20),
    "bad_schedule": Advice("schedules cannot be used", "the scheduler is of another version, or somebody writes to /rfm/schedule"),
    "untimely_schedule": Advice("schedules came for which no server vouches yet", CERTIFICATES, fewest=20),
    "unproven": Advice("messages have no valid signature", CERTIFICATES),
    "stale_status": Advice("statuses came again", SETTLES, fewest=20),
    "untimely_status": Advice("statuses follow another scheduler", SETTLES, fewest=20),
    "bad_message": Advice("messages cannot be read as what their topic carries", VERSIONS),
    "bad_name": Advice("names cannot be used", "a name has letters, digits and underscores, a letter first"),
    "bad_session": Advice("sessions were asked for with impossible values", "correct the value in the robot's file"),
}
"""Of robots and of servers."""

ROBOT: Table = {
    **COMMON,
    # readings
    **dict.fromkeys(("bad_state", "missing_field", "incomplete_state", "bad_encoding", "no_depth_range"), READINGS),
    **dict.fromkeys(("image_too_large", "bad_image"), READINGS),
    "old_observation": _of("dead camera", "dead joint states", "old readings", "refused readings"),
    "sensor_skew": Advice(
        "control periods had readings that were taken too far apart",
        "let the cameras be as fast as the state, or raise `max_sensor_skew_s`; `rfm topic hz TOPIC` shows a rate",
    ),
    # actions
    **dict.fromkeys(("bad_shape", "non_finite", "out_of_limits", "wrong_actions", "wrong_context", "unexpected_reply"), CHUNKS),
    **dict.fromkeys(("gate_clamped", "gate_jump", "gate_velocity", "gate_acceleration", "gate_jerk"), CHUNKS),
    **dict.fromkeys(("gate_workspace", "gate_statistics"), CHUNKS),
    **dict.fromkeys(("position_unknown", "position_unsteady", "position_out_of_limits"), _of("unknown start")),
    "delay_not_bridged": Advice(
        "chunks came later than the model bridges",
        "lower the load or the network's delay, or use a model that bridges more steps: docs/rtc.md",
    ),
    "stale_action": Advice(
        "actions were older than `max_action_age_s` before they could be executed",
        "the servers are too slow for this robot: `rfm plan`, more servers, or a longer `max_action_age_s`",
    ),
    "sink_failed": Advice("commands were lost in the robot's own sink", "its traceback is in the robot's log: mend `sink_class`"),
    # answers and sessions
    **dict.fromkeys(("request_timeout", "late_answer", "late_or_duplicate", "lost_behind_the_door"), LATE),
    "late_refetch": Advice("a server asked again for requests that were answered", SETTLES, fewest=20),
    "late_session": _of("overloaded machine", "lossy network", "overloaded server"),
    "episode_not_reset": Advice("a server did not confirm a new episode", "the server is slow or gone: `rfm status`"),
    **dict.fromkeys(("wrong_model", "other_model"), _of("changed model")),
    **dict.fromkeys(("other_actions", "other_rate", "not_pipelined"), _of("refused session")),
    "unknown_component": Advice(
        "answers are for a component that this robot does not have", "two robots use one name, or a server is of another version"
    ),
}

SERVER: Table = {
    **COMMON,
    # what is asked
    "unknown_session": Advice("requests have no session", "a robot that was cut off opens another by itself", fewest=20),
    "stale_sequence": Advice("requests came twice or out of order", SETTLES, fewest=20),
    "over_quota": _of("one robot asks too much"),
    "opens_over_quota": Advice("sessions were asked for too often", "look at the log of the robot that asks", fewest=1),
    **dict.fromkeys(("bad_shape", "non_finite", "bad_image", "image_too_large"), Advice("requests cannot be used", REQUESTS)),
    "bad_cameras": Advice(
        "requests have other cameras than the model", "name the model's cameras in `cameras` of the robot's file"
    ),
    "other_instruction": Advice(
        "requests have another instruction than the server's", "leave out `instruction` of the server, or give its task"
    ),
    "delay_too_long": Advice(
        "requests ask to bridge more steps than the model can", "lower the load, or use `conditioning: none`: docs/rtc.md"
    ),
    "image_too_costly": Advice("images take too long to decode", "send a JPEG of one scan, or a smaller one (`max_image_size_px`)"),
    "draining": Advice("requests came while the server ends", "nothing is to be done: robots turn to another server", fewest=20),
    **dict.fromkeys(
        ("session_ended", "robot_gone", "session_idle"), Advice("requests or sessions had nobody left", SETTLES, fewest=20)
    ),
    "certificate_ended": Advice("sessions were closed because their robot's certificate ended", CERTIFICATES, fewest=1),
    "lost_on_the_way": Advice(
        "requests were sent and never arrived",
        "the network loses them, or they exceed the middleware's shared memory: smaller images, `config/dds/`, docs/networks.md",
        fewest=5,
    ),
    **dict.fromkeys(("intake_full", "infer_full"), Advice("requests found no place", "ask less often, or give more servers")),
    "infer_over_quota": Advice("goals of `Infer` came too often", "ask less often, or raise `infer_rate_hz` of the server"),
    **dict.fromkeys(("contract", "capacity", "session"), Advice("gateway clients got no session", CLIENT, fewest=1)),
    # what goes wrong inside
    **dict.fromkeys(("verdict_violation", "plan_violation"), _of("unusable answers")),
    **dict.fromkeys(("engine_error", "bad_output", "non_finite_output", "worker_error"), Advice(FAILED, LOG, fewest=1)),
    **dict.fromkeys(("dispatch_error", "horizon_error", "intake_error"), Advice(FAILED, LOG, fewest=1)),
    "publish_failed": Advice(
        "answers could not be published", "the middleware refused them: the server's log has the error", fewest=1
    ),
    # the websocket gateway
    **dict.fromkeys(("bad_frame", "bad_dtype", "bad_array", "bad_keys"), Advice(GATEWAY, CLIENT, fewest=1)),
    **dict.fromkeys(("frame_too_large", "gateway_error", "gateway_busy", "gateway_slow"), Advice(GATEWAY, CLIENT, fewest=1)),
    **dict.fromkeys(
        ("gateway_token", "gateway_revoked", "gateway_origin", "gateway_client_connections", "gateway_connections"),
        Advice("connections to the gateway were refused", "docs/gateway.md has tokens, origins and connections", fewest=1),
    ),
    **dict.fromkeys(
        ("gateway_no_answer", "gateway_no_reply", "gateway_chunks"),
        Advice("gateway clients got no answer", "the model failed or is too slow: the server's log", fewest=1),
    ),
    **dict.fromkeys(
        ("gateway_idle", "gateway_no_request"),
        Advice("gateway clients were idle", "nothing is to be done: they connect again", fewest=20),
    ),
}

ZENOH_DOOR: Table = {
    **COMMON,
    **dict.fromkeys(("bad_attachment", "bad_key", "bad_token", "foreign_type", "stale_hash"), Advice(ZENOH, VERSIONS, fewest=1)),
    **dict.fromkeys(
        ("foreign_name", "name_taken", "unknown_robot", "too_many_robots"),
        Advice("robots on Zenoh were refused", "each robot needs a name of its own that the door allows: docs/zenoh.md", fewest=1),
    ),
    **dict.fromkeys(
        ("not_there", "service_not_there", "no_answer", "unpublished", "too_many_calls", "too_large"),
        Advice("messages from Zenoh found no receiver", "start the server, and see the limits in docs/zenoh.md", fewest=1),
    ),
}

DOOR = "zenoh_door: door"
DOOR_PREFIX = "refused_"


def refused_messages(look: Look) -> Iterator[Finding]:
    """Yield the counters that grew during the look, each with its last reason."""
    for owner, rows in look.robots.items():
        yield from _of_rows(ROBOT, owner, rows, look.diagnosis(f"{owner}: robot"))
    for owner, servers in look.servers.items():
        yield from _of_rows(SERVER, owner, servers, look.diagnosis(f"{owner}: server"))
    yield from _of_door(look.diagnoses.get(DOOR, []))


def _of_rows(table: Table, owner: str, rows: Sequence[Row], said: Diagnosis | None) -> Iterator[Finding]:
    for kind in sorted(rows[-1].refused) if rows else ():
        last = said.values.get(f"last {kind}", "") if said else ""
        yield from _refusal(table, owner, kind, grown(rows, refused(kind)), last)


def _of_door(said: Sequence[Diagnosis]) -> Iterator[Finding]:
    for key in said[-1].values if said else ():
        if key.startswith(DOOR_PREFIX):
            before = said[0].number(key) if key in said[0].values else 0.0
            yield from _refusal(ZENOH_DOOR, "zenoh_door", key.removeprefix(DOOR_PREFIX), said[-1].number(key) - before, "")


def _refusal(table: Table, owner: str, kind: str, more: float, last: str) -> Iterator[Finding]:
    """more: refusals during the look. last: the reason of the last one."""
    advice = table.get(kind) or Advice("messages were refused", "the log of the process that counts it has the reason")
    if isinstance(advice, NamedElsewhere) or not more >= advice.fewest:
        return
    evidence = [f"{more:,.0f} times on {owner}: {advice.meaning} ({kind})"]
    evidence += [f"the last one: {last}"] if last else []
    yield Finding(cause="refused messages", about=owner, evidence=tuple(evidence), mend=advice.fix)
