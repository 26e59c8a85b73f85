"""Certified retrieval: how far in l2 a query can move before a smoothed encoder's first answer may change.

The derivation, and what is not proved, is in docs/papers/certified_retrieval.md; equation numbers are its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.special import ndtri

from robustmetric.certify.gaussian_shift import at_least, radius_by_distribution, radius_by_mean, tally
from robustmetric.errors import InputError, nearest
from robustmetric.models.smoothed import check_noise
from robustmetric.numerics.distances import BLOCK, ROUNDING, check_rows, chunks, paired, pairwise
from robustmetric.numerics.intervals import check_alpha, clopper_pearson_lower, empirical_bernstein_lower
from robustmetric.numerics.randomness import Purpose, generator, noise
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch, Embed, Gallery, Progress

Draw = Callable[[int], Iterator[Tensor]]
"""Embeddings of so many further noisy copies of a query, a batch at a time, in float64."""

Goal = Literal["label", "neighbour"]
"""What must not change: the label of the nearest item, or the nearest item itself."""
Search = Literal["mean", "vote"]
"""Who searches: the mean of the noisy copies' embeddings, once; or each copy, and the answer given most often wins."""
Bound = Literal["distribution", "mean"]
"""What is known of a margin of the mean: its distribution under noise (Eq. 4), or its mean alone (Eq. 3)."""

LONGEST = 1 + 1e-4
"""Embeddings longer than this are not unit length up to rounding, and the bounds do not hold for them."""


@dataclass(frozen=True)
class RetrievalCertificates:
    """What is proved of each query's first answer under the smoothed encoder."""

    radius: Float[Tensor, " queries"]
    """Certified l2 radius, in float64: 0 where abstained, infinite where nothing else can be retrieved."""
    neighbour: Int[Tensor, " queries"]
    """The item retrieved, as the selection draws see it; -1 where abstained."""
    label: Int[Tensor, " queries"]
    """The label retrieved; -1 where abstained."""

    @property
    def abstained(self) -> Bool[Tensor, " queries"]:
        """Where the draws do not show which answer is the first."""
        return self.neighbour < 0

    def radius_if_right(self, labels: Int[Tensor, " queries"]) -> Float[Tensor, " queries"]:
        """The radius where the label retrieved is this one, 0 elsewhere: what certified R@1 is made of."""
        return self.radius.where(self.label == labels, torch.zeros_like(self.radius))


@dataclass(frozen=True)
class Duels:
    """The comparisons that must all be won: <g(x), direction[j]> > threshold[j], for unit directions (Eq. 1)."""

    direction: Float[Tensor, "rivals dim"]
    threshold: Float[Tensor, " rivals"]


