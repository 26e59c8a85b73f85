"""The masking suite as a job: on classifiers, encoders and ensembles, resumed, refused, and in the ledger's row."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from commands import Command
from robustmetric import records
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.data.base import Dataset
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.diagnose.examine import NAMES
from robustmetric.diagnose.masking import Masking
from robustmetric.errors import InputError
from robustmetric.jobs import progress
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.diagnose import is_masking, run_masking, subject_of
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.workers import Workers
from robustmetric.models.classifier import Classifier
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.models.input_transforms import BitDepth, Transformed
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD
from robustmetric.report.page import write_page
from robustmetric.report.warned import WARNED

Capture = pytest.CaptureFixture[str]

LITTLE = Masking(
    images=12, restarts=2, starts=2, start_steps=2, counts=(1, 4), sizes=(0.5, 1.0), apgd_steps=2, queries=5
)
SUITE = """
engine: {name: pgd, ball: {name: ball, radius: 0.15}, steps: 2, step_size: 0.08}
attacks:
  masking:
    attack: {name: masking, images: 12, restarts: 2, starts: 2, start_steps: 2, counts: [1, 4], sizes: [0.5, 1.0],
             apgd_steps: 2, queries: 5}
"""


def encoder() -> Encoder:
    return Encoder(ConvNet(side=8, kernel=3, widths=(4,), hidden=16, dim=8))


def arena(model: torch.nn.Module, data: Dataset, **settings: bool) -> Arena:
    return Arena.prepare(model, data, Identity(), Workers(torch.device("cpu")), limit=40, batch_size=8, **settings)


def suite(masking: Masking = LITTLE) -> Suite:
    return Suite("masking", [Trial("masking", masking, PGD(Ball(0.15), 2, 0.08))])


def test_the_suite_we_ship_is_pgd_20_at_the_published_radius() -> None:
    shipped = load_suite("masking")
    (trial,) = shipped.trials
    assert is_masking(shipped) and trial.attack == Masking()
    assert trial.engine == PGD(Ball(8 / 255), 20, 2 / 255)


def test_a_terminal_shows_which_check_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On photographs a check takes minutes, in which nothing else is printed."""
    shown = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(progress, "console", shown)
    records = list(run_masking(arena(encoder(), Digits().load()), suite(), 0, {}))
    assert isinstance(shown.file, io.StringIO)
    told = shown.file.getvalue()
    assert [record.name for record in records] == [*NAMES, "verdict"]
    for place, name in enumerate(NAMES, start=1):
        assert f"{name} (check {place} of 13)" in told


def test_a_classifier_is_diagnosed_by_command_and_not_again(command: Command, tmp_path: Path) -> None:
    (tmp_path / "little.yaml").write_text(SUITE)
    assert command("train", "digits/classifier", "epochs=1", "-o", "run").code == 0
    first = command("evaluate", "run", "little.yaml")
    assert first.code == 0, first.err
    found = [record for record in records.read(tmp_path / "run" / "results.jsonl") if record.kind == "masking"]
    names = [record.name for record in found]
    assert names[-1] == "verdict" and len(names) == 14 and {"hard_label", "worst_case"} <= set(names)
    assert found[-1].context["checks"].keys() == set(names[:-1])
    told, suite = found[-1].context["effort"], load_suite(str(tmp_path / "little.yaml")).trials[0].attack
    assert told == suite.effort() and told["steps"] == max(suite.counts) and told["queries"] == suite.queries
    assert sum(found[-1].scores.values()) == 13 and found[-1].scores["not run"] == 1
    assert found[-1].context["checks"]["black_box"] == "not run"
    spoken = [name for name, word in found[-1].context["checks"].items() if word in ("unclear", "fail")]
    assert spoken and list(found[-1].context["said"]) == spoken and all(found[-1].context["said"].values())
    assert "run  black_box at 0.15: not run: no other model was named to transfer from" in first.err
    assert all(record.count == 12 and record.settings["radius"] == 0.15 for record in found)
    drawn = [record for record in found if record.name not in ("randomness", "black_box", "verdict")]
    assert all("curve" in record.context for record in drawn)
    losses = next(record for record in found if record.name == "loss_curves").context["losses"]
    assert set(losses["lines"]) == {"cross entropy", "margin", "DLR", "feature target"} and losses["starts"] == 4
    assert not any("losses" in record.context for record in found if record.name != "loss_curves")
    again = command("evaluate", "run", "little.yaml")
    assert "nothing to do" in again.err
    assert command("report", "run", "-o", "page").code == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "Is it real?" in page and "- not run" in page and "after 2 steps up each loss" in page


