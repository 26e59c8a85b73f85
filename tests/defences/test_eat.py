"""Ensemble adversarial training: parts, the two implementations, and what it is with one member."""

import pytest
import torch
from small import CLASSES, DIM, Watched, encoder, paired_batch, pgd, seeded
from torch import Tensor, nn

from robustmetric.defences.adp import DiversityPromoting
from robustmetric.defences.base import Defence
from robustmetric.defences.eat import EnsembleAdversarial, divide, divide_classes, usual_size
from robustmetric.defences.madry import Madry
from robustmetric.defences.naive_ensemble import NaiveEnsemble
from robustmetric.defences.plain import Plain
from robustmetric.errors import InputError
from robustmetric.losses.mining import Hardest, Random
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

STILL = PGD(Ball(0.2), steps=4, step_size=0.05, random_start=False)


def ensemble(members: int = 3) -> Ensemble:
    return Ensemble([encoder(seed) for seed in range(members)])


def losses(members: int = 3) -> list[ProxyAnchor]:
    return [ProxyAnchor(CLASSES, DIM, seed=seed) for seed in range(members)]


def whole_batch(per_class: int = 6) -> Batch:
    """All rows of a small training set."""
    rows = paired_batch(per_class // 2)
    return Batch(rows.inputs, rows.labels, torch.arange(len(rows)))


def prepared(defence: EnsembleAdversarial, batch: Batch) -> EnsembleAdversarial:
    defence.prepare(batch.labels)
    return defence


def gradients(defence: Defence, model: nn.Module, batch: Batch, seed: int = 0) -> list[Tensor]:
    defence.zero_grad()
    model.zero_grad()
    torch.stack(list(defence(model, batch, seeded(seed)).values())).sum().backward()
    parameters = [*model.parameters(), *defence.parameters()]
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 3, 5])
def test_parts_are_even_within_every_class_and_in_all(members: int) -> None:
    labels = torch.randint(0, 7, (200,), generator=seeded())
    parts = divide(labels, members, seed=0)
    counts = torch.stack([torch.bincount(parts[labels == c], minlength=members) for c in range(7)])
    assert counts.sum() == 200 and (counts.amax(dim=1) - counts.amin(dim=1) <= 1).all()
    assert counts.sum(dim=0).max() - counts.sum(dim=0).min() <= 1


def test_parts_follow_from_the_seed() -> None:
    labels = torch.arange(5).repeat(12)
    assert torch.equal(divide(labels, 3, seed=1), divide(labels, 3, seed=1))
    assert not torch.equal(divide(labels, 3, seed=1), divide(labels, 3, seed=2))


def test_a_class_smaller_than_the_ensemble_is_refused_unless_allowed() -> None:
    labels = torch.tensor([0, 0, 0, 4, 4])
    with pytest.raises(InputError, match="a class of 2 images cannot be cut into 3 parts"):
        divide(labels, 3, seed=0)
    parts = divide(labels, 3, seed=0, small_classes=True)
    assert sorted(parts[:3].tolist()) == [0, 1, 2] and len(set(parts[3:].tolist())) == 2


def test_each_image_trains_all_members_but_one() -> None:
    batch = whole_batch()
    defence = prepared(EnsembleAdversarial(losses(), STILL), batch)
    trained = torch.zeros(3, len(batch), dtype=torch.long)
    for i, rows in defence.rows(batch).items():
        trained[i, rows] = 1
    assert (trained.sum(dim=0) == 2).all()
    # In an order of its own, and with some images only, a batch says the same of each image.
    some = torch.tensor([5, 17, 2, 9])
    part = Batch(batch.inputs[some], batch.labels[some], batch.index[some])
    for i, rows in defence.rows(part).items():
        assert some[rows].tolist() == [row for row in some.tolist() if trained[i, row]]


def test_the_gradient_of_a_member_ignores_its_own_part() -> None:
    batch, model = whole_batch(), ensemble()
    defence = prepared(EnsembleAdversarial(losses(), STILL, clean_share=1.0), batch)
    own = (defence.parts == 1).nonzero()[:, 0]
    changed = batch.inputs.clone()
    changed[own] = 0.5
    before = gradients(defence, model, batch)
    after = gradients(defence, model, Batch(changed, batch.labels, batch.index))
    names = [name for name, _ in (*model.named_parameters(), *defence.named_parameters())]
    for name, one, other in zip(names, before, after, strict=True):
        same = torch.equal(one, other)
        assert same == (name.startswith(("members.1.", "losses.1."))), name