@dataclass(frozen=True)
class _Items:
    """The gallery as one query searches it, in float64."""

    vectors: Float[Tensor, "items dim"]
    half: Float[Tensor, " items"]
    """|z|^2 / 2: the nearest item to g has the largest <g, z> - |z|^2 / 2."""
    labels: Int[Tensor, " items"]
    allowed: Bool[Tensor, " items"]
    """All but the query itself."""

    @staticmethod
    def of(gallery: Gallery) -> "_Items":
        vectors = gallery.embeddings.double()
        return _Items(
            vectors, vectors.square().sum(dim=1) / 2, gallery.labels, torch.ones_like(gallery.labels, dtype=torch.bool)
        )

    def without(self, own: Int[Tensor, ""]) -> "_Items":
        """The items that this query may retrieve."""
        allowed = torch.arange(len(self.labels), device=self.labels.device) != own
        if not bool(allowed.any()):
            raise InputError("a query has no item to retrieve but itself; expected a gallery of at least 2 items")
        return replace(self, allowed=allowed)

    def scores(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch items"]:
        """Larger is nearer."""
        return torch.addmm(-self.half, z, self.vectors.T).masked_fill(~self.allowed, -torch.inf)

    def votes(self, embeddings: Iterator[Tensor]) -> Int[Tensor, " items"]:
        """How many embeddings have each item as their nearest."""
        votes = torch.zeros_like(self.labels)
        for z in embeddings:
            for rows in chunks(len(z), BLOCK // len(votes)):
                votes += torch.bincount(self.scores(z[rows]).argmax(dim=1), minlength=len(votes))
        return votes

    def winner(self, votes: Int[Tensor, " items"], goal: Goal) -> int:
        """The item with most votes, of all items or of those whose label has most."""
        if goal == "label":
            _, label = self.labels.unique(return_inverse=True)
            best = torch.bincount(label, weights=votes.double()).argmax()
            votes = votes.where(label == best, -1)
        return int(votes.argmax())

    def team(self, answer: int, goal: Goal) -> Bool[Tensor, " items"]:
        """The items that are as good as this one: those of its label, or itself alone."""
        if goal == "label":
            return self.labels == self.labels[answer]
        return torch.arange(len(self.labels), device=self.labels.device) == answer


@dataclass(frozen=True)
class SmoothedRetrieval:
    """Certificates for an encoder f smoothed by Gaussian noise, searching a fixed gallery by Euclidean distance.

    `search`: by g(x) = E f(x + sigma * noise), or by the vote of f(x + sigma * noise) over the noise. `selection` draws
    choose the answer and what proves it; `samples` further ones bound all of that at once, wrong with chance at most
    `alpha` per query. The gallery's embeddings may be f's, g's or any other vectors: they are taken as stored.
    """

    sigma: float
    samples: int = 10_000
    selection: int = 100
    alpha: float = 0.001
    goal: Goal = "label"
    search: Search = "mean"
    bound: Bound = "distribution"
    thresholds: int = 400
    """How finely the distribution of a margin is looked at."""
    candidates: int = 100
    """Items of the retrieved label, the nearest, of which each rival is compared with the one that beats it best."""
    batch: int = 1024
    """Noisy inputs that are embedded at a time."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_noise(self.sigma, min(self.samples, self.selection), self.batch)
        check_alpha(self.alpha)
        choices = {"goal": (self.goal, Goal), "search": (self.search, Search), "bound": (self.bound, Bound)}
        for name, (word, words) in choices.items():
            if word not in get_args(words):
                raise InputError(f"{name} {word!r} is not known{nearest(word, get_args(words))}")
        if self.thresholds < 2 or self.candidates < 1 or self.samples < 2:
            raise InputError(
                f"thresholds={self.thresholds}, candidates={self.candidates}, samples={self.samples}; "
                "expected thresholds >= 2, candidates >= 1 and samples >= 2"
            )

    @torch.no_grad()
    def certify(
        self,
        model: nn.Module,
        queries: Batch,
        gallery: Gallery,
        *,
        first: int = 0,
        progress: Progress | None = None,
    ) -> RetrievalCertificates:
        """Answer and radius of each query; one whose `index` is not -1 does not retrieve that item.

        `model` is f; for the search by mean its embeddings are of unit length. `first` is the number of the first
        query, so that queries certified in parts draw the noise they would in a whole.
        """
        items = _Items.of(gallery)
        check_rows(items.vectors[:0], items.vectors, queries.index[:, None])
        radii = torch.zeros(len(queries), dtype=torch.float64, device=items.labels.device)
        answers = torch.full((len(queries),), -1, device=items.labels.device)
        certify_one = self._by_vote if self.search == "vote" else self._by_margins
        with frozen(model) as embed:
            for row, x in enumerate(queries.inputs):
                source = generator(x.device, self.seed, first + row, purpose=Purpose.SMOOTHED_RETRIEVAL)
                draw = partial(self._embeddings, embed, x, source)
                answer, radius = certify_one(draw, items.without(queries.index[row]))
                if radius is not None:
                    answers[row], radii[row] = answer, radius
                if progress is not None:
                    progress(row + 1, len(queries))
        labels = gallery.labels[answers.clamp_min(0)].where(answers >= 0, answers.to(gallery.labels.dtype))
        return RetrievalCertificates(radii, answers, labels)

    def radius(self, model: nn.Module, queries: Batch, references: Batch) -> Float[Tensor, " batch"]:
        """The certified radius where the label retrieved is the query's, 0 elsewhere; `model` embeds the references."""
        with torch.no_grad(), frozen(model) as embed:
            items = torch.cat([embed(part) for part in references.inputs.split(self.batch)])
        return self.certify(model, queries, Gallery(items, references.labels)).radius_if_right(queries.labels)

    def _by_vote(self, draw: Draw, items: _Items) -> tuple[int, float | None]:
        """The answer most copies give, and its certified radius; None where no majority is proved (Eq. 6)."""
        answer = items.winner(items.votes(draw(self.selection)), self.goal)
        hits = items.votes(draw(self.samples))[items.team(answer, self.goal)].sum()
        lower = clopper_pearson_lower(hits, self.samples, self.alpha)
        return answer, self.sigma * float(ndtri(lower)) if lower > 0.5 else None

    def _by_margins(self, draw: Draw, items: _Items) -> tuple[int, float | None]:
        """The nearest item of the mean embedding, and its certified radius; None where not even 0 is proved."""
        mean = torch.cat([_within_unit(z) for z in draw(self.selection)]).mean(dim=0)
        score = items.scores(mean[None])[0]
        answer = int(score.argmax())
        duels = self._duels(score, answer, items)
        if duels is None:
            return answer, None
        bound = self._by_distribution if self.bound == "distribution" else self._by_mean
        embeddings = (_within_unit(z) for z in draw(self.samples))
        return answer, bound(embeddings, duels, len(items.labels)) if len(duels.threshold) else torch.inf

    def _embeddings(self, embed: Embed, x: Tensor, source: torch.Generator, count: int) -> Iterator[Tensor]:
        """f at `count` noisy copies of x, a batch at a time, in float64."""
        for part in noise(x.shape, count, self.batch, source, x.dtype):
            z = embed(x + self.sigma * part).double()
            check_rows(z, z[:0], None)
            yield z

    def _duels(self, score: Tensor, answer: int, items: _Items) -> Duels | None:
        """Whom each rival is compared with; None where a rival coincides, up to rounding, with who should beat it."""
        same = items.team(answer, self.goal)
        rivals = (items.allowed & ~same).nonzero()[:, 0]
        own = (items.allowed & same).nonzero()[:, 0]
        near = own[score[own].topk(min(self.candidates, len(own))).indices]
        champions = near[_best_margins(items.vectors, score, near, rivals)]
        a, b, number = items.vectors[champions], items.vectors[rivals], torch.finfo(items.vectors.dtype)
        apart = paired(a, b)
        size = 2 * (items.half[champions] + items.half[rivals])
        if bool((apart.square() <= ROUNDING * (number.eps * size + number.tiny)).any()):
            return None
        direction, middle = (a - b) / apart[:, None], (a + b) / 2
        # The difference of the squares, over `apart`, would lose the digits that two near items have in common.
        rounding = (a.shape[1] + ROUNDING) * number.eps * (middle * direction).abs().sum(dim=1)
        return Duels(direction, (middle * direction).sum(dim=1) + rounding)

    def _by_distribution(self, embeddings: Iterator[Tensor], duels: Duels, union: int) -> float | None:
        """Eq. 4: every level of every margin bounded at once, by Clopper and Pearson."""
        counts = torch.zeros(
            (self.thresholds + 1, len(duels.threshold)), dtype=torch.long, device=duels.threshold.device
        )
        for z in embeddings:
            tally(z, duels.direction, counts)
        reached = at_least(counts)
        levels = clopper_pearson_lower(reached, self.samples, self.alpha / (union * reached.shape[1]))
        return radius_by_distribution(levels, duels.threshold, self.sigma)

    def _by_mean(self, embeddings: Iterator[Tensor], duels: Duels, union: int) -> float | None:
        """Eq. 3: every margin's mean bounded at once, by Maurer and Pontil."""
        dim = duels.direction.shape[1]
        total, products = duels.direction.new_zeros(dim), duels.direction.new_zeros((dim, dim))
        for z in embeddings:
            total += z.sum(dim=0)
            products += z.T @ z
        # The mean and variance of every margin are those of the embedding along its direction.
        mean = total / self.samples
        spread = (products - self.samples * mean[:, None] * mean) / (self.samples - 1)
        variance = ((duels.direction @ spread) * duels.direction).sum(dim=1).clamp_min(0)
        share = (1 + duels.direction @ mean) / 2
        lower = empirical_bernstein_lower(share, variance / 4, self.samples, self.alpha / union)
        return radius_by_mean(2 * lower - 1, duels.threshold, self.sigma)


def _best_margins(items: Tensor, score: Tensor, near: Tensor, rivals: Tensor) -> Int[Tensor, " rivals"]:
    """For each rival, which of the near items beats it by the most, measured along the line between the two."""
    best = torch.zeros_like(rivals)
    for part in chunks(len(rivals), BLOCK // len(near)):
        apart = pairwise(items[near], items[rivals[part]])
        margins = (score[near][:, None] - score[rivals[part]]) / apart
        best[part] = margins.masked_fill(apart == 0, -torch.inf).argmax(dim=0)
    return best


def _within_unit(z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """The embeddings, cut to length 1 where rounding made them longer."""
    length = z.norm(dim=1, keepdim=True)
    if not bool((length <= LONGEST).all()):
        raise InputError(
            f"embeddings of length up to {float(length.max()):.3g}; expected unit length or less: wrap the model in "
            "Encoder(module), which normalises"
        )
    return z / length.clamp_min(1)
