"""Signatures and seals in messages: the signed fields, and the position of a seal."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
from diagnostic_msgs.msg import KeyValue
from rclpy.serialization import serialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import UnprovenError
from ros2_rfm_serving.ros.wire import bounded
from ros2_rfm_serving.security.proof import SAYS, SEAL_BYTES, SIGNATURE_BYTES, Proof, Says, Verifies, Who, is_sealed, seal

SINGLE = struct.Struct("<f")
OWN = ("proof", "seal")
CERTIFICATE, SIGNATURE = "certificate", "signature"
"""Keys of the last values of a signed report, whose values are in base64."""
MOST_BYTES = 64 << 20
"""Maximum size of an observation of this process."""


def fields_of(request: Any) -> list[object]:
    """Return all fields of a request, in the order of the definition, as its receiver has them, too."""
    return [type(request).__name__, *[_plain(getattr(request, name), kind) for name, kind in _kinds(request) if name not in OWN]]


def _kinds(request: Any) -> Any:
    return request.get_fields_and_field_types().items()


def _plain(value: Any, kind: str) -> object:
    if kind == "float":  # Python's number has more digits than the message
        return SINGLE.unpack(SINGLE.pack(value))[0]
    if isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "tolist"):  # an array of numbers
        return value.tolist()
    return fields_of(value) if hasattr(value, "get_fields_and_field_types") else [_plain(one, "") for one in value]


def proof_to(proof: Proof) -> Any:
    return msg.Proof(
        certificate=proof.certificate, challenge=proof.challenge, public_key=proof.public_key, signature=proof.signature
    )


def proof_from(message: Any) -> Proof:
    return Proof(*(bytes(part) for part in (message.certificate, message.challenge, message.public_key, message.signature)))


def seal_call(request: Any, key: bytes) -> None:
    """Seal a call of a session that has a key."""
    request.seal = list(seal(key, _text(request)))


def is_call_sealed(request: Any, key: bytes) -> bool:
    return is_sealed(key, _text(request), bytes(request.seal))


def _text(request: Any) -> bytes:
    """Return the sealed text, which differs from the beginning of every observation."""
    return bytes(msgpack.packb(fields_of(request)))


def sealed_observation(message: Any, key: bytes) -> bytes:
    """Serialize an observation; its last bytes are the seal of all bytes before them."""
    data: bytes = serialize_message(message)
    body = memoryview(data)[: bounded.check(data, msg.Observation, MOST_BYTES) - SEAL_BYTES]
    return bytes(body) + seal(key, body)


def sealed_reply(data: bytes, key: bytes) -> bytes:
    """Return a serialized reply with its seal. data: a reply without a seal yet, and without trailing bytes."""
    body = memoryview(data)[:-SEAL_BYTES]
    return b"".join((body, seal(key, body)))


def is_sealed_by(key: bytes, data: memoryview) -> bool:
    """Return whether a message has a valid seal. data: a message that ends with its seal, without trailing bytes."""
    return is_sealed(key, data[:-SEAL_BYTES], bytes(data[-SEAL_BYTES:]))


def is_observation_sealed(data: bytes, key: bytes) -> bool:
    return len(data) > SEAL_BYTES and is_sealed(key, memoryview(data)[:-SEAL_BYTES], data[-SEAL_BYTES:])


def signed(message: Any, prover: Says) -> bytes:
    """Serialize a published message; its last bytes are the signature of all bytes before them. Raises: `ConfigurationError`."""
    message.certificate = prover.certificate()
    data: bytes = serialize_message(message)
    body = data[: bounded.check(data, type(message)) - SIGNATURE_BYTES]
    return body + prover.say(_said(type(message), body))


def sayer(message: Any, data: memoryview, verifier: Verifies) -> Who:
    """Return the signer of a published message. data: its bytes, without trailing ones. Raises: `UnprovenError`."""
    certificate, signature = bytes(message.certificate), bytes(data[-SIGNATURE_BYTES:])
    return verifier.check_said(certificate, signature, _said(type(message), data[:-SIGNATURE_BYTES]))


def _said(kind: type, body: bytes | memoryview) -> bytes:
    """Return the signed text. It contains the type, so that the signature is invalid for another type and for a request."""
    return b"".join((f"{SAYS} {kind.__name__}".encode(), b"\0", body))


def signed_report(report: Any, numbers: Mapping[str, int], prover: Says) -> None:
    """Sign a `DiagnosticStatus`, whose last values become `numbers`, the certificate and the signature of all before it.
    Raises: `ConfigurationError`."""
    values = {**{name: str(number) for name, number in numbers.items()}, CERTIFICATE: _base64(prover.certificate())}
    report.values = [*report.values, *(KeyValue(key=key, value=value) for key, value in values.items())]
    signature = prover.say(_said(type(report), _reported(report.values, report)))
    report.values = [*report.values, KeyValue(key=SIGNATURE, value=_base64(signature))]


def reporter(report: Any, verifier: Verifies) -> Who:
    """Return the signer of a report. Raises: `UnprovenError`."""
    *values, last = report.values or [KeyValue()]
    if last.key != SIGNATURE or not values or values[-1].key != CERTIFICATE:
        raise UnprovenError(f"{report.name[:100]!r} is not signed")
    try:
        certificate, signature = (base64.b64decode(one.value, validate=True) for one in (values[-1], last))
    except ValueError:
        raise UnprovenError(f"the signature of {report.name[:100]!r} is damaged") from None
    return verifier.check_said(certificate, signature, _said(type(report), _reported(values, report)))


def _reported(values: Sequence[Any], report: Any) -> bytes:
    about = [report.name, report.hardware_id, report.message, report.level]
    return bytes(msgpack.packb([*about, *([value.key, value.value] for value in values)], unicode_errors="surrogateescape"))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Words:
    """Signer of a repeated message with a new number and stamp each time: serialized once, and signed for each repetition."""

    def __init__(self) -> None:
        self._content, self._digest = b"", b""

    def put(self, message: Any) -> bytes:
        """Set the message to repeat, with its certificate, and return its repeated part."""
        data: bytes = serialize_message(message)
        self._content = bounded.repeated_part(data[: bounded.check(data, type(message))])
        self._digest, self._type = hashlib.sha256(self._content).digest(), type(message)
        return self._content

    def say(self, number: int, stamp: Any, prover: Says) -> bytes:
        """Return the next message, with number and stamp. Raises: `ConfigurationError`."""
        tail = struct.pack("<Q", number)
        signature = prover.say(_said(self._type, self._digest + tail))
        begin, end = bounded.HEADER_BYTES, -bounded.TAIL_BYTES
        when = struct.pack("<iI", stamp.sec, stamp.nanosec)
        return b"".join((self._content[:begin], when, self._content[bounded.STAMP_ENDS : end], tail, signature))


def number_of(word: memoryview) -> int:
    """Return the number of a repeated message. word: a digest, a number and a signature."""
    return int.from_bytes(word[-bounded.TAIL_BYTES : -SIGNATURE_BYTES], "little")


def sayer_of_word(message: Any, word: memoryview, verifier: Verifies) -> Who:
    """Return the signer of a repeated message. Raises: `UnprovenError`."""
    said = _said(type(message), word[:-SIGNATURE_BYTES])
    return verifier.check_said(bytes(message.certificate), bytes(word[-SIGNATURE_BYTES:]), said)
