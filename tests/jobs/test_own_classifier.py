"""A classifier of one's own by the command line: what it does not show is left out and told, not refused."""

from pathlib import Path

import pytest

from commands import Command
from robustmetric import records
from robustmetric.jobs.classifier_ledger import classification, transfer
from robustmetric.jobs.evaluations import commands
from robustmetric.records import Record
from robustmetric.report.classification import classification_tables

MATCH = "  Feature match: {attack: {name: feature_match, targets: 2}, engine: {name: pgd, steps: 2, step_size: 0.04}}\n"
REST = """  PGD: {attack: {name: misclassify, loss: cross_entropy}, engine: {name: pgd, steps: 2, step_size: 0.04}}
  APGD-CE: {attack: {name: misclassify, loss: cross_entropy}, engine: {name: apgd, steps: 3, goal: 1e4}}
"""
HEAD = "rounded: false\nengine: {ball: {name: ball, radius: 0.1}}\n"
GROUP = "survivors: {AutoAttack: [APGD-CE]}\n"
MODELS = """
import torch
from torch import nn

def build(seed=0, classes=10):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    network.classes = classes
    return network

def sibling():
    return build(1)

def narrow():
    return build(classes=3)

class Maps(nn.Module):
    classes = 10
    def features(self, x):
        return x
    def logits(self, features):
        return features.flatten(1)[:, :10]
    def forward(self, x):
        return self.logits(self.features(x))

class Parts(nn.Module):
    classes = 10
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(64, 32), nn.Linear(32, 10)
    def features(self, x):
        return self.body(x.flatten(1)).relu()
    def logits(self, features):
        return self.head(features)
    def forward(self, x):
        return self.logits(self.features(x))

class Forgotten(Parts):
    # Its features are those before the activation.
    def features(self, x):
        return self.body(x.flatten(1))
    def forward(self, x):
        return self.head(self.features(x).relu())

class Broken(Parts):
    def logits(self, features):
        return self.head(features[:, :7])
    def forward(self, x):
        return self.head(self.features(x))

class Pairs(Parts):
    def features(self, x):
        return x, x
    def forward(self, x):
        return self.head(super().features(x))

class Logs(Parts):
    # The same answers: a shift and a scale of each image's logits.
    def forward(self, x):
        return (super().forward(x) / 3).log_softmax(dim=1)

class Averaged(Parts):
    # Its answer is a mean over draws, its parts have none.
    def forward(self, x):
        return sum(super(Averaged, self).forward(x + torch.randn_like(x)) for _ in range(3)) / 3

class Drawn(Parts):
    # Answers in several ways; alike where the global generator is.
    def features(self, x):
        return super().features(x) + torch.randn(len(x), 32)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A short `classification` beside `mine.py` and recipes of its models on ten digits."""
    (tmp_path / "mine.py").write_text(MODELS)
    for name in ("build", "Maps", "Parts", "Forgotten", "Broken", "Pairs", "Logs", "Averaged", "Drawn"):
        (tmp_path / f"{name}.yaml").write_text(
            f"{{model: {{name: mine.{name}}}, data: {{name: digits, closed: true}}}}"
        )
    path = tmp_path / "classification.yaml"
    path.write_text(HEAD + GROUP + "attacks:\n" + MATCH + REST)
    return path


def found_in(folder: Path) -> dict[str, Record]:
    return {record.name: record for record in records.read(folder / "results.jsonl")}


def test_features_that_are_not_shown_are_left_out_and_told(tmp_path: Path, suite: Path, command: Command) -> None:
    words = ("evaluate", "build.yaml", suite, "--queries", 8, "-o", "out")
    done = command(*words)
    assert done.code == 0
    (line,) = [line for line in done.err.splitlines() if line.startswith("left out")]
    assert line == (
        "left out: Feature match, as Sequential does not show its features; a module with features(x) and "
        "logits(features) has it run"
    )
    assert "under the worst of all attacks but Feature match for each" in done.err
    found = found_in(tmp_path / "out")
    assert list(found) == ["clean", "PGD", "APGD-CE", "AutoAttack", "worst case"]
    assert found["worst case"].settings["trials"] == ["PGD", "APGD-CE"]
    assert found["worst case"].settings["left_out"] == ["Feature match"]
    assert "left_out" not in found["AutoAttack"].settings
    again = command(*words)
    assert "nothing to do" in again.err and "left out: Feature match" in again.err


