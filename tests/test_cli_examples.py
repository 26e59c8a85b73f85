"""The examples in the help of every command: they parse, and what they name is there."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from robustmetric import recipe
from robustmetric.cli import app

ROOT = Path(__file__).parents[1]
COMMANDS = {
    f"{place} {command.name or command.callback.__name__}".lstrip(): command.callback
    for place, group in [("", app), *((group.name, group.typer_instance) for group in app.registered_groups)]
    for command in group.registered_commands
}
EXAMPLES = [
    (name, words)
    for name, callback in COMMANDS.items()
    for words in re.findall(r"\[bold\]robustmetric (.+?)\[/bold\]", " ".join((callback.__doc__ or "").split()))
]


def test_every_command_has_an_example_of_its_own() -> None:
    assert {name for name, words in EXAMPLES if words.startswith(f"{name} ")} == set(COMMANDS)


@pytest.mark.parametrize(("name", "words"), EXAMPLES)
def test_an_example_parses_and_what_it_names_is_there(name: str, words: str) -> None:
    command = typer.main.get_command(app)
    depth = len(name.split())
    rest = shlex.split(words)[depth:]
    for word in name.split():
        command = command.get_command(command.make_context("robustmetric", [word]), word)
    given = command.make_context(name, list(rest)).params  # it eats the words that it is given
    for word in rest:
        # Rows of the ledger lie in the repository; the folder that others are made in need not.
        if word.startswith("results/") and (word.endswith(".json") or "-o" not in rest or "--figure" in rest):
            assert (ROOT / word).exists(), word
    target = given.get("recipe") or given.get("target")
    if isinstance(target, str) and not target.startswith("runs/"):
        recipe.locate(target)
    if given.get("suite"):
        recipe.locate(given["suite"], "suites")