def test_a_surrogate_of_the_command_line_is_what_the_check_of_transfer_climbs_on(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "little.yaml").write_text(SUITE.replace("queries: 5", "queries: 5, surrogates: $surrogates"))
    for seed in (0, 1):
        assert command("train", "digits/classifier", "epochs=1", f"seed={seed}", "-o", f"run{seed}").code == 0
    results = tmp_path / "run0" / "results.jsonl"
    assert command("evaluate", "run0", "little.yaml").code == 0
    before = [record for record in records.read(results) if record.kind == "masking"]
    first = command("evaluate", "run0", "little.yaml", "--surrogate", "run1")
    assert first.code == 0, first.err
    found = [record for record in records.read(results) if record.kind == "masking"][len(before) :]
    assert len(found) == 14, "none of the checks without a surrogate is taken for one with it"
    (transferred,) = [record for record in found if record.name == "black_box"]
    assert transferred.context["verdict"] != "not run" and "run1" in transferred.scores
    assert found[-1].settings["trial"] == "masking from run1" and len(found[-1].settings["surrogate_weights"]) == 1
    assert "nothing to do" in command("evaluate", "run0", "little.yaml", "--surrogate", "run1").err


def test_a_surrogate_that_knows_nothing_is_told_in_the_line_of_its_check(command: Command, tmp_path: Path) -> None:
    (tmp_path / "little.yaml").write_text(SUITE.replace("queries: 5", "queries: 5, surrogates: $surrogates"))
    (tmp_path / "blank.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
        "    nn.init.zeros_(network[1].weight)\n"
        "    network.classes = 10\n"
        "    return network\n"
    )
    assert command("train", "digits/classifier", "epochs=1", "-o", "run").code == 0
    done = command("evaluate", "run", "little.yaml", "--surrogate", "blank.build")
    (line,) = [line for line in done.err.splitlines() if "black_box" in line]
    why = "not run: nothing to find on blank.build: right about clean images no more often than by chance  white-box "
    assert done.code == 0 and why in line and line.endswith("beaten 0")


def test_an_ensemble_is_examined_by_its_mean_or_by_its_vote() -> None:
    place = arena(Ensemble([encoder(), encoder(), encoder()]), Digits().load())
    trial = suite().trials[0]
    assert subject_of(place, LITTLE, trial).score == "R@1"
    voted = subject_of(place, Masking(images=12, by_vote=True), trial)
    assert voted.score == "V1:R" and len(voted.batch) == 12 and voted.together == 8
    # 896 queries of five classes, each with about 178 others of its class: chance is near a fifth.
    assert voted.chance == pytest.approx(20, abs=1)


