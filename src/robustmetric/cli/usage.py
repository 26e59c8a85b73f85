"""What was typed wrong, in one line: an unknown option or command, a missing argument, a value of another kind."""

from collections.abc import Iterator, Sequence
from typing import Any

from robustmetric.errors import nearest

PROGRAM = "robustmetric"
KINDS = {"integer": "a whole number", "number": "a number", "float": "a number"}
"""What a value was to be, by the word for it in the parser's message."""


def in_one_line(error: Any, words: Sequence[str]) -> str:
    """A usage error of the parser, as we say it: what was given, what was expected, and where to read on.

    Errors are told apart by the names of their classes: these are the same wherever a version of typer keeps them.
    """
    typed = _typed(error.ctx, words)
    command = f"{PROGRAM} {typed}".rstrip()
    help_at = f"see `{command} --help`"
    match type(error).__name__:
        case "NoSuchOption":
            if command != PROGRAM and error.option_name in _options(error.ctx.find_root().command):
                there = f"`{PROGRAM} {error.option_name} {typed} ...`"
                return f"{error.option_name!r} stands after {typed!r}; expected it before the command: {there}"
            options = [*_options(error.ctx.command), "--help"]
            hint = nearest(error.option_name, options)
            setting = "" if "did you mean" in hint else _as_a_setting(error)
            return f"{error.option_name!r} is not an option of `{command}`{hint}{setting}"
        case "MissingParameter":
            name, meaning = _shown(error.param), error.param.help.rstrip(".")
            return f"`{command}` is given no {name} ({meaning}); expected `{_usage(command, error.ctx)}`; {help_at}"
        case "BadParameter":
            given = " ".join(map(repr, _given(error.param.opts, words)))
            expected = next((kind for word, kind in KINDS.items() if word in error.message), error.message)
            return f"{error.param.opts[0]} {given} cannot be read; expected {expected}; {help_at}"
        case "UsageError" if error.ctx is not None and (known := getattr(error.ctx.command, "commands", None)):
            word = _typed(error.ctx, words, more=1).rpartition(" ")[2]
            return f"{word!r} is not a command of {command}{nearest(word, known)}"
    said = f"{error.message[0].lower()}{error.message[1:]}".rstrip(".")
    expected = "" if error.ctx is None else f"; expected `{_usage(command, error.ctx)}`"
    return f"{said}{expected}; {help_at}"


def _as_a_setting(error: Any) -> str:
    """Of a command that takes settings: how one is written, since `--epochs 3` is what other programs would have."""
    name = error.option_name.lstrip("-").replace("-", "_")
    takes = any(one.name in ("overrides", "settings") for one in error.ctx.command.params)
    return f"; a setting is written without dashes: {name}=..." if takes and len(name) > 1 else ""


def _typed(ctx: Any, words: Sequence[str], more: int = 0) -> str:
    """The words that name the command of a context: none of the program itself, `data check` of a nested one."""
    depth = 1 if ctx is None else _depth(ctx)
    return " ".join([word for word in words if not word.startswith("-")][: depth + more])


def _depth(ctx: Any) -> int:
    return 0 if ctx.parent is None else 1 + _depth(ctx.parent)


def _options(command: Any) -> Iterator[str]:
    """The long names of a command's options."""
    for parameter in command.params:
        yield from (name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--"))


def _given(names: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    """The values of an option as they were typed: `--queries abc` or `--queries=abc`."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word in names:
            yield after
        elif word.partition("=")[0] in names:
            yield word.partition("=")[2]


def _usage(command: str, ctx: Any) -> str:
    """A command with its arguments: `robustmetric train RECIPE [OVERRIDES...]`."""
    arguments = [one for one in ctx.command.params if one.param_type_name == "argument"]
    shown = [_shown(one) + ("..." if one.nargs < 0 and not one.metavar else "") for one in arguments]
    wanted = [text if one.required else f"[{text}]" for one, text in zip(arguments, shown, strict=True)]
    return " ".join([command, *wanted])


def _shown(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())
