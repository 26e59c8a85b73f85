"""`robustmetric list` and `--version`: a summary that can be read, and a sentence for every name."""

import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import robustmetric
from commands import Command, environment
from robustmetric.catalogue import CATALOGUE, NAMES
from robustmetric.cli.shelves import docstring, shelves


def test_the_version_is_told(command: Command) -> None:
    shown = command("--version")
    assert (shown.code, shown.out) == (0, f"robustmetric {robustmetric.__version__}\n")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["version"] == robustmetric.__version__


def test_without_a_command_the_help_says_where_to_begin(command: Command) -> None:
    assert "robustmetric demo" in " ".join(command().out.split())


def test_the_bare_list_is_a_line_for_each_kind_with_its_count_and_command(command: Command) -> None:
    lines = command("list").out.splitlines()
    assert len(lines) == len(CATALOGUE) + 2
    defences = next(line for line in lines if line.startswith("robustmetric list defences "))
    assert f" {len(CATALOGUE['defences'])} " in defences and "madry" in defences
    assert lines[-1].split()[:4] == ["robustmetric", "list", "recipes", str(len(shelves()["recipes"]))]


@pytest.mark.parametrize("kind", shelves())
def test_every_name_has_a_sentence(kind: str, command: Command) -> None:
    for line in command("list", kind).out.splitlines():
        _, _, sentence = line.partition(" ")
        assert len(sentence.split()) >= 2, line


def test_a_sentence_is_that_of_the_file_or_where_it_holds_several_of_the_class() -> None:
    assert docstring(NAMES["est"]).startswith("Embedding-shifted triplets, EST (Zhou et al.,")
    assert docstring(NAMES["hardest"]).startswith("The nearest negative")
    assert docstring(NAMES["adam"]).startswith("Adam with coupled")
    assert docstring(NAMES["arml"]).startswith("ARML (L. Wang")


def test_an_initial_does_not_end_a_sentence(command: Command) -> None:
    arml = command("list", "learners").out.splitlines()[0]
    assert arml.startswith("arml ") and "2020)" in arml


def test_a_terminal_gets_no_line_wider_than_it_is() -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "robustmetric", "list", "defences"]
    done = subprocess.Popen(words, env=environment(COLUMNS="60"), stdout=theirs)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    assert done.wait() == 0
    lines = shown.decode().splitlines()
    assert len(lines) == len(CATALOGUE["defences"]) and max(map(len, lines)) == 60
