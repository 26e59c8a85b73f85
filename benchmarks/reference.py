"""The plain way to train and attack, as published code does it: what our fast path is measured against.

Written from the definitions of Zhou & Patel 2022 (CVPR), to be read, and to give the same numbers as the package
(tests/test_reference.py). It spends time where published code does: fp32 eager; weight gradients in every attack step,
which are then thrown away; two optimiser objects per attack step; `.item()` per attack step; a Python loop over anchors
in every miner and over samples in every rank loss; masks rebuilt per step; a gallery embedded anew for each attack.
Targets and scores are those of the package's `fixed` mode: a query never finds itself, ties count half, and an item
counts neither against itself nor against its own clean copy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.types import Batch, Embeddings, Gallery, Inputs, Labels, Triplets

MARGIN = 0.2
CHUNK = 112
POOL = 0.01
"""CA-, QA-: targets are drawn from this share of the gallery (at least one item), the nearest."""
TIE = 1e-6

Pick = tuple[int, int]
"""The positive and the negative of one anchor."""


@dataclass(frozen=True)
class Climb:
    """The attack's ball and its steps; the defaults evaluate at 224 px."""

    radius: float = 8 / 255
    step_size: float = 3 / 255
    steps: int = 32


@dataclass(frozen=True)
class Step:
    """What a training step did: its loss before the update, the triplets, and the images it trained on."""

    loss: float
    triplets: Triplets
    images: Inputs


@dataclass(frozen=True)
class Outcome:
    """The perturbed images, and the scores under each published name, one number per row."""

    images: Inputs
    scores: dict[str, Tensor]


# Miners. Rows 2i and 2i + 1 are an anchor and its positive.


def mine(name: str, embeddings: Embeddings, labels: Labels, rng: np.random.Generator) -> Triplets:
    """One triplet per anchor, found one anchor after the other."""
    embeddings = functional.normalize(embeddings.detach(), dim=1)
    size = embeddings.square().sum(dim=1)
    distances = (size[:, None] + size[None] - 2 * embeddings @ embeddings.T).clamp(min=0).sqrt()
    anchors = list(range(0, len(labels), 2))
    picks = [MINERS[name](i, distances[i], labels, embeddings.shape[1], rng) for i in anchors]
    columns = [anchors, [positive for positive, _ in picks], [negative for _, negative in picks]]
    return Triplets(*(torch.tensor(column, device=labels.device) for column in columns))


def random_negative(i: int, row: Tensor, labels: Labels, dim: int, rng: np.random.Generator) -> Pick:
    negatives = torch.where(labels != labels[i])[0]
    return i + 1, one_of(rng, negatives, everything(labels))


def semi_hard(i: int, row: Tensor, labels: Labels, dim: int, rng: np.random.Generator) -> Pick:
    """-margin < d(a,p) - d(a,n) < 0."""
    hardness = row[i + 1] - row
    other = labels != labels[i]
    band = torch.where(other & (hardness < 0) & (hardness + MARGIN > 0))[0]
    return i + 1, one_of(rng, band, torch.where(other)[0], everything(labels))


def soft_hard(i: int, row: Tensor, labels: Labels, dim: int, rng: np.random.Generator) -> Pick:
    """Positives beyond the nearest negative, negatives within the farthest positive."""
    other = labels != labels[i]
    positives, negatives = torch.where(~other)[0], torch.where(other)[0]
    if len(negatives) == 0:
        return i + 1, one_of(rng, everything(labels))
    far = positives[row[positives] > row[negatives].min()]
    near = negatives[row[negatives] < row[positives].max()]
    return one_of(rng, far, positives), one_of(rng, near, negatives)


def distance_weighted(i: int, row: Tensor, labels: Labels, dim: int, rng: np.random.Generator) -> Pick:
    """Chances one over the density of distances on the unit sphere."""
    negatives = torch.where(labels != labels[i])[0]
    d = row[negatives]
    logarithm = (2 - dim) * d.log() - (dim - 3) / 2 * (1 - d.square() / 4).log()
    usable = torch.isfinite(logarithm)
    if not usable.any():
        return i + 1, one_of(rng, everything(labels))
    weights = (logarithm[usable] - logarithm[usable].max()).exp().cpu().double().numpy()
    return i + 1, int(rng.choice(negatives[usable].cpu().numpy(), p=weights / weights.sum()))


def hardest(i: int, row: Tensor, labels: Labels, dim: int, rng: np.random.Generator) -> Pick:
    """The nearest negative that is no copy of the anchor."""
    other = labels != labels[i]
    apart = torch.where(other & (row > 0))[0]
    if len(apart) == 0:
        return i + 1, one_of(rng, torch.where(other)[0], everything(labels))
    return i + 1, int(apart[row[apart].argmin()].item())


