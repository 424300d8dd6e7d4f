"""Three real nodes on this host: sockets, signals, kill -9."""

from __future__ import annotations

import signal

import pytest

from tests.cli.nodes import eventually, fleet_view, run_kakeya, running_node

# Short lives, so that a death is seen within the test; the rules are the same.
QUICK = (
    "--verifier", "none", "--fleet-interval", "0.5", "--fleet-ttl", "6", "--log-format", "json",
)  # fmt: skip


@pytest.mark.spec("N-05", "N-07")
def test_three_nodes_with_one_seed_see_each_other_and_lose_the_dead(tmp_path):
    with (
        running_node(tmp_path, *QUICK, "--node-id", "attic") as attic,
        running_node(tmp_path, *QUICK, "--node-id", "cellar", "--peer", attic.grpc) as cellar,
    ):
        with running_node(tmp_path, *QUICK, "--node-id", "porch", "--peer", attic.grpc) as porch:
            for node in (attic, cellar, porch):
                eventually(lambda n=node: len(fleet_view(n, tmp_path)) == 3)
            porch.kill()
        for node in (attic, cellar):
            eventually(lambda n=node: set(fleet_view(n, tmp_path)) == {"attic", "cellar"})
        with running_node(tmp_path, *QUICK, "--node-id", "porch", "--peer", attic.grpc) as again:
            assert again.grpc != porch.grpc
            for node in (attic, cellar):
                eventually(
                    lambda n=node: (
                        fleet_view(n, tmp_path).get("porch", {}).get("grpc_address") == again.grpc
                    )
                )


def test_a_restarted_node_has_its_name_again(tmp_path):
    with running_node(tmp_path, *QUICK) as first:
        first.kill()
    with running_node(tmp_path, *QUICK) as second:
        assert second.node_id == first.node_id


def test_two_unnamed_nodes_on_one_host_are_two_nodes(tmp_path):
    with running_node(tmp_path, *QUICK) as first, running_node(tmp_path, *QUICK) as second:
        assert first.node_id != second.node_id


@pytest.mark.spec("N-05", "N-06")
def test_a_taken_port_is_one_line_and_status_1(tmp_path):
    with running_node(tmp_path, *QUICK) as node:
        port = node.grpc.rpartition(":")[2]
        done = run_kakeya("run", *QUICK, "--port", port, home=tmp_path)
        assert done.returncode == 1
        assert f"port {port}" in done.stderr
        assert "in use" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.spec("N-02")
def test_sigterm_drains_and_the_others_see_no_models_left(tmp_path):
    with (
        running_node(tmp_path, *QUICK, "--node-id", "attic") as attic,
        running_node(tmp_path, *QUICK, "--node-id", "cellar", "--peer", attic.grpc) as cellar,
    ):
        eventually(lambda: fleet_view(attic, tmp_path).get("cellar", {}).get("models"))
        assert cellar.end() == 0
        eventually(lambda: not fleet_view(attic, tmp_path).get("cellar", {}).get("models"))


@pytest.mark.spec("N-02")
def test_sigint_ends_with_130(tmp_path):
    with running_node(tmp_path, *QUICK) as node:
        assert node.end(signal.SIGINT) == 130


@pytest.mark.spec("N-04")
def test_a_bind_beyond_loopback_needs_a_key_or_a_word(tmp_path):
    done = run_kakeya("run", *QUICK, "--port", "0", "--host", "0.0.0.0", home=tmp_path)
    assert done.returncode == 78
    assert "--insecure" in done.stderr
    with running_node(tmp_path, *QUICK, "--host", "0.0.0.0", "--insecure") as node:
        assert fleet_view_address(node, tmp_path)


def fleet_view_address(node, home):
    port = node.grpc.rpartition(":")[2]
    done = run_kakeya("fleet", "--node", f"127.0.0.1:{port}", home=home)
    return done.returncode == 0 and node.node_id in done.stdout


def test_fleet_without_a_node_says_so_with_status_69(tmp_path):
    done = run_kakeya("fleet", "--port", "1", home=tmp_path)
    assert done.returncode == 69
    assert "no node answers" in done.stderr
    done = run_kakeya("fleet", "--node", "127.0.0.1:1", home=tmp_path)
    assert done.returncode == 69


def test_another_fleets_node_stays_out(tmp_path):
    with (
        running_node(tmp_path, *QUICK, "--node-id", "attic") as attic,
        running_node(
            tmp_path, *QUICK, "--node-id", "stranger", "--fleet-name", "b", "--peer", attic.grpc
        ) as stranger,
        running_node(tmp_path, *QUICK, "--node-id", "cellar", "--peer", attic.grpc),
    ):
        eventually(lambda: "cellar" in fleet_view(attic, tmp_path))
        assert "stranger" not in fleet_view(attic, tmp_path)
        done = run_kakeya(
            "fleet", "--json", "--fleet-name", "b", "--node", stranger.grpc, home=tmp_path
        )
        assert '"cellar"' not in done.stdout
