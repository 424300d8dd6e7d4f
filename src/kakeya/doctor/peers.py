"""What was seen of one peer, and what that means.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kakeya.doctor.finding import Finding, failed, ok, skipped, warning

# Statuses of the probe by what they say of the peer.
NOT_OUR_FLEET = "FAILED_PRECONDITION"
NOT_OUR_KEY = ("UNAUTHENTICATED", "PERMISSION_DENIED")
NO_NODE = ("UNIMPLEMENTED", "UNKNOWN", "INTERNAL")


@dataclass(frozen=True, slots=True)
class Seen:
    """One peer from here, in the order in which it was looked at.

    dial_error: why no connection came about, "" when one did.  status, why: how the probe was
    answered, "OK" when with a card.  version, fleet_name: "" when it does not tell.
    knows_us, reaches_us: by the peer's own view; None when that could not be asked, or this
    host runs no node.
    """

    address: str
    dial_error: str = ""
    has_tls: bool = False
    status: str = ""
    why: str = ""
    node_id: str = ""
    skew_s: float = 0.0
    rtt_s: float = 0.0
    version: str = ""
    fleet_name: str = ""
    knows_us: bool | None = None
    reaches_us: bool | None = None


@dataclass(frozen=True, slots=True)
class Ours:
    """What of this host the peers are compared with.  node_id: "" while no node runs here."""

    version: str
    fleet_name: str
    node_id: str
    grpc_address: str
    ttl_s: float


def peer_findings(seen: Seen, ours: Ours) -> list[Finding]:
    """Every line there is to say of a peer; the first failure is the last line."""
    name = f"peer {seen.address}"
    if seen.dial_error:
        return [_not_dialled(name, seen)]
    findings = [ok(f"{name}, TLS", _tls_told(seen))]
    if seen.status != "OK":
        return [*findings, _not_answered(name, seen, ours)]
    findings.append(ok(f"{name}, from here", f"{seen.node_id} in {seen.rtt_s * 1e3:.1f} ms"))
    return [
        *findings,
        ok(f"{name}, fleet name", seen.fleet_name or f"takes calls of {ours.fleet_name!r}"),
        _version(name, seen, ours),
        _skew(name, seen, ours),
        _back(name, seen, ours),
    ]


def _tls_told(seen: Seen) -> str:
    return "TLS 1.3, both certificates checked" if seen.has_tls else "not used on either side"


def _not_dialled(name: str, seen: Seen) -> Finding:
    why = seen.dial_error
    if "TLS" in why:
        do = "give both nodes certificates of one CA that name their hosts: kakeya cert issue"
        return failed(f"{name}, TLS", why, do=do)
    lowered = why.lower()
    if "no answer" in lowered:
        do = "packets are dropped: open the port in the peer's firewall, check the address"
    elif "refused" in lowered:
        do = "nothing listens there: start the node, or bind it beyond loopback with --host"
    elif "name" in lowered or "known" in lowered:
        do = "the name is not known: check it, or use the address in numbers"
    else:
        do = "check the network; on macOS: System Settings, Privacy & Security, Local Network"
    return failed(f"{name}, from here", why, do=do)


def _not_answered(name: str, seen: Seen, ours: Ours) -> Finding:
    if seen.status == NOT_OUR_FLEET:
        do = f"use one --fleet-name on both; this host has {ours.fleet_name!r}"
        return failed(f"{name}, fleet name", seen.why, do=do)
    if seen.status in NOT_OUR_KEY:
        do = "give both the same key: --fleet-key-file or KAKEYA_FLEET_KEY"
        return failed(f"{name}, key", seen.why, do=do)
    if seen.status in NO_NODE:
        do = "something else listens there: use the node's gRPC port, see its ready line"
        return failed(f"{name}, from here", seen.why, do=do)
    do = "it takes connections and does not answer: is it a node, and does it use TLS as we do?"
    if not seen.has_tls:
        do = "if the peer uses TLS, give --tls-cert, --tls-key and --tls-ca here; else restart it"
    return failed(f"{name}, from here", seen.why or seen.status, do=do)


def _version(name: str, seen: Seen, ours: Ours) -> Finding:
    check = f"{name}, version"
    if not seen.version:
        return skipped(check, "it does not tell; it may be another implementation")
    if seen.version == ours.version:
        return ok(check, seen.version)
    told = f"it runs {seen.version}, this host {ours.version}"
    return warning(check, told, do="update the older one")


def _skew(name: str, seen: Seen, ours: Ours) -> Finding:
    """Beyond a quarter of a card's lifetime cards are late or early enough to be doubted (F-12)."""
    check, told = f"{name}, clock", f"{seen.skew_s:+.2f} s from ours"
    if abs(seen.skew_s) <= ours.ttl_s / 4:
        return ok(check, told)
    do = f"let both hosts keep time by NTP; up to {ours.ttl_s / 4:g} s does no harm"
    return warning(check, told, do=do)


def _back(name: str, seen: Seen, ours: Ours) -> Finding:
    check = f"{name}, to here"
    if not ours.node_id:
        return skipped(check, "no node runs here that it could call; start it and ask again")
    if seen.knows_us is None:
        return skipped(check, "it does not tell whom it reaches")
    if not seen.knows_us:
        do = "give one of the two the other's address with --peer, and wait for a gossip round"
        return failed(check, f"it has never heard of {ours.node_id}", do=do)
    if seen.reaches_us:
        return ok(check, f"it reaches {ours.node_id} at {ours.grpc_address}")
    where = ours.grpc_address or "an address that is not known"
    do = "open this host's port in its firewall, or say how it is reached with --advertise"
    return failed(check, f"it sees {ours.node_id} but cannot reach it at {where}", do=do)


__all__ = ["Ours", "Seen", "peer_findings"]