MINERS: dict[str, Callable[[int, Tensor, Labels, int, np.random.Generator], Pick]] = {
    "random": random_negative,
    "semi_hard": semi_hard,
    "soft_hard": soft_hard,
    "distance_weighted": distance_weighted,
    "hardest": hardest,
}


def everything(labels: Labels) -> Int[Tensor, " batch"]:
    return torch.arange(len(labels), device=labels.device)


def one_of(rng: np.random.Generator, *choices: Int[Tensor, " _"]) -> int:
    """One index of the first list that is not empty."""
    first = next(choice for choice in choices if len(choice) > 0)
    return int(first[int(rng.integers(len(first)))].item())


# The attack loop and the training steps.


def distance(a: Float[Tensor, "*n dim"], b: Float[Tensor, "*n dim"]) -> Tensor:
    return functional.pairwise_distance(a, b, eps=0)


def perturb(
    model: nn.Module,
    loss_of: Callable[[Tensor], Tensor],
    clean: Inputs,
    climb: Climb,
    start: Inputs | None = None,
    stop_below: float = 0.0,
) -> Inputs:
    """Descend a loss of the embeddings by signed steps; stop once it changes by less than `stop_below`."""
    model.eval()
    x = (clean if start is None else start).detach().clone()
    before = -1.0
    for _ in range(climb.steps):
        x.requires_grad_()
        weights = torch.optim.SGD(model.parameters(), lr=1.0)
        pixels = torch.optim.SGD([x], lr=climb.step_size)
        weights.zero_grad()
        pixels.zero_grad()
        loss = loss_of(model(x))
        loss.backward()
        assert x.grad is not None
        x.grad.sign_()
        pixels.step()
        x = torch.min(torch.max(x.detach(), clean - climb.radius), clean + climb.radius).clamp(0, 1)
        now = loss.item()
        if abs(now - before) < stop_below:
            break
        before = now
    model.zero_grad()
    return x


def embed(model: nn.Module, images: Inputs) -> Embeddings:
    """In eval mode, without a graph, in batches."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part) for part in images.split(CHUNK)])


def triplet_loss(a: Embeddings, p: Embeddings, n: Embeddings, margin: float = MARGIN) -> Float[Tensor, ""]:
    return (hardness(a, p, n) + margin).clamp(min=0).mean()


def update(optimiser: torch.optim.Optimizer, loss: Tensor) -> float:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def plain_step(
    model: nn.Module, optimiser: torch.optim.Optimizer, batch: Batch, miner: str, rng: np.random.Generator
) -> Step:
    """Mine on the embeddings that are trained."""
    model.train()
    z = model(batch.inputs)
    triplets = mine(miner, z, batch.labels, rng)
    return Step(update(optimiser, triplet_loss(*triplets.of(z))), triplets, batch.inputs)


def est_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    miner: str,
    climb: Climb,
    rng: np.random.Generator,
    origin: Embeddings | None = None,
) -> Step:
    """Embedding-shifted triplets: every image moved away from `origin`, its clean embedding; then mine and train."""
    if origin is None:
        origin = nudged(embed(model, batch.inputs), rng)
    images = perturb(model, lambda z: -distance(z, origin).mean(), batch.inputs, climb)
    model.train()
    z = model(images)
    triplets = mine(miner, z, batch.labels, rng)
    return Step(update(optimiser, triplet_loss(*triplets.of(z))), triplets, images)


def madry_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    miner: str,
    climb: Climb,
    rng: np.random.Generator,
) -> Step:
    """Adversarial training: raise the loss of triplets mined on clean embeddings, then lower it."""
    triplets = mine(miner, embed(model, batch.inputs), batch.labels, rng)
    images = perturb(model, lambda z: -triplet_loss(*triplets.of(z)), batch.inputs, climb)
    model.train()
    return Step(update(optimiser, triplet_loss(*triplets.of(model(images)))), triplets, images)


def act_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    miner: str,
    climb: Climb,
    rng: np.random.Generator,
) -> Step:
    """Anti-collapse triplets: positives and negatives pulled together, anchors clean."""
    triplets = mine(miner, embed(model, batch.inputs), batch.labels, rng)
    anchor, positive, negative = triplets.of(batch.inputs)
    moved = perturb(model, lambda z: distance(*z.chunk(2)).mean(), torch.cat([positive, negative]), climb)
    images = torch.cat([anchor, moved])
    model.train()
    return Step(update(optimiser, triplet_loss(*model(images).chunk(3))), triplets, images)


def hardness_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    source: str,
    destination: str | float,
    climb: Climb,
    rng: np.random.Generator,
    structure: float = 0.5,
    stop_below: float = 1e-7,
) -> Step:
    """Hardness manipulation: raise the hardness of source triplets to a miner's or to a given one, then train on them.

    `structure` weighs the term max(0, d(a, a~) - d(a, p)), 0 leaves it out; `stop_below` 0 takes every step.
    """
    z = embed(model, batch.inputs)
    triplets = mine(source, z, batch.labels, rng)
    if isinstance(destination, str):
        goal = hardness(*mine(destination, z, batch.labels, rng).of(z))
    else:
        goal = torch.full_like(z[::2, 0], destination)

    def shortfall(z: Tensor) -> Tensor:
        reached = hardness(*z.chunk(3))
        objective = (goal - reached).clamp(min=0).square().mean()
        _ = [number.item() for number in (reached.mean(), reached.max(), objective)]  # read for the progress line
        return objective

    images = perturb(model, shortfall, torch.cat(triplets.of(batch.inputs)), climb, stop_below=stop_below)
    model.train()
    a, p, n = model(images).chunk(3)
    loss = triplet_loss(a, p, n)
    if structure > 0:
        anchor, positive, _ = triplets.of(batch.inputs)
        clean_a, clean_p = model(torch.cat([anchor, positive])).chunk(2)
        loss = loss + structure * triplet_loss(clean_a, a, clean_p, margin=0)
    return Step(update(optimiser, loss), triplets, images)


def hardness(a: Embeddings, p: Embeddings, n: Embeddings) -> Float[Tensor, " batch"]:
    return distance(a, p) - distance(a, n)


# Attacks: whom (targets), the loss to descend per row, the score.


def candidate_loss(z: Embeddings, targets: Tensor, batch: Batch, gallery: Gallery, up: bool) -> Tensor:
    """Mean hinge between a candidate and the gallery, in the lists of its queries."""
    losses = []
    for i, (queries, own) in enumerate(zip(targets.tolist(), batch.index.tolist(), strict=True)):
        lists = candidate_lists(queries, own, gallery)
        gap = distance(gallery.embeddings[queries], z[i])[:, None] - lists
        losses.append((gap if up else -gap).clamp(min=0).mean())
    return torch.stack(losses)


def candidate_lists(queries: list[int], candidate: int, gallery: Gallery) -> Float[Tensor, "queries items"]:
    """What each query finds besides itself and the candidate's clean copy (-1: it has none)."""
    lists = torch.cdist(gallery.embeddings[queries], gallery.embeddings)
    return torch.stack([without(row, query, candidate) for row, query in zip(lists, queries, strict=True)])


