"""Recall and clusters by every reading of an ensemble: identical members, chance levels, refusals."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.metrics.clustering import ami, nmi, pairwise_f1
from robustmetric.metrics.voting import VOTES, Reading, agreement, clusters_by_reading, recall_by_reading
from robustmetric.numerics.kmeans import kmeans


def unit_rows(n: int, dim: int, seed: int) -> Tensor:
    return functional.normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def side_by_side(*members: Tensor) -> Tensor:
    return torch.cat(members, dim=1) / math.sqrt(len(members))


def own(n: int) -> Tensor:
    return torch.arange(n)


LABELS = torch.arange(6).repeat(10)


def blurred(seed: int) -> Tensor:
    """Classes that overlap."""
    noise = torch.randn(60, 6, generator=torch.Generator().manual_seed(seed))
    return functional.normalize(functional.one_hot(LABELS).float() + 0.45 * noise, dim=1)


def test_identical_members_vote_like_one_model() -> None:
    z = blurred(0)
    alone = recall_by_reading(z, z, LABELS, LABELS, own(60), Reading())["alone"]
    assert 0 < alone["R@1"].mean() < 1
    three = recall_by_reading(*[side_by_side(z, z, z)] * 2, LABELS, LABELS, own(60), Reading(3))
    for name in Reading(3).names:
        for score, hits in alone.items():
            assert torch.equal(three[name][score], hits), (name, score)


def test_clusters_of_identical_members_are_those_of_one_model() -> None:
    z = blurred(0)
    alone = clusters_by_reading(z, LABELS, Reading(seeds=2))["alone"]
    assert 0 < alone["NMI"] < 1
    many = [clusters_by_reading(side_by_side(*[z] * n), LABELS, Reading(n, seeds=2)) for n in (2, 3, 5)]
    for found in many:
        for name in ("member 2", "mean", "V1, C1", "V3, C3"):
            assert found[name] == pytest.approx(alone), name
        assert found["V2, C2"] == pytest.approx(_named(z, seeds=2))
    # C2 names clusters by classes, so two may become one; where the names differ, it too is the model alone.
    assert many[0]["V2, C2"] != pytest.approx(alone)
    far = functional.one_hot(LABELS).float()
    three = clusters_by_reading(side_by_side(far, far, far), LABELS, Reading(3, seeds=2))
    assert three["V2, C2"] == pytest.approx(clusters_by_reading(far, LABELS, Reading(seeds=2))["alone"])


def _named(z: Tensor, seeds: int) -> dict[str, float]:
    """The scores of one model whose clusters are named by the class of their medoid, the mean over seeds."""
    runs = []
    for seed in range(seeds):
        clusters = kmeans(z, 6, seed=seed)
        centres = torch.stack([z[clusters == c].mean(dim=0) for c in range(6)])
        gap = (z - centres[clusters]).norm(dim=1)
        names = {c: LABELS[gap.where(clusters == c, torch.inf).argmin()] for c in range(6)}
        runs.append(agreement(LABELS, torch.stack([names[int(c)] for c in clusters])))
    values = {name: torch.tensor([run[name] for run in runs], dtype=torch.float64) for name in runs[0]}
    return {name: float(v.mean()) for name, v in values.items()} | {
        f"{n} std": float(v.std()) for n, v in values.items()
    }


@pytest.mark.parametrize(("only", "clusterings"), [(["V1, C1"], 3), (["mean"], 1), (["member 2", "V2, C2"], 3)])
def test_nothing_is_clustered_for_readings_that_are_not_asked_for(
    only: list[str], clusterings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, reading = side_by_side(*(blurred(seed) for seed in range(3))), Reading(3, seeds=1)
    every = clusters_by_reading(z, LABELS, reading)
    runs: list[int] = []

    def counted(x: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        runs.append(x.shape[1])
        return kmeans(x, *given, **named)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr("robustmetric.metrics.voting.kmeans", counted)
    monkeypatch.setattr("robustmetric.metrics.voting.consensus", pytest.fail)
    assert clusters_by_reading(z, LABELS, reading, only) == {name: every[name] for name in only}
    assert len(runs) == clusterings


def test_a_vote_mends_what_one_member_breaks() -> None:
    good, bad = functional.one_hot(LABELS).float(), unit_rows(60, 6, 3)
    z = side_by_side(bad, good, good)
    recall = recall_by_reading(z, z, LABELS, LABELS, own(60), Reading(3))
    assert recall["member 1"]["R@1"].mean() < 0.5
    assert all(recall[vote]["R@1"].mean() == 1 for vote in VOTES)
    clusters = clusters_by_reading(z, LABELS, Reading(3, seeds=2))
    assert clusters["member 1"]["NMI"] < 0.5
    # C1 takes its names from the broken member, which two others outvote all the same.
    assert all(clusters[vote]["NMI"] == pytest.approx(1) for vote in ("V1, C1", "V2, C2"))


def test_v3_counts_where_two_of_three_members_hit() -> None:
    z = side_by_side(unit_rows(60, 6, 3), functional.one_hot(LABELS).float(), unit_rows(60, 6, 4))
    recall = recall_by_reading(z, z, LABELS, LABELS, own(60), Reading(3))
    for score in ("R@1", "R@8"):
        hits = torch.stack([recall[f"member {i}"][score] for i in (1, 2, 3)]).sum(dim=0)
        assert set(hits.tolist()) >= {1.0, 2.0}
        assert torch.equal(recall["V3, C3"][score], (hits >= 2).float())


def test_mean_and_deviation_over_seeds_by_hand() -> None:
    z = blurred(1)
    runs = [clusters_by_reading(z, LABELS, Reading(seeds=n))["alone"] for n in (1, 2)]
    assert runs[0]["NMI std"] == 0
    second = 2 * runs[1]["NMI"] - runs[0]["NMI"]
    # Of two values, the sample deviation is their difference over sqrt 2.
    assert runs[1]["NMI std"] == pytest.approx(abs(second - runs[0]["NMI"]) / math.sqrt(2), abs=1e-9)
    assert runs[1]["NMI std"] > 0


def test_agreement_is_the_three_metrics() -> None:
    labels, clusters = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([5, 5, 5, 2, 2])
    expected = {"NMI": nmi(labels, clusters), "AMI": ami(labels, clusters), "F1": pairwise_f1(labels, clusters)}
    assert agreement(labels, clusters) == expected


@pytest.mark.parametrize(
    ("points", "classes", "chance"),
    [
        (3089, 100, {"NMI": 29.5, "F1": 1.0}),  # CUB-200 (2010)
        (5924, 100, {"NMI": 19.0}),  # CUB-200-2011
        (8131, 98, {"NMI": 14.4, "F1": 1.0}),  # CARS196
        (14218, 3985, {"NMI": 83.5, "F1": 0.02}),  # In-Shop queries
    ],
)
def test_clusters_drawn_at_random_score_as_chance_does(points: int, classes: int, chance: dict[str, float]) -> None:
    labels = torch.arange(points) % classes
    clusters = torch.randint(classes, (points,), generator=torch.Generator().manual_seed(0))
    found = {"NMI": nmi(labels, clusters), "F1": pairwise_f1(labels, clusters)}
    for name, expected in chance.items():
        assert 100 * found[name] == pytest.approx(expected, abs=0.5 if name == "NMI" else 0.05), name


def test_an_ensemble_without_knowledge_finds_as_chance_does() -> None:
    labels = torch.arange(3089) % 100
    z = side_by_side(*(unit_rows(3089, 16, seed) for seed in range(3)))
    found = recall_by_reading(z, z, labels, labels, own(3089), Reading(3))
    for name in ("member 1", "mean", "concatenated", "V1, C1"):
        assert 100 * found[name]["R@1"].mean() == pytest.approx(1.0, abs=0.5)
        # Four standard deviations of a mean over 3,089 queries are 1.9.
        assert 100 * found[name]["R@8"].mean() == pytest.approx(7.5, abs=1.9)


def test_more_neighbours_or_clusters_than_points_are_refused() -> None:
    z, labels = unit_rows(6, 3, 0), torch.tensor([0, 0, 1, 1, 2, 2])
    with pytest.raises(InputError, match="k = 8 neighbours asked of 5 items"):
        recall_by_reading(z, z, labels, labels, own(6), Reading())
    with pytest.raises(InputError, match="7 clusters asked of 6 points"):
        clusters_by_reading(z, labels, Reading(clusters=7))


@pytest.mark.parametrize("wrong", [{"members": 0}, {"seeds": 0}, {"ks": ()}, {"ks": (0, 1)}])
def test_a_reading_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected all to be 1 or more"):
        Reading(**wrong)  # type: ignore[arg-type]  # on purpose


def test_scores_of_faiss_are_like_ours() -> None:
    pytest.importorskip("faiss")
    ours, theirs = (
        clusters_by_reading(functional.one_hot(LABELS).float(), LABELS, Reading(backend=backend))["alone"]
        for backend in ("torch", "faiss")
    )
    assert ours["NMI"] == pytest.approx(1) and theirs["NMI"] == pytest.approx(1, abs=0.1)
