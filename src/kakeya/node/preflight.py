"""What keeps a node's models from being loaded, said before the node starts.

Opens the headers of files only: no weight is read, nothing is converted or fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kakeya.config.settings import ConfigError, Settings
from kakeya.embedded.models import find_model
from kakeya.embedded.smollm2 import installed_gguf
from kakeya.errors import Refused
from kakeya.node.backend import Host, choose_backend
from kakeya.node.need import (
    VerifierNeed,
    demand_memory,
    demand_rows,
    is_unmade,
    proposer_bytes,
    verifier_need,
)
from kakeya.verifying.tokenizer import load_tokenizer


def demand_loadable(settings: Settings, env: Mapping[str, str], host: Host) -> None:
    """Raises Refused(NOT_FOUND) for a model that is not here, ConfigError for one that cannot be
    loaded as the settings ask.  One line; weights' values are not looked at.  Spec: N-20.
    """
    need: VerifierNeed | None = None
    if settings.verifier != "none":
        with _named("verifier", settings.verifier):
            need = _checked_verifier(settings, env, host)
    drafting_bytes = 0
    for name in settings.proposer:
        with _named("proposer", name):
            drafting_bytes += proposer_bytes(settings, name, env)
    with _named("memory_limit", ""):
        demand_memory(settings, need, drafting_bytes)


def _checked_verifier(
    settings: Settings, env: Mapping[str, str], host: Host
) -> VerifierNeed | None:
    """None for one that is still to be made: it is checked by its maker, who must be here."""
    if is_unmade(settings.verifier, env):
        installed_gguf()
        choose_backend(settings.backend, host)
        return None
    folder = find_model(settings.verifier, env)
    need = verifier_need(folder, settings, host)
    tokenizer = load_tokenizer(folder)
    demand_rows(tokenizer.vocab_size, need.checkpoint.config.vocab_size)
    return need


@contextmanager
def _named(what: str, name: str) -> Iterator[None]:
    """What is refused in here, with what it was about."""
    about = f"{what} {name!r}: " if name else ""
    try:
        yield
    except Refused as refused:
        if refused.status == "NOT_FOUND":
            raise Refused("NOT_FOUND", f"{about}{refused.why}") from None
        raise ConfigError(f"{about}{refused.why}") from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigError(f"{about}it cannot be read: {why}") from None


__all__ = ["demand_loadable"]