def test_a_batch_of_one_part_trains_the_other_members() -> None:
    batch = whole_batch()
    defence = prepared(EnsembleAdversarial(losses(), STILL), batch)
    rows = (defence.parts == 2).nonzero()[:, 0]
    part = Batch(batch.inputs[rows], batch.labels[rows], batch.index[rows])
    model = ensemble()
    torch.stack(list(defence(model, part, seeded()).values())).sum().backward()
    assert [next(m.parameters()).grad is None for m in model.members] == [False, False, True]


# --- parts of whole classes -----------------------------------------------------------------------------------------


def test_classes_are_divided_whole_and_evenly() -> None:
    labels = torch.tensor([3, 3, 0, 0, 0, 9, 4, 4, 1, 2, 2, 3])
    parts = divide_classes(labels, 3, seed=0)
    # Six classes, two for each of three parts, each whole.
    by_class = {c: set(parts[labels == c].tolist()) for c in labels.tolist()}
    assert all(len(found) == 1 for found in by_class.values())
    assert sorted(part for found in by_class.values() for part in found) == [0, 0, 1, 1, 2, 2]
    sizes = torch.bincount(divide_classes(torch.arange(100).repeat(3), 3, seed=0)) // 3
    assert sorted(sizes.tolist()) == [33, 33, 34]
    assert torch.equal(parts, divide_classes(labels, 3, seed=0))
    assert any(not torch.equal(parts, divide_classes(labels, 3, seed=seed)) for seed in (1, 2))
    with pytest.raises(InputError, match="6 classes cannot be cut into 7 parts"):
        divide_classes(labels, 7, seed=0)


def test_by_class_a_member_has_no_proxy_of_the_classes_it_never_sees() -> None:
    batch, model, attack, own = whole_batch(), ensemble(), Watched(STILL), losses()
    defence = prepared(EnsembleAdversarial(own, attack, clean_share=0.25, by_class=True), batch)
    terms = defence(model, batch, seeded())
    expected = {"adversarial": 0.0, "clean": 0.0}
    seen = [sorted(set(batch.labels[defence.parts != i].tolist())) for i in range(3)]
    # Five classes in parts of 2, 2 and 1: members know 3, 3 and 4 of them, and each class is known to two.
    assert sorted(map(len, seen)) == [3, 3, 4] and all(sum(c in known for known in seen) == 2 for c in range(5))
    for i, known in enumerate(seen):
        # A loss that never heard of the others, its classes numbered anew.
        small = ProxyAnchor(len(known), DIM)
        small.proxies.data = own[i].proxies.data[known]
        rows = torch.isin(batch.labels, torch.tensor(known))
        labels = torch.tensor([known.index(c) for c in batch.labels[rows].tolist()])
        expected["adversarial"] += 0.75 * small(model.members[i](attack.moved[0][rows]), labels)
        expected["clean"] += 0.25 * small(model.members[i](batch.inputs[rows]), labels)
    torch.testing.assert_close(terms, expected)
    assert len(attack.moved[0]) == 30 and (attack.after[0] > attack.before[0]).all(), "all members are attacked on all"


@pytest.mark.parametrize("shared", [True, False])
def test_by_class_the_gradient_of_a_member_ignores_its_classes(shared: bool) -> None:
    batch, model = whole_batch(), ensemble()
    defence = prepared(EnsembleAdversarial(losses(), STILL, clean_share=1.0, by_class=True, shared=shared), batch)
    hidden = defence.parts == 1
    changed = batch.inputs.clone()
    changed[hidden] = 0.5
    before = gradients(defence, model, batch)
    after = gradients(defence, model, Batch(changed, batch.labels, batch.index))
    names = [name for name, _ in (*model.named_parameters(), *defence.named_parameters())]
    for name, one, other in zip(names, before, after, strict=True):
        assert torch.equal(one, other) == name.startswith(("members.1.", "losses.1.")), name
    still = before[names.index("losses.1.proxies")].norm(dim=1) == 0
    assert still.nonzero()[:, 0].tolist() == batch.labels[hidden].unique().tolist()


def test_what_has_no_meaning_by_class_is_refused() -> None:
    with pytest.raises(InputError, match="by_class says what is divided, and nothing is"):
        EnsembleAdversarial(losses(), STILL, divided=False, by_class=True)
    with pytest.raises(InputError, match="by class each lacks the proxies of some; expected another objective"):
        EnsembleAdversarial(losses(), STILL, objective="label", by_class=True)


# --- the algorithm --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divided", [True, False])
def test_both_implementations_give_the_same_gradients_where_rows_climb_alone(divided: bool) -> None:
    batch, model = whole_batch(), ensemble()
    found = [
        gradients(prepared(EnsembleAdversarial(losses(), STILL, divided=divided, shared=shared), batch), model, batch)
        for shared in (True, False)
    ]
    assert all(gradient.abs().sum() > 0 for gradient in found[0])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


