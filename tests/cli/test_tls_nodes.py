"""Real nodes that show one another certificates or know a key, and strangers who do not."""

from __future__ import annotations

import json
import time

import pytest

from kakeya.cli.app import status_of
from tests.cli.nodes import eventually, run_kakeya, running_node

QUICK = (
    "--fleet-interval", "0.5", "--fleet-ttl", "6", "--log-format", "json", "--log-level", "debug",
)  # fmt: skip
DRAFTING = (*QUICK, "--verifier", "none")
KEY, WRONG_KEY = "right-0123456789abcdef", "wrong-0123456789abcdef"
# A refused connection is no wait: below any call's deadline, above the start of a slow Python.
FAST_S = 20.0


def home_with(folder, **settings):
    """A home whose configuration file says `settings`: nodes and commands in it go by them."""
    place = folder / "config" / "kakeya"
    place.mkdir(parents=True)
    lines = [f"{key} = {json.dumps(str(value))}" for key, value in settings.items()]
    (place / "config.toml").write_text("\n".join(lines))
    return folder


def tls_home(folder, ca_folder, name, *hosts):
    flags = [part for host in hosts for part in ("--host", host)]
    assert status_of(["cert", "issue", name, "--folder", str(ca_folder), *flags]) == 0
    return home_with(
        folder,
        tls_cert=ca_folder / f"{name}.pem",
        tls_key=ca_folder / f"{name}.key",
        tls_ca=ca_folder / "ca.pem",
    )


def new_ca(folder):
    assert status_of(["cert", "init", "--folder", str(folder)]) == 0
    return folder


def view(node, home):
    """Who is in the fleet as the node says it to a command in `home`."""
    port = node.grpc.rpartition(":")[2]
    done = run_kakeya("fleet", "--json", "--node", f"127.0.0.1:{port}", home=home)
    assert done.returncode == 0, done.stderr
    return {row["node_id"]: row for row in json.loads(done.stdout)["nodes"]}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    pytest.importorskip("transformers")
    from tests.live.checkpoint import write_folder

    return write_folder(tmp_path_factory.mktemp("checkpoint"), seed=3)


