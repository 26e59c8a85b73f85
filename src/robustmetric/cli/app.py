"""The application that commands register with, what several of them share, and how errors leave it."""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from robustmetric.cli.usage import in_one_line
from robustmetric.errors import InputError
from robustmetric.version import VERSION

app = typer.Typer(
    help="Train, attack, certify and compare metric-learning models under adversarial perturbation.",
    epilog="New here? [bold]robustmetric demo[/bold] shows it all in two minutes, on digits that come with it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""What the parser raises; of its classes typer gives out this one's heir alone."""


def _say_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"robustmetric {VERSION}")
        raise typer.Exit
    return asked


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""


@contextmanager
def starting() -> Iterator[None]:
    """While torch is imported, which takes seconds: a word on a terminal, gone when it is done."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status("starting"):
        yield


@contextmanager
def going_on() -> Iterator[None]:
    """Ctrl-C in a job that skips what it has finished: say that nothing is lost."""
    from robustmetric.jobs.train import Interrupted

    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        typer.echo("interrupted; what was finished is kept, the same command goes on from there", err=True)
        raise typer.Exit(130) from None


def is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU has no room left, or the machine: torch has a class for the first alone."""
    torch = sys.modules.get("torch")  # imported by whoever could have run out
    return torch is not None and (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error))


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as it is told on standard error: without the place in the source."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _leave(words: str) -> NoReturn:
    print(f"error: {' '.join(words.split())}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Run a command; what the user got wrong, or a disk or a full memory refused, is one line on standard error."""
    try:
        # A console script has its own folder on the path, not the one where my_lab/encoders.py lies.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        with warnings.catch_warnings():
            warnings.showwarning = warnings.showwarning if "--debug" in sys.argv else _warn
            # So that usage errors come here; an exit code that was raised is returned.
            sys.exit(app(standalone_mode=False))
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help has been shown
            sys.exit(2)
        _leave(in_one_line(error, sys.argv[1:]))
    except (InputError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        _leave(str(error))
    except typer.Abort:  # Ctrl-C, in older versions of typer
        sys.exit(130)
    except RuntimeError as error:
        if "--debug" in sys.argv or not is_out_of_memory(error):
            raise
        # After its first sentences torch lists every process on the GPU.
        said = re.split(" (?=Process|Including)", str(error))[0]
        _leave(
            f"{said} Expected room for a whole batch: give a smaller one (train: sampler.batch=N; others: --batch N), "
            "or end what else uses this memory. What was finished is kept; the same command goes on, train by --resume"
        )