def test_the_literal_implementation_climbs_each_members_own_images() -> None:
    batch, model = whole_batch(), ensemble()
    counts = {}
    for shared in (True, False):
        attack = Watched(STILL)
        prepared(EnsembleAdversarial(losses(), attack, shared=shared), batch)(model, batch, seeded())
        counts[shared] = [len(moved) for moved in attack.moved]
    # 30 images once; or 20 of them, all but its part, for each of three members.
    assert counts == {True: [30], False: [20, 20, 20]}


def passes(defence: Defence, model: Ensemble, batch: Batch) -> list[tuple[int, ...]]:
    """Rows of each pass of each member with a gradient for its weights."""
    sizes: list[list[int]] = [[] for _ in model.members]
    hooks = [
        member.register_forward_hook(
            lambda module, given, z, own=own: own.append(len(z)) if next(module.parameters()).requires_grad else None
        )
        for member, own in zip(model.members, sizes, strict=True)
    ]
    defence(model, batch, seeded())
    for hook in hooks:
        hook.remove()
    return [tuple(own) for own in sizes]


def test_clean_and_perturbed_images_share_a_pass_unless_batch_norm_would_mix_them() -> None:
    batch = whole_batch()
    defence = prepared(EnsembleAdversarial(losses(), STILL), batch)
    assert passes(defence, ensemble(), batch) == [(40,)] * 3  # 20 of 30 images, twice
    assert (
        passes(prepared(EnsembleAdversarial(losses(), STILL, clean_share=0.0), batch), ensemble(), batch) == [(20,)] * 3
    )
    normed = [Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, DIM), nn.BatchNorm1d(DIM)), dim=DIM) for _ in range(3)]
    assert passes(defence, Ensemble(normed), batch) == [(20, 20)] * 3
    fixed = [Encoder(member.trunk, dim=DIM, batch_norm="whole") for member in normed]
    assert passes(defence, Ensemble(fixed), batch) == [(40,)] * 3


def test_compiled_updates_keep_to_one_size_and_change_no_gradient() -> None:
    whole, model = whole_batch(), ensemble()
    rows = torch.arange(20)
    batch = Batch(whole.inputs[rows], whole.labels[rows], whole.index[rows])
    defence = prepared(EnsembleAdversarial(losses(), STILL), whole)
    sizes = {2 * len(own) for own in defence.rows(batch).values()}
    assert {size for (size,) in passes(defence, model, batch)} == sizes and len(sizes) > 1
    loose = gradients(defence, model, batch)
    defence.steady = True
    # 2/3 of 20 are 13.3, 2.5 standard deviations of sqrt(20 * 2) / 3 are 5.3: 24 in eights, and no more than there are.
    assert passes(defence, model, batch) == [(2 * 20,)] * 3
    torch.testing.assert_close(gradients(defence, model, batch), loose)


def test_the_usual_size_of_a_members_share() -> None:
    assert usual_size(168, 3) == 128  # 112 + 2.5 * 6.1
    assert usual_size(1, 2) == 1
    parts = divide(torch.arange(98).repeat(82), 3, seed=0)
    shares = [(parts[torch.randperm(len(parts), generator=seeded(i))[:168]] != 0).sum() for i in range(400)]
    assert sum(share > 128 for share in shares) < 8  # one in 160, were they drawn from a normal distribution


def test_the_terms_are_the_members_losses_of_what_they_may_see() -> None:
    batch, model, attack, own = whole_batch(), ensemble(), Watched(pgd(0.2)), losses()
    defence = prepared(EnsembleAdversarial(own, attack, clean_share=0.25), batch)
    terms = defence(model, batch, seeded())
    expected = {"adversarial": 0.0, "clean": 0.0}
    for i, (member, loss) in enumerate(zip(model.members, own, strict=True)):
        seen = defence.parts != i
        expected["adversarial"] += 0.75 * loss(member(attack.moved[0][seen]), batch.labels[seen])
        expected["clean"] += 0.25 * loss(member(batch.inputs[seen]), batch.labels[seen])
    torch.testing.assert_close(terms, expected)
    assert (attack.after[0] > attack.before[0] + 0.01).all()


