"""Zenoh router that admits holders of a certificate and forwards the messages permitted to each, in the key expressions of
rmw_zenoh.

`<domain>/<topic>/<type>/<hash>` is a topic or a service; `@ros2_lv/<domain>/.../<kind>/<enclave>/<namespace>/<node>/<topic>/...`
declares that a node has one; `.../@adv/**` below a topic is for history that late joiners receive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ros2_rfm_serving.factory.graph_names import SERVERS, own_name
from ros2_rfm_serving.factory.nodes import ZENOH_PORT
from ros2_rfm_serving.security.folder import CERTIFICATE, IDENTITY_CA, KEY, Folder, write_public
from ros2_rfm_serving.security.permissions import Grants, Permissions
from ros2_rfm_serving.security.record import Record
from ros2_rfm_serving.security.wire_table import Role

ROUTER = "router"
IN, OUT = "ingress", "egress"
"""Directions from the router's point of view."""
MAX_MESSAGE_BYTES = 24 << 20
"""Limit for any message: six images of 4 MB, the most that a server accepts of one, and the other parts of an observation."""
MAX_PUTS_HZ = 1000.0
"""Rate limit of a robot's observations to one server, and of its statuses: Zenoh drops messages that follow the last one sooner."""
MAX_SESSIONS, MAX_PENDING, OPENS_WITHIN_MS = 1024, 64, 5000
LEASE_MS = 3000
"""Silence after which a session counts as gone."""
AGAIN = {
    "timeout_ms": 10_000,
    "exit_on_failure": True,
    "retry": {"period_init_ms": 250, "period_max_ms": 2000, "period_increase_factor": 2},
}
"""Reconnection as in config/zenoh."""

Rule = dict[str, Any]


def write(folder: Folder, record: Record, permissions: Permissions) -> None:
    """Write the router's configuration, and that of each member's session. Raises: `ConfigurationError`."""
    place = record.place or str(folder.root.absolute())
    write_public(folder.router, _text(router(record, permissions, place)))
    for name, entry in record.members.items():
        if not entry.is_revoked:
            write_public(folder.enclave(name) / "zenoh.json5", _text(session(name, record, place)))


def router(record: Record, permissions: Permissions, place: str) -> dict[str, Any]:
    """Return the router's configuration. place: future path of the folder on the router's machine."""
    return {
        "mode": "router",
        "listen": {"endpoints": [f"tls/[::]:{ZENOH_PORT}"]},
        "scouting": {"multicast": {"enabled": False}},
        "transport": {
            "unicast": {
                "max_sessions": MAX_SESSIONS,
                "accept_pending": MAX_PENDING,
                "accept_timeout": OPENS_WITHIN_MS,
                "open_timeout": OPENS_WITHIN_MS,
            },
            "link": {
                "protocols": ["tls"],
                "tx": {"lease": LEASE_MS},
                "rx": {"max_message_size": MAX_MESSAGE_BYTES},
                "tls": _tls(ROUTER, place),
            },
            "shared_memory": {"enabled": False},
        },
        "access_control": access_control(record, permissions),
        "downsampling": _slowed(record.domain, permissions),
        "low_pass_filter": [_bounded(record.domain)],
    }


def session(member: str, record: Record, place: str) -> dict[str, Any]:
    """Return the configuration to be merged into the other settings of a session of rmw_zenoh."""
    return {
        "mode": "client",
        "connect": {"endpoints": [f"tls/{record.router}:{ZENOH_PORT}"], **AGAIN},
        "scouting": {"multicast": {"enabled": False}},
        "transport": {"link": {"protocols": ["tls"], "tx": {"lease": LEASE_MS}, "tls": _tls(member, place)}},
    }


def access_control(record: Record, permissions: Permissions) -> dict[str, Any]:
    """Return the access rules; all else is denied.

    A revoked member has no rule; a certificate that is issued later has another common name.
    """
    rules, subjects, policies = [_discovery(record.domain)[0], _discovery(record.domain)[1]], [], []
    for name, member in record.all_members.items():
        entry = record.members[name]
        if entry.is_revoked:
            continue
        granted = permissions.of(member)
        own, told = Grants(), Grants()
        if member.role is Role.ROBOT:
            own = _to_servers(granted, member.of)
            told = Grants(hears=_of_robots(granted), serves=_to_servers(granted, "*").calls)
        if member.role is Role.DOOR:
            granted, own = _across(granted), Grants(serves=_to_servers(granted, "*").calls)
        mine = list(_rules(name, granted, own, told, record.domain))
        rules += mine
        subjects.append({"id": name, "cert_common_names": [entry.common_name]})
        policies.append({"rules": ["in the graph", "of the graph", *(rule["id"] for rule in mine)], "subjects": [name]})
    return {"enabled": True, "default_permission": "deny", "rules": rules, "subjects": subjects, "policies": policies}


