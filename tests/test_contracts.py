"""What every member of the catalogue promises. A new member is tested by being there (see members.py)."""

import dataclasses
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import brute_force
from members import CLASSES, DIM, build, built, constructor, convnet, engine, promised, variants
from robustmetric import metrics
from robustmetric.attacks.base import Attack, Engine, Targets, run
from robustmetric.attacks.feature_match import Exposed
from robustmetric.attacks.joint import move_all
from robustmetric.catalogue import CATALOGUE, NAMES
from robustmetric.data.base import Dataset, Split
from robustmetric.data.digits import Digits
from robustmetric.defences.destinations import Destination, Moment
from robustmetric.defences.plain import Plain
from robustmetric.defences.structure import NAMES as PARTS
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.mining import Hardest
from robustmetric.losses.triplet import Triplet
from robustmetric.metrics.average_precision import average_precision, average_precision_at, average_precision_at_r
from robustmetric.metrics.clustering import ami, nmi, pairwise_f1
from robustmetric.metrics.recall import recall_at
from robustmetric.metrics.verification import equal_error_rate, true_positive_rate
from robustmetric.models.classifier import Classifier, mlp
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.models.mahalanobis import Mahalanobis
from robustmetric.numerics.distances import nearest
from robustmetric.optimise import Optimiser
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.local_search import LocalSearch
from robustmetric.perturb.pgd import PGD, evaluate, frozen, value_and_gradient
from robustmetric.types import Batch, Gallery, Triplets


def members(kind: str) -> pytest.MarkDecorator:
    """Once for each member of this kind."""
    return pytest.mark.parametrize("name", list(CATALOGUE[kind]))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: more threads only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- the catalogue itself -------------------------------------------------------------------------------------------

KINDS = {
    "data",
    "transforms",
    "samplers",
    "models",
    "losses",
    "miners",
    "perturbations",
    "attacks",
    "black_box",
    "joint",
    "diagnoses",
    "defences",
    "destinations",
    "matchings",
    "structures",
    "input_transforms",
    "learners",
    "certificates",
    "optimisers",
}


def test_every_kind_has_a_contract() -> None:
    assert set(CATALOGUE) == KINDS, "a new kind needs a contract in this file; then add it to KINDS"


def test_names_are_unique_over_all_kinds() -> None:
    assert len(NAMES) == sum(len(group) for group in CATALOGUE.values())


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in CATALOGUE for name in CATALOGUE[kind]])
def test_every_path_leads_to_something_that_can_be_built(kind: str, name: str) -> None:
    assert callable(constructor(kind, name)) and variants(kind, name)


# --- attacks --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Arena:
    """A model that retrieves (or names) digits fairly well, a gallery, and queries from it."""

    model: nn.Module
    batch: Batch
    gallery: Gallery

    def climb(self, attack: Attack, climber: PGD, seed: int = 0) -> tuple[Targets, Tensor, Tensor]:
        """The targets, the perturbed inputs and their values."""
        with frozen(self.model) as embed:
            targets = attack.choose(evaluate(embed, self.batch.inputs), self.batch, self.gallery, seeded(seed))

            def value(x: Tensor) -> Tensor:
                return attack.value(embed(x), targets, self.gallery)

            moved = climber(value, self.batch.inputs, seeded(seed + 1))
            return targets, moved, evaluate(value, moved)


def small_encoder() -> Encoder:
    """In train mode, the same weights each time."""
    return build("models", "encoder", {"trunk": convnet})


def pixels(split: Split) -> Tensor:
    return split.inputs.float() / 255


def paired_rows(labels: Tensor, pairs_per_class: int) -> Tensor:
    """Rows 2i and 2i + 1 of one class, as the sampler `pairs` gives them."""
    return torch.cat([(labels == c).nonzero()[: 2 * pairs_per_class, 0] for c in range(CLASSES)])


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load()


@pytest.fixture(scope="module")
def paired(digits: Dataset) -> Batch:
    rows = paired_rows(digits.train.labels, 2)
    return Batch(pixels(digits.train)[rows], digits.train.labels[rows], rows)


ON_LOGITS = {"misclassify": False, "misclassify_towards": False, "feature_match": True}
"""The attacks on classifiers, and whether they are shown features behind the logits."""


@pytest.fixture
def arena(request: pytest.FixtureRequest, retrieval: Arena, classification: tuple[Arena, Arena]) -> Arena:
    """What the attack of this test is for."""
    name = request.node.callspec.params["name"]
    return classification[ON_LOGITS[name]] if name in ON_LOGITS else retrieval