@pytest.mark.parametrize("objective", ["shift", "clean_proxy", "clean_class", "label"])
@pytest.mark.parametrize("loss", [lambda: ProxyAnchor(CLASSES, DIM), lambda: Triplet(Random())])
def test_one_member_without_parts_or_clean_images_is_adversarial_training_bit_for_bit(loss, objective) -> None:
    weights = []
    for alone in (True, False):
        member, own = encoder(), loss()
        model = member if alone else Ensemble([member])
        defence = (
            Madry(own, pgd(0.2), objective=objective)
            if alone
            else EnsembleAdversarial([own], pgd(0.2), clean_share=0.0, divided=False, objective=objective)
        )
        parameters = [*model.parameters(), *defence.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=1e-2)
        for step in range(3):
            optimiser.zero_grad()
            torch.stack(list(defence(model, paired_batch(), seeded(step)).values())).sum().backward()
            optimiser.step()
        weights.append([parameter.detach().clone() for parameter in parameters])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    assert not torch.equal(weights[0][0], next(encoder().parameters()))


def test_radius_zero_is_plain_training_of_every_member() -> None:
    batch, model = paired_batch(), ensemble()
    terms = EnsembleAdversarial(losses(), pgd(0.0), divided=False)(model, batch, seeded())
    plain = sum(Plain(loss)(f, batch)["metric"] for f, loss in zip(model.members, losses(), strict=True))
    torch.testing.assert_close(sum(terms.values()), plain)


def test_members_learn_to_withstand_the_attack() -> None:
    batch, model = whole_batch(), ensemble()
    defence = prepared(EnsembleAdversarial(losses(), pgd(0.05, steps=3)), batch)
    optimiser = torch.optim.Adam([*model.parameters(), *defence.parameters()], lr=5e-3)
    adversarial = []
    for step in range(40):
        optimiser.zero_grad()
        terms = defence(model, batch, seeded(step))
        torch.stack(list(terms.values())).sum().backward()
        optimiser.step()
        adversarial.append(terms["adversarial"].item())
    assert adversarial[-1] < 0.8 * adversarial[0]


# --- bad input ------------------------------------------------------------------------------------------------------


def test_bad_ensembles_are_refused() -> None:
    with pytest.raises(InputError, match="losses for 1 member"):
        EnsembleAdversarial(losses(1), STILL)
    with pytest.raises(InputError, match="mines in pairs"):
        EnsembleAdversarial([Triplet(Hardest()), Triplet(Hardest())], STILL)
    with pytest.raises(InputError, match="call prepare"):
        EnsembleAdversarial(losses(), STILL)(ensemble(), paired_batch(), seeded())
    defence = EnsembleAdversarial(losses(), STILL, divided=False)
    with pytest.raises(InputError, match="an ensemble of 2 has 3 losses"):
        defence(ensemble(2), paired_batch(), seeded())
    with pytest.raises(InputError, match="Encoder is no ensemble of 3"):
        defence(encoder(), paired_batch(), seeded())
    with pytest.raises(InputError, match="clean_share"):
        EnsembleAdversarial(losses(), STILL, clean_share=1.5)


def test_members_of_different_dimension_are_refused() -> None:
    wide = Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=DIM + 1))
    with pytest.raises(InputError, match="embeddings of sizes"):
        Ensemble([encoder(), wide])


# --- the naive ensemble ---------------------------------------------------------------------------------------------


def test_naive_members_are_trained_as_if_alone() -> None:
    batch, model = paired_batch(), ensemble(2)
    alone = [Madry(loss, STILL, objective="label") for loss in losses(2)]
    together = gradients(NaiveEnsemble([Madry(loss, STILL) for loss in losses(2)]), model, batch)
    for i, defence in enumerate(alone):
        member = model.members[i]
        expected = gradients(defence, member, batch)
        count = len(list(member.parameters()))
        ours = [*together[i * count : (i + 1) * count], together[2 * count + i]]
        assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))


def test_naive_members_may_differ_in_defence_and_see_view_and_progress() -> None:
    defences = [Plain(losses(2)[0]), Madry(losses(2)[1], STILL)]
    naive = NaiveEnsemble(defences)
    naive.view, naive.progress = "folded", 0.25
    terms = naive(ensemble(2), paired_batch(), seeded())
    assert list(terms) == ["metric", "adversarial"]
    assert [(d.view, d.progress) for d in defences] == [("folded", 0.25)] * 2
    inner = EnsembleAdversarial(losses(), STILL)
    NaiveEnsemble([inner]).prepare(whole_batch().labels)
    assert len(inner.parts) == 30


def test_what_is_compiled_is_what_the_updates_call() -> None:
    model, own = ensemble(), losses()
    members = list(model.members)
    assert EnsembleAdversarial(own, STILL).repeated(model) == members
    assert NaiveEnsemble([Plain(loss) for loss in own]).repeated(model) == members
    assert DiversityPromoting(own).repeated(model) == members
    assert Plain(own[0]).repeated(model) == [model]