def _rules(name: str, grants: Grants, own: Grants, told: Grants, domain: int) -> Iterable[Rule]:
    """Yield the rules of a member. own: names that the graph does not show. told: further subscribers and services it may know
    of."""
    publishes, hears = _keys(grants.publishes | own.publishes, domain), _keys(grants.hears, domain)
    serves, calls = _keys(grants.serves | own.serves, domain), _keys(grants.calls | own.calls, domain)
    kept, late = _late(grants.publishes, domain), _late(grants.hears, domain)
    offers, asks = ["declare_queryable", "reply", "liveliness_token", "put"], ["query", "declare_liveliness_subscriber"]
    asks += ["liveliness_query", "declare_subscriber"]
    table: Sequence[tuple[str, str, list[str], list[str]]] = (
        ("publishes", IN, ["put"], publishes),
        ("is heard", OUT, ["declare_subscriber"], publishes + _keys(told.hears, domain)),
        ("hears", IN, ["declare_subscriber"], hears),
        ("is told", OUT, ["put"], hears),
        ("serves", IN, ["declare_queryable", "reply"], serves),
        ("is asked", OUT, ["query"], serves),
        ("calls", IN, ["query"], calls),
        ("is answered", OUT, ["declare_queryable", "reply"], calls),
        ("is served", OUT, ["declare_queryable"], _keys(told.serves, domain)),
        ("keeps", IN, offers, kept),
        ("is asked late", OUT, asks, kept),
        ("asks late", IN, asks, late),
        ("is told late", OUT, offers, late),
        ("is in the graph", IN, ["liveliness_token"], _tokens(grants, domain)),
    )
    for what, flow, messages, keys in table:
        if keys:
            yield _rule(f"{name} {what}", flow, messages, keys)


def _across(grants: Grants) -> Grants:
    """Return the permissions of the gateway, which acts as the factory for robots on Zenoh, and as their robots for the factory on
    DDS."""
    return Grants(grants.hears, grants.publishes | _of_robots(grants), grants.calls, grants.serves)


def _to_servers(grants: Grants, robot: str) -> Grants:
    """Return the names under which one robot publishes to servers, and which no other member may use."""
    published, called = (frozenset(own_name(n, robot) for n in names if SERVERS in n) for names in (grants.publishes, grants.calls))
    return Grants(publishes=published, calls=called)


def _of_robots(grants: Grants) -> frozenset[str]:
    """Return the topics that the gateway subscribes to. Publishers must learn of these subscriptions, or they would send
    nothing."""
    below = {name.partition(SERVERS)[0] for name in grants.calls if SERVERS in name}
    names = ("{}/rfm/servers/*/observation", "{}/*/rfm/servers/*/observation", "{}/*/rfm/status")
    return frozenset(name.format(root) for root in below for name in names)


def _discovery(domain: int) -> tuple[Rule, Rule]:
    """Return the rules by which every member discovers nodes and endpoints; they contain only names."""
    everything, nodes = f"@ros2_lv/{domain}/**", f"@ros2_lv/{domain}/*/*/*/NN/**"
    asked = _rule("in the graph", IN, ["declare_liveliness_subscriber", "liveliness_query"], [everything])
    return asked, _rule("of the graph", OUT, ["liveliness_token", "reply"], [everything, nodes])


def _tokens(grants: Grants, domain: int) -> list[str]:
    """Return the liveliness tokens by which rmw_zenoh declares the endpoints of a node."""
    kinds = (("MP", grants.publishes), ("MS", grants.hears), ("SS", grants.serves), ("SC", grants.calls))
    below = f"@ros2_lv/{domain}/*/*/*"
    said = [
        f"{below}/{kind}/*/*/*/{name.replace('/', '%')}/**" for kind, names in kinds for name in sorted(names) if "*" not in name
    ]
    return [f"{below}/NN/*/*/*", *said]


def _keys(names: Iterable[str], domain: int) -> list[str]:
    return [f"{domain}{name}/*/*" for name in sorted(names)]


def _late(names: Iterable[str], domain: int) -> list[str]:
    return [f"{domain}{name}/*/*/@adv/**" for name in sorted(names)]


def _rule(name: str, flow: str, messages: list[str], keys: list[str]) -> Rule:
    return {"id": name, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": keys}


def _bounded(domain: int) -> Rule:
    messages = ["put", "delete", "query", "reply"]
    return {"id": "size", "flows": [IN], "messages": messages, "key_exprs": [f"{domain}/**"], "size_limit": MAX_MESSAGE_BYTES}


def _slowed(domain: int, permissions: Permissions) -> list[Rule]:
    """Return the rate limits, counted for each session and each of these topics: a member that floods loses its own messages.

    Messages of servers, schedulers and the gateway are not limited: those to many robots at once are no flood, and Zenoh has one
    count for everything that a rule matches.
    """
    names = permissions.of_robots
    own = {own_name(name, "*") for name in names if SERVERS in name}
    rules = [{"key_expr": key, "freq": MAX_PUTS_HZ} for key in _keys(names | own, domain)]
    return [{"id": "rate", "flows": [IN], "messages": ["put"], "rules": rules}] if rules else []  # Zenoh accepts no empty list


def _tls(member: str, place: str) -> Mapping[str, Any]:
    enclave = f"{place}/enclaves/{member}"
    pair = {"private_key": f"{enclave}/{KEY}", "certificate": f"{enclave}/{CERTIFICATE}"}
    own = {f"{way}_{name}": file for way in ("listen", "connect") for name, file in pair.items()}
    return {
        "root_ca_certificate": f"{enclave}/{IDENTITY_CA}",
        **own,
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
    }


def _text(config: Mapping[str, Any]) -> bytes:
    return f"// Written by `rfm security`; it names keys, and holds none.\n{json.dumps(config, indent=1)}\n".encode()
