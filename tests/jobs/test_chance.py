"""A model that draws at random is known by its answers, its records say so, and what it draws repeats."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.joint import WholeSet
from robustmetric.attacks.margin import Misclassify
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.chance import is_randomised
from robustmetric.jobs.clustering import run_clustering
from robustmetric.jobs.evaluate import run_suite
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.workers import Workers
from robustmetric.models.encoder import Encoder
from robustmetric.numerics.randomness import repeatable
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.pgd import PGD
from robustmetric.records import Record

CPU = torch.device("cpu")


class _Noisy(nn.Module):
    """Linear logits of an image with noise on it."""

    classes = 10

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise
        self.register_buffer("weight", torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.noise * torch.randn_like(x)).flatten(1) @ self.weight.T


class _LeftOut(_Noisy):
    """Never answers the last class."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(super().forward(x)[:, :-1], (0, 1), value=-1e9)


def prepared(noise: float, kind: type[_Noisy] = _Noisy) -> Arena:
    return Arena.prepare(
        kind(noise), Digits(closed=True).load(), Identity(), Workers(CPU), limit=200, batch_size=64
    )  # fmt: skip


def measured(noise: float, seed: int) -> list[Record]:
    trial = Trial("step", Misclassify("cross_entropy"), PGD(Ball(0.02), steps=1, step_size=0.02))
    suite = Suite("s", [trial], survivors={"all": ["step"]})
    return [record for record, _ in run_suite(prepared(noise), suite, seed, {})]


def test_what_is_drawn_at_random_is_known_by_two_answers() -> None:
    assert is_randomised(prepared(0.3)) and not is_randomised(prepared(0.0))
    assert is_randomised(prepared(0.3, _LeftOut)) and not is_randomised(prepared(0.0, _LeftOut))


def test_records_of_a_randomised_model_say_so_and_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.random.get_rng_state()
    first = measured(0.3, seed=0)
    assert torch.equal(torch.random.get_rng_state(), state), "nobody else's randomness is disturbed"
    warned = capsys.readouterr().err
    assert "warning: the model draws at random" in warned and "of a classifier, autoattack_rand" in warned
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(17)
        second = measured(0.3, seed=0)
    assert [r.scores for r in first] == [r.scores for r in second]
    assert all(r.settings["randomised"] is True for r in first) and len(first) == 4
    other = measured(0.3, seed=1)
    assert [r.scores for r in other] != [r.scores for r in first], "what it draws depends on the seed"


class _Shaken(nn.Module):
    """The nearest class mean of digits, as logits, with weights drawn anew around it at every answer."""

    classes = 10

    def __init__(self, noise: float) -> None:
        super().__init__()
        train, self.noise = Digits(closed=True).load().train, noise
        x = train.inputs.flatten(1).float() / 255
        self.register_buffer("means", torch.stack([x[train.labels == label].mean(dim=0) for label in range(10)]))

    def forward(self, x: Tensor) -> Tensor:
        # -|x - m|^2 / 2 up to |x|^2 / 2, which all classes share.
        drawn = self.means + self.noise * torch.randn(len(x), *self.means.shape)
        return (drawn @ x.flatten(1)[:, :, None])[:, :, 0] - self.means.square().sum(dim=1) / 2


def test_the_suite_for_randomised_models_climbs_the_mean_that_single_draws_hide() -> None:
    suite = load_suite("autoattack_rand", radius=0.1)
    first, second = suite.trials
    assert [trial.attack.loss for trial in suite.trials] == ["cross_entropy", "dlr"]
    assert first.engine == second.engine == Expectation(Ball(0.1), APGD(Ball(8 / 255), goal=1e4), draws=20)
    short = replace(first.engine, engine=APGD(Ball(0.1), steps=20, goal=1e4))
    single = Trial("single", first.attack, short.engine)
    trials = [single, *(replace(trial, engine=short) for trial in suite.trials)]
    arena = Arena.prepare(
        _Shaken(0.1), Digits(closed=True).load(), Identity(), Workers(CPU), limit=150, batch_size=150
    )  # fmt: skip
    found = {record.name: record for record, _ in run_suite(arena, replace(suite, trials=trials), 0, {})}
    scores = {name: record.scores["accuracy"] for name, record in found.items()}
    assert scores["clean"] > 70 and scores["single"] > scores["APGD-CE (EOT)"] + 10, scores
    assert scores["AutoAttack rand"] == scores["APGD-DLR (EOT)"] <= scores["APGD-CE (EOT)"]
    assert all(record.settings["randomised"] for record in found.values())


def clustered(noise: float, seed: int) -> list[Record]:
    encoder = Encoder(_Noisy(noise), dim=10)
    arena = Arena.prepare(encoder, Digits().load(), Identity(), Workers(CPU), limit=50, batch_size=300)
    shifted = Trial("A1", WholeSet(EmbeddingShift()), PGD(Ball(0.02), steps=1, step_size=0.02))
    return list(run_clustering(arena, Suite("s", [shifted]), seed, {}))


def test_clusters_of_a_randomised_encoder_say_so_and_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    first = clustered(0.3, seed=0)
    assert "warning: the model draws at random" in capsys.readouterr().err
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(17)
        second = clustered(0.3, seed=0)
    assert [r.scores for r in first] == [r.scores for r in second]
    assert all(r.settings["randomised"] is True for r in first) and first[-1].settings["trial"] == "strongest"
    assert [r.scores for r in clustered(0.3, seed=1)] != [r.scores for r in first]
    capsys.readouterr()
    assert all("randomised" not in r.settings for r in clustered(0.0, seed=0))
    assert "warning" not in capsys.readouterr().err


def test_nothing_is_said_of_a_model_that_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert all("randomised" not in record.settings for record in measured(0.0, seed=0))
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert "named rightly without any attack, as by chance" in told, "it was never trained"


def test_randomness_repeats_within_and_goes_on_after() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        draws = []
        for parts in ((1, 2), (1, 2), (1, 3)):
            with repeatable(CPU, *parts):
                draws.append(torch.rand(4))
        assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
        assert torch.equal(torch.rand(2), expected)