@pytest.fixture(scope="module")
def classification(digits: Dataset) -> tuple[Arena, Arena]:
    """A classifier, and the same as feature matching sees it; the galleries hold what they say of their queries."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Classifier(convnet(), CLASSES)
    rows = paired_rows(digits.train.labels, 12)
    inputs, labels = pixels(digits.train)[rows], digits.train.labels[rows]
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(60):
        optimiser.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    batch = Batch(inputs[:24], labels[:24], torch.full((24,), -1))

    def of(seen: nn.Module) -> Arena:
        with frozen(seen) as embed:
            return Arena(seen, batch, Gallery(evaluate(embed, inputs), labels))

    return of(model), of(Exposed(model))


@pytest.fixture(scope="module")
def retrieval(digits: Dataset) -> Arena:
    model = small_encoder()
    rows = paired_rows(digits.train.labels, 12)
    inputs, labels = pixels(digits.train)[rows], digits.train.labels[rows]
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(60):
        optimiser.zero_grad()
        Triplet()(model(inputs), labels, generator=seeded(step)).backward()
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    items = pixels(digits.queries)[:200]
    with frozen(model) as embed:
        gallery = Gallery(evaluate(embed, items), digits.queries.labels[:200])
    index = torch.arange(24)
    return Arena(model, Batch(items[:24], gallery.labels[:24], index), gallery)


def length(offset: Tensor, norm: str) -> Tensor:
    return offset.flatten(1).norm(dim=1, p=torch.inf if norm == "linf" else 2)


@members("attacks")
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_attack_stays_in_ball_and_bounds(name: str, norm: str, arena: Arena) -> None:
    climber = PGD(Ball(0.3, norm=norm), steps=3, step_size=0.2)
    for attack in built("attacks", name):
        _, moved, _ = arena.climb(attack, climber)
        assert (length(moved - arena.batch.inputs, norm) <= 0.3 + 1e-5).all()
        assert moved.min() >= 0 and moved.max() <= 1


@members("attacks")
def test_attack_has_a_first_gradient_from_a_clean_start(name: str, arena: Arena) -> None:
    for attack in built("attacks", name):
        with frozen(arena.model) as embed:
            clean = evaluate(embed, arena.batch.inputs)
            targets = attack.choose(clean, arena.batch, arena.gallery, seeded())
            _, gradient = value_and_gradient(
                lambda x: attack.value(embed(x), targets, arena.gallery),  # noqa: B023  # called at once
                arena.batch.inputs,
            )
        assert gradient.isfinite().all()
        # A query whose target already ranks first has nothing to climb.
        assert (length(gradient, "l2") > 0).float().mean() > 0.9


@members("attacks")
def test_attack_best_value_never_falls_with_steps_and_rises_in_all(name: str, arena: Arena) -> None:
    for attack in built("attacks", name):
        heights = torch.stack([arena.climb(attack, engine(0.3, steps=steps, keep="best"))[2] for steps in (0, 1, 2, 4)])
        assert (heights.diff(dim=0) >= 0).all()
        assert heights[-1].mean() > heights[0].mean()


@members("attacks")
def test_attack_at_a_larger_radius_never_helps_the_model(name: str, arena: Arena) -> None:
    # One start and one small step for all radii: a coarse step overshoots a target that a fine one reaches.
    climbers = [
        PGD(Ball(radius), steps=24, step_size=0.02, random_start=False, keep="best") for radius in (0.05, 0.1, 0.3)
    ]
    for attack in built("attacks", name):
        heights = torch.stack([arena.climb(attack, climber)[2].mean() for climber in climbers])
        assert (heights.diff() >= -0.01).all() and heights[-1] > heights[0]


@members("attacks")
def test_attack_leaves_the_model_as_it_was(name: str, arena: Arena) -> None:
    for attack, training in itertools.product(built("attacks", name), (True, False)):
        before = {key: tensor.clone() for key, tensor in arena.model.state_dict().items()}
        arena.model.train(training)
        run(attack, engine(), arena.model, arena.batch, arena.gallery, seeded())
        assert all(module.training == training for module in arena.model.modules())
        assert all(p.requires_grad and p.grad is None for p in arena.model.parameters())
        torch.testing.assert_close(arena.model.state_dict(), before, atol=0, rtol=0)


@members("attacks")
def test_attack_with_the_same_seed_gives_the_same_result(name: str, arena: Arena) -> None:
    for attack in built("attacks", name):
        first, again = (run(attack, engine(), arena.model, arena.batch, arena.gallery, seeded(5)) for _ in range(2))
        assert torch.equal(first.inputs, again.inputs)
        torch.testing.assert_close(dict(first.scores), dict(again.scores), atol=0, rtol=0)


@members("attacks")
def test_attack_at_radius_zero_changes_nothing(name: str, arena: Arena) -> None:
    for attack in built("attacks", name):
        outcome = run(attack, engine(0.0), arena.model, arena.batch, arena.gallery, seeded())
        assert torch.equal(outcome.inputs, arena.batch.inputs)
        torch.testing.assert_close(outcome.embeddings, arena.gallery.embeddings[: len(arena.batch)])


@members("attacks")
def test_attack_is_scored_on_eight_bit_images_one_number_per_query(name: str, arena: Arena) -> None:
    for attack in built("attacks", name):
        assert isinstance(attack, Attack) and attack.role in ("query", "candidate")
        outcome = run(attack, engine(0.1), arena.model, arena.batch, arena.gallery, seeded())
        levels = outcome.inputs * 255
        torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
        assert outcome.scores
        for score in outcome.scores.values():
            assert score.shape == (len(arena.batch),) and score.isfinite().all()


@members("black_box")
def test_black_box_attack_is_not_climbed_by_gradients_of_its_target(name: str, arena: Arena) -> None:
    for attack in built("black_box", name):
        assert isinstance(attack, Attack) and attack.role == attack.attack.role
        with pytest.raises(InputError, match="expected"):
            run(attack, engine(), arena.model, arena.batch, arena.gallery, seeded())


@members("joint")
def test_joint_attack_is_not_climbed_in_batches_and_moves_a_whole_set_within_its_ball(name: str, arena: Arena) -> None:
    for attack in built("joint", name):
        assert isinstance(attack, Attack) and attack.role == attack.attack.role
        with pytest.raises(InputError, match="expected"):
            run(attack, engine(), arena.model, arena.batch, arena.gallery, seeded())
        first, again = (move_all(attack, engine(0.1), arena.model, arena.batch, seeded(5)) for _ in range(2))
        assert torch.equal(first.inputs, again.inputs) and torch.equal(first.embeddings, again.embeddings)
        assert not torch.equal(first.inputs, arena.batch.inputs)
        assert (length(first.inputs - arena.batch.inputs, "linf") <= 0.1 + 1e-5).all()
        assert first.inputs.min() >= 0 and first.inputs.max() <= 1
        assert all(p.requires_grad and p.grad is None for p in arena.model.parameters())


@members("diagnoses")
def test_diagnosis_is_no_attack_to_climb(name: str, arena: Arena) -> None:
    for diagnosis in built("diagnoses", name):
        assert isinstance(diagnosis, Attack) and diagnosis == type(diagnosis)()
        with pytest.raises(InputError, match="expected"):
            run(diagnosis, engine(), arena.model, arena.batch, arena.gallery, seeded())


# --- defences -------------------------------------------------------------------------------------------------------

IS_PLAIN_AT_RADIUS_ZERO = {
    "noise": False,
    "plain": True,
    "madry": True,
    "est": True,
    "rest": True,
    "ses": True,
    "act": True,
    "minmax": True,
    "hm": True,
    "free_hm": True,
    "ca_tride": True,
    "mixup": False,
    "iat": False,
    "trades": True,
    "scattering": True,
    "random_target": True,
    "one_step": True,
    "adp": False,
    "naive_ensemble": False,
    "eat": False,
    "one_student": False,
}
"""By defence: whether the paper says that radius 0 is ordinary training."""


OF_ENSEMBLES = ("adp", "naive_ensemble", "eat")
"""The defences that train several members."""


def model_of(name: str) -> nn.Module:
    """What this defence trains, small and in train mode."""
    if name not in OF_ENSEMBLES:
        return small_encoder()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Ensemble([Encoder(convnet()), Encoder(convnet())])


def plain_loss(parts: dict[str, Any]) -> MetricLoss:
    """What ordinary training minimises: the defence's loss, or the triplet loss of its own miner."""
    return parts["loss"] if "loss" in parts else Triplet(parts["source"])


