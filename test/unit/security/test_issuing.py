"""`rfm security`: what is issued, what is wrong with it, and what is taken away."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.dynamic_robot import dynamic_robot_entry
from ros2_rfm_serving.security import dds_schema
from ros2_rfm_serving.security.authority import Authority, common_name, is_issued_by, load_certificate, utc_now
from ros2_rfm_serving.security.checking import check
from ros2_rfm_serving.security.folder import Folder, write_public
from ros2_rfm_serving.security.issuing import Issuer, add, revoke, rotate, start
from ros2_rfm_serving.security.members import Member, members_of_robot
from ros2_rfm_serving.security.own import ENCLAVE, OwnCertificate
from ros2_rfm_serving.security.record import Record
from ros2_rfm_serving.security.tokens import TokenFile, read_tokens
from ros2_rfm_serving.security.wire_table import Role

ARM, OTHER = "pick_place_1", "push_1"


def certificate(folder: Folder, member: str) -> x509.Certificate:
    return load_certificate((folder.enclave(member) / "cert.pem").read_bytes(), "")


def said(folder: Folder, days: float = 0.0) -> str:
    return "\n".join(f"{one.where}: {one.what}" for one in check(folder, utc_now() + timedelta(days=days)))


def test_everybody_has_a_certificate_of_this_authority_and_a_key_that_nobody_else_reads(
    written: Folder, members: dict[str, Member]
) -> None:
    authority = load_certificate(written.authority.read_bytes(), "")
    assert check(written, utc_now()) == []
    for name in members:
        issued = certificate(written, name)
        assert is_issued_by(issued, authority) and common_name(issued) == name
        assert isinstance(issued.public_key(), ec.EllipticCurvePublicKey)
    private = [*written.root.glob("enclaves/*/key.pem"), *written.root.glob("private/*.pem"), *written.root.glob("tokens/**/*")]
    assert len(private) > len(members) and all(file.stat().st_mode & 0o077 == 0 for file in private if file.is_file())
    names = certificate(written, "server_2").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "gpu-1.plant", "server_2"} <= set(names.get_values_for_type(x509.DNSName))
    assert "10.77.0.3" in map(str, names.get_values_for_type(x509.IPAddress)), "the address of its host"


def test_permissions_are_signed_by_the_authority_as_openssl_sees_it(written: Folder, tmp_path: Path) -> None:
    verify = ["openssl", "smime", "-verify", "-text", "-CAfile", str(written.authority), "-in"]
    for file in (written.enclave(ARM) / "permissions.p7s", written.enclaves / "governance.p7s"):
        done = subprocess.run([*verify, str(file)], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.replace(b"\r\n", b"\n") == file.with_suffix(".xml").read_bytes()
    forged = tmp_path / "forged.p7s"
    forged.write_bytes(
        (written.enclave(ARM) / "permissions.p7s").read_bytes().replace(b"pick_place_1/rfm/status", b"push_1/rfm/status")
    )
    assert subprocess.run([*verify, str(forged)], capture_output=True, check=False).returncode != 0


def test_a_robot_publishes_its_own_and_hears_its_own(written: Folder) -> None:
    root = ET.parse(written.enclave(ARM) / "permissions.xml").getroot()
    publish, subscribe = (
        {topic.text for topic in root.iter(way) for topic in topic.iter("topic")} for way in ("publish", "subscribe")
    )
    assert {"rt/rfm/servers/server_1/observation", f"rt/{ARM}/rfm/status", "rq/rfm/servers/server_1/open_sessionRequest"} <= publish
    assert {f"rt/{ARM}/rfm/action_chunk", "rt/rfm/schedule", "rr/rfm/servers/server_1/open_sessionReply"} <= subscribe
    assert not [topic for topic in publish | subscribe if topic and OTHER in topic], "nothing of another robot"
    everything = "\n".join(str(topic) for topic in publish)
    assert not re.search(r"admit|release|replan|server_\d/model_server|rt/rfm/schedule|action_chunk|\*", everything)
    assert root.findtext("permissions/grant/subject_name") == f"CN={ARM}" and root.findtext(".//default") == "DENY"


@pytest.mark.parametrize(
    ("file", "change", "fault"),
    [
        ("permissions", lambda text: text.replace("<default>DENY</default>", ""), "default is there 0 times"),
        ("permissions", lambda text: text.replace("DENY", "PERHAPS"), "'PERHAPS' is no value"),
        ("permissions", lambda text: re.sub("<id>7</id>", "<id>all</id>", text), "'all' is no value"),
        ("permissions", lambda text: text.replace("validity>", "duration>"), "validity is there 0 times"),
        ("permissions", lambda text: text.replace("<not_after>20", "<not_after>19"), "ends before it begins"),
        ("permissions", lambda text: re.sub("<not_after>.*</not_after>", "<not_after>later</not_after>", text), "no moment"),
        ("permissions", lambda text: text.replace('name="', 'title="'), "has no name"),
        ("permissions", lambda text: text.replace("</dds>", ""), "no XML"),
        ("permissions", lambda text: text.replace("subscribe>", "listen>"), "listen is not expected"),
        ("governance", lambda text: text.replace("rtps_protection_kind>SIGN", "rtps_protection_kind>LOCK"), "'LOCK' is no value"),
        ("governance", lambda text: re.sub(".*enable_join.*\n", "", text), "enable_join_access_control is there 0 times"),
        ("governance", lambda text: text.replace("topic_rule>", "rule>"), "topic_rule is there 0 times"),
    ],
)
def test_documents_that_the_specification_does_not_allow(
    written: Folder, file: str, change: Callable[[str], str], fault: str
) -> None:
    place = written.enclaves if file == "governance" else written.enclave(ARM)
    document = (place / f"{file}.xml").read_text()
    assert dds_schema.faults(document.encode(), file) == []
    changed = change(document)
    assert changed != document and fault in "; ".join(dds_schema.faults(changed.encode(), file))


def test_check_says_what_is_wrong_and_what_mends_it(folder: Folder, members: dict[str, Member]) -> None:
    (folder.enclave("server_1") / "key.pem").chmod(0o644)
    (folder.enclave("server_2") / "key.pem").write_bytes((folder.enclave("server_3") / "key.pem").read_bytes())
    foreign = Authority.new("somebody", utc_now()).issue("scheduler", [], utc_now())
    write_public(folder.enclave("scheduler") / "cert.pem", foreign.certificate_pem)
    permissions = folder.enclave(ARM) / "permissions.xml"
    permissions.write_text(permissions.read_text().replace(f"rt/{ARM}/rfm/status", f"rt/{OTHER}/rfm/status"))
    (folder.enclave("foreman") / "cert.pem").unlink()
    folder.client_token("tablet").chmod(0o640)
    problems = said(folder)
    for problem in (
        "server_1: others on this machine may read its key",
        "server_2: its key is not of its certificate",
        "scheduler: its certificate is another authority's",
        f"{ARM}: its permissions are not those of the wire table",
        f"{ARM}: its permissions were changed after they were signed",
        "foreman: ",
        "tablet: others on this machine may read its token",
    ):
        assert problem in problems, problems
    assert "server_4" not in problems


def test_certificates_end_and_it_is_said_before(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(folder, days=300) == ""
    assert "server_1: its certificate ends in 25 days" in said(folder, days=340)
    assert "server_1: its certificate ended on" in said(folder, days=370)
    assert "its certificate begins on" in said(folder, days=-3), "a machine whose clock is wrong"
    monkeypatch.setenv(ENCLAVE, str(folder.enclave("server_1")))
    own = OwnCertificate.of_process()
    assert own is not None
    own.look(0.0)
    assert own.figures()["certificate ends in, days"] == pytest.approx(365, abs=0.2) and not own.problem
    rotate(folder, ["server_1"], utc_now(), 20.0)
    own.look(1.0)
    assert not own.problem, "the disk is not asked at every turn"
    own.look(20.0)
    assert own.problem == "own certificate ends in 20 days: rfm security rotate" and not own.is_over
    rotate(folder, ["server_1"], utc_now(), 0.0)
    own.look(40.0)
    assert own.is_over and "has ended" in own.problem
    rotate(folder, ["server_1"], utc_now() + timedelta(days=3), 365.0)
    own.look(50.0)
    assert "and this machine's clock says" in own.problem and "rotate" not in own.problem, "the clock is what is wrong"
    rotate(folder, ["server_1"], utc_now(), 365.0)
    foreign = Authority.new("somebody", utc_now()).revocations([1], utc_now())
    kept = (folder.enclave("server_1") / "crl.pem").read_bytes()
    for moment_s, content in ((60.0, b"half a li"), (70.0, foreign)):
        (folder.enclave("server_1") / "crl.pem").write_bytes(content)
        own.look(moment_s)
        assert "own crl.pem is no list of revocations of its authority" in own.problem and not own.is_over
        assert own.numbers["revocations_unusable"] == 1 and own.numbers["certificate_invalid"] == 0
        assert "server_1: its crl.pem is no list of revocations of its authority" in said(folder)
    (folder.enclave("server_1") / "crl.pem").write_bytes(kept)
    own.look(80.0)
    assert not own.problem and "revocations_unusable" not in own.numbers
    (folder.enclave("server_1") / "cert.pem").unlink()
    own.look(90.0)
    assert "cannot be read" in own.problem


@pytest.mark.parametrize("empty", ["", " "])
def test_a_certificate_without_a_folder_is_not_none_at_all(monkeypatch: pytest.MonkeyPatch, empty: str) -> None:
    monkeypatch.setenv(ENCLAVE, empty)
    with pytest.raises(ConfigurationError, match=f"{ENCLAVE}: is there and names no folder"):
        OwnCertificate.of_process()
    monkeypatch.delenv(ENCLAVE)
    assert OwnCertificate.of_process() is None


def robot_of(repository: Path, name: str, task: str = "push") -> dict[str, Member]:
    config = repository / "config"
    factory = load_factory(config / "factory_hosts.yaml")
    return members_of_robot(factory, dynamic_robot_entry(factory, name, task), config)


def test_a_robot_that_comes_later_has_what_those_of_the_descriptor_have(folder: Folder, repository: Path) -> None:
    kept = certificate(folder, OTHER)
    add(folder, robot_of(repository, "push_9"), utc_now(), 365.0)
    assert said(folder) == "" and certificate(folder, OTHER) == kept, "nobody else is issued anew"
    for leaf in ("permissions.xml", "zenoh.json5"):  # but for its name, its address and its dates, as push_1's
        new, old = ((folder.enclave(name) / leaf).read_text() for name in ("push_9", OTHER))
        dates = r"<not_(before|after)>.*"
        assert sorted(re.sub(dates, "", new).replace("push_9", OTHER).split("\n")) == sorted(re.sub(dates, "", old).split("\n"))
    assert is_issued_by(certificate(folder, "push_9_world"), load_certificate(folder.authority.read_bytes(), ""))
    assert "rt/push_9/rfm/action_chunk" in (folder.enclave("server_1") / "permissions.xml").read_text()
    rules = json.loads(folder.router.read_text().partition("\n")[2])["access_control"]
    assert {"push_9", "push_9_world"} <= {name for subject in rules["subjects"] for name in subject["cert_common_names"]}
    token = folder.client_token("push_9").read_text().strip()
    assert TokenFile(folder.door_tokens, "test").holder(token) == "push_9"
    revoke(folder, "push_9", utc_now())
    assert "push_9: is revoked" in said(folder)
    with pytest.raises(ConfigurationError, match=r"push_9 is revoked; rfm security rotate --member push_9, or another name"):
        add(folder, robot_of(repository, "push_9"), utc_now(), 365.0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (OTHER, "push_1 has a certificate already, as robot"),
        ("operator", "'operator' is the name of who orders, and of nobody else; choose another name"),
        ("server_1", "as server"),
        ("door", "as door"),
        (f"{OTHER}_world", "as world"),
        ("tablet", "tablet is a client of the websocket door"),
        ("a" * 60, "too long for a certificate"),
        *((name, "cannot name a robot") for name in ("", "9_push", "push-9", "../push", "push 9", "pläce", "rfm/x")),
    ],
)
def test_a_robot_that_cannot_be_added_changes_nothing(folder: Folder, repository: Path, name: str, words: str) -> None:
    before = {file: file.read_bytes() for file in folder.root.rglob("*") if file.is_file()}
    with pytest.raises(ConfigurationError, match=words):
        add(folder, robot_of(repository, name), utc_now(), 365.0)
    assert {file: file.read_bytes() for file in folder.root.rglob("*") if file.is_file()} == before


def test_who_is_revoked_has_nothing_left_and_comes_back_under_another_name(folder: Folder) -> None:
    before = certificate(folder, ARM)
    tokens = TokenFile(folder.door_tokens, "test")
    token = folder.client_token(ARM).read_text().strip()
    assert tokens.holder(token) == ARM
    revoke(folder, ARM, utc_now())
    assert not tokens.holder(token) and not tokens.knows(ARM), "at once, in a door that runs"
    for listed in (folder.revoked, folder.enclave("server_1") / "crl.pem"):
        crl = x509.load_pem_x509_crl(listed.read_bytes())
        assert crl.get_revoked_certificate_by_serial_number(before.serial_number) is not None
        assert crl.is_signature_valid(load_certificate(folder.authority.read_bytes(), "").public_key())  # type: ignore[arg-type]
    rules = json.loads(folder.router.read_text().partition("\n")[2])["access_control"]
    assert ARM not in {name for subject in rules["subjects"] for name in subject["cert_common_names"]}
    assert f"{ARM}: is revoked and has no certificate" in said(folder)
    with pytest.raises(ConfigurationError, match="nothing that could be revoked"):
        revoke(folder, ARM, utc_now())
    rotate(folder, [], utc_now(), 365.0)
    assert "is revoked" in said(folder), "all others are issued anew, not who was shut out"
    rotate(folder, [ARM], utc_now(), 365.0)
    rules = json.loads(folder.router.read_text().partition("\n")[2])["access_control"]
    allowed = {name for subject in rules["subjects"] for name in subject["cert_common_names"]}
    assert f"{ARM}.2" in allowed and ARM not in allowed, "what was lost stays worthless"
    assert common_name(certificate(folder, ARM)) == f"{ARM}.2" and said(folder) == ""
    revoke(folder, "tablet", utc_now())
    assert ARM in read_tokens(folder.door_tokens) and "tablet" not in read_tokens(folder.door_tokens)


@pytest.mark.parametrize(
    ("name", "address", "words"),
    [
        ("a" * 70, "localhost", "too long for a certificate"),
        *(("arm", address, "is no name or address") for address in ("plänt.example", "https://plant:8443", "10.0.0.1/24", "")),
    ],
)
def test_what_no_certificate_can_be_of_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, address: str, words: str
) -> None:
    folder, empty = Folder(tmp_path / "new"), Record(factory="hall" * 30, domain=0, members={})
    member = Member(name=name, role=Role.ROBOT, of=name, addresses=("localhost", address))
    with pytest.raises(ConfigurationError, match=words):
        start(folder, empty, {name: member}, [], utc_now(), 1.0)
    assert not folder.root.exists()
    start(folder, empty, {"arm": replace(member, name="arm", of="arm", addresses=("fd00::1", "gpu-1.plant"))}, [], utc_now(), 1.0)
    assert not [one for one in check(folder, utc_now()) if one.is_serious], "whatever the factory is called"


def test_a_revocation_is_of_all_certificates_that_were_issued(folder: Folder) -> None:
    """Those before a rotation are good for as long as they say, and so is one of a rotation that was cut short."""
    issued = [certificate(folder, ARM)]
    for _ in range(2):
        rotate(folder, [ARM], utc_now(), 365.0)
        issued.append(certificate(folder, ARM))
    record = folder.record.read_bytes()
    rotate(folder, [ARM], utc_now(), 365.0)
    issued.append(certificate(folder, ARM))
    folder.record.write_bytes(record)  # it was killed before it had written down what it did
    revoke(folder, ARM, utc_now())
    record = folder.record.read_bytes()
    rotate(folder, [ARM], utc_now(), 365.0)
    issued.append(certificate(folder, ARM))
    folder.record.write_bytes(record)  # and once more
    rotate(folder, [ARM], utc_now(), 365.0)
    issued.append(certificate(folder, ARM))
    assert said(folder) == "", "it is not shut out with what it has now"
    revoke(folder, ARM, utc_now())
    crl = x509.load_pem_x509_crl(folder.revoked.read_bytes())
    assert {one.serial_number for one in crl} == {one.serial_number for one in issued}


def test_what_cannot_be_used_is_named(folder: Folder, tmp_path: Path, members: dict[str, Member]) -> None:
    empty = Record(factory="f", domain=0, members={})
    with pytest.raises(ConfigurationError, match="there is a certificate authority already"):
        start(folder, empty, members, [], utc_now(), 1.0)
    with pytest.raises(ConfigurationError, match="'my tablet' is no name"):
        start(Folder(tmp_path / "new"), empty, {}, ["my tablet"], utc_now(), 1.0)
    with pytest.raises(ConfigurationError, match="is no namespace"):
        start(Folder(tmp_path / "new"), empty.model_copy(update={"namespace": "1 2"}), {}, [], utc_now(), 1.0)
    start(Folder(tmp_path / "new"), empty, {}, ["tablet"], utc_now(), 1.0)  # nothing is left of what was refused
    with pytest.raises(ConfigurationError, match="nobody is named 'nobody'"):
        rotate(folder, ["nobody"], utc_now(), 1.0)
    with pytest.raises(ConfigurationError, match="nobody is named 'nobody'"):
        revoke(folder, "nobody", utc_now())
    with pytest.raises(ConfigurationError, match="cannot be read"):
        check(Folder(tmp_path / "none"), utc_now())
    (folder.enclave("foreman") / "crl.pem").write_text("no list")
    assert "foreman: its crl.pem is no list of revocations" in said(folder)
    written = folder.record.read_text()
    for right, wrong in (("role: ROUTER", "role: KING"), ("serial: ", "serial: z"), ("  foreman:", "  ../../foreman:")):
        folder.record.write_text(written.replace(right, wrong))
        with pytest.raises(ConfigurationError, match=r"security\.yaml: cannot be used: members\."):
            check(folder, utc_now())
    folder.record.write_text("factory: f\ndomain: 999\n")
    with pytest.raises(ConfigurationError, match=r"domain: .*members: "):
        check(folder, utc_now())
    folder.authority_key.write_text("no key")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Issuer.open(folder)


def test_of_two_who_issue_at_once_one_is_refused(folder: Folder) -> None:
    """Else a rotation that has read the record before a revocation brings back whom that took away, and both say all is well."""
    with folder.held(), pytest.raises(ConfigurationError, match="another `rfm security` writes there now"):
        rotate(folder, [], utc_now(), 30.0)
    revoke(folder, "pick_place_1", utc_now())
    assert Record.load(folder).members["pick_place_1"].is_revoked
    with pytest.raises(ConfigurationError, match="cannot be read"):
        revoke(Folder(folder.root / "nowhere"), "pick_place_1", utc_now())
    assert not (folder.root / "nowhere").exists()


def test_what_was_cut_short_is_told(folder: Folder, members: dict[str, Member]) -> None:
    stray, own = folder.enclave("push_9"), folder.enclave("server_1")
    stray.mkdir()
    shutil.copy(own / "cert.pem", stray)
    (problem,) = check(folder, utc_now())
    assert problem.is_serious and (problem.where, problem.what) == ("push_9", "has a certificate, and is not in security.yaml")
    folder.record.unlink()
    with pytest.raises(ConfigurationError, match="was cut short, or it is lost"):
        start(folder, Record(factory="f", domain=0, members={}), members, [], utc_now(), 30.0)
