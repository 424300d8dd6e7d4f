"""The contract's file, its table in specs/wire.md and the generated tree are one thing."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.tensor import CARRIERS
from tests.spec_tables import SPECS, table

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / "proto" / "kakeya" / "v1" / "distributed.proto"
SCALARS = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name
    for name in ("double", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32")
}


def type_name(field) -> str:
    named = field.message_type or field.enum_type
    return named.name if named else SCALARS[field.type]


@pytest.mark.spec("W-01")
def test_the_contract_is_kept_byte_for_byte():
    known = re.search(r"W-01.*`([0-9a-f]{64})`", (SPECS / "wire.md").read_text())
    assert hashlib.sha256(CONTRACT.read_bytes()).hexdigest() == known[1]


@pytest.mark.spec("W-02")
def test_the_field_table_is_the_descriptors():
    rows = []
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            label = "repeated" if field.is_repeated else "singular"
            rows.append((message.name, field.name, str(field.number), type_name(field), label))
        if not message.fields:
            rows.append((message.name, "", "", "", ""))
    assert table("wire.md", "message", "field", "number", "type", "label") == rows


@pytest.mark.spec("W-02")
def test_the_method_and_role_tables_are_the_descriptors():
    methods = [
        (service.name, method.name, method.input_type.name, method.output_type.name)
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    assert table("wire.md", "service", "method", "request", "response") == methods
    assert table("wire.md", "role", "number") == [
        (name, str(number)) for name, number in pb.CapabilityRole.items()
    ]


@pytest.mark.spec("W-04")
def test_the_dtype_table_is_the_codecs():
    assert table("wire.md", "dtype", "carried by", "bytes") == [
        (name, carrier.name, str(carrier.itemsize)) for name, carrier in CARRIERS.items()
    ]


@pytest.mark.spec("W-03")
def test_the_generated_tree_is_what_the_compiler_makes_today(tmp_path):
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    tool = tmp_path / "tests" / "tools" / "compile_proto.py"
    tool.parent.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "tools" / "compile_proto.py", tool)
    made = tmp_path / "src" / "kakeya" / "wire" / "pb"
    made.mkdir(parents=True)
    done = subprocess.run([sys.executable, str(tool)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert texts(made) == texts(ROOT / "src" / "kakeya" / "wire" / "pb")


def texts(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*.py*"))
        if path.suffix in (".py", ".pyi") and path.parent != folder
    }
