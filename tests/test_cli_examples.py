"""The examples in the help of every command: they parse, and what they name is there."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from robustmetric import recipe
from robustmetric.cli import app

ROOT = Path(__file__).parents[1]
COMMANDS = {command.name or str(command.callback.__name__): command.callback for command in app.registered_commands}
EXAMPLES = [
    (name, words)
    for name, callback in COMMANDS.items()
    for words in re.findall(r"\[bold\]robustmetric (.+?)\[/bold\]", " ".join((callback.__doc__ or "").split()))
]


def test_every_command_has_an_example_of_its_own() -> None:
    assert {name for name, words in EXAMPLES if words.startswith(f"{name} ")} == set(COMMANDS)


@pytest.mark.parametrize(("name", "words"), EXAMPLES)
def test_an_example_parses_and_what_it_names_is_there(name: str, words: str) -> None:
    group = typer.main.get_command(app)
    _, *rest = shlex.split(words)
    command = group.get_command(group.make_context("robustmetric", [name, *rest]), name)
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
