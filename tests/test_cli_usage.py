"""A command typed wrong: one line that says what was given and what was expected, and exit code 2."""

import subprocess
import sys

import pytest

from commands import Command, environment


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "'trian' is not a command of robustmetric; did you mean 'train'? (certify, compare, "),
        ("--quiet train", "'--quiet' is not an option of `robustmetric`; expected --debug, --help, --version"),
        ("report a --ou x", "'--ou' is not an option of `robustmetric report`; did you mean '--out'? (--help, --out, "),
        ("train digits/plain -z", "'-z' is not an option of `robustmetric train`; expected --accelerator, --devices, "),
        ("train digits/plain --epochs 3", "--tensorboard; a setting is written without dashes: epochs=..."),
        ("sweep digits/plain --weight-decay=3 seed=0", "; a setting is written without dashes: weight_decay=..."),
        ("train digits/plain --resumee", "'--resume'? (--accelerator, --devices, --fast, --help, --keep-going, "),
        ("train --skip-unreadible x", "did you mean '--skip-unreadable'?"),
        ("train x --debug", "'--debug' stands after 'train'; expected it before the command: `robustmetric --debug t"),
        (
            "train",
            "`robustmetric train` is given no RECIPE (A recipe by short name (digits/est) or file); expected `ro",
        ),
        ("train", "expected `robustmetric train RECIPE [OVERRIDES...]`; see `robustmetric train --help`"),
        ("sweep digits/est", "expected `robustmetric sweep RECIPE KEY=A,B,C ...`; see `robustmetric sweep --help`"),
        ("compare a", "is given no SECOND (Another, evaluated on the same queries); expected `robustmetric compare FI"),
        ("compare a b c", "extra argument(s) (c); expected `robustmetric compare FIRST SECOND`; see `robustmetric com"),
        ("evaluate x --queries abc", "--queries 'abc' cannot be read; expected a whole number; see `robustmetric eva"),
        ("evaluate x --queries=1.5", "--queries '1.5' cannot be read; expected a whole number"),
        (
            "certify x --sigma much",
            "--sigma 'much' cannot be read; expected a number; see `robustmetric certify --help`",
        ),
        ("train digits/plain --out", "option '--out' requires an argument; see `robustmetric train --help`"),
        ("data chek photos", "'chek' is not a command of robustmetric data; did you mean 'check'? (check)"),
        ("data --quiet", "'--quiet' is not an option of `robustmetric data`; expected --help"),
        ("data check", "`robustmetric data check` is given no PATH (Class folders, a zip, a CSV manifest, a table"),
        ("data check", "expected `robustmetric data check PATH [SETTINGS...]`; see `robustmetric data check --help`"),
        ("data check x --jsn", "'--jsn' is not an option of `robustmetric data check`; did you mean '--json'?"),
        ("data check x --debug", "'--debug' stands after 'data check'; expected it before the command: `robustmetric"),
        ("list --json=3", "option '--json' does not take a value; see `robustmetric list --help`"),
    ],
)
def test_what_was_typed_wrong_is_said_in_one_line(words: str, said: str, command: Command) -> None:
    done = command(*words.split())
    assert said in done.error and not done.out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["--help"], 0),
        (["train", "--help"], 0),
        (["data"], 2),
        (["--version"], 0),
        (["train", "--foo"], 2),
    ],
)
def test_help_and_exit_codes_are_those_of_a_command_line(words: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "robustmetric", *words], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    if "--foo" in words:
        assert not done.stdout and len(done.stderr.splitlines()) == 1
    else:
        assert not done.stderr and ("Usage: " in done.stdout or done.stdout.startswith("robustmetric "))


def test_an_exit_code_that_a_command_raised_stays(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("robustmetric.jobs.demo.demo", interrupted)
    assert command("demo").code == 130
