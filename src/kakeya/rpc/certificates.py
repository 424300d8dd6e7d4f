"""A small certificate authority for one fleet: its own certificate, and one for each node.

Makes and reads PEM; knows no files and no clock.  Keys are ECDSA on P-256, which every TLS library
in use takes (some refuse Ed25519 in certificates).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kakeya.config.certificates import CertificateLimits
from kakeya.errors import demand

# A node is always reached under these by the commands on its own host.
OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
MAX_NAME_LEN = 64  # of a common name, RFC 5280
_MAX_HOST_LEN = 253
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key (PKCS 8, not encrypted), both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Authority:
    """The fleet's CA, able to sign."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_authority(name: str, *, now_unix: float, limits: CertificateLimits) -> Issued:
    """A new CA called `name`, which may sign nodes' certificates and nothing else.

    Raises Refused(INVALID_ARGUMENT) for a name that cannot be one.
    """
    is_plain = name.isprintable() and 0 < len(name) <= MAX_NAME_LEN
    demand(
        is_plain,
        "INVALID_ARGUMENT",
        f"the CA's name is {name[:80]!r}, it must be 1 to {MAX_NAME_LEN} printable characters",
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _common_name(name)
    since, until = _validity(now_unix, limits.ca_days, limits)
    builder = _builder(subject, subject, key.public_key(), since, until)
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signed = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(own_id, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _issued(signed, key)


def read_authority(certificate: bytes, key: bytes) -> Authority:
    """The CA of two PEM texts.  Raises Refused(FAILED_PRECONDITION) when they are not one."""
    try:
        read = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
        constraints = read.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        # TypeError: the key is encrypted.
        constraints, private = None, None
    is_pair = isinstance(private, ec.EllipticCurvePrivateKey) and (
        private.public_key() == read.public_key()
    )
    is_ca = constraints is not None and constraints.ca
    demand(is_ca and is_pair, "FAILED_PRECONDITION", "the CA's certificate and key are not a pair")
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return Authority(read, private)


def issue(
    authority: Authority,
    name: str,
    hosts: Sequence[str],
    *,
    now_unix: float,
    limits: CertificateLimits,
) -> Issued:
    """A certificate that names its node `name`, reached there and at `hosts`, for both sides.

    Ends with the CA's at the latest.  Raises Refused for names that are none, and a CA that is
    over.
    """
    wanted = alternative_names(name, hosts, limits=limits)
    since, until = _validity(now_unix, limits.node_days, limits)
    ca = authority.certificate
    ends = ca.not_valid_after_utc
    demand(
        ends > _moment(now_unix),
        "FAILED_PRECONDITION",
        f"the fleet's CA ended on {ends:%Y-%m-%d}; make a new one and issue all again",
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _common_name(name)
    since, until = max(since, ca.not_valid_before_utc), min(until, ends)
    builder = _builder(subject, ca.subject, key.public_key(), since, until)
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    signed = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(wanted), critical=False)
        .add_extension(own_id, critical=False)
        .add_extension(signer_id, critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return _issued(signed, key)


def alternative_names(
    name: str, hosts: Sequence[str], *, limits: CertificateLimits
) -> list[x509.GeneralName]:
    """What the certificate is good for: `name` first (it becomes the principal), each once.

    Raises Refused(INVALID_ARGUMENT) naming what is neither a DNS name nor an IP address.
    """
    demand(
        is_dns_name(name) and len(name) <= MAX_NAME_LEN,
        "INVALID_ARGUMENT",
        f"NAME is {name[:80]!r}, it must be a DNS name (a-z 0-9 - .) of at most"
        f" {MAX_NAME_LEN} characters",
    )
    every = list(dict.fromkeys((name, *(_bare(host) for host in hosts), *OWN_HOSTS)))
    demand(
        len(every) <= limits.max_hosts,
        "INVALID_ARGUMENT",
        f"{len(every)} hosts for one certificate, the limit is {limits.max_hosts}",
    )
    return [_general_name(host) for host in every]


def is_dns_name(text: str) -> bool:
    """Lower-case labels, the last one not a number (resolvers read that as an IPv4 address)."""
    labels = text.split(".")
    return (
        len(text) <= _MAX_HOST_LEN
        and all(_LABEL.fullmatch(label) for label in labels)
        and not labels[-1].isdigit()
    )


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]").lower()


def _general_name(host: str) -> x509.GeneralName:
    if is_dns_name(host):
        return x509.DNSName(host)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    # An IPv6 zone means something on one host only.
    is_address = address is not None and "%" not in host and not address.is_unspecified
    demand(
        is_address,
        "INVALID_ARGUMENT",
        f"host is {host[:80]!r}, it must be a DNS name or an IP address without port",
    )
    assert address is not None
    return x509.IPAddress(address)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _moment(unix: float) -> datetime:
    return datetime.fromtimestamp(unix, UTC)


def _validity(now_unix: float, days: float, limits: CertificateLimits) -> tuple[datetime, datetime]:
    since = _moment(now_unix) - timedelta(seconds=limits.backdate_s)
    return since, _moment(now_unix) + timedelta(days=days)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    since: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=since,
        not_valid_after=until,
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return Issued(
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    )