def test_a_row_says_what_its_worst_case_is_without(tmp_path: Path, suite: Path, command: Command) -> None:
    assert command("evaluate", "build.yaml", suite, "--queries", 8, "-o", "out").code == 0
    found = found_in(tmp_path / "out")
    block = classification(found.values(), [], None)
    assert block["worst_case_without"] == ["Feature match"] and "Feature match" not in block["accuracy"]
    row = {"id": "digits-m-x-seed0", "data": "digits", "model": "m", "seed": 0, "protocol": "paper", "queries": 8}
    row |= {"clean": found["clean"].scores, "classification": block}
    assert "(without Feature match)" in "".join(classification_tables("digits", [row]))


@pytest.mark.parametrize(
    "text", [HEAD + "attacks:\n" + MATCH, HEAD + "survivors: {both: [PGD, Feature match]}\nattacks:\n" + MATCH + REST]
)
def test_what_is_nothing_without_features_is_refused(text: str, suite: Path, command: Command) -> None:
    suite.write_text(text)
    refused = command("evaluate", "build.yaml", suite, "--queries", 4, "-o", "out")
    error = refused.err.splitlines()[-1]
    assert refused.code == 2 and error.startswith("error: ")
    assert "Sequential does not show its features; expected a classifier with features(x)" in error


def test_features_that_are_no_vectors_are_told_in_one_line(suite: Path, command: Command) -> None:
    refused = command("evaluate", "Maps.yaml", suite, "--queries", 4, "-o", "out")
    assert refused.code == 2 and "Traceback" not in refused.err
    assert "features(x) of Maps has shape (4, 1, 8, 8); expected one vector per image" in refused.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Forgotten", "error: logits(features(x)) of Forgotten differs from its answer to x by "),
        ("Broken", "error: the model failed on inputs of shape (4, 1, 8, 8)"),
        ("Pairs", "error: features(x) of Pairs is a tuple; expected one vector per image"),
    ],
)
@pytest.mark.parametrize("chosen", ["classification.yaml", "masking"])
def test_two_parts_that_are_not_the_whole_are_refused(
    name: str, said: str, chosen: str, suite: Path, command: Command
) -> None:
    refused = command("evaluate", f"{name}.yaml", chosen, "--queries", 4, "-o", "out")
    assert refused.code == 2 and refused.err.splitlines()[-1].startswith(said)


@pytest.mark.parametrize("name", ["Parts", "Logs", "Averaged", "Drawn"])
def test_two_parts_that_are_the_whole_are_attacked(tmp_path: Path, name: str, suite: Path, command: Command) -> None:
    assert command("evaluate", f"{name}.yaml", suite, "--queries", 8, "-o", "out").code == 0
    assert "Feature match" in found_in(tmp_path / "out")


def test_the_surrogate_may_be_a_model_of_ones_own(tmp_path: Path, suite: Path, command: Command) -> None:
    words = ("evaluate", "build.yaml", "transfer", "--queries", 8, "--radius", 0.1, "-o", "out", "--surrogate")
    assert command(*words, "mine.sibling").code == 0
    found = found_in(tmp_path / "out")
    moved = [record for name, record in found.items() if name.endswith(" from mine.sibling")]
    assert len(moved) == 5 and all(r.settings["surrogate_module"] == "mine.sibling" for r in moved)
    assert list(transfer({"mine.sibling": moved})["sources"]) == ["mine.sibling"]
    assert commands({"name": "x"}, found["clean"], [found["clean"], *moved]).endswith("--surrogate mine.sibling")
    assert "nothing to do" in command(*words, "mine.sibling").err
    assert "'mine.build' is the model under attack itself" in command(*words, "mine.build").error
    assert "surrogate: cannot import 'mine.siblin'" in command(*words, "mine.siblin").error
    assert "'mine.narrow' is no classifier of the target's 10 classes" in command(*words, "mine.narrow").err
