"""Validation of governance and permissions documents against DDS Security's schemas (DDS Security 1.1, 9.4.1.2 and 9.4.1.3).

It covers the elements, their order and number, and the values of their texts, exactly as the schemas define them.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

BOOLEAN = re.compile(r"true|false|0|1")
NUMBER = re.compile(r"\d{1,9}")
PROTECTION = re.compile(r"NONE|(SIGN|ENCRYPT)(_WITH_ORIGIN_AUTHENTICATION)?")
BASIC_PROTECTION = re.compile(r"NONE|SIGN|ENCRYPT")
DEFAULT = re.compile(r"ALLOW|DENY")
ANYTHING = re.compile(r".+", re.DOTALL)
ONCE, OPTIONAL, MANY, ANY_NUMBER = (1, 1), (0, 1), (1, 1 << 30), (0, 1 << 30)


class Child(NamedTuple):
    name: str
    times: tuple[int, int]
    """(at least, at most)"""
    kind: str = ""
    """Key of `GRAMMAR`; empty: a text."""
    text: re.Pattern[str] = ANYTHING


DOMAINS = Child("domains", ONCE, "domains")
CRITERIA = (Child("topics", ONCE, "topics"), Child("partitions", OPTIONAL, "partitions"))
GRAMMAR: Mapping[str, tuple[Child, ...]] = {
    "governance": (Child("domain_access_rules", ONCE, "domain_access_rules"),),
    "domain_access_rules": (Child("domain_rule", MANY, "domain_rule"),),
    "domain_rule": (
        DOMAINS,
        Child("allow_unauthenticated_participants", ONCE, text=BOOLEAN),
        Child("enable_join_access_control", ONCE, text=BOOLEAN),
        Child("discovery_protection_kind", ONCE, text=PROTECTION),
        Child("liveliness_protection_kind", ONCE, text=PROTECTION),
        Child("rtps_protection_kind", ONCE, text=PROTECTION),
        Child("topic_access_rules", ONCE, "topic_access_rules"),
    ),
    "topic_access_rules": (Child("topic_rule", MANY, "topic_rule"),),
    "topic_rule": (
        Child("topic_expression", ONCE),
        Child("enable_discovery_protection", ONCE, text=BOOLEAN),
        Child("enable_liveliness_protection", ONCE, text=BOOLEAN),
        Child("enable_read_access_control", ONCE, text=BOOLEAN),
        Child("enable_write_access_control", ONCE, text=BOOLEAN),
        Child("metadata_protection_kind", ONCE, text=PROTECTION),
        Child("data_protection_kind", ONCE, text=BASIC_PROTECTION),
    ),
    "permissions": (Child("permissions", ONCE, "grants"),),
    "grants": (Child("grant", MANY, "grant"),),
    "grant": (
        Child("subject_name", ONCE),
        Child("validity", ONCE, "validity"),
        Child("allow_rule", MANY, "rule"),
        Child("default", ONCE, text=DEFAULT),
    ),
    "validity": (Child("not_before", ONCE), Child("not_after", ONCE)),
    "rule": (DOMAINS, Child("publish", ANY_NUMBER, "criteria"), Child("subscribe", ANY_NUMBER, "criteria")),
    "criteria": CRITERIA,
    "topics": (Child("topic", MANY),),
    "partitions": (Child("partition", MANY),),
    "domains": (Child("id", MANY, text=NUMBER),),
}
"""Grammar of the documents that this project writes. The schemas also allow deny rules, ranges of domains and data tags, which it
does not include."""


def faults(document: bytes, kind: str) -> list[str]:
    """Return the faults of a document; empty: it is valid. kind: `governance` or `permissions`."""
    try:
        root = ET.fromstring(document)
    except ET.ParseError as error:
        return [f"no XML: {error}"]
    found = [] if root.tag == "dds" else [f"its root is {root.tag}, not dds"]
    return [*found, *_of(root, kind, "dds"), *_meaning(root)]


def _of(element: ET.Element, kind: str, path: str) -> Iterator[str]:
    children = list(element)
    for rule in GRAMMAR[kind]:
        times = 0
        while children and children[0].tag == rule.name:
            times += 1
            yield from _child(children.pop(0), rule, f"{path}/{rule.name}")
        if not rule.times[0] <= times <= rule.times[1]:
            yield f"{path}: {rule.name} is there {times} times"
    yield from (f"{path}: {left.tag} is not expected there" for left in children)


def _child(element: ET.Element, rule: Child, path: str) -> Iterator[str]:
    if rule.kind:
        yield from _of(element, rule.kind, path)
    elif len(element) or not rule.text.fullmatch((element.text or "").strip()):
        yield f"{path}: {element.text!r} is no value of it"


def _meaning(root: ET.Element) -> Iterator[str]:
    """Yield violations of rules that the schemas do not express."""
    for grant in root.iter("grant"):
        if not grant.get("name"):
            yield "a grant has no name"
        try:
            first, last = (datetime.fromisoformat(grant.findtext(f"validity/{end}", "")) for end in ("not_before", "not_after"))
            if first >= last:
                yield "a grant ends before it begins"
        except ValueError:
            yield "a grant's validity is no moment"