def still(argument: Any) -> Any:
    """The same part with nothing to perturb by."""
    if isinstance(argument, Ball):
        return Ball(0.0)
    return engine(0.0) if isinstance(argument, Engine) else argument


@members("defences")
def test_defence_terms_are_named_finite_numbers(name: str, paired: Batch) -> None:
    for defence in built("defences", name):
        model = model_of(name)
        terms = defence(model, paired, seeded())
        assert terms and all(isinstance(key, str) and key for key in terms)
        assert all(term.shape == () and term.isfinite() for term in terms.values())
        assert model.training and defence.replays >= 1


@members("defences")
def test_defence_trains_every_parameter_of_model_and_loss(name: str, paired: Batch) -> None:
    for defence in built("defences", name):
        model = model_of(name)
        sum(defence(model, paired, seeded()).values()).backward()
        for part in (model, defence):
            for place, parameter in part.named_parameters():
                assert parameter.grad is not None and parameter.grad.abs().sum() > 0, place


@members("defences")
def test_defence_state_survives_save_and_load(name: str, paired: Batch) -> None:
    for arguments in variants("defences", name):
        model, defence = model_of(name), build("defences", name, arguments)
        defence(model, paired, seeded(1))
        with torch.no_grad():
            for parameter in defence.parameters():
                parameter.add_(0.1)
        other = build("defences", name, arguments)
        other.load_state_dict(defence.state_dict())
        torch.testing.assert_close(defence(model, paired, seeded(2)), other(model, paired, seeded(2)))


@members("defences")
def test_defence_at_radius_zero_is_plain_where_the_paper_says_so(name: str, paired: Batch) -> None:
    if not promised(IS_PLAIN_AT_RADIUS_ZERO, "defences", name, "IS_PLAIN_AT_RADIUS_ZERO"):
        return
    for arguments in variants("defences", name):
        parts = {key: still(make()) for key, make in arguments.items()}
        model = model_of(name)
        terms = build("defences", name, {}, **parts)(model, paired, seeded())
        expected = Plain(plain_loss(parts))(model, paired, seeded())
        torch.testing.assert_close(sum(terms.values()), expected["metric"])