@pytest.mark.spec("N-12", "R-16")
def test_nodes_of_one_ca_draft_for_each_other_over_tls(tmp_path, checkpoint):
    ca = new_ca(tmp_path / "tls")
    at_attic = tls_home(tmp_path / "a", ca, "attic")
    at_cellar = tls_home(tmp_path / "c", ca, "cellar")
    with (
        running_node(
            at_attic, *QUICK, "--verifier", str(checkpoint), "--node-id", "attic"
        ) as attic,
        running_node(at_cellar, *DRAFTING, "--node-id", "cellar", "--peer", attic.grpc) as cellar,
    ):
        eventually(lambda: view(attic, at_attic).get("cellar", {}).get("models"))
        assert "attic" in view(cellar, at_cellar)
        done = run_kakeya(
            "generate", "--json", "--raw", "--node", attic.grpc, "--max-tokens", "120",
            "--draft-on", "cellar", "--num-drafts", "4", "ab ab ab ab ab ab ab",
            home=at_attic,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "cellar" in {block["drafted_on"] for block in json.loads(done.stdout)["blocks"]}


@pytest.mark.spec("N-12", "R-16")
def test_a_node_without_a_certificate_of_the_ca_never_enters(tmp_path):
    ca, other_ca = new_ca(tmp_path / "tls"), new_ca(tmp_path / "other")
    at_attic = tls_home(tmp_path / "a", ca, "attic")
    at_cellar = tls_home(tmp_path / "c", ca, "cellar")
    at_stranger = tls_home(tmp_path / "s", other_ca, "stranger")
    at_plain = home_with(tmp_path / "p")
    with running_node(at_attic, *DRAFTING, "--node-id", "attic") as attic:
        peer = ("--peer", attic.grpc)
        with (
            running_node(at_stranger, *DRAFTING, *peer, "--node-id", "stranger") as stranger,
            running_node(at_plain, *DRAFTING, *peer, "--node-id", "plain") as plain,
            running_node(at_cellar, *DRAFTING, *peer, "--node-id", "cellar"),
        ):
            # Who came last is in; by then the others have tried at least as often.
            eventually(lambda: "cellar" in view(attic, at_attic))
            assert set(view(attic, at_attic)) == {"attic", "cellar"}
            assert set(view(stranger, at_stranger)) == {"stranger"}
            assert set(view(plain, at_plain)) == {"plain"}


@pytest.mark.spec("N-12")
def test_a_plain_command_to_a_tls_node_and_the_reverse_fail_fast(tmp_path):
    at_attic = tls_home(tmp_path / "a", new_ca(tmp_path / "tls"), "attic")
    at_plain = home_with(tmp_path / "p")
    with (
        running_node(at_attic, *DRAFTING) as attic,
        running_node(at_plain, *DRAFTING) as plain,
    ):
        for node, home in ((attic, at_plain), (plain, at_attic)):
            began_s = time.monotonic()
            done = run_kakeya("fleet", "--node", node.grpc, home=home)
            assert time.monotonic() - began_s < FAST_S
            assert done.returncode == 69
            assert done.stderr.count("\n") == 1
            assert "Traceback" not in done.stderr
        # And nothing of it stays: the node still answers those it knows.
        assert view(attic, at_attic)


@pytest.mark.spec("N-04", "N-12")
def test_a_bind_beyond_loopback_with_tls_needs_no_insistence(tmp_path):
    ca = new_ca(tmp_path / "tls")
    home = tls_home(tmp_path / "a", ca, "attic", "10.0.0.2")
    files = {"cert": "attic.pem", "key": "attic.key", "ca": "ca.pem"}
    flags = [part for what, name in files.items() for part in (f"--tls-{what}", str(ca / name))]
    with running_node(home_with(tmp_path / "n"), *DRAFTING, *flags, "--host", "0.0.0.0") as node:
        assert node.node_id in view(node, home)


@pytest.mark.spec("N-12")
@pytest.mark.parametrize("missing", ["tls_cert", "tls_key", "tls_ca"])
def test_a_file_that_is_missing_ends_the_start_in_one_line(tmp_path, missing):
    ca = new_ca(tmp_path / "tls")
    home = tls_home(tmp_path / "a", ca, "attic")
    flag = f"--{missing.replace('_', '-')}"
    done = run_kakeya("run", *DRAFTING, flag, str(tmp_path / "nowhere"), home=home)
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert flag in done.stderr


@pytest.mark.spec("R-16")
def test_a_node_with_the_wrong_key_never_enters_and_no_key_is_logged(tmp_path):
    for name, key in (("right", KEY), ("wrong", WRONG_KEY)):
        (tmp_path / f"{name}.key").write_text(key + "\n")
    right = home_with(tmp_path / "r", fleet_key_file=tmp_path / "right.key")
    wrong = home_with(tmp_path / "w", fleet_key_file=tmp_path / "wrong.key")
    none = home_with(tmp_path / "n")
    with running_node(right, *DRAFTING, "--node-id", "attic", "--host", "0.0.0.0") as attic:
        address = f"127.0.0.1:{attic.grpc.rpartition(':')[2]}"
        peer = ("--peer", address)
        with (
            running_node(wrong, *DRAFTING, *peer, "--node-id", "stranger") as stranger,
            running_node(none, *DRAFTING, *peer, "--node-id", "keyless") as keyless,
            running_node(right, *DRAFTING, *peer, "--node-id", "cellar") as cellar,
        ):
            eventually(lambda: "cellar" in view(attic, right))
            assert set(view(attic, right)) == {"attic", "cellar"}
            assert set(view(stranger, wrong)) == {"stranger"}
            refused = run_kakeya("fleet", "--node", address, home=wrong)
            assert refused.returncode != 0
            assert "key" in refused.stderr
            nodes = (attic, stranger, keyless, cellar)
    said = refused.stdout + refused.stderr + "".join(line for n in nodes for line in n.errors)
    assert said
    assert KEY not in said
    assert WRONG_KEY not in said