class Precise(torch.nn.Module):
    """Refuses to be asked in fewer digits once it `is_strict`; noisy too, by torch's own randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.is_strict = encoder(), False

    @property
    def dim(self) -> int:
        return self.model.dim

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.is_strict:
            assert not torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"
        return self.model(inputs + 0.01 * torch.randn_like(inputs))


def test_checks_run_in_full_precision_with_randomness_of_their_own_and_their_reader_does_not() -> None:
    model = Precise()
    place = arena(model, Digits().load())
    model.is_strict = True
    torch.manual_seed(5)
    before, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("medium")
    try:
        found = run_masking(place, suite(), 0, {})
        first = next(found)
        # Between two records the reader has its own settings, and what it draws is no matter to the checks.
        assert torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "medium"
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)
        rest = list(found)
        again = list(run_masking(place, suite(), 0, {}))
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
        torch.set_float32_matmul_precision(precision)
    assert [record.scores for record in (first, *rest)] == [record.scores for record in again]


def test_a_wrapped_model_without_features_is_examined_by_its_logits() -> None:
    class Bare(torch.nn.Module):
        """Logits, and no head to look behind."""

        classes = 10

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs.flatten(1)[:, 20:30]

    digits = Digits(closed=True).load()
    trial = suite().trials[0]
    wrapped = Transformed(Bare(), [BitDepth(3)])
    assert subject_of(arena(wrapped, digits), LITTLE, trial).features is None
    model = Classifier(ConvNet(side=8, kernel=3, widths=(4,), hidden=16, dim=8), 10)
    assert subject_of(arena(Transformed(model, [BitDepth(3)]), digits), LITTLE, trial).features is not None


def test_queries_are_spread_over_all_and_keep_their_places() -> None:
    place = arena(encoder(), Digits().load())
    one = subject_of(place, LITTLE, suite().trials[0])
    assert one.batch.index[0] == place.places[0] and one.batch.index[-1] == place.places[-1]


def test_what_cannot_be_diagnosed_is_refused() -> None:
    place = arena(encoder(), Digits().load())
    wrong = Suite("masking", [Trial("masking", LITTLE, Square(Ball(0.1)))])
    with pytest.raises(InputError, match="engine pgd"):
        list(run_masking(place, wrong, 0, {}))
    several = Arena(**{**vars(place), "workers": Workers(torch.device("cpu"), ranks=2)})
    with pytest.raises(InputError, match="devices 1"):
        list(run_masking(several, suite(), 0, {}))
    with pytest.raises(InputError, match="without --fast"):
        list(run_masking(arena(encoder(), Digits().load(), fast=True), suite(), 0, {}))
    model = Classifier(ConvNet(side=8, kernel=3, widths=(4,), hidden=16, dim=8), 10)
    with pytest.raises(InputError, match="by_vote"):
        subject_of(arena(model, Digits(closed=True).load()), Masking(by_vote=True), suite().trials[0])
    with pytest.raises(InputError, match="single encoder, without members"):
        subject_of(place, Masking(by_vote=True), suite().trials[0])
    for engine in (PGD(Ball(0.15), 2, 0.08, restarts=5), PGD(Ball(0.15), 2, 0.08, random_start=False)):
        with pytest.raises(InputError, match="without restarts and random_start"):
            list(run_masking(place, Suite("masking", [Trial("masking", LITTLE, engine)]), 0, {}))


def test_a_vote_is_attacked_from_a_single_run_and_from_an_ensemble(command: Command, tmp_path: Path) -> None:
    voting = SUITE.replace("queries: 5", "queries: 5, by_vote: true, surrogates: [single, two]")
    (tmp_path / "little.yaml").write_text(voting)
    for name, more in (("run", "seed=0"), ("two", "seed=1")):
        assert command("train", "digits/eat", "epochs=1", more, "-o", name).code == 0
    assert command("train", "digits/plain", "epochs=1", "-o", "single").code == 0
    done = command("evaluate", "run", "little.yaml")
    assert done.code == 0, done.err
    found = records.read(tmp_path / "run" / "results.jsonl")
    (transferred,) = [record for record in found if record.name == "black_box"]
    assert {"single", "two", "white-box"} <= set(transferred.scores) and transferred.context["verdict"] != "not run"


def test_of_a_model_that_knows_nothing_it_is_said_so_aloud_in_every_record_and_on_the_page(
    capsys: Capture, tmp_path: Path
) -> None:
    model = Classifier(ConvNet(side=8, kernel=3, widths=(4,), hidden=16, dim=8), 10)
    torch.nn.init.zeros_(model.head.weight)
    place = arena(model, Digits(closed=True).load())
    wide = Arena(**{**vars(place), "batch_size": 40})
    found = list(run_masking(wide, suite(), 0, {"commit": "here"}))
    assert "as by chance" in capsys.readouterr().err
    assert all("as by chance" in record.context[WARNED][0] and record.context["commit"] == "here" for record in found)
    last = found[-1].context
    assert last["verdict"] != "honest" and last["checks"]["worst_case"] == "unclear"
    assert "no more often than by chance" in last["said"]["worst_case"]
    for record in found:
        records.append(tmp_path / "run" / "results.jsonl", record)
    page = write_page([tmp_path / "run"], tmp_path / "page").read_text()
    assert page.count(f"Warning, <b>run</b>: {found[0].context[WARNED][0]}.") == 1
