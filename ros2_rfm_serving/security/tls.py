"""TLS of an endpoint with the certificate of a folder, and with a new one as soon as the folder has it."""

from __future__ import annotations

import ssl
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.security.folder import CERTIFICATE, KEY, is_private

HANDSHAKE_WITHIN_S = 5.0


class ServerTls:
    """TLS of a server, whose `context` presents the certificate that the folder has at the time of each handshake."""

    def __init__(self, enclave: Path, key: str) -> None:
        """Load the certificate. key: the option or parameter that names the folder. Raises: `ConfigurationError`."""
        self._certificate, self._key = enclave / CERTIFICATE, enclave / KEY
        try:
            self._seen, self.context = self._version(), self._load()
            private = is_private(self._key)
        except (OSError, ssl.SSLError) as error:
            fix = f"name a folder with {CERTIFICATE} and {KEY}, such as enclaves/<member> of `rfm security init`"
            raise ConfigurationError(f"cannot be used: {error}", file=str(enclave), key=key, fix=fix) from None
        if not private:
            problem = "others on this machine may read it"
            raise ConfigurationError(problem, file=str(self._key), key=key, fix=f"chmod 600 {self._key}")
        self._current = self.context
        self.context.sni_callback = self._on_hello

    def _on_hello(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Select the context, whatever name the client gives. During a rotation the old certificate is used until both files are
        there."""
        try:
            seen = self._version()
            if seen != self._seen:
                self._current, self._seen = self._load(), seen
        except (OSError, ssl.SSLError):
            pass
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.num_tickets = 0  # they follow the handshake: a client that reads and writes in two threads may fail because of them
        made.load_cert_chain(self._certificate, self._key)
        return made

    def _version(self) -> tuple[int, int]:
        return self._certificate.stat().st_mtime_ns, self._key.stat().st_mtime_ns


def client_context(authority: Path, key: str) -> ssl.SSLContext:
    """Return the context of a client that trusts only this authority. Raises: `ConfigurationError`."""
    try:
        made = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        fix = "name the ca.cert.pem of `rfm security init`"
        raise ConfigurationError(f"cannot be used: {error}", file=str(authority), key=key, fix=fix) from None
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    return made
