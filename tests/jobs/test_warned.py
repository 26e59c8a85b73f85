"""What AutoAttack's authors warn of is said in a line, kept in the records and shown on the page; no more than that."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import robustmetric
from commands import Command
from robustmetric import records
from robustmetric.attacks.suite import Suite
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.evaluate import run_suite
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.warned import warned_context, with_square
from robustmetric.jobs.workers import Workers
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD
from robustmetric.records import Record
from robustmetric.report.page import write_page
from robustmetric.report.runs import read_run
from robustmetric.report.warned import warned

LITTLE = """
rounded: false
engine: {ball: {name: ball, radius: 0.1}}
survivors:
  AutoAttack: [APGD-CE, APGD-T, Square]
attacks:
  APGD-CE: {attack: {name: misclassify, loss: cross_entropy}, engine: &apgd {name: apgd, goal: 1e4, steps: 3}}
  APGD-T: {attack: {name: misclassify_towards, loss: dlr, targets: 1}, engine: *apgd}
  Square: {attack: {name: misclassify, loss: margin}, engine: {name: square, goal: 0, queries: 60}}
"""


SHIFT = """
engine: {name: pgd, ball: {name: ball, radius: 0.1}, steps: 2, step_size: 0.1}
attacks: {ES: {attack: {name: embedding_shift}}}
"""

# Class 0 for every image, by steps that no gradient passes.
OWN = """
import torch
from torch import nn

class Build(nn.Module):
    classes = 5

    def forward(self, x):
        return (0.1 * x.flatten(1)[:, :5]).round() + 3 * torch.eye(5)[0]
"""


class Means(nn.Module):
    """The nearest class mean of digits, as logits."""

    classes = 10

    def __init__(self) -> None:
        super().__init__()
        train = Digits(closed=True).load().train
        x = train.inputs.flatten(1).float() / 255
        self.means = nn.Parameter(torch.stack([x[train.labels == label].mean(dim=0) for label in range(10)]))

    def forward(self, x: Tensor) -> Tensor:
        return 4 * (x.flatten(1) @ self.means.T - self.means.square().sum(dim=1) / 2)


class Rounded(Means):
    """Sees two levels of grey, through which no gradient passes."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.round())


class Rooted(Means):
    """Takes a root that bytes alone are fit for."""

    def forward(self, x: Tensor) -> Tensor:
        away = (255 * x - (255 * x).round()).abs().flatten(1).amax(dim=1)
        return super().forward(x) * (1e-2 - away).sqrt()[:, None]


class Followed(Means):
    """Shifts its logits while autograd follows it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.01 * torch.arange(10) * torch.is_grad_enabled()


class Purified(Means):
    """Moves an image towards higher logits before it answers."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            moved = x.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(super().forward(moved).amax(dim=1).sum(), moved)
        return super().forward(x + 0.01 * gradient.sign())


class Backwards(Means):
    """The same by `backward`, of a parameter of its own."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            shift = torch.zeros_like(x, requires_grad=True)
            super().forward(x.detach() + shift).amax(dim=1).sum().backward()
        assert shift.grad is not None
        return super().forward(x + 0.01 * shift.grad.sign())


class Detached(Means):
    """Answers without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


def prepared(model: nn.Module, limit: int = 30) -> Arena:
    return Arena.prepare(
        model, Digits(closed=True).load(), Identity(), Workers(torch.device("cpu")), limit=limit, batch_size=20
    )  # fmt: skip


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    (tmp_path / "little.yaml").write_text(LITTLE)
    return load_suite(str(tmp_path / "little.yaml"))


def warnings(record: Record) -> list[str]:
    found: list[str] = record.context.get("warnings", [])
    return found


