"""The command line: one line and exit code 2 for what the user got wrong, an example in every help."""

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from commands import PARTS, Command, environment
from robustmetric import recipe
from robustmetric.cli import app
from robustmetric.errors import InputError

COMMANDS = ["train", "sweep", "evaluate", "report", "ledger", "compare", "verify", "demo", "list", "export"]
NESTED = ["data check"]
Pictures = Callable[..., Path]


def on_pictures(path: Path, data: str) -> Path:
    """A recipe that trains a small model on images of one's own."""
    path.write_text(
        f"data: {data}\n"
        "model: {name: encoder, trunk: {name: own_parts.Net}}\n"
        "defence: {name: plain, loss: {name: triplet}}\n"
        "sampler: {name: pairs, batch: 4}\noptimiser: {name: adam, rate: 1e-3}\nepochs: 1\n"
    )
    return path


@pytest.mark.parametrize("word", [*COMMANDS, *NESTED])
def test_the_help_of_every_command_shows_an_example(word: str, command: Command) -> None:
    shown = command(*word.split(), "--help")
    assert shown.code == 0
    assert re.search(f"Examples?: robustmetric {word}", " ".join(shown.out.split()))


def commands(group: Any, before: str = "robustmetric") -> Iterator[tuple[str, Any]]:
    """Every command by the words that are typed, those of nested groups too."""
    for name, found in group.commands.items():
        words = f"{before} {name}"
        yield from commands(found, words) if hasattr(found, "commands") else [(words, found)]


def test_a_flag_that_is_off_has_one_name(command: Command) -> None:
    every = [(words, option) for words, found in commands(typer.main.get_command(app)) for option in found.params]
    assert ("robustmetric data check", "skip_unreadable") in [(words, option.name) for words, option in every]
    assert not [(words, option.secondary_opts) for words, option in every if option.secondary_opts]
    assert "--no-" not in command("train", "--help").out


def test_the_help_names_every_command(command: Command) -> None:
    shown = command("--help").out
    assert all(f" {word} " in shown for word in [*COMMANDS, "data"])
    assert " check " in command("data").out


def test_list_shows_what_recipes_can_name(command: Command) -> None:
    assert [line.split()[0] for line in command("list", "suites").out.splitlines()] == recipe.listing("suites")
    shelves = json.loads(command("list", "--json").out)
    assert "madry" in shelves["defences"] and "digits/madry" in shelves["recipes"]
    assert json.loads(command("list", "attacks", "--json").out) == {"attacks": shelves["attacks"]}
    assert "did you mean 'defences'" in command("list", "defenses").error


@pytest.mark.parametrize("kind", [[], ["learners"], ["suites"]])
def test_list_does_not_import_torch(kind: list[str]) -> None:
    code = "import sys; sys.argv = ['robustmetric', 'list', *sys.argv[1:]]\nfrom robustmetric.cli import app\n"
    code += "app(standalone_mode=False)\nassert 'torch' not in sys.modules and 'lightning' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, *kind], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits/plian"], "'digits/plian' is no file and no recipe we ship; did you mean 'digits/plain'"),
        (["gone.yaml"], "'gone.yaml' is no file and no recipe we ship"),
        ([""], "is no file and no recipe we ship"),
        (["digits/plain", "epocs=2"], "'epocs' is not a setting of a recipe; did you mean 'epochs'"),
        (["digits/plain", "defence.loss.margn=2"], "plain.yaml.defence.loss: 'margn' is not a setting of Triplet"),
        (["digits/plain", "seed"], "'seed' is not an override; expected key=value"),
        (["digits/plain", "seed=x"], "seed 'x'"),
        (["digits/madry", "defence.attack.ball.radius=-1/255"], "is not a distance; expected a finite number >= 0"),
        (["digits/plain", "sampler.batch=7"], "an odd batch of 7 images cannot hold pairs; use 6 or 8"),
        (["digits/plain", "--precision", "half"], "precision 'half'"),
        (["digits/plain", "--strategy", "dpp"], "strategy 'dpp'"),
        (["digits/plain", "--accelerator", "abacus"], "accelerator 'abacus'"),
        (["digits/plain", "--devices", "none"], "devices 'none'"),
        (["digits/plain", "--out", "/dev/null/run"], "Not a directory"),
        (["cub/plain"], "ROBUSTMETRIC_DATA"),
        (
            ["digits/plain", "--skip-unreadable"],
            "--skip-unreadable is for data sets of image files; 'digits' reads none",
        ),
    ],
)
def test_a_training_that_cannot_be_is_one_line_and_writes_nothing(
    words: list[str], message: str, command: Command, tmp_path: Path
) -> None:
    assert message in command("train", *words).error
    assert not (tmp_path / "runs").exists()