def without(items: Float[Tensor, " items"], *places: int) -> Float[Tensor, " fewer"]:
    """The items but those at these places, -1 for none."""
    for place in sorted({place for place in places if place >= 0}, reverse=True):
        items = torch.cat([items[:place], items[place + 1 :]])
    return items


def query_loss(
    z: Embeddings, targets: Tensor, batch: Batch, gallery: Gallery, up: bool, keep_own: bool = False
) -> Tensor:
    """Mean hinge between the chosen items and the gallery, in the query's own list, itself left out but in GTT."""
    losses = []
    for i, own in enumerate(batch.index.tolist()):
        own_list = torch.cdist(z[i : i + 1], gallery.embeddings)[0]
        gap = own_list[targets[i]][:, None] - (own_list if keep_own else without(own_list, own))[None]
        losses.append((gap if up else -gap).clamp(min=0).mean())
    return torch.stack(losses)


def misrank_loss(z: Embeddings, targets: Tensor, batch: Batch, gallery: Gallery) -> Tensor:
    """Farthest of another class against nearest of the own; each query's class needs an item besides the query."""
    distances = torch.cdist(z, gallery.embeddings)
    same = batch.labels[:, None] == gallery.labels[None]
    other = batch.labels[:, None] != gallery.labels[None]
    for i in range(len(z)):
        if targets[i] >= 0:
            same[i, targets[i]] = False
    losses = []
    for i in range(len(z)):
        losses.append((distances[i][other[i]].max() - distances[i][same[i]].min()).clamp(min=0))
    return torch.stack(losses)


def shift_loss(z: Embeddings, targets: Tensor, batch: Batch, gallery: Gallery) -> Tensor:
    return -distance(z, targets)


def approach_loss(z: Embeddings, targets: Tensor, batch: Batch, gallery: Gallery) -> Tensor:
    return distance(z, gallery.embeddings[targets[:, 0]])


def mismatch_loss(z: Embeddings, targets: Tensor, batch: Batch, gallery: Gallery) -> Tensor:
    return 1 - functional.cosine_similarity(z, gallery.embeddings[targets[:, 0]])


