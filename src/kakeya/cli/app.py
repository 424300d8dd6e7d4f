"""`kakeya VERB …`: finds the verb, runs it, and turns what went wrong into one line and a status.

Verbs are imported only when asked for, so that `kakeya fleet` does not wait for a tensor library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

import cyclopts
import structlog
from rich.console import Console

from kakeya import logs
from kakeya.cli.exit_codes import Exit, exit_for
from kakeya.compute.threads import prepare_environment
from kakeya.config.settings import ConfigError
from kakeya.errors import Refused

log = structlog.get_logger(__name__)

app = cyclopts.App(
    name="kakeya",
    help="Machines that draft tokens for one another: the same ids, only sooner.",
    version=version("kakeya"),
    result_action="return_value",
)
for verb in ("run", "generate", "fleet", "top", "bench", "doctor", "spec"):
    app.command(f"kakeya.cli.{verb}:{verb}", name=verb)
app.command("kakeya.cli.service_file:service_file", name="service-file")
app.command("kakeya.cli.config:config_app", name="config")
app.command("kakeya.cli.models:models_app", name="models")
app.command("kakeya.cli.cert:cert_app", name="cert")
app.command("kakeya.cli.train:train_app", name="train")


def main(argv: Sequence[str] | None = None) -> None:
    """The console script; never returns."""
    prepare_environment(os.environ)
    sys.exit(status_of(list(sys.argv[1:] if argv is None else argv)))


def status_of(argv: list[str]) -> int:
    """Run one command and say its exit status; errors are one line on stderr."""
    # A command's own node may have something to say; `run` and --log-level set their own level.
    logs.configure("warning", "auto")
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        result = app(argv, exit_on_error=False, print_error=False)
        # Here, and not when Python ends: a reader that has gone is then one case among others.
        sys.stdout.flush()
    except BaseExceptionGroup as group:
        return _status_of_error(errors, _first(group))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the top of the command
        return _status_of_error(errors, error)
    return int(result) if isinstance(result, int) else Exit.OK


def _first(error: BaseException) -> BaseException:
    """What a nursery wrapped; the first of several."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _status_of_error(errors: Console, error: BaseException) -> int:
    match error:
        case cyclopts.CycloptsError():
            return _say(errors, str(error).strip() or type(error).__name__, Exit.USAGE)
        case ConfigError():
            return _say(errors, str(error), Exit.CONFIG)
        case Refused():
            return _say(errors, error.why, exit_for(error.status))
        case BrokenPipeError():
            # Whoever read our output has gone; Python would complain again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.FAILURE
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
    # Our own mistake.  Who wants its trace asks for it.
    log.debug("the command failed", exc_info=error)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return _say(errors, f"unexpected {what} (--log-level debug shows where)", Exit.FAILURE)


def _say(errors: Console, line: str, status: Exit) -> int:
    errors.print(f"kakeya: {line}", markup=False)
    return status
