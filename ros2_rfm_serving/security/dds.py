"""Member's enclave of an SROS2 keystore: the signed permissions of its participant (DDS Security 1.1, 9.4.1)."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from datetime import datetime

from cryptography import x509

from ros2_rfm_serving.security.permissions import Grants

SCHEMA = "http://www.omg.org/spec/DDS-SECURITY/20170901/omg_shared_ca_{}.xsd"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
DISCOVERY = "ros_discovery_info"
"""Topic of `rmw_dds_common` that all members use, for the nodes of each participant."""
TOPIC, REQUEST, REPLY = "rt{}", "rq{}Request", "rr{}Reply"
ENCRYPTED = (
    ("allow_unauthenticated_participants", "false"),
    ("enable_join_access_control", "true"),
    ("discovery_protection_kind", "ENCRYPT"),
    ("liveliness_protection_kind", "ENCRYPT"),
    ("rtps_protection_kind", "SIGN"),
)
"""Rules of the domain: every participant needs a certificate, and every access needs a permission."""
OF_EVERY_TOPIC = (
    ("topic_expression", "*"),
    ("enable_discovery_protection", "true"),
    ("enable_liveliness_protection", "true"),
    ("enable_read_access_control", "true"),
    ("enable_write_access_control", "true"),
    ("metadata_protection_kind", "ENCRYPT"),
    ("data_protection_kind", "ENCRYPT"),
)


def governance(domain: int) -> bytes:
    root = _document("governance")
    rule = ET.SubElement(ET.SubElement(root, "domain_access_rules"), "domain_rule")
    _domains(rule, domain)
    _texts(rule, ENCRYPTED)
    _texts(ET.SubElement(ET.SubElement(rule, "topic_access_rules"), "topic_rule"), OF_EVERY_TOPIC)
    return _text(root)


def permissions(member: str, certificate: x509.Certificate, grants: Grants, domain: int) -> bytes:
    root = _document("permissions")
    grant = ET.SubElement(ET.SubElement(root, "permissions"), "grant", name=f"/{member}")
    _texts(grant, [("subject_name", certificate.subject.rfc4514_string())])
    valid = ET.SubElement(grant, "validity")
    ends = (("not_before", certificate.not_valid_before_utc), ("not_after", certificate.not_valid_after_utc))
    _texts(valid, [(name, _moment(moment)) for name, moment in ends])
    rule = ET.SubElement(grant, "allow_rule")
    _domains(rule, domain)
    _criteria(rule, "publish", published(grants))
    _criteria(rule, "subscribe", heard(grants))
    _texts(grant, [("default", "DENY")])
    return _text(root)


def published(grants: Grants) -> list[str]:
    """Return the DDS topics that a member may write: ROS topics, requests of services that it calls, replies of services that it
    offers."""
    return _named(grants.publishes, grants.calls, grants.serves)


def heard(grants: Grants) -> list[str]:
    return _named(grants.hears, grants.serves, grants.calls)


def _named(topics: Iterable[str], requests: Iterable[str], replies: Iterable[str]) -> list[str]:
    kinds = ((TOPIC, topics), (REQUEST, requests), (REPLY, replies))
    return [DISCOVERY, *sorted(kind.format(name) for kind, names in kinds for name in names)]


def _criteria(rule: ET.Element, way: str, topics: list[str]) -> None:
    _texts(ET.SubElement(ET.SubElement(rule, way), "topics"), [("topic", topic) for topic in topics])


def _domains(parent: ET.Element, domain: int) -> None:
    _texts(ET.SubElement(parent, "domains"), [("id", str(domain))])


def _texts(parent: ET.Element, values: Iterable[tuple[str, str]]) -> None:
    for name, text in values:
        ET.SubElement(parent, name).text = text


def _document(kind: str) -> ET.Element:
    ET.register_namespace("xsi", INSTANCE)
    return ET.Element("dds", {f"{{{INSTANCE}}}noNamespaceSchemaLocation": SCHEMA.format(kind)})


def _moment(moment: datetime) -> str:
    """Return the time as text. Without a zone it is UTC (9.4.1.3)."""
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")


def _text(root: ET.Element) -> bytes:
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'.encode()
