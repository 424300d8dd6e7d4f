"""What an operator can set, where a value came from, and the bounds it must keep.

flag > environment (KAKEYA_…) > TOML > default.  Reads no file and no environment itself: the
caller hands both in.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from kakeya.config.decoding import DecodingLimits
from kakeya.config.drafter import DrafterLimits
from kakeya.config.drafting import DraftingLimits
from kakeya.config.fleet import FleetLimits
from kakeya.config.http import HttpLimits
from kakeya.config.node import NodeLimits
from kakeya.config.rpc import RpcLimits
from kakeya.config.sessions import SessionLimits
from kakeya.config.sizes import parse_size
from kakeya.config.verifying import VerifyingLimits

NodeIdText = str
Level = Literal["debug", "info", "warning", "error"]


class ConfigError(Exception):
    """One line for the operator: the key, its value and what it may be."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything `kakeya run` goes by."""

    host: str = "127.0.0.1"
    port: int = 50051
    http_host: str = ""
    http_port: int | Literal["off"] = 8051
    http_key_file: str = ""
    http_origin: tuple[str, ...] = ()
    advertise: str = ""
    peer: tuple[str, ...] = ()
    fleet_name: str = "kakeya"
    node_id: str = ""
    verifier: str = "smollm2"
    proposer: tuple[str, ...] = ("ngram",)
    backend: Literal["auto", "torch", "mlx"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv: Literal["full", "window", "restored"] = "full"
    sink: int = 4
    window: int = 1024
    num_drafts: int | Literal["auto"] = "auto"
    draft_on: str = "auto"
    exact: Literal["guarded", "strict"] = "guarded"
    # Prompts whose K/V stays for texts that begin alike.  It counts against memory_limit, and goes
    # before a generation is refused.
    kept_prefixes: int = 4
    memory_limit: int = 0
    fleet_key_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    insecure: bool = False
    offline: bool = False
    log_level: Level = "info"
    log_format: Literal["auto", "pretty", "json"] = "auto"
    log_file: str = ""
    log_file_bytes: int = 10 << 20
    log_old_files: int = 3
    http: HttpLimits = field(default_factory=HttpLimits)
    rpc: RpcLimits = field(default_factory=RpcLimits)
    fleet: FleetLimits = field(default_factory=FleetLimits)
    drafting: DraftingLimits = field(default_factory=DraftingLimits)
    drafter: DrafterLimits = field(default_factory=DrafterLimits)
    sessions: SessionLimits = field(default_factory=SessionLimits)
    verifying: VerifyingLimits = field(default_factory=VerifyingLimits)
    decoding: DecodingLimits = field(default_factory=DecodingLimits)
    node: NodeLimits = field(default_factory=NodeLimits)


# (smallest, largest), both allowed.  Limits not named here must be > 0 (or ≥ 0 where the
# default is 0).
BOUNDS: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "http_port": (0, 65535),
    "sink": (0, 4096),
    "window": (16, 1 << 20),
    "num_drafts": (0, 64),
    "memory_limit": (0, 1 << 50),
    "log_file_bytes": (4096, 1 << 40),
    # With none the file would never be moved away, and grow for ever.
    "log_old_files": (1, 100),
    "kept_prefixes": (0, 1024),
}
# Flags with a shorter or friendlier name than the keys they set.
ALIASES: dict[str, tuple[str, ...]] = {
    "max_message_bytes": ("rpc.max_message_bytes",),
    "fleet_interval": ("fleet.interval_s",),
    "fleet_ttl": ("fleet.ttl_s",),
    "max_sessions": ("sessions.max_sessions",),
    "session_idle": ("sessions.seeded_s", "sessions.drafting_s"),
}
# All three or none: half a TLS setting would be no TLS, and nobody would notice.
TLS_KEYS = ("tls_cert", "tls_key", "tls_ca")
MAX_FILE_BYTES = 1 << 20
# Variables that are no settings: where the file is, and the two secrets.
NOT_SETTINGS = ("KAKEYA_CONFIG", "KAKEYA_FLEET_KEY", "KAKEYA_HTTP_KEY")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and for every key the origin of its value: flag, environment, file, default."""

    settings: Settings
    origins: Mapping[str, str]


def keys() -> dict[str, tuple[Any, Any]]:
    """Every settable key (`port`, `rpc.max_message_bytes`) with its type and default."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, kind, default in _fields(Settings):
        if is_dataclass(kind):
            for inner, inner_kind, inner_default in _fields(kind):
                found[f"{name}.{inner}"] = inner_kind, inner_default
        else:
            found[name] = kind, default
    return found


def env_name(key: str) -> str:
    """The environment variable of a key: rpc.max_message_bytes → KAKEYA_RPC_MAX_MESSAGE_BYTES."""
    return "KAKEYA_" + key.replace(".", "_").upper()


