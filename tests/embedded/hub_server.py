"""A server that speaks as the Hub does, on this host, and misbehaves as it is told."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "a" * 40
REPO = "org/model"


@dataclass
class Hub:
    """files: name → what it holds.  The rest is how it misbehaves, and what it saw.

    announced: name → what the list says it holds instead.  cuts: name → bytes after which each of
    its next connections ends, one by one.  fails: statuses of the next answers to files.
    """

    files: dict[str, bytes]
    announced: dict[str, bytes] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    fails: list[int] = field(default_factory=list)
    token: str = ""
    ignores_ranges: bool = False
    redirects_to: str = ""
    hangs: bool = False
    stalls: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    address: str = ""

    def names_asked(self) -> list[str]:
        """Files asked for, in order."""
        return [path.rpartition("/")[2] for path, _ in self.asked if "/resolve/" in path]

    def ranges_of(self, name: str) -> list[str]:
        return [each.get("range", "") for path, each in self.asked if path.endswith("/" + name)]

    def siblings(self) -> list[dict[str, Any]]:
        return [_sibling(name, self.announced.get(name, held)) for name, held in self.files.items()]


def _sibling(name: str, held: bytes) -> dict[str, Any]:
    blob_id = hashlib.sha1(b"blob %d\0" % len(held) + held).hexdigest()
    found: dict[str, Any] = {"rfilename": name, "size": len(held), "blobId": blob_id}
    if name.endswith((".safetensors", ".bin")):
        sha256 = hashlib.sha256(held).hexdigest()
        found["lfs"] = {"sha256": sha256, "size": len(held), "pointerSize": 134}
    return found


@contextmanager
def serving(files: Mapping[str, bytes], **more: Any) -> Iterator[Hub]:
    """The server runs in threads of its own until the end."""
    hub = Hub(dict(files), **more)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(hub, self)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.stalls.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(hub: Hub, asked: BaseHTTPRequestHandler) -> None:
    path = asked.path.partition("?")[0]
    hub.asked.append((path, {name.lower(): value for name, value in asked.headers.items()}))
    if hub.token and asked.headers.get("Authorization") != f"Bearer {hub.token}":
        return _say(asked, 401, b"")
    if path == f"/api/models/{REPO}/revision/main":
        listed = {"id": REPO, "sha": COMMIT, "siblings": hub.siblings()}
        return _say(asked, 200, json.dumps(listed).encode())
    name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
    if name not in hub.files:
        return _say(asked, 404, b"")
    if hub.fails:
        return _say(asked, hub.fails.pop(0), b"")
    if hub.redirects_to:
        return _say(asked, 302, b"", Location=hub.redirects_to + asked.path)
    return _send(hub, asked, name)


def _send(hub: Hub, asked: BaseHTTPRequestHandler, name: str) -> None:
    held, at = hub.files[name], 0
    said = re.fullmatch(r"bytes=(\d+)-", asked.headers.get("Range", ""))
    if said and not hub.ignores_ranges:
        at = int(said[1])
        if at >= len(held):
            return _say(asked, 416, b"")
        asked.send_response(206)
        asked.send_header("Content-Range", f"bytes {at}-{len(held) - 1}/{len(held)}")
    else:
        asked.send_response(200)
    asked.send_header("Content-Length", str(len(held) - at))
    asked.end_headers()
    cuts = hub.cuts.get(name, [])
    end = min(len(held), at + cuts.pop(0)) if cuts else len(held)
    asked.wfile.write(held[at:end])
    asked.wfile.flush()
    hub.sent[name] = hub.sent.get(name, 0) + end - at
    if end < len(held):
        # A connection that ends in the middle, or one that hangs until somebody lets go.
        if hub.hangs:
            hub.stalls.wait(60)
        asked.close_connection = True
    return None


def _say(asked: BaseHTTPRequestHandler, status: int, body: bytes, **fields: str) -> None:
    asked.send_response(status)
    for name, value in fields.items():
        asked.send_header(name, value)
    asked.send_header("Content-Length", str(len(body)))
    asked.end_headers()
    asked.wfile.write(body)


__all__ = ["COMMIT", "REPO", "Hub", "serving"]