@members("defences")
def test_defence_figures_for_the_log_are_finite_numbers_without_a_graph(name: str, paired: Batch) -> None:
    for defence in built("defences", name):
        terms = defence(model_of(name), paired, seeded())
        assert not set(defence.measures) & set(terms)
        for figure in defence.measures.values():
            assert figure.shape == () and figure.isfinite() and not figure.requires_grad


# --- miners and losses ----------------------------------------------------------------------------------------------


def unit_rows(count: int, seed: int = 0) -> Tensor:
    return nn.functional.normalize(torch.randn(count, DIM, generator=seeded(seed)), dim=1)


PAIRED_LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 0, 3, 3, 1, 1])


@members("miners")
def test_miner_labels_agree_and_differ_as_promised(name: str) -> None:
    for miner, seed in itertools.product(built("miners", name), range(10)):
        triplets = miner(unit_rows(12, seed), PAIRED_LABELS, seeded(seed))
        assert torch.equal(triplets.anchor, torch.arange(0, 12, 2))
        assert torch.equal(PAIRED_LABELS[triplets.positive], PAIRED_LABELS[triplets.anchor])
        assert (PAIRED_LABELS[triplets.negative] != PAIRED_LABELS[triplets.anchor]).all()


@members("miners")
def test_miner_follows_its_generator_and_takes_a_batch_of_one_class(name: str) -> None:
    for miner in built("miners", name):
        first, again = (miner(unit_rows(12), PAIRED_LABELS, seeded(3)) for _ in range(2))
        assert torch.equal(first.negative, again.negative)
        alone = miner(unit_rows(4), torch.zeros(4, dtype=torch.long), seeded())
        assert ((alone.negative >= 0) & (alone.negative < 4)).all()


@members("losses")
def test_loss_is_one_finite_number_with_finite_gradients_also_of_duplicates(name: str) -> None:
    spread, same = unit_rows(12), unit_rows(1).expand(12, DIM).clone()
    doubled = unit_rows(6).repeat_interleave(2, dim=0)
    for loss, rows in itertools.product(built("losses", name), (spread, same, doubled)):
        z = rows.clone().requires_grad_()
        value = loss(z, PAIRED_LABELS, generator=seeded())
        assert value.shape == () and value.isfinite()
        (gradient,) = torch.autograd.grad(value, z)
        assert gradient.isfinite().all()


@members("losses")
def test_loss_does_not_depend_on_the_order_of_the_batch(name: str) -> None:
    for loss in built("losses", name):
        z, order = unit_rows(12), torch.randperm(12, generator=seeded(1))
        triplets = loss.mine(z, PAIRED_LABELS, seeded())
        moved = None
        if triplets is not None:
            place = order.argsort()
            moved = Triplets(place[triplets.anchor], place[triplets.positive], place[triplets.negative])
        torch.testing.assert_close(loss(z[order], PAIRED_LABELS[order], moved), loss(z, PAIRED_LABELS, triplets))


# --- destinations and structures ------------------------------------------------------------------------------------


def moment(loss: float, seed: int = 0, same: bool = False) -> Moment:
    """A step after one of this loss; `same`: the model has collapsed."""
    z = unit_rows(1).expand(12, DIM) if same else unit_rows(12)
    return Moment(z, PAIRED_LABELS, torch.full((6,), loss), groups=2, generator=seeded(seed))


@members("destinations")
def test_destination_is_a_finite_goal_per_triplet_in_the_range_of_hardness(name: str) -> None:
    for destination, loss, same in itertools.product(built("destinations", name), (0.0, 0.1, 2.0), (False, True)):
        assert isinstance(destination, Destination)
        goal = destination(moment(loss, same=same))
        assert goal.shape == (6,) and goal.isfinite().all()
        # A boost goes beyond what a miner found, by no more than itself.
        assert (goal.abs() <= 2 + getattr(destination, "boost", 0.0) + 1e-6).all()


@members("destinations")
def test_destination_never_falls_as_the_loss_falls_and_follows_its_generator(name: str) -> None:
    for destination in built("destinations", name):
        assert torch.equal(destination(moment(0.1, seed=5)), destination(moment(0.1, seed=5)))
        goals = torch.stack([destination(moment(loss)) for loss in (2.0, 0.2, 0.1, 0.0)])
        assert (goals.diff(dim=0) >= 0).all()


@members("structures")
def test_structure_is_a_finite_number_zero_without_weight_or_distance(name: str) -> None:
    spread = {part: unit_rows(6, seed) for seed, part in enumerate(PARTS)}
    same = dict.fromkeys(PARTS, unit_rows(6))
    for arguments in variants("structures", name):
        for z in (spread, same):
            rows = {part: value.clone().requires_grad_() for part, value in z.items()}
            term = build("structures", name, arguments)(rows)
            assert term.shape == () and term.isfinite() and term >= 0
            given = [gradient for gradient in torch.autograd.grad(term, list(rows.values()), allow_unused=True)]
            assert all(gradient.isfinite().all() for gradient in given if gradient is not None)
            assert build("structures", name, arguments, weight=0.0)(rows) == 0
        assert build("structures", name, arguments)(same) == 0


