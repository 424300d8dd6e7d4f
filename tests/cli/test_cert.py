"""`kakeya cert`: a fleet's CA and its nodes' certificates, and the flags that use them."""

from __future__ import annotations

import ipaddress
import os
import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from kakeya.cli.app import status_of
from kakeya.config.certificates import CertificateLimits
from kakeya.config.settings import TLS_KEYS, ConfigError, env_name, load
from kakeya.errors import Refused
from kakeya.rpc.certificates import issue, make_authority, read_authority
from kakeya.rpc.security import TlsFiles, dialling_tls, listening_tls

NOW_UNIX = 1_800_000_000.0
DAY_S = 86_400.0
LIMITS = CertificateLimits()


@pytest.fixture(scope="module")
def authority():
    made = make_authority("fleet", now_unix=NOW_UNIX, limits=LIMITS)
    return read_authority(made.certificate, made.key)


def issued(authority, *hosts, name="attic", now_unix=NOW_UNIX):
    made = issue(authority, name, hosts, now_unix=now_unix, limits=LIMITS)
    return x509.load_pem_x509_certificate(made.certificate)


def names(certificate):
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return (
        found.get_values_for_type(x509.DNSName),
        [str(each) for each in found.get_values_for_type(x509.IPAddress)],
    )


def test_a_certificate_is_good_for_its_name_its_hosts_and_its_own_machine(authority):
    certificate = issued(authority, "10.0.0.2", "[FD00::2]", "Attic.local", "10.0.0.2")
    dns, ips = names(certificate)
    assert dns == ["attic", "attic.local", "localhost"]
    assert ips == ["10.0.0.2", "fd00::2", "127.0.0.1", "::1"]
    assert all(ipaddress.ip_address(ip) for ip in ips)
    certificate.verify_directly_issued_by(authority.certificate)


def test_a_certificate_serves_and_calls_and_cannot_sign(authority):
    found = issued(authority).extensions
    uses = found.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(uses) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not found.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not found.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_the_authority_signs_nodes_only(authority):
    constraints = authority.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


def test_a_certificate_begins_a_little_before_now_and_ends_with_the_authority(authority):
    early = issued(authority)
    assert early.not_valid_before_utc.timestamp() == NOW_UNIX - LIMITS.backdate_s
    assert early.not_valid_after_utc.timestamp() == NOW_UNIX + LIMITS.node_days * DAY_S
    late = issued(authority, now_unix=NOW_UNIX + (LIMITS.ca_days - 1) * DAY_S)
    assert late.not_valid_after_utc == authority.certificate.not_valid_after_utc
    with pytest.raises(Refused, match="CA ended on 20"):
        issued(authority, now_unix=NOW_UNIX + LIMITS.ca_days * DAY_S)


@pytest.mark.parametrize(
    "name", ["", "a b", "-a", "a-", "*.lan", "10.0.0.2", "a..b", "a/b", "../a", "x" * 65, "ü", "A"]
)
def test_a_name_that_is_no_dns_name_is_refused(authority, name):
    with pytest.raises(Refused, match="NAME is"):
        issued(authority, name=name)


@pytest.mark.parametrize(
    "host", ["", "a:1", "10.0.0.2:80", "0.0.0.0", "::", "*", "fe80::1%eth0", "1.2.3", "a b", "é"]
)
def test_a_host_that_is_none_is_refused(authority, host):
    with pytest.raises(Refused, match="host is"):
        issued(authority, host)


def test_hosts_are_capped(authority):
    hosts = [f"10.0.0.{n}" for n in range(LIMITS.max_hosts)]
    with pytest.raises(Refused, match=f"the limit is {LIMITS.max_hosts}"):
        issued(authority, *hosts)


def test_what_is_no_authority_is_refused(authority):
    made = make_authority("fleet", now_unix=NOW_UNIX, limits=LIMITS)
    other = make_authority("fleet", now_unix=NOW_UNIX, limits=LIMITS)
    node = issue(
        read_authority(made.certificate, made.key), "a", (), now_unix=NOW_UNIX, limits=LIMITS
    )
    locked = authority.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"x"),
    )
    pairs = [
        (made.certificate, other.key),
        (node.certificate, node.key),
        (b"", b""),
        (made.certificate, locked),
        (made.key, made.certificate),
    ]
    for certificate, key in pairs:
        with pytest.raises(Refused, match="not a pair"):
            read_authority(certificate, key)


def cert(folder, *args):
    return status_of(["cert", *args, "--folder", str(folder)])


