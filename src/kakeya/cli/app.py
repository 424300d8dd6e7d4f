"""`kakeya VERB …`: finds the verb, runs it, and turns what went wrong into one line and a status.

Verbs are imported only when asked for, so that `kakeya fleet` does not wait for a tensor library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

import cyclopts
from rich.console import Console

from kakeya import logs
from kakeya.cli.exit_codes import Exit, exit_for
from kakeya.compute.threads import prepare_environment
from kakeya.config.settings import ConfigError
from kakeya.errors import Refused

app = cyclopts.App(
    name="kakeya",
    help="Machines that draft tokens for one another: the same ids, only sooner.",
    version=version("kakeya"),
    result_action="return_value",
)
for verb in ("run", "generate", "fleet", "bench", "models", "spec"):
    app.command(f"kakeya.cli.{verb}:{verb}", name=verb)
app.command("kakeya.cli.config:config_app", name="config")


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
    except cyclopts.CycloptsError as error:
        return _say(errors, str(error).strip() or type(error).__name__, Exit.USAGE)
    except ConfigError as error:
        return _say(errors, str(error), Exit.CONFIG)
    except Refused as error:
        return _say(errors, error.why, exit_for(error.status))
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILURE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return int(result) if isinstance(result, int) else Exit.OK


def _say(errors: Console, line: str, status: Exit) -> int:
    errors.print(f"kakeya: {line}", markup=False)
    return status