@members("matchings")
def test_matching_moves_no_more_than_there_is_whatever_the_order_and_the_batch(name: str) -> None:
    cost, order = torch.rand(2, 5, 5, generator=seeded()), torch.randperm(5, generator=seeded(1))
    for matching in built("matchings", name):
        plan = matching(cost)
        assert plan.shape == cost.shape and plan.isfinite().all() and (plan >= 0).all()
        assert (plan.sum(dim=(1, 2)) <= 1 + 1e-5).all()
        torch.testing.assert_close(matching(cost[0]), plan[0])
        # A new order of one side changes nothing else, unless rows are matched with their own: then of both.
        for rows, columns in ((order, order), (order, torch.arange(5)))[: 1 if name == "identity_matching" else 2]:
            torch.testing.assert_close(matching(cost[:, rows][:, :, columns]), plan[:, rows][:, :, columns])
        torch.testing.assert_close(matching(cost[:, :1, :1]), torch.ones(2, 1, 1))


# --- metrics --------------------------------------------------------------------------------------------------------

Score = Callable[[Tensor, Tensor], float]


def ranked(z: Tensor, labels: Tensor) -> Tensor:
    """Per query, which of the others (nearest first) share its label."""
    _, order = nearest(z, z, k=len(z) - 1, exclude=torch.arange(len(z)))
    return labels[order] == labels[:, None]


def over_queries(metric: Callable[[list[bool]], float]) -> Score:
    def score(z: Tensor, labels: Tensor) -> float:
        rows = ranked(z, labels).tolist()
        return sum(metric(row) for row in rows) / len(rows)

    return score


def clusters(z: Tensor) -> Tensor:
    """Points in one octant are one cluster: crude, but no randomness."""
    return ((z[:, :3] > 0).long() * torch.tensor([1, 2, 4])).sum(dim=1)


def of_clusters(metric: Callable[..., float]) -> Score:
    return lambda z, labels: metric(labels, clusters(z))


def of_cluster_lists(metric: Callable[..., float]) -> Score:
    return lambda z, labels: metric(labels.tolist(), clusters(z).tolist())


