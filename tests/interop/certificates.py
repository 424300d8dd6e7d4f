"""A small fleet CA for tests, made with the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HAS_OPENSSL = shutil.which("openssl") is not None


@dataclass(frozen=True)
class Identity:
    """Files of one certificate, its key, and the CA that signed it."""

    cert_file: str
    key_file: str
    ca_file: str

    def read(self) -> tuple[bytes, bytes, bytes]:
        """(key, certificate, CA) in PEM."""
        files = (self.key_file, self.cert_file, self.ca_file)
        key, cert, ca = (Path(name).read_bytes() for name in files)
        return key, cert, ca


def _openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def make_ca(folder: Path, name: str) -> tuple[str, str]:
    """(certificate, key) files of a new CA."""
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subject = ["-subj", f"/CN={name}", "-days", "2"]
    _openssl("req", "-x509", *curve, "-keyout", key, "-out", cert, *subject)
    return cert, key


def issue(folder: Path, ca: tuple[str, str], name: str) -> Identity:
    """A certificate for `name` at localhost and 127.0.0.1."""
    cert, key, asked = (str(folder / f"{name}.{end}") for end in ("pem", "key", "csr"))
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    _openssl("req", *curve, "-keyout", key, "-out", asked, "-subj", f"/CN={name}")
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName=DNS:{name},DNS:localhost,IP:127.0.0.1\n")
    signed = ["-CA", ca[0], "-CAkey", ca[1], "-CAcreateserial", "-days", "2"]
    _openssl("x509", "-req", "-in", asked, *signed, "-out", cert, "-extfile", str(extensions))
    return Identity(cert, key, ca[0])