def load(*, flags: Mapping[str, Any], env: Mapping[str, str], toml_text: str) -> Loaded:
    """Merge the four origins.  Raises ConfigError naming the key, the value and the bound."""
    known = keys()
    layers = (
        ("default", {key: default for key, (_, default) in known.items()}),
        ("file", dict(_flatten(_parse_toml(toml_text)))),
        ("environment", _from_env(env, known)),
        ("flag", {key: v for k, v in flags.items() if v is not None for key in _aimed_at(k)}),
    )
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        for key, value in layer.items():
            if key not in known:
                raise ConfigError(_unknown(key, origin, list(known)))
            values[key] = _convert(key, value, known[key][0], origin)
            origins[key] = origin
    for key, value in values.items():
        _demand_in_bounds(key, value, known[key][1], origins[key])
    _demand_whole_tls(values)
    return Loaded(_build(values), origins)


def _fields(kind: Any) -> Iterator[tuple[str, Any, Any]]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        default = each.default
        if default is MISSING and each.default_factory is not MISSING:
            default = each.default_factory()
        yield each.name, hints[each.name], default


def _parse_toml(text: str) -> dict[str, Any]:
    if len(text.encode()) > MAX_FILE_BYTES:
        raise ConfigError(f"the configuration file is larger than {MAX_FILE_BYTES} bytes")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration file is not TOML: {error}") from None


def _flatten(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            for inner, inner_value in value.items():
                yield f"{name}.{inner}", inner_value
        else:
            yield name, value


def _aimed_at(flag: str) -> tuple[str, ...]:
    """The keys that a flag sets."""
    return ALIASES.get(flag, (flag,))


def _from_env(env: Mapping[str, str], known: Mapping[str, Any]) -> dict[str, Any]:
    by_name = {env_name(key): _aimed_at(key) for key in (*known, *ALIASES)}
    found: dict[str, Any] = {}
    for name, value in sorted(env.items()):
        if not name.startswith("KAKEYA_") or name in NOT_SETTINGS:
            continue
        if name not in by_name:
            raise ConfigError(_unknown(name, "environment", list(by_name)))
        found |= dict.fromkeys(by_name[name], value)
    return found


def _unknown(key: str, origin: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown key {key!r} ({origin}){hint}"


def _convert(key: str, value: Any, kind: Any, origin: str) -> Any:
    is_list = getattr(kind, "__origin__", None) is tuple
    if is_list and isinstance(value, str):
        value = tuple(part for part in re.split(r"[,\s]+", value) if part)
    if kind is int and isinstance(value, str) and _is_size(key):
        try:
            value = parse_size(value)
        except ValueError as error:
            raise ConfigError(f"{key} is {value!r} ({origin}): {error}") from None
    if kind is bool and isinstance(value, str):
        value = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(
            value.lower(), value
        )
    try:
        return msgspec.convert(value, kind, strict=origin in ("default", "file"))
    except msgspec.ValidationError as error:
        choices = _choices(kind)
        why = f"it must be one of {', '.join(choices)}" if choices else str(error)
        raise ConfigError(f"{key} is {value!r} ({origin}): {why}") from None


def _is_size(key: str) -> bool:
    return key == "memory_limit" or key.endswith("_bytes")


def _choices(kind: Any) -> list[str]:
    """The words a key may have, empty when it is not limited to words."""
    choices: list[str] = []
    for part in get_args(kind):
        if isinstance(part, str):
            choices.append(part)
        elif part is int:
            choices.append("a number")
        elif not (nested := _choices(part)):
            return []
        else:
            choices.extend(nested)
    return sorted(choices)


def _demand_in_bounds(key: str, value: Any, default: Any, origin: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    floor = 0.0 if default == 0 else 1e-9
    low, high = BOUNDS.get(key, (floor, float("inf")))
    if not low <= value <= high or value == float("inf"):
        least = "above 0" if low == 1e-9 else f"at least {low:g}"
        most = "" if high == float("inf") else f" and at most {high:g}"
        raise ConfigError(f"{key} is {value} ({origin}), it must be {least}{most}")


def _demand_whole_tls(values: Mapping[str, Any]) -> None:
    missing = [key for key in TLS_KEYS if not values[key]]
    if missing and len(missing) < len(TLS_KEYS):
        given = next(key for key in TLS_KEYS if values[key])
        raise ConfigError(f"{given} is given without {' and '.join(missing)}, TLS needs all three")


def _build(values: Mapping[str, Any]) -> Settings:
    made: dict[str, Any] = {}
    for name, kind, _ in _fields(Settings):
        if is_dataclass(kind):
            prefix = f"{name}."
            inner = {k[len(prefix) :]: v for k, v in values.items() if k.startswith(prefix)}
            section: Any = kind
            made[name] = section(**inner)
        else:
            made[name] = values[name]
    return Settings(**made)
