"""Limits of the fleet's own certificates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CertificateLimits:
    # Ten years: a home fleet's CA is renewed by making a new one and issuing all again.
    ca_days: float = 3650.0
    # Common verifiers refuse certificates that live longer than 825 days.
    node_days: float = 825.0
    # Valid from a little before now, for hosts whose clocks are late.
    backdate_s: float = 3600.0
    # Names and addresses of one certificate.
    max_hosts: int = 64
    # A certificate or key file that is read; real ones have about 1 KB.
    max_file_bytes: int = 64 << 10
