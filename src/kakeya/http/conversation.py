"""The messages of a chat request as the model's template takes them.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kakeya.http.errors import BadField
from kakeya.http.fields import shown

ROLES = ("system", "developer", "user", "assistant", "tool")
# Templates know `system`; `developer` is its newer name.
ROLE_NAMES = {"developer": "system"}
# What else a message may carry into the template.
EXTRA = ("name", "tool_calls", "tool_call_id")


def messages_of(value: Any, *, max_messages: int) -> tuple[Mapping[str, Any], ...]:
    """Role and content of every message, content always a text.  Raises BadField."""
    if not isinstance(value, list):
        raise BadField("messages", f"messages is {shown(value)}, it must be a list")
    if not 1 <= len(value) <= max_messages:
        raise BadField(
            "messages",
            f"messages has {len(value)} entries, it must be at least 1 and at most {max_messages}",
        )
    return tuple(_message(f"messages[{i}]", each) for i, each in enumerate(value))


def _message(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadField(where, f"{where} is {shown(value)}, it must be an object")
    role = value.get("role")
    if role not in ROLES:
        raise BadField(f"{where}.role", f"{where}.role must be one of {', '.join(ROLES)}")
    message = {
        "role": ROLE_NAMES.get(role, role),
        "content": _content(f"{where}.content", value.get("content")),
    }
    return message | {name: value[name] for name in EXTRA if value.get(name) is not None}


def _content(where: str, value: Any) -> str:
    """A text as it is, null as "", a list of text parts joined."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BadField(where, f"{where} is {shown(value)}, it must be a text or a list of parts")
    return "".join(_part(f"{where}[{i}]", part) for i, part in enumerate(value))


def _part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    raise BadField(
        f"{where}.type" if kind else where,
        f"{where} is not a text part; this node takes text only",
        code="unsupported_parameter" if kind else None,
    )


__all__ = ["ROLES", "messages_of"]
