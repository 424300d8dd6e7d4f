"""Compiles proto/ into src/kakeya/wire/pb/: messages, purerpc stubs, and type stubs for both.

`python tests/tools/compile_proto.py`, or `just proto`.  The generated tree is checked in.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
PB = ROOT / "src" / "kakeya" / "wire" / "pb"
PACKAGE = "kakeya.wire.pb"

SERVICE = re.compile(r"^service (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
RPC = re.compile(r"rpc (\w+)\((stream )?([\w.]+)\)\s*returns \((stream )?([\w.]+)\)")
CLIENT = re.compile(r'purerpc\.Client\(\s*("[\w.]+"),\s*channel\s*\)')


def main() -> None:
    sources = sorted(str(p.relative_to(PROTO)) for p in PROTO.rglob("*.proto"))
    flags = [f"--{kind}_out={PB}" for kind in ("python", "pyi", "purerpc")]
    # The plugin lies beside the interpreter; nobody has to have activated its environment.
    plugin = Path(sys.executable).with_name("protoc-gen-purerpc")
    flags.append(f"--plugin=protoc-gen-purerpc={plugin}")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *flags, *sources]
    subprocess.run(command, check=True, cwd=ROOT)
    for source in sources:
        write_stub_types(Path(source))
    for generated in sorted(PB.rglob("*.py")):
        point_imports_here(generated)
    for folder in {p.parent for p in PB.rglob("*_pb2.py")}:
        while folder != PB:
            (folder / "__init__.py").touch()
            folder = folder.parent


def point_imports_here(path: Path) -> None:
    """protoc writes imports from the root of proto/; ours live inside the package."""
    text = path.read_text()
    text = re.sub(r"^import ([\w.]+_pb2) as", rf"import {PACKAGE}.\1 as", text, flags=re.MULTILINE)
    text = re.sub(rf"{PACKAGE}\.google\.protobuf", "google.protobuf", text)
    # The channel makes its own stub methods: they end a call when its iterator is closed.
    text = CLIENT.sub(r"channel.client(\1)", text)
    path.write_text(text)


def write_stub_types(source: Path) -> None:
    """A .pyi beside the purerpc stubs, which carry no types of their own."""
    text = re.sub(r"//[^\n]*", "", (PROTO / source).read_text())
    base = source.with_suffix("")
    grpc_file = PB / base.parent / f"{base.name}_grpc.py"
    services = SERVICE.findall(text)
    if not services:
        grpc_file.unlink(missing_ok=True)
        return
    module = f"{PACKAGE}.{'.'.join(base.parts)}_pb2"
    lines = [
        "from collections.abc import AsyncGenerator, AsyncIterator, Sequence",
        "from typing import Any",
        "",
        "import purerpc",
        "",
        f"import {module} as pb",
        "",
        "Metadata = Sequence[tuple[str, str | bytes]]",
    ]
    for name, body in services:
        rpcs = RPC.findall(body)
        lines += ["", f"class {name}Servicer(purerpc.Servicer):"]
        lines += [servicer_line(*rpc) for rpc in rpcs]
        lines += ["    @property", "    def service(self) -> purerpc.Service: ..."]
        lines += ["", f"class {name}Stub:", "    def __init__(self, channel: Any) -> None: ..."]
        lines += [stub_line(*rpc) for rpc in rpcs]
    grpc_file.with_suffix(".pyi").write_text("\n".join(lines) + "\n")


def servicer_line(name: str, many_in: str, request: str, many_out: str, reply: str) -> str:
    taken = f"AsyncIterator[pb.{request}]" if many_in else f"pb.{request}"
    if many_out:
        return f"    def {name}(self, input_message: {taken}) -> AsyncIterator[pb.{reply}]: ..."
    return f"    async def {name}(self, input_message: {taken}) -> pb.{reply}: ..."


def stub_line(name: str, many_in: str, request: str, many_out: str, reply: str) -> str:
    taken = f"AsyncIterator[pb.{request}]" if many_in else f"pb.{request}"
    tail = f"message: {taken}, *, metadata: Metadata | None = None"
    if many_out:
        return f"    def {name}(self, {tail}) -> AsyncGenerator[pb.{reply}, None]: ..."
    return f"    async def {name}(self, {tail}) -> pb.{reply}: ..."


if __name__ == "__main__":
    main()