def pair_scores(z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines of the pairs of one class, and of two."""
    first, second = torch.triu_indices(len(z), len(z), offset=1)
    cosines = (z[first] * z[second]).sum(dim=1).double()
    same = labels[first] == labels[second]
    return cosines[same], cosines[~same]


def of_pairs(metric: Callable[..., float]) -> Score:
    return lambda z, labels: metric(*pair_scores(z, labels))


def of_pair_lists(metric: Callable[..., float]) -> Score:
    return lambda z, labels: metric(*(scores.tolist() for scores in pair_scores(z, labels)))


METRICS: dict[str, tuple[Score, Score]] = {
    "recall_at": (
        lambda z, labels: recall_at(labels[nearest(z, z, 1, torch.arange(len(z)))[1]], labels, 1).mean().item(),
        over_queries(lambda row: brute_force.recall(row, 1)),
    ),
    "average_precision": (
        lambda z, labels: average_precision(ranked(z, labels)).mean().item(),
        over_queries(brute_force.average_precision),
    ),
    "average_precision_at_r": (
        lambda z, labels: average_precision_at_r(ranked(z, labels)).mean().item(),
        over_queries(lambda row: brute_force.average_precision(row, depth=sum(row))),
    ),
    "average_precision_at": (
        lambda z, labels: average_precision_at(ranked(z, labels), depth=1).mean().item(),
        over_queries(lambda row: brute_force.average_precision(row, depth=1, over=1)),
    ),
    "nmi": (of_clusters(nmi), of_cluster_lists(brute_force.nmi)),
    "ami": (of_clusters(ami), of_cluster_lists(brute_force.ami)),
    "pairwise_f1": (of_clusters(pairwise_f1), of_cluster_lists(brute_force.pairwise_f1)),
    "equal_error_rate": (
        of_pairs(lambda s, d: 1 - equal_error_rate(s, d)),
        of_pair_lists(lambda s, d: 1 - brute_force.equal_error_rate(s, d)),
    ),
    "true_positive_rate": (
        of_pairs(lambda s, d: true_positive_rate(s, d, 0.2)),
        of_pair_lists(lambda s, d: brute_force.true_positive_rate(s, d, 0.2)),
    ),
}
"""By function: its score of (embeddings, labels), and the same by brute force."""

NOT_SCORES = {
    "recall_of": "recall_at from indices",
    "rank_metrics": "the metrics above, from one ranking",
    "cluster_metrics": "the metrics above, from one k-means",
    "without_positives": "a mask",
    "recall_by_reading": "recall_at by every reading of an ensemble",
    "voted_recall": "recall_at after a vote",
    "clusters_by_reading": "the metrics above by every reading of an ensemble",
    "agreement": "the metrics above, of one clustering",
    "judge": "one of the metrics above, by vote",
    "linear_probe": "a classifier: the order decides which half of a class it is fitted on",
    "roc": "a curve",
    "ers": "a mean of attack scores: embeddings play no part",
    "ers_per_query": "the same, per query",
    "robust_error": "a share of radii",
    "robust_curve": "a curve",
    "area_under_error": "a mean over radii",
    "bootstrap": "an interval",
    "bootstrap_each": "intervals",
}


def public_metrics() -> list[str]:
    modules = [
        importlib.import_module(f"robustmetric.metrics.{m.name}") for m in pkgutil.iter_modules(metrics.__path__)
    ]
    return [
        name
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    ]


def metric_of(name: str) -> tuple[Score, Score]:
    return promised(METRICS, "metrics", name, "METRICS (or NOT_SCORES, with the reason)")


SCORES = [name for name in public_metrics() if name not in NOT_SCORES]


@pytest.mark.parametrize("name", SCORES)
def test_metric_of_a_perfect_embedding_is_one(name: str) -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    assert metric_of(name)[0](torch.eye(3)[labels] - 0.1, labels) == pytest.approx(1)


@pytest.mark.parametrize("name", SCORES)
def test_metric_does_not_depend_on_order(name: str) -> None:
    z, labels, order = unit_rows(12), PAIRED_LABELS, torch.randperm(12, generator=seeded(2))
    score = metric_of(name)[0]
    assert score(z[order], labels[order]) == pytest.approx(score(z, labels))


@pytest.mark.parametrize("name", SCORES)
def test_metric_equals_brute_force(name: str) -> None:
    fast, slow = metric_of(name)
    for seed in range(4):
        # Seven rows: the chance term of AMI goes over all 7! orders.
        z, labels = unit_rows(7, seed), torch.tensor([0, 0, 1, 1, 1, 2, 2])
        assert fast(z, labels) == pytest.approx(slow(z, labels), abs=1e-3)


# --- models ---------------------------------------------------------------------------------------------------------

MODELS: dict[str, tuple[tuple[int, ...], bool]] = {
    "smoothed": ((1, 8, 8), False),
    "encoder": ((1, 8, 8), True),
    "backbone": ((3, 32, 32), True),
    "bn_inception": ((3, 32, 32), False),
    "convnet": ((1, 8, 8), False),
    "ensemble": ((1, 8, 8), True),
    "mahalanobis": ((1, 8, 8), False),
    "classifier": ((1, 8, 8), False),
    "small_resnet": ((3, 16, 16), False),
    "wide_resnet": ((3, 16, 16), False),
    "transformed": ((1, 8, 8), True),
}
"""By model: the shape of an input, and whether embeddings have unit length (else the model says why not)."""


@members("models")
def test_model_gives_embeddings_of_the_size_and_length_it_says(name: str) -> None:
    shape, is_unit = promised(MODELS, "models", name, "MODELS")
    for model in built("models", name):
        inputs = torch.rand(3, *shape, generator=seeded())
        z = model.eval()(inputs)
        assert z.shape == (3, model.dim) and z.isfinite().all()
        if is_unit:
            torch.testing.assert_close(z.norm(dim=1), torch.ones(3))


@members("models")
def test_model_in_eval_mode_is_a_function_of_each_input_alone(name: str) -> None:
    shape, _ = promised(MODELS, "models", name, "MODELS")
    for model in built("models", name):
        inputs = torch.rand(3, *shape, generator=seeded())
        with torch.no_grad():
            together, again = model.eval()(inputs), model(inputs)
            alone = model(inputs[1:2])
        assert torch.equal(together, again)
        torch.testing.assert_close(alone, together[1:2], atol=1e-4, rtol=1e-3)


@members("input_transforms")
def test_input_transform_gives_images_that_follow_torchs_generator_and_have_a_gradient(name: str) -> None:
    for channels, transform in itertools.product((1, 3), built("input_transforms", name)):
        images = torch.rand(4, channels, 8, 8, generator=seeded()).requires_grad_()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            first = transform(images)
            torch.manual_seed(3)
            again = transform(images)
        assert first.shape[:2] == images.shape[:2] and first.dtype == torch.float32
        assert first.min() >= 0 and first.max() <= 1 + 1e-6
        assert torch.equal(first, again) and not torch.equal(first, images)
        (gradient,) = torch.autograd.grad(first.sum(), images)
        assert gradient.isfinite().all()


# --- data, transforms, samplers -------------------------------------------------------------------------------------

NEEDS_NO_FILES = {"digits", "digits_table"}
YOUR_OWN = {"folder", "manifest", "tabular"}
"""There is nowhere to get these from; the error says what is expected instead."""


@members("data")
def test_data_is_a_frozen_dataclass_that_loads(name: str) -> None:
    kind = constructor("data", name)
    assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
    assert callable(kind.load)


@members("data")
def test_data_that_is_not_there_is_an_error_that_says_where_to_get_it(name: str, tmp_path: Any) -> None:
    if name in NEEDS_NO_FILES:
        loaded = build("data", name, {}).load()
        assert loaded.train.n and loaded.queries.n
        return
    place = "file" if "file" in inspect.signature(constructor("data", name)).parameters else "root"
    missing = str(tmp_path / "missing.csv") if place == "file" else str(tmp_path / "missing")
    with pytest.raises(InputError) as caught:
        build("data", name, {}, **{place: missing}).load()
    message = str(caught.value)
    assert "missing" in message and "expected" in message and "\n" not in message
    assert name in YOUR_OWN or "get it from" in message or "get them from" in message


@members("transforms")
def test_transform_gives_whole_bytes_between_zero_and_one(name: str) -> None:
    images = torch.randint(256, (4, 3, 16, 16), generator=seeded(), dtype=torch.uint8)
    sizes = torch.tensor([[16, 16], [20, 10], [9, 30], [40, 40]])
    for transform in built("transforms", name):
        out = transform(images, sizes, seeded(1))
        side = getattr(transform, "size", 16)
        assert out.shape == (4, 3, side, side) and out.dtype == torch.float32
        assert out.min() >= 0 and out.max() <= 1
        torch.testing.assert_close(out * 255, (out * 255).round(), atol=1e-3, rtol=0)
        assert torch.equal(out, transform(images, sizes, seeded(1)))


def each_once(sampler: Any, labels: Tensor, ranks: int) -> None:
    rows = torch.cat([torch.cat(sampler.batches(labels, 0, 0, rank, ranks)) for rank in range(ranks)])
    assert torch.equal(rows.sort().values, torch.arange(len(labels)))


def each_anchor_once(sampler: Any, labels: Tensor, ranks: int) -> None:
    rows = torch.cat([torch.cat(sampler.batches(labels, 0, 0, rank, ranks)) for rank in range(ranks)])
    assert torch.equal(rows[0::2].sort().values, torch.arange(len(labels)))
    assert torch.equal(labels[rows[0::2]], labels[rows[1::2]])


def independent(sampler: Any, labels: Tensor, ranks: int) -> None:
    first, second = (torch.cat(sampler.batches(labels, 0, 0, rank, ranks)) for rank in range(2))
    assert not torch.equal(first, second)


RANKS: dict[str, Callable[[Any, Tensor, int], None]] = {
    "pairs": each_anchor_once,
    "balanced": independent,
    "shuffled": each_once,
}
"""By sampler: how the ranks of a distributed run share an epoch."""


@members("samplers")
def test_sampler_is_a_function_of_seed_and_epoch(name: str) -> None:
    labels = torch.arange(32) % 4
    for sampler in built("samplers", name):
        first, again = (sampler.batches(labels, epoch=1, seed=2) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        for epoch, seed in ((2, 2), (1, 3)):
            other = sampler.batches(labels, epoch=epoch, seed=seed)
            assert not torch.equal(torch.cat(first), torch.cat(other))


@members("samplers")
def test_sampler_shares_an_epoch_among_ranks_as_promised(name: str) -> None:
    labels = torch.arange(32) % 4
    for sampler in built("samplers", name):
        for rank in range(2):
            batches = sampler.batches(labels, 0, 0, rank, 2)
            assert len(batches) == sampler.steps(labels, 2)
            assert all(len(batch) == 8 for batch in batches)
        promised(RANKS, "samplers", name, "RANKS")(sampler, labels, 2)


# --- perturbations and optimisers -----------------------------------------------------------------------------------


@members("perturbations")
def test_perturbation_keeps_to_its_ball(name: str) -> None:
    clean = torch.rand(5, 3, generator=seeded())
    for part in built("perturbations", name):
        ball = part.ball if isinstance(part, Engine) else part
        moved = (
            part(lambda x: x.sum(dim=1), clean, seeded())
            if isinstance(part, Engine)
            else part.random_point(clean, seeded())
        )
        # The one engine that is unbounded by nature says so.
        if not isinstance(part, LocalSearch) or part.clipped:
            assert (length(moved - clean, ball.norm) <= ball.radius + 1e-6).all()
        assert moved.min() >= 0 and moved.max() <= 1 and not torch.equal(moved, clean)


@members("optimisers")
def test_optimiser_moves_every_parameter_and_schedule_starts_whole(name: str) -> None:
    for part in built("optimisers", name):
        if not isinstance(part, Optimiser):
            assert part(0.0, 10) == 1 and 0 <= part(9.0, 10) <= 1
            continue
        model = nn.Linear(2, 1)
        before = [p.clone() for p in model.parameters()]
        optimiser = part.build(model, Plain(Triplet(Hardest())))
        model(torch.ones(1, 2)).sum().backward()
        optimiser.step()
        assert all((p != old).all() for p, old in zip(model.parameters(), before, strict=True))


# --- learners and certificates --------------------------------------------------------------------------------------


def blobs(each: int, seed: int) -> Batch:
    """Two classes of the plane, a little into one another."""
    labels = torch.arange(2 * each) % 2
    centres = torch.tensor([[0.3, 0.5], [0.7, 0.5]])[labels]
    rows = centres + 0.15 * torch.randn(2 * each, 2, generator=seeded(seed))
    return Batch(rows, labels, torch.full_like(labels, -1))


@members("learners")
def test_learner_gives_a_metric_or_predicts_and_repeats_itself(name: str) -> None:
    given = blobs(40, seed=0)
    x, y = given.inputs.double().numpy(), given.labels.numpy()
    for learner, again in zip(built("learners", name), built("learners", name), strict=True):
        if "random_state" in learner.get_params():
            learner, again = (one.set_params(random_state=0) for one in (learner, again))
        assert learner.fit(x, y) is learner
        again.fit(x, y)
        if not hasattr(learner, "get_mahalanobis_matrix"):
            assert (learner.predict(x) == y).mean() > 0.8 and (learner.predict(x) == again.predict(x)).all()
            continue
        matrix = torch.from_numpy(learner.get_mahalanobis_matrix())
        assert torch.equal(matrix, torch.from_numpy(again.get_mahalanobis_matrix()))
        assert torch.linalg.eigvalsh(matrix).min() >= -1e-9 and matrix.abs().max() > 0
        moved = torch.from_numpy(learner.transform(x))
        torch.testing.assert_close((moved[0] - moved[1]).square().sum(), _squared(given.inputs, matrix))


def _squared(rows: Tensor, matrix: Tensor) -> Tensor:
    apart = (rows[0] - rows[1]).double()
    return apart @ matrix @ apart


class Bend(nn.Module):
    """Rows of the plane as unit vectors of space."""

    dim = 3

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(torch.cat([2 * x - 1, torch.ones_like(x[:, :1])], dim=1), dim=1)


Answer = Callable[[nn.Module, Tensor, Batch], Tensor]
SIGMA, COPIES = 0.1, 2000


def searched(model: nn.Module, x: Tensor, references: Batch) -> Tensor:
    _, top = nearest(model(x), model(references.inputs), k=1)
    return references.labels[top[:, 0]]


def noisy(x: Tensor) -> Tensor:
    return x[:, None] + SIGMA * torch.randn(len(x), COPIES, 2, generator=seeded(9))


def smoothly_searched(model: nn.Module, x: Tensor, references: Batch) -> Tensor:
    mean = model(noisy(x).flatten(0, 1)).view(len(x), COPIES, -1).mean(dim=1)
    _, top = nearest(mean, model(references.inputs), k=1)
    return references.labels[top[:, 0]]


def smoothly_classified(model: nn.Module, x: Tensor, references: Batch) -> Tensor:
    return model(noisy(x).flatten(0, 1)).argmax(dim=1).view(len(x), COPIES).mode(dim=1).values


def classifier() -> nn.Module:
    """Fitted a little: mostly right, so that there is something to certify."""
    torch.manual_seed(0)
    model, given = mlp(2, 2, widths=(8,)), blobs(40, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        functional.cross_entropy(model(given.inputs), given.labels).backward()
        optimiser.step()
    return model.eval()


CERTIFIES: dict[str, tuple[Callable[[], nn.Module], Answer]] = {
    "knn_certificate": (lambda: Mahalanobis(2), searched),
    "crown": (classifier, lambda model, x, references: model(x).argmax(dim=1)),
    "smoothing": (classifier, smoothly_classified),
    "smoothed_retrieval": (Bend, smoothly_searched),
}
"""By certificate: a model it speaks of, and the answer that must not change (of a smoothed model, an estimate)."""


@members("certificates")
def test_no_perturbation_within_a_certified_radius_changes_the_answer(name: str) -> None:
    make, answer = promised(CERTIFIES, "certificates", name, "CERTIFIES")
    model, queries, references = make(), blobs(6, seed=1), blobs(20, seed=0)
    for certificate in built("certificates", name):
        if hasattr(certificate, "samples"):
            certificate = dataclasses.replace(certificate, samples=COPIES)
        radii = certificate.radius(model, queries, references)
        assert not radii.requires_grad and radii.shape == (12,) and (radii >= 0).all() and (radii > 0.01).sum() > 4, (
            "or nothing is tested"
        )
        other = dataclasses.replace(queries, labels=1 - queries.labels)
        assert (certificate.radius(model, other, references)[radii > 0] == 0).all(), "0 where the answer is wrong"
        for x, label, radius in zip(queries.inputs, queries.labels, radii.float(), strict=True):
            if radius == 0 or radius == torch.inf:
                continue
            towards = references.inputs[references.labels != label] - x
            anywhere = torch.randn(60, 2, generator=seeded(3))
            moves = functional.normalize(torch.cat([towards, anywhere]), dim=1) * 0.99 * radius
            with torch.no_grad():
                assert (answer(model, x + moves, references) == label).all()
