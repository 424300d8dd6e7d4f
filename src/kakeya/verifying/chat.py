"""A conversation as a prompt, by the model's own chat template.

Templates are code out of a downloaded folder: they run in jinja2's immutable sandbox, with a
budget of steps and of characters, and see neither files nor clock but what is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kakeya.config.text import TextLimits
from kakeya.errors import Refused, demand

# What a template's own code may raise when the messages do not suit it.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    source: str
    limits: TextLimits

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        bos_token: str,
        eos_token: str,
        wall: Callable[[], float],
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt of `messages`.

        `wall` gives seconds since the epoch, for templates that state today's date.  Raises
        Refused(INVALID_ARGUMENT) when the template refuses the messages or goes over a limit.
        """
        environment = _Environment(self.limits.max_template_steps)
        environment.globals["strftime_now"] = lambda form: datetime.fromtimestamp(wall()).strftime(
            form
        )
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in environment.from_string(self.source).generate(
                messages=list(messages),
                bos_token=bos_token,
                eos_token=eos_token,
                add_generation_prompt=add_generation_prompt,
            ):
                num_chars += len(piece)
                self._demand_chars(num_chars)
                pieces.append(piece)
        except _TEMPLATE_ERRORS as error:
            why = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise Refused(
                "INVALID_ARGUMENT", f"the chat template refuses the messages: {why}"
            ) from None
        return "".join(pieces)

    def _demand_chars(self, num_chars: int) -> None:
        demand(
            num_chars <= self.limits.max_rendered_chars,
            "INVALID_ARGUMENT",
            f"the rendered conversation has over {self.limits.max_rendered_chars} characters",
        )


def load_template(
    folder: Path, tokenizer_config: Mapping[str, Any], limits: TextLimits
) -> ChatTemplate | None:
    """chat_template.jinja, else the one in tokenizer_config.json, else None.  Raises Refused."""
    path = folder / "chat_template.jinja"
    source: Any = tokenizer_config.get("chat_template")
    if path.is_file():
        _demand_size(path.stat().st_size, 4 * limits.max_template_chars, "bytes")
        try:
            source = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise Refused("INVALID_ARGUMENT", "chat_template.jinja is not UTF-8") from None
    if isinstance(source, list):  # several by name; "default" is the one for conversations
        named = {
            each.get("name"): each.get("template") for each in source if isinstance(each, dict)
        }
        source = named.get("default")
    if not isinstance(source, str):
        return None
    _demand_size(len(source), limits.max_template_chars, "characters")
    try:
        _Environment(limits.max_template_steps).parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise Refused(
            "INVALID_ARGUMENT", f"the chat template is no template, line {error.lineno}"
        ) from None
    return ChatTemplate(source, limits)


def _demand_size(size: int, bound: int, unit: str) -> None:
    demand(
        size <= bound,
        "INVALID_ARGUMENT",
        f"the chat template has {size} {unit}, the limit is {bound}",
    )


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks training targets; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """One rendering: the sandbox, with every step it sees counted against a budget."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, max_steps: int) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        self._steps_left = max_steps
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise
        self.globals["range"] = self._range

    def getattr(self, obj: Any, attribute: str) -> Any:
        self._spend(1)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self._spend(1)
        return super().getitem(obj, argument)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self._spend(1)
        return super().call(*args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        # A repeated text or a power costs what it makes, and is refused before it is made.
        if operator == "*":
            self._spend(max(_size(left) * _count(right), _size(right) * _count(left), 1))
        elif operator == "**":
            self._spend(max(_count(right), 1) * max(_count(left).bit_length(), 1))
        elif operator == "%" and isinstance(left, str):
            raise jinja2.TemplateError("% formatting is not offered")
        self._spend(1)
        return super().call_binop(context, operator, left, right)

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        self._spend(len(numbers))
        return numbers

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise jinja2.TemplateError("it takes more steps than one rendering may")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _count(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without jinja2's escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