Loss = Callable[[Embeddings, Tensor, Batch, Gallery], Tensor]
LOSSES: dict[str, Loss] = {
    "CA+": partial(candidate_loss, up=True),
    "CA-": partial(candidate_loss, up=False),
    "QA+": partial(query_loss, up=True),
    "QA-": partial(query_loss, up=False),
    "ES": shift_loss,
    "LTM": misrank_loss,
    "GTM": approach_loss,
    "GTT": partial(query_loss, up=False, keep_own=True),
    "TMA": mismatch_loss,
}


def choose(name: str, clean: Embeddings, batch: Batch, gallery: Gallery, rng: np.random.Generator) -> Tensor:
    """Gallery items per row; for ES the point to leave, for LTM the item that is the query itself."""
    if name == "LTM":
        return batch.index
    if name == "ES":
        return nudged(clean, rng)
    chosen = []
    for i in range(len(clean)):
        if name in ("CA+", "QA+", "TMA"):
            others = torch.where(everything(gallery.labels) != batch.index[i])[0]
            chosen.append(one_of(rng, others))
            continue
        order = ranking(clean[i], gallery, leave_out=int(batch.index[i].item()))
        if name in ("CA-", "QA-"):
            pool = min(max(int(POOL * len(gallery)), 1), len(gallery) - 1)
            chosen.append(int(order[int(rng.integers(pool))].item()))
        elif name == "GTT":
            chosen.append(int(order[0].item()))
        else:
            other = gallery.labels.cpu()[order] != batch.labels[i].cpu()
            chosen.append(int(order[other][0].item()))
    return torch.tensor(chosen, device=clean.device)[:, None]


def nudged(clean: Embeddings, rng: np.random.Generator) -> Embeddings:
    """From the clean embedding itself the distance has no gradient; from this it has."""
    direction = torch.from_numpy(rng.normal(size=tuple(clean.shape))).to(clean)
    return clean + 1e-5 * functional.normalize(direction, dim=1)


def ranking(z: Float[Tensor, " dim"], gallery: Gallery, leave_out: int) -> Int[Tensor, " items"]:
    """The gallery from near to far, sorted whole on the host, without one item (-1: with all)."""
    order = torch.cdist(z[None], gallery.embeddings)[0].cpu().argsort(stable=True)
    return order[order != leave_out]


def percentile(chosen: Float[Tensor, " chosen"], lists: Float[Tensor, "#chosen items"]) -> float:
    """How many of the list lie closer, in percent; ties count half."""
    gap = chosen[:, None] - lists
    closer, level = (gap > TIE).sum(dim=1), (gap.abs() <= TIE).sum(dim=1)
    return 100 * ((closer + level / 2) / lists.shape[1]).mean().item()


def score(
    name: str, z: Embeddings, clean: Embeddings, targets: Tensor, batch: Batch, gallery: Gallery
) -> dict[str, Tensor]:
    """Per row: ranks and rates in percent, ES:D a distance, TMA a cosine."""
    if name == "TMA":
        return {"TMA": functional.cosine_similarity(z, gallery.embeddings[targets[:, 0]]).cpu()}
    found = []
    for i in range(len(z)):
        if name in ("CA+", "CA-"):
            lists = candidate_lists(targets[i].tolist(), int(batch.index[i].item()), gallery)
            found.append(percentile(distance(gallery.embeddings[targets[i]], z[i]), lists))
        elif name in ("QA+", "QA-"):
            own_list = torch.cdist(z[i : i + 1], gallery.embeddings)[0]
            others = [without(own_list, item, int(batch.index[i].item())) for item in targets[i].tolist()]
            found.append(percentile(own_list[targets[i]], torch.stack(others)))
        else:
            order = ranking(z[i], gallery, leave_out=int(batch.index[i].item()))
            if name == "GTT":
                found.append(100.0 * (targets[i].cpu() in order[:4]))
            else:
                found.append(100.0 * (gallery.labels[order[0]] == batch.labels[i]).item())
    scores = torch.tensor(found)
    return {"ES:D": distance(z, clean).cpu(), "ES:R": scores} if name == "ES" else {name: scores}


def attack(
    name: str,
    model: nn.Module,
    batch: Batch,
    gallery_images: Inputs,
    gallery_labels: Labels,
    climb: Climb,
    rng: np.random.Generator,
    targets: Tensor | None = None,
    start: Inputs | None = None,
) -> Outcome:
    """One attack on one batch, from the gallery's images to scores. `targets` and `start` fix what is else drawn."""
    gallery = Gallery(embed(model, gallery_images), gallery_labels)
    clean = embed(model, batch.inputs)
    if targets is None:
        targets = choose(name, clean, batch, gallery, rng)
    images = perturb(model, lambda z: LOSSES[name](z, targets, batch, gallery).sum(), batch.inputs, climb, start)
    return Outcome(images, score(name, embed(model, images), clean, targets, batch, gallery))