def test_init_and_issue_write_keys_for_their_owner_alone_and_print_the_flags(tmp_path, capsys):
    folder = tmp_path / "new" / "tls"
    assert cert(folder, "init") == 0
    capsys.readouterr()
    assert cert(folder, "issue", "attic", "--host", "10.0.0.2", "--host", "attic.lan") == 0
    flags = capsys.readouterr().out.split()
    assert flags[::2] == ["--tls-cert", "--tls-key", "--tls-ca"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {
        "ca.pem", "ca.key", "attic.pem", "attic.key",
    }  # fmt: skip
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = TlsFiles(*flags[1::2])
    for context in (listening_tls(files), dialling_tls(files)):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_the_folder_is_beside_the_configuration_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert status_of(["cert", "init"]) == 0
    assert status_of(["cert", "issue", "attic"]) == 0
    assert str(tmp_path / "kakeya" / "tls" / "attic.key") in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path, capsys):
    assert cert(tmp_path, "init") == 0
    assert cert(tmp_path, "issue", "attic") == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for again in (["init"], ["issue", "attic"]):
        capsys.readouterr()
        assert cert(tmp_path, *again) == 1
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert "is there already" in said.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_link_in_a_files_place_is_not_followed(tmp_path):
    folder, elsewhere = tmp_path / "tls", tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    (folder / "ca.key").symlink_to(elsewhere)
    assert cert(folder, "init") == 1
    assert not elsewhere.exists()


def test_a_folder_that_others_may_write_in_is_refused(tmp_path, capsys):
    tmp_path.chmod(0o777)
    assert cert(tmp_path, "init") == 1
    assert "others may write" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "status", "why"),
    [
        (["issue", "attic"], 1, "kakeya cert init"),
        (["issue", "ca"], 2, "the authority's own"),
        (["issue"], 2, "NAME"),
        (["init", "--name", ""], 2, "1 to 64"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, capsys, args, status, why):
    assert cert(tmp_path, *args) == status
    said = capsys.readouterr().err
    assert why in said
    assert "Traceback" not in said


# The flags.


@pytest.mark.spec("N-12")
@pytest.mark.parametrize("given", TLS_KEYS)
def test_a_third_of_the_tls_settings_is_an_error_that_names_the_rest(given):
    rest = " and ".join(key for key in TLS_KEYS if key != given)
    for flags, env in (({given: "x"}, {}), ({}, {env_name(given): "x"})):
        with pytest.raises(ConfigError, match=f"{given} is given without {rest}"):
            load(flags=flags, env=env, toml_text="")
    whole = load(flags=dict.fromkeys(TLS_KEYS, "x"), env={}, toml_text="").settings
    assert (whole.tls_cert, whole.tls_key, whole.tls_ca) == ("x", "x", "x")


@pytest.mark.spec("N-12")
def test_half_a_tls_setting_ends_with_status_78(capsys):
    assert status_of(["run", "--tls-cert", "x", "--tls-key", "y"]) == 78
    assert "tls_ca" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["cert", "key", "ca"])
def test_a_file_that_is_not_there_is_named_by_its_flag(tmp_path, wrong):
    files = tls_files(tmp_path)
    os.unlink(files[wrong])
    for load_context in (listening_tls, dialling_tls):
        with pytest.raises(Refused, match=f"cannot read --tls-{wrong} .*: No such file"):
            load_context(TlsFiles(files["cert"], files["key"], files["ca"]))


@pytest.mark.parametrize("wrong", ["cert", "key", "ca"])
@pytest.mark.parametrize("content", ["garbage", "another", "locked"])
def test_files_that_do_not_go_together_are_refused_without_a_prompt(tmp_path, wrong, content):
    files = tls_files(tmp_path)
    locked = read_authority(
        (tmp_path / "ca.pem").read_bytes(), (tmp_path / "ca.key").read_bytes()
    ).key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    another = (tmp_path / "ca.key").read_bytes()
    raw = {"garbage": b"\0not PEM", "another": another, "locked": locked}[content]
    with open(files[wrong], "wb") as file:
        file.write(raw)
    with pytest.raises(Refused, match="do not go together") as caught:
        listening_tls(TlsFiles(files["cert"], files["key"], files["ca"]))
    assert "\n" not in caught.value.why


def tls_files(folder):
    assert cert(folder, "init") == 0
    assert cert(folder, "issue", "attic") == 0
    return {
        "cert": str(folder / "attic.pem"),
        "key": str(folder / "attic.key"),
        "ca": str(folder / "ca.pem"),
    }