def test_a_misspelt_key_names_the_file_the_key_and_the_nearest(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"base: {recipe.shelf() / 'digits' / 'plain.yaml'}\noptimizer: {{name: adam, rate: 1e-3}}\n")
    error = command("train", path).error
    assert str(path) in error and "'optimizer'" in error and "did you mean 'optimiser'?" in error


def test_debug_shows_the_traceback(command: Command) -> None:
    with pytest.raises(InputError, match="no recipe we ship"):
        command("--debug", "train", "digits/plian")


def test_debug_in_a_process_of_its_own_is_a_traceback() -> None:
    words = [sys.executable, "-m", "robustmetric", "--debug", "list", "nonsense"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert done.returncode != 0 and "Traceback" in done.stderr and "InputError" in done.stderr


def test_a_model_in_the_working_folder_is_found_by_the_console_script(
    pictures: Pictures, suite: Path, tmp_path: Path
) -> None:
    pictures(tmp_path / "photos")
    (tmp_path / "my_lab").mkdir()
    (tmp_path / "my_lab" / "encoders.py").write_text((PARTS / "own_parts.py").read_text())
    script = Path(sys.executable).with_name("robustmetric")
    words = [str(script), "evaluate", "my_lab.encoders.make_net", str(suite), "--data", "photos", "--json"]
    own = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    done = subprocess.run(words, cwd=tmp_path, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_no_help_offers_what_does_not_work(command: Command) -> None:
    for word in ("train", "evaluate"):
        assert "mps" not in command(word, "--help").out
    assert "--precision" not in command("evaluate", "--help").out
    assert command("evaluate", "digits/plain", "demo", "--precision", "32-true").code == 2


def test_training_data_at_fault_is_named(pictures: Pictures, command: Command, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    folder = "{name: folder, root: photos, size: 16}"
    missing = command("train", on_pictures(own, folder)).error
    assert "photos does not exist; expected one sub-folder of images per class" in missing
    (tmp_path / "photos").mkdir()
    assert "photos holds no images; expected one sub-folder" in command("train", own).error
    pictures(tmp_path / "photos")
    for i in (1, 2):
        (tmp_path / "photos" / "class00" / f"{i}.png").unlink()
    lonely = command("train", own).error
    assert "training class 'class00' has 1 image, at least 2 are needed" in lonely
    assert not (tmp_path / "runs").exists()


def test_an_unreadable_training_image_is_named_and_skipped_only_when_asked(
    pictures: Pictures, command: Command, tmp_path: Path
) -> None:
    pictures(tmp_path / "photos")
    (tmp_path / "photos" / "class00" / "1.png").write_bytes(b"no image")
    own = on_pictures(tmp_path / "own.yaml", "{name: folder, root: photos, size: 16}")
    assert "class00/1.png" in command("train", own).error
    done = command("train", own, "--skip-unreadable", "--out", "run")
    assert done.code == 0, done.err
    found = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert found[-1]["settings"]["skipped"] == 1


def test_a_manifest_without_labels_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,split\na.png,train\n")
    own = on_pictures(tmp_path / "own.yaml", "{name: manifest, file: list.csv}")
    assert "list.csv has no column 'label' (found: path, split)" in command("train", own).error


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_table_with_a_hole_is_refused(value: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(f"a,b,label\n1,2,x\n1,{value},y\n1,3,x\n1,2,y\n")
    own = on_pictures(tmp_path / "own.yaml", "{name: tabular, file: table.csv}")
    assert f"column 'b': {value!r} is not finite" in command("train", own).error


def test_ctrl_c_in_an_evaluation_says_that_nothing_is_lost(
    trained: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from robustmetric.jobs import target

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(target, "run_any_suite", interrupt)
    stopped = command("evaluate", trained, "demo", "--queries", 10)
    assert stopped.code == 130
    assert stopped.err.strip() == "interrupted; what was finished is kept, the same command goes on from there"


def test_a_report_is_made_of_run_folders(trained: Path, command: Command, tmp_path: Path) -> None:
    assert command("report", trained, "-o", "page").out.strip() == "page/index.html"
    page = (tmp_path / "page" / "index.html").read_text()
    commit = json.loads((trained / "run.json").read_text())["commit"]
    assert f"<dt>trained at commit</dt><dd>{commit}</dd>" in page
    assert "nowhere" in command("report", "nowhere").error


def test_a_warning_is_one_line_without_its_place_in_the_source(
    command: Command, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr("robustmetric.jobs.demo.demo", lambda out: warnings.warn("few rows\n here", stacklevel=1))
    monkeypatch.setattr("warnings.filters", [])
    assert command("demo").err == "warning: few rows here\n"