def test_nothing_is_said_of_a_model_that_gives_no_reason(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    found = [record for record, _ in run_suite(prepared(Means()), suite, 0, {})]
    assert len(found) == 6 and not any("warnings" in record.context for record in found)
    assert "warning" not in capsys.readouterr().err


def test_images_without_a_gradient_are_counted_for_each_loss(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    place = prepared(Rounded())
    found = [record for record, _ in run_suite(place, suite, 0, {})]
    first, second = warnings(found[0])
    # Of the first batch, all that are named rightly; of those named wrongly nobody asks.
    batch = next(place.batches())[2]
    right = int((place.model(batch.inputs).argmax(dim=1) == batch.labels).sum())
    assert 0 < right < 20 and first.startswith(f"{right} of the first {right} images that are named rightly")
    assert "have no gradient where APGD-CE begins" in first and "where APGD-T begins" in second
    assert "run the suite masking" in first
    said = capsys.readouterr().err
    assert f"warning: {first}\n" in said and f"warning: {second}\n" in said
    assert all(warnings(record)[:2] == [first, second] for record in found), "in every record, AutoAttack's own too"
    assert [record.name for record in found[-2:]] == ["AutoAttack", "worst case"]


def test_saturated_logits_have_no_gradient_of_cross_entropy_and_one_of_dlr(suite: Suite) -> None:
    class Sure(Means):
        def forward(self, x: Tensor) -> Tensor:
            return 1e5 * super().forward(x)

    found = warned_context(prepared(Sure()), suite, is_randomised=False)
    (words,) = found["warnings"]
    assert "where APGD-CE begins" in words and "saturation" in words


def test_answers_that_are_no_numbers_off_the_clean_images_are_told(suite: Suite) -> None:
    words, *others = warned_context(prepared(Rooted()), suite, is_randomised=False)["warnings"]
    assert "have NaN or infinity for an answer where APGD-CE begins, and count as fooled" in words
    assert len(others) == 1 and "APGD-T" in others[0], "and nothing of rounding or saturation"


def test_images_that_the_first_point_wins_need_no_gradient(suite: Suite) -> None:
    # Lost to a third class there, with the target below the label, a lifted loss has no slope, and none is asked for.
    wide = Suite("s", [replace(trial, engine=replace(trial.engine, ball=Ball(0.6))) for trial in suite.trials])
    assert not warned_context(prepared(Means(), limit=200), wide, is_randomised=False)


def test_a_model_that_answers_otherwise_under_autograd_is_told(suite: Suite) -> None:
    (words,) = warned_context(prepared(Followed()), suite, is_randomised=False)["warnings"]
    assert "answers otherwise where a gradient is asked for (logits differ by" in words
    assert "alike with and without autograd" in words
    assert not warned_context(prepared(Followed()), suite, is_randomised=True), "chance makes answers differ too"


@pytest.mark.parametrize("model", [Purified, Backwards])
def test_a_model_that_computes_gradients_while_it_answers_is_told(model: type[Means], suite: Suite) -> None:
    (words,) = warned_context(prepared(model()), suite, is_randomised=False)["warnings"]
    assert "computes gradients while it answers" in words and "adaptive attack" in words


def test_a_model_without_any_gradient_is_left_to_the_attack_that_refuses_it(suite: Suite) -> None:
    assert not warned_context(prepared(Detached()), suite, is_randomised=False)
    with pytest.raises(InputError, match="the model gives no gradient of its output with respect to the input"):
        list(run_suite(prepared(Detached()), suite, 0, {}))


@pytest.mark.parametrize("name", ["autoattack", "classification", "autoattack_pgd100", "autoattack_rand"])
def test_the_suites_with_autoattack_ask(name: str) -> None:
    assert warned_context(prepared(Rounded(), limit=4), load_suite(name), is_randomised=False)


def test_suites_without_it_do_not() -> None:
    assert not warned_context(prepared(Rounded(), limit=4), load_suite("local_search"), is_randomised=False)


def test_nobody_elses_randomness_is_disturbed(suite: Suite) -> None:
    class Noisy(Means):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + 0.01 * torch.randn_like(x))

    place, before = prepared(Noisy()), torch.random.get_rng_state()
    warned_context(place, suite, is_randomised=True)
    assert torch.equal(torch.random.get_rng_state(), before)


def group(suite: Suite, lost: dict[str, int], name: str = "AutoAttack", **context: Any) -> Record:
    record = Record("worst_case", name, {"accuracy": 50.0}, {"radius": 8 / 255}, count=1000)
    return with_square(replace(record, context={"lost_first_to": lost, **context}), suite, is_told=True)


def test_what_square_wins_after_gradients_is_told(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    # The package's rule: more than 0.2 % of the images, 3 of 1000.
    (words,) = warnings(group(suite, {"APGD-CE": 400, "APGD-T": 20, "Square": 3}))
    assert words.startswith("Square, which uses no gradient, took 0.3 % of the images at radius 8/255 after the other")
    assert f"warning: {words}\n" in capsys.readouterr().err
    assert warnings(group(suite, {"APGD-CE": 400, "Square": 3}, warnings=["one"])) == ["one", words]


@pytest.mark.parametrize(
    ("lost", "name"),
    [
        ({"APGD-CE": 400, "APGD-T": 20, "Square": 2}, "AutoAttack"),
        ({"Square": 400, "APGD-CE": 20}, "AutoAttack"),
        ({"Square": 400}, "AutoAttack"),
        ({"APGD-CE": 400, "Square": 30}, "worst case"),
    ],
    ids=["within the rule", "before the others", "alone", "not over all attacks, which the group has told"],
)
def test_square_is_not_told_where_it_says_nothing(lost: dict[str, int], name: str, suite: Suite) -> None:
    assert not warnings(group(suite, lost, name))


def test_square_is_told_at_the_end_of_a_suite(suite: Suite) -> None:
    found = {record.name: record for record, _ in run_suite(prepared(Rounded()), suite, 0, {})}
    assert "Square, which uses no gradient" in warnings(found["AutoAttack"])[-1]
    assert len(warnings(found["AutoAttack"])) == 3 and len(warnings(found["worst case"])) == 2


def test_a_run_that_was_cut_says_the_same(suite: Suite, tmp_path: Path) -> None:
    whole = [record for record, _ in run_suite(prepared(Rounded()), suite, 0, {}, folder=tmp_path)]
    done = {record.key: record for record in whole[:3]}
    rest = [record for record, _ in run_suite(prepared(Rounded()), suite, 0, {}, finished=done, folder=tmp_path)]
    assert [(record.name, warnings(record)) for record in rest] == [(r.name, warnings(r)) for r in whole[3:]]


def test_python_says_it_too_and_the_page_shows_it(
    suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = Digits(closed=True).load().queries
    images, labels = test.inputs[:20].float() / 255, test.labels[:20]
    found = robustmetric.evaluate(Rounded(), images, labels, str(tmp_path / "little.yaml"))
    words = warnings(found[0])[0]
    assert "have no gradient where APGD-CE begins" in words and f"warning: {words}" in capsys.readouterr().err
    for record in found:
        records.append(tmp_path / "run" / "results.jsonl", record)
    page = write_page([tmp_path / "run"], tmp_path / "page").read_text()
    assert page.count(f"Warning, <b>run</b>: {words}.") == 1
    other = replace(found[0], settings={**found[0].settings, "weights": "ffff"}, context={})
    records.append(tmp_path / "run" / "results.jsonl", other)
    assert "Warning, <b>" not in write_page([tmp_path / "run"], tmp_path / "page").read_text(), "of older weights"


def test_clean_answers_no_better_than_chance_are_told_whatever_attacks(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    test = Digits(closed=True).load().queries
    images, labels = test.inputs[:30].float() / 255, test.labels[:30]
    for moved, name in ((1, "transfer"), (9, "autoattack")):
        surrogate = Rounded() if name == "transfer" else None
        clean, *_ = robustmetric.evaluate(Means(), images, (labels + moved) % 10, name, 0.0, surrogate=surrogate)
        (words,) = warnings(clean)
        assert "of the first 30 images are named rightly without any attack, as by chance" in words
        assert "labels in another order than the logits" in capsys.readouterr().err
    named = Means()(images).argmax(dim=1)
    untrained = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    untrained.classes = 10
    nn.init.zeros_(untrained[1].weight)
    nn.init.zeros_(untrained[1].bias)
    clean, *_ = robustmetric.evaluate(Means(), images, named, "transfer", 0.0, surrogate=untrained)
    (words,) = warnings(clean)
    assert words.startswith("the surrogate Sequential: ") and "expected a model that was trained on the same" in words
    assert not warnings(robustmetric.evaluate(Means(), images, named, "transfer", 0.0, surrogate=Rounded())[0])
    clean, *_ = robustmetric.evaluate(Means(), images[:8], (labels[:8] + 1) % 10, "autoattack", 0.0)
    assert not warnings(clean), "too few images to tell"


def test_the_command_says_it_and_again_where_nothing_is_left_to_do(
    suite: Suite, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "stepped.py").write_text(OWN)
    words = ("evaluate", "stepped.Build", "little.yaml", "--data", "digits", "--queries", 60, "-o", "out")
    for done in (command(*words), command(*words)):
        assert done.code == 0, done.err
        told = [line for line in done.err.splitlines() if line.startswith("warning: ")]
        assert len(told) == 3 and "named rightly without any attack, as by chance" in told[0]
        assert "where APGD-CE begins" in told[1] and "where APGD-T begins" in told[2]
    assert "nothing to do" in done.err
    last = records.read(tmp_path / "out" / "results.jsonl")[-1]
    assert [f"warning: {one}" for one in warnings(last)] == told


def test_the_page_says_that_a_model_draws_at_random(suite: Suite, tmp_path: Path) -> None:
    (record, _), *_ = run_suite(prepared(Means()), suite, 0, {})
    drawn = replace(record, settings={**record.settings, "randomised": True})
    records.append(tmp_path / "run" / "results.jsonl", drawn)
    assert (
        "Warning, <b>run</b>: the model draws at random" in write_page([tmp_path / "run"], tmp_path / "p").read_text()
    )


def test_climbs_by_pgd_alone_ask_nothing(suite: Suite) -> None:
    pgd = replace(suite.trials[0], engine=PGD(suite.trials[0].engine.ball, 1, 0.1))
    assert not warned_context(prepared(Rounded(), limit=4), Suite("s", [pgd]), is_randomised=False)


@pytest.mark.parametrize("name", ["Bytes", "Nothing"])
def test_embeddings_that_are_all_alike_are_told(name: str, command: Command, tmp_path: Path) -> None:
    suite = tmp_path / "shift.yaml"
    suite.write_text(SHIFT)
    # Subtracting the mean of bytes from pixels in [0, 1] leaves one direction; no attack seems to move it.
    (tmp_path / "alike.py").write_text(
        "from torch import nn\nfrom torch.nn.functional import normalize\n"
        "class Bytes(nn.Module):\n    def forward(self, x): return normalize(x.flatten(1) - 128, dim=1)\n"
        "class Nothing(nn.Module):\n    def forward(self, x): return 0 * x.flatten(1)\n"
    )
    done = command("evaluate", f"alike.{name}", suite, "--data", "digits", "--queries", 10, "-o", "run")
    assert done.code == 0, done.err
    expected = (
        "warning: the embeddings of all images " + {"Bytes": "have a mean cosine of", "Nothing": "are equal"}[name]
    )
    assert expected in done.err
    assert len(records.read(tmp_path / "run" / "results.jsonl")[0].context["warnings"]) == 1
    told = command("evaluate", "torch.nn.Flatten", suite, "--data", "digits", "--queries", 10, "-o", "other")
    assert told.code == 0 and "hardly tells them apart" not in told.err


FLAT = """
import torch
from torch import nn
class Plain(nn.Module):
    def forward(self, x):
        return x.flatten(1)
class Rounds(Plain):
    def forward(self, x):
        return (0 * x + x.round() + 0.1 * x.sign()).flatten(1)
class Half(Plain):
    def forward(self, x):
        # An image whose first pixel is black passes as it is; the others in steps.
        return torch.where(x.flatten(1)[:, :1] == 0, x.flatten(1), x.detach().flatten(1).round())
class Spoilt(Plain):
    def forward(self, x):
        return (x + 0 * x.detach().mul(0).add(x - x.detach()).sqrt()).flatten(1)
"""


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    (tmp_path / "flat.py").write_text(FLAT)
    (tmp_path / "shift.yaml").write_text(SHIFT.replace("step_size: 0.1", "step_size: 0.1, random_start: false"))
    return tmp_path


@pytest.mark.parametrize("name", ["Rounds", "Spoilt"])
def test_an_encoder_that_gives_no_gradient_to_climb_is_told(name: str, flat: Path, command: Command) -> None:
    done = command("evaluate", f"flat.{name}", "shift.yaml", "--data", "digits", "--queries", 10, "-o", "run")
    assert done.code == 0, done.err
    found = records.read(flat / "run" / "results.jsonl")
    # Without the warning, an attack that cannot move anything speaks well of the model.
    shift = next(record for record in found if record.name == "ES")
    assert shift.scores["ES:D"] == 0 and shift.scores["ES:R"] == found[0].scores["R@1"] > 50
    (words,) = warnings(shift)
    assert words.startswith("10 of the first 10 images have no gradient that ES could follow, so that it and its like")
    assert f"warning: {words}" in done.err
    other = command("evaluate", "flat.Plain", "shift.yaml", "--data", "digits", "--queries", 10, "-o", "other")
    assert other.code == 0, other.err
    # To be moved less is no better where nothing could be moved.
    compared = command("compare", "other", "run").out.splitlines()
    assert any(line.startswith("ES:D") and line.endswith("better") for line in compared)
    assert [line for line in compared if "warning" in line] == [f"warning, run: {words}"]
    lines = [json.loads(line) for line in command("compare", "other", "run", "--json").out.splitlines()]
    assert lines and all(line["warnings"] == {"run": [words]} for line in lines)


def test_only_images_without_a_gradient_are_counted(flat: Path, command: Command) -> None:
    images = torch.full((6, 1, 2, 2), 0.3) + 0.4 * torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    images[:4, 0, 0, 0] = 0.0
    space: dict[str, Any] = {}
    exec(FLAT, space)
    labels, suite = [0, 1, 0, 1, 0, 1], str(flat / "shift.yaml")
    clean, *_ = robustmetric.evaluate(space["Half"](), images, labels, suite)
    assert warnings(clean)[0].startswith("2 of the first 6 images have no gradient that ES could follow")
    clean, *_ = robustmetric.evaluate(space["Plain"](), images, labels, suite)
    assert not warnings(clean)


def test_where_nothing_is_climbed_no_gradient_is_missed(flat: Path) -> None:
    space: dict[str, Any] = {}
    exec(FLAT, space)
    test = Digits().load().queries
    target = Arena.prepare(space["Rounds"](), Digits().load(), Identity(), Workers(torch.device("cpu")), limit=10)
    (shift,) = load_suite(str(flat / "shift.yaml")).trials
    assert test.n > 10 and warned_context(target, Suite("s", [shift]), is_randomised=False)
    searched = replace(shift, engine=Square(Ball(0.1), queries=5))
    assert not warned_context(target, Suite("s", [searched]), is_randomised=False)


def test_the_page_says_once_what_was_said_of_fewer_queries_and_of_more(suite: Suite, tmp_path: Path) -> None:
    (record, _), *_ = run_suite(prepared(Means()), suite, 0, {})

    def told(queries: int, words: str, **settings: Any) -> Record:
        return replace(
            record, settings={**record.settings, "queries": queries, **settings}, context={"warnings": [words]}
        )

    by_chance = "{} of the first {} images are named rightly without any attack, as by chance"
    square = "Square, which uses no gradient, took {} % of the images at radius {}"
    apart = "the model answers otherwise where a gradient is asked for (logits differ by {} % of the largest)"
    for one in (
        told(40, by_chance.format(4, 40)),
        told(100, by_chance.format(11, 100)),
        told(20, by_chance.format(3, 20)),
        told(40, apart.format("1.5e+02"), radius=0.1),
        told(100, apart.format("97"), radius=0.1),
        told(40, square.format("0.3", "8/255"), radius=8 / 255),
        told(100, square.format("1.5", "8/255"), radius=8 / 255),
        told(40, square.format("2.5", "4/255"), radius=4 / 255),
        told(10, by_chance.format(1, 10), data_fingerprint="other images"),
    ):
        records.append(tmp_path / "run" / "results.jsonl", one)
    found = [words for _, words in warned([read_run(tmp_path / "run")])]
    assert found == [
        by_chance.format(11, 100),
        apart.format("97"),
        square.format("1.5", "8/255"),
        square.format("2.5", "4/255"),
        by_chance.format(1, 10),
    ]
