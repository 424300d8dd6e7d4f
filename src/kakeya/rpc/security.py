"""Who may call: the fleet's shared key, mutual TLS, and which binds are safe without either.

A key is compared in constant time and never logged.
"""

from __future__ import annotations

import hmac
import ipaddress
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kakeya.errors import Refused, demand
from kakeya.rpc.endpoint import Admit, Call

KEY_VARIABLE = "KAKEYA_FLEET_KEY"
MIN_KEY_LEN = 16
MAX_KEY_LEN = 1024
# A load balancer asks for health without knowing a key.
OPEN_SERVICES = frozenset({"grpc.health.v1.Health"})


def read_fleet_key(file_name: str, env: Mapping[str, str]) -> str:
    """The key from the file, else from the environment, else "".  Raises Refused."""
    return read_key(file_name, env, variable=KEY_VARIABLE, what="the fleet key")


def read_key(file_name: str, env: Mapping[str, str], *, variable: str, what: str) -> str:
    """A secret from the file, else from the variable, else "".  Raises Refused naming `what`."""
    if not file_name:
        return _sound(env.get(variable, "").strip(), variable)
    try:
        with Path(file_name).open("rb") as file:
            raw = file.read(MAX_KEY_LEN + 2)
    except OSError as error:
        raise Refused(
            "FAILED_PRECONDITION", f"cannot read the file of {what}: {error.strerror}"
        ) from None
    key = raw.decode("ascii", "replace").strip()
    demand(bool(key), "FAILED_PRECONDITION", f"the file of {what} is empty")
    return _sound(key, what)


def _sound(key: str, what: str) -> str:
    if key:
        is_plain = key.isascii() and key.isprintable() and " " not in key
        demand(
            is_plain and MIN_KEY_LEN <= len(key) <= MAX_KEY_LEN,
            "FAILED_PRECONDITION",
            f"{what} must be {MIN_KEY_LEN} to {MAX_KEY_LEN} printable ASCII characters"
            " without spaces",
        )
    return key


def key_metadata(key: str) -> tuple[tuple[str, str], ...]:
    """What a call carries to prove that it knows the key."""
    return (("authorization", f"Bearer {key}"),) if key else ()


def guarded_by(key: str) -> Admit:
    """For Endpoint(admit=…): lets in who knows the key or showed a certificate of the fleet.

    Everybody when the key is "".
    """
    expected = f"Bearer {key}".encode()

    def admit(call: Call) -> None:
        if not key or call.service in OPEN_SERVICES or call.principal:
            return
        given = [value for name, value in call.metadata if name == "authorization"]
        sent = given[0] if len(given) == 1 else ""
        raw = sent if isinstance(sent, bytes) else sent.encode()
        demand(
            hmac.compare_digest(raw, expected),
            "UNAUTHENTICATED",
            "the call does not carry this fleet's key",
        )

    return admit


def bind_trouble(host: str, *, has_key: bool, has_tls: bool, is_insecure: bool) -> str:
    """Why binding `host` is not safe, "" when it is.  Spec: N-04."""
    if is_loopback_host(host) or has_key or has_tls or is_insecure:
        return ""
    return (
        f"host is {host}, which others can reach: give every node a fleet key"
        " (--fleet-key-file) or a certificate (--tls-cert), or trust the network with --insecure"
    )


def demand_safe_bind(host: str, *, has_key: bool, has_tls: bool, is_insecure: bool) -> None:
    """Raise Refused when bind_trouble() sees any."""
    why = bind_trouble(host, has_key=has_key, has_tls=has_tls, is_insecure=is_insecure)
    demand(not why, "FAILED_PRECONDITION", why)


def is_loopback_host(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Names of PEM files: a node's certificate, its key, and the CA of its fleet."""

    cert_file: str
    key_file: str
    ca_file: str


def listening_tls(files: TlsFiles | None) -> ssl.SSLContext | None:
    """server_tls() of the files; None without.  Raises Refused naming the file that is wrong."""
    return _loaded(server_tls, files)


def dialling_tls(files: TlsFiles | None) -> ssl.SSLContext | None:
    """client_tls() of the files; None without.  Raises Refused naming the file that is wrong."""
    return _loaded(client_tls, files)


def _loaded(make: Callable[..., ssl.SSLContext], files: TlsFiles | None) -> ssl.SSLContext | None:
    if files is None:
        return None
    # OpenSSL's own errors do not say which file they are about.
    for flag, name in (
        ("--tls-cert", files.cert_file),
        ("--tls-key", files.key_file),
        ("--tls-ca", files.ca_file),
    ):
        try:
            with Path(name).open("rb") as file:
                file.read(1)
        except OSError as error:
            why = f"cannot read {flag} {name}: {error.strerror}"
            raise Refused("FAILED_PRECONDITION", why) from None
    try:
        return make(cert_file=files.cert_file, key_file=files.key_file, ca_file=files.ca_file)
    except ssl.SSLError as error:
        reason = (error.reason or "not PEM").replace("_", " ").lower()
        why = f"--tls-cert, --tls-key and --tls-ca do not go together: {reason}"
        raise Refused("FAILED_PRECONDITION", why) from None


def server_tls(*, cert_file: str, key_file: str, ca_file: str) -> ssl.SSLContext:
    """For listening: who calls must show a certificate of the fleet's CA."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    return _with_identity(context, cert_file, key_file)


def client_tls(*, cert_file: str, key_file: str, ca_file: str) -> ssl.SSLContext:
    """For dialling: the peer's certificate must be of the fleet's CA and name its host."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca_file)
    return _with_identity(context, cert_file, key_file)


def _with_identity(context: ssl.SSLContext, cert_file: str, key_file: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # No password: a node that waits at a prompt would hang its service for ever.
    context.load_cert_chain(cert_file, key_file, password="")
    context.set_alpn_protocols(["h2"])
    return context


def principal_of(certificate: Mapping[str, Any] | None) -> str:
    """The name in a verified peer certificate: its first DNS name, else its common name."""
    if not certificate:
        return ""
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "DNS":
            return str(name)
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""
