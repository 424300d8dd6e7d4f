"""Limits of the RPC layer; every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RpcLimits:
    # A full K/V restore of a long prompt is about 400 MB on the wire.
    max_message_bytes: int = 512 << 20
    # Gossip, health and reflection: a card of 4,000 entries is about 400 KB.
    max_small_message_bytes: int = 4 << 20
    # Bytes of messages held for one connection, and for all of them together.
    connection_budget_bytes: int = 1 << 30
    node_budget_bytes: int = 2 << 30
    # What a peer may send before anything is known of its message; larger messages are granted
    # their own room once their prefix was read.
    stream_window_bytes: int = 256 << 10
    connection_window_bytes: int = 64 << 20
    # Calls open at once on one connection, each way.
    max_streams: int = 128
    max_connections: int = 256
    # Watchers of health at once; each costs a stream and a task.
    max_health_watchers: int = 256
    # Peers that a node keeps a channel to; those without a connection are forgotten first.
    max_channels: int = 8192
    # Calls that may wait for a free stream or for a dial, per peer.
    max_waiting_calls: int = 1024
    # Frames: the largest we take, and the largest we send.
    max_frame_bytes: int = 1 << 20
    send_frame_bytes: int = 256 << 10
    # One header block as sent, and its fields as RFC 9113 counts them.
    max_header_bytes: int = 16 << 10
    # Bytes queued towards the peer before senders wait.
    high_water_bytes: int = 1 << 20
    # Answers a peer provokes (PING, SETTINGS, RST) while it does not read.
    max_unread_answer_bytes: int = 1 << 20
    read_bytes: int = 256 << 10
    # Addresses tried of those that a peer's name stands for.
    max_addresses: int = 8
    dial_s: float = 5.0
    # The next address of a name is tried when one has not answered for this long (RFC 8305).
    dial_stagger_s: float = 0.25
    # TLS, the preface, the first SETTINGS and their acknowledgement, each.
    handshake_s: float = 5.0
    # A frame or a header block, from its first byte to its last.
    header_s: float = 10.0
    # A message of n bytes is whole after message_s + n / min_message_bytes_per_s, or refused.
    message_s: float = 30.0
    min_message_bytes_per_s: int = 256 << 10
    # A peer that opens no window, or reads nothing, for this long is given up.
    stall_s: float = 60.0
    idle_s: float = 300.0
    keepalive_s: float = 30.0
    keepalive_ack_s: float = 5.0
    # How often the limits above are looked at.
    check_s: float = 1.0
    # The last frames of a connection get this long to leave.
    farewell_s: float = 1.0
    backoff_s: float = 0.1
    max_backoff_s: float = 3.0
    # Frames a peer can send cheaply and we answer or act on: sustained rate; bursts of 4 s.
    max_controls_per_s: float = 250.0
    max_resets_per_s: float = 500.0
    # grpcio acknowledges small reads one by one.
    max_window_updates_per_s: float = 50_000.0
