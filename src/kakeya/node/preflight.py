"""What keeps a node's models from being loaded, said before the node starts.

Opens the headers of files only: no weight is read, nothing is converted or fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kakeya.config.settings import ConfigError, Settings
from kakeya.drafting.dflash_checkpoint import find_verifier_ends, read_dflash_checkpoint
from kakeya.drafting.dflash_config import demand_fits
from kakeya.drafting.ngram import NGRAM
from kakeya.embedded.drafters import resolve_drafter
from kakeya.embedded.folder import is_whole
from kakeya.embedded.models import EMBEDDED, SMOLLM2, find_model, models_folder
from kakeya.embedded.smollm2 import FOLDER_NAME
from kakeya.errors import Refused
from kakeya.node.backend import Host, choose_backend
from kakeya.node.need import (
    VerifierNeed,
    demand_memory,
    demand_rows,
    drafters_bytes,
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
    for name in settings.proposer:
        if name != NGRAM:
            with _named("proposer", name):
                _check_drafter(settings, env, name)
    with _named("memory_limit", ""):
        demand_memory(settings, need, drafters_bytes(settings, env))


def _checked_verifier(
    settings: Settings, env: Mapping[str, str], host: Host
) -> VerifierNeed | None:
    """None for one that is still to be made: it is checked by its maker."""
    if _is_unmade(settings.verifier, env):
        choose_backend(settings.backend, host)
        return None
    folder = find_model(settings.verifier, env)
    need = verifier_need(folder, settings, host)
    tokenizer = load_tokenizer(folder)
    demand_rows(tokenizer.vocab_size, need.checkpoint.config.vocab_size)
    return need


def _check_drafter(settings: Settings, env: Mapping[str, str], name: str) -> None:
    choice = resolve_drafter(name, own_verifier=settings.verifier, env=env)
    checkpoint = read_dflash_checkpoint(choice.folder, settings.drafter)
    if _is_unmade(choice.verifier, env):
        return
    folder = find_model(choice.verifier, env)
    demand_fits(checkpoint.config, find_verifier_ends(folder, settings.drafter).shape)


def _is_unmade(name: str, env: Mapping[str, str]) -> bool:
    """Whether the default model is named and not converted yet."""
    return name in (SMOLLM2, EMBEDDED) and not is_whole(models_folder(env) / FOLDER_NAME)


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
