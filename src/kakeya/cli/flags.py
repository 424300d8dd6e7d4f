"""The flags of `kakeya run` and of an embedded node, and how they meet file and environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from kakeya import logs
from kakeya.config import settings
from kakeya.config.settings import ConfigError, Loaded, Settings

NODE = Group("The node")
HTTP = Group("HTTP")
MODEL = Group("Models")
LIMITS = Group("Limits")
SECURITY = Group("Security")
LOGS = Group("Logs")


def _flag(group: Group, text: str, **more: Any) -> Parameter:
    return Parameter(group=group, help=text, negative="", show_default=False, **more)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NodeFlags:
    """None means: not given here; then the environment, the file and the default decide."""

    host: Annotated[str | None, _flag(NODE, "Address to bind. Default 127.0.0.1.")] = None
    port: Annotated[int | None, _flag(NODE, "gRPC port, 0 for any. Default 50051.")] = None
    http_port: Annotated[
        str | None,
        _flag(HTTP, "Port of the OpenAI API, 0 for any, or off. Default 8051."),
    ] = None
    http_host: Annotated[
        str | None,
        _flag(HTTP, "Address to bind it. Default: that of --host where safe, else loopback."),
    ] = None
    http_key_file: Annotated[
        str | None, _flag(HTTP, "File with the API key that clients must send.")
    ] = None
    http_origin: Annotated[
        tuple[str, ...] | None, _flag(HTTP, "Web origin whose pages may ask; repeatable.")
    ] = None
    advertise: Annotated[str | None, _flag(NODE, "HOST[:PORT] that peers reach this node at.")] = (
        None
    )
    peer: Annotated[
        tuple[str, ...] | None, _flag(NODE, "HOST:PORT of another node; repeatable.")
    ] = None
    fleet_name: Annotated[
        str | None, _flag(NODE, "Only nodes of one fleet name talk. Default kakeya.")
    ] = None
    node_id: Annotated[
        str | None, _flag(NODE, "This node's name in the fleet. Default: made once and kept.")
    ] = None
    fleet_interval: Annotated[
        float | None, _flag(NODE, "Seconds between gossip rounds. Default 10.")
    ] = None
    fleet_ttl: Annotated[
        float | None, _flag(NODE, "Seconds a card lives unrenewed. Default 120.")
    ] = None
    verifier: Annotated[
        str | None, _flag(MODEL, "smollm2, tiny, none, a folder, or org/name. Default smollm2.")
    ] = None
    proposer: Annotated[
        tuple[str, ...] | None, _flag(MODEL, "Drafter to serve; repeatable. Default ngram.")
    ] = None
    backend: Annotated[str | None, _flag(MODEL, "auto, torch or mlx.")] = None
    dtype: Annotated[str | None, _flag(MODEL, "auto, float32 or bfloat16.")] = None
    kv: Annotated[str | None, _flag(MODEL, "K/V kept: full, window or restored.")] = None
    sink: Annotated[
        int | None, _flag(MODEL, "First positions kept in window and restored mode.")
    ] = None
    window: Annotated[
        int | None, _flag(MODEL, "Last positions kept in window and restored mode.")
    ] = None
    num_drafts: Annotated[str | None, _flag(MODEL, "auto, or drafts a block.")] = None
    draft_on: Annotated[
        str | None, _flag(MODEL, "auto, local, remote, or the node_id that drafts.")
    ] = None
    exact: Annotated[str | None, _flag(MODEL, "guarded, or strict: one token a verification.")] = (
        None
    )
    offline: Annotated[bool | None, _flag(MODEL, "Never download a model.")] = None
    max_message_bytes: Annotated[
        str | None, _flag(LIMITS, "Largest gRPC message, such as 64MiB.")
    ] = None
    max_sessions: Annotated[
        int | None, _flag(LIMITS, "DFlash sessions open at once. Default 64.")
    ] = None
    session_idle: Annotated[
        float | None, _flag(LIMITS, "Seconds a seeded session may be silent. Default 60.")
    ] = None
    kept_prefixes: Annotated[
        int | None, _flag(LIMITS, "Prompts kept for texts that begin alike, 0: none. Default 4.")
    ] = None
    memory_limit: Annotated[
        str | None,
        _flag(LIMITS, "Memory for weights, drafters and K/V, such as 8GiB; 0: K/V up to 4 GiB."),
    ] = None
    set_: Annotated[
        tuple[str, ...] | None,
        _flag(LIMITS, "SECTION.KEY=VALUE for any other limit; repeatable.", name="--set"),
    ] = None
    fleet_key_file: Annotated[str | None, _flag(SECURITY, "File with the fleet's shared key.")] = (
        None
    )
    tls_cert: Annotated[
        str | None, _flag(SECURITY, "This node's certificate (PEM), see `kakeya cert`.")
    ] = None
    tls_key: Annotated[str | None, _flag(SECURITY, "The certificate's key (PEM).")] = None
    tls_ca: Annotated[
        str | None, _flag(SECURITY, "The fleet's CA (PEM): only its nodes are talked to.")
    ] = None
    insecure: Annotated[
        bool | None, _flag(SECURITY, "Bind beyond loopback without key or TLS.")
    ] = None
    log_level: Annotated[str | None, _flag(LOGS, "debug, info, warning or error.")] = None
    log_format: Annotated[str | None, _flag(LOGS, "auto, pretty or json.")] = None
    log_file: Annotated[
        str | None,
        _flag(LOGS, "File for a node's logs, instead of stderr; kept to four of 10 MiB."),
    ] = None
    config: Annotated[
        str | None, _flag(NODE, "Configuration file (TOML).", name=["--config", "-c"])
    ] = None


def load_settings(flags: NodeFlags | None, env: Mapping[str, str] = os.environ) -> Loaded:
    """Raises ConfigError for whatever is wrong in flags, environment or file."""
    given = flags or NodeFlags()
    values = {
        each.name: getattr(given, each.name)
        for each in fields(given)
        if each.name not in ("config", "set_")
    }
    for pair in given.set_ or ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair!r} is not SECTION.KEY=VALUE")
        values[key] = value
    return settings.load(flags=values, env=env, toml_text=_config_text(given.config, env))


def load_command_settings(flags: NodeFlags | None) -> Settings:
    """Settings of a command that may run a node of its own: quiet unless a level was asked for."""
    loaded = load_settings(flags)
    if loaded.origins["log_level"] != "default":
        logs.configure(loaded.settings.log_level, loaded.settings.log_format)
    return loaded.settings


def config_path(env: Mapping[str, str]) -> Path:
    """Where the configuration file is looked for without `-c`."""
    base = env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "~")).expanduser() / ".config"
    return Path(base) / "kakeya" / "config.toml"


def state_folder(env: Mapping[str, str]) -> Path:
    """Where node_id, last stamp and addresses are kept."""
    base = env.get("XDG_STATE_HOME") or Path(env.get("HOME", "~")).expanduser() / ".local/state"
    return Path(base) / "kakeya"


def _config_text(given: str | None, env: Mapping[str, str]) -> str:
    asked = given or env.get("KAKEYA_CONFIG")
    path = Path(asked) if asked else config_path(env)
    if not asked and not path.exists():
        return ""
    try:
        with path.open("rb") as file:
            return file.read(settings.MAX_FILE_BYTES + 1).decode()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
