"""What must never stand in the source: ways to run what a file or a peer sends."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
SOURCES = sorted(SRC.rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {
    "eval": "eval runs text",
    "exec": "exec runs text",
    "compile": "compile makes code of text",
    "__import__": "__import__ runs what a name says",
    "torch.load": "torch.load unpickles: safetensors only",
    "torch.jit.load": "torch.jit.load runs what it reads",
    "torch.hub.load": "torch.hub.load runs remote code",
    "numpy.load": "numpy.load can unpickle",
    "os.system": "a shell",
    "os.popen": "a shell",
}


def findings(source: str) -> list[str]:
    """`line: why` for every rule broken in `source`."""
    tree = ast.parse(source)
    names = _names(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [f"{node.lineno}: imports {each}" for each in _imported(node) & MODULES]
        elif isinstance(node, ast.Call):
            found += [f"{node.lineno}: {why}" for why in _wrong_in_call(node, names)]
    return found


def _names(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: `np` → numpy, `load` → torch.load."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.asname:
                    names[each.asname] = each.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                names[each.asname or each.name] = f"{node.module}.{each.name}"
    return names


def _imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {each.name.split(".")[0] for each in node.names}
    return {(node.module or "").split(".")[0]}


def _wrong_in_call(node: ast.Call, names: dict[str, str]) -> list[str]:
    first, *rest = ast.unparse(node.func).split(".")
    called = ".".join([names.get(first, first), *rest])
    wrong = [CALLS[called]] if called in CALLS else []
    for keyword in node.keywords:
        is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in ("trust_remote_code", "allow_pickle", "shell") and not is_off:
            wrong.append(f"{keyword.arg} is on")
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SRC)))
def test_the_source_runs_nothing_it_reads(path):
    assert findings(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import dill as d",
        "import marshal",
        "eval('1')",
        "exec(text)",
        "import torch\ntorch.load(path)",
        "import torch as t\nt.load(path, weights_only=True)",
        "from torch import load\nload(path)",
        "import numpy as np\nnp.load(path)",
        "from_pretrained(name, trust_remote_code=True)",
        "from_pretrained(name, trust_remote_code=flag)",
        "subprocess.run(line, shell=True)",
        "import os\nos.system('ls')",
    ],
)
def test_the_gate_sees(source):
    assert findings(source)


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile('x')",
        "model.eval()",
        "subprocess.run(line, shell=False)",
        "from safetensors import safe_open\nsafe_open(path)",
        "import json\njson.load(file)",
    ],
)
def test_the_gate_lets_pass(source):
    assert findings(source) == []
