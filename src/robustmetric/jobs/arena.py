"""The arena: a model, the queries it gets and the gallery it searches, embedded once and shared by every attack."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from robustmetric.attacks.margin import check_logits
from robustmetric.data.base import Dataset, Split
from robustmetric.data.protocols import Transform
from robustmetric.errors import InputError, nearest
from robustmetric.jobs.answer import answering, check_weights, checked_logits, of_each
from robustmetric.jobs.feed import Feed
from robustmetric.jobs.folder import fingerprint
from robustmetric.jobs.progress import Bar, say
from robustmetric.jobs.workers import Workers, full_precision
from robustmetric.models.classifier import Classifies
from robustmetric.numerics.randomness import generator, repeatable
from robustmetric.perturb.pgd import View, frozen
from robustmetric.perturb.seeking import Search
from robustmetric.types import Batch, Gallery

SAMPLED = 64
"""Images per split whose bytes a data fingerprint reads: a large memory map stays on disk."""


def known_search(search: str) -> Search:
    """What attacks climb in, from its name."""
    if search not in get_args(Search):
        raise InputError(f"search {search!r} is not known{nearest(search, get_args(Search))}")
    return cast(Search, search)


@dataclass(frozen=True)
class Arena:
    """Where a model is tested: the queries it gets and the gallery it searches, embedded once.

    A classifier searches nothing: its gallery is empty, and its embeddings are logits.
    """

    model: nn.Module
    queries: Feed
    items: Feed
    rows: Int[Tensor, " queries"]
    """The queries used, as rows of `queries`."""
    places: Int[Tensor, " queries"]
    """Each query's own place in the gallery, -1 where it is not part of it."""
    gallery: Gallery
    view: Transform
    workers: Workers
    class_names: tuple[str, ...]
    skipped: int
    batch_size: int
    data_fingerprint: str
    fast: bool = False
    """Whether the model is seen in bfloat16 (on a GPU), not in fp32."""
    search: Search = "fp32"
    """What attacks climb in: on a GPU alone is it another than fp32. What they reach is scored as the model is seen."""

    @staticmethod
    def prepare(
        model: nn.Module,
        dataset: Dataset,
        view: Transform,
        workers: Workers,
        *,
        limit: int | None = None,
        seed: int = 0,
        batch_size: int = 128,
        fast: bool = False,
        search: str = "fp32",
        shown: bool = False,
    ) -> "Arena":
        """Embed the gallery, with a bar if `shown`; take all queries, or `limit` of them drawn with `seed`."""
        if batch_size < 1:
            raise InputError(f"a batch of {batch_size} images cannot be attacked; expected at least 1")
        sought = _available(known_search(search), workers.device, fast=fast, shown=shown)
        queries = Feed(dataset.queries, workers.device)
        searched = None if isinstance(model, Classifies) else dataset.gallery
        items = Feed(searched, workers.device) if searched is not None else queries
        check_weights(model)
        model.to(workers.device)
        rows = _draw(len(queries), limit, seed)
        if isinstance(model, Classifies):
            _check_classes(model.classes, dataset)
            with repeatable(workers.device, seed, 5):
                batch = as_bytes(queries.batch(rows[:batch_size], view))
                check_logits(checked_logits(model, batch.inputs, model.classes), batch.labels, first=True)
            arena_gallery = empty_gallery(model.classes, workers.device)
        else:
            with repeatable(workers.device, seed, 5):
                z = embed(model, items, view, workers, batch_size, seen=_seen(fast), shown=shown)
            arena_gallery = Gallery(z, _aligned_labels(dataset).to(workers.device))
        return Arena(
            model=model,
            queries=queries,
            items=items,
            rows=rows,
            places=rows if items is queries and len(arena_gallery) else torch.full_like(rows, -1),
            gallery=arena_gallery,
            view=view,
            workers=workers,
            class_names=dataset.queries.class_names,
            skipped=len(dataset.skipped),
            batch_size=batch_size,
            data_fingerprint=data_fingerprint(dataset),
            fast=fast,
            search=sought,
        )

    @cached_property
    def exact(self) -> "Arena":
        """The same in fp32, its gallery embedded anew; every rank must ask."""
        if not len(self.gallery):
            return replace(self, fast=False)
        z = embed(self.model, self.items, self.view, self.workers, self.batch_size)
        return replace(self, gallery=Gallery(z, self.gallery.labels), fast=False)

    @property
    def seen(self) -> View:
        """How attacks and scores see the model."""
        return _seen(self.fast)

    @property
    def is_of_classes(self) -> bool:
        """Whether the model is a classifier."""
        return isinstance(self.model, Classifies)

    @property
    def right(self) -> str:
        """The score that says whether a query is answered rightly, 100 or 0."""
        return "accuracy" if self.is_of_classes else "R@1"

    def batches(self, only: Int[Tensor, " some"] | None = None) -> Iterator[tuple[int, Int[Tensor, " batch"], Batch]]:
        """This worker's share of the queries: where each batch begins, its positions among the queries, the batch.

        `only`: of the queries at these positions, which may be few or none.
        """
        chunks = (torch.arange(len(self.rows)) if only is None else only).split(self.batch_size)
        if only is None and len(chunks) < self.workers.ranks:
            # Said by every rank, so that none waits for another.
            raise InputError(
                f"{len(self.rows)} queries in batches of {self.batch_size} are too few for {self.workers.ranks} "
                "processes; lower --batch or --devices"
            )
        for positions in chunks[self.workers.rank :: self.workers.ranks]:
            if not len(positions):
                return
            rows = self.rows[positions]
            batch = self.queries.batch(rows, self.view, index=self.places[positions])
            yield int(positions[0]), positions, as_bytes(batch)

    def settings(self) -> dict[str, Any]:
        """What a record must say of the arena."""
        described = {
            "queries": len(self.rows),
            **({"images": len(self.queries)} if self.is_of_classes else {"gallery": len(self.gallery)}),
            "view": repr(self.view),
            "batch": self.batch_size,
            "precision": "bf16" if self.fast and self.workers.device.type == "cuda" else "fp32",
            "weights": fingerprint(self.model)[:16],
            "data_fingerprint": self.data_fingerprint,
        }
        if self.search != "fp32":
            described["search"] = self.search
        return {**described, "skipped": self.skipped} if self.skipped else described


def _check_classes(classes: int, dataset: Dataset) -> None:
    """Refuse data of other classes than a classifier's: labels would name the wrong logits."""
    found = len(dataset.queries.class_names)
    if found != classes:
        raise InputError(
            f"{dataset.name} has {found} classes and the model tells {classes} apart; "
            "expected those it was trained on, in the same order"
        )


def _available(search: Search, device: torch.device, *, fast: bool, shown: bool) -> Search:
    """What attacks search in on this device, which is said where it is not what was asked for."""
    if fast and search != "fp32":
        raise InputError(f"--fast is bfloat16 throughout; expected it without --search {search}")
    if search == "fp32" or device.type == "cuda":
        return search
    if shown:
        say(f"--search {search} is for a GPU: on {device.type} attacks search in fp32")
    return "fp32"


def empty_gallery(classes: int, device: torch.device) -> Gallery:
    """What a classifier of so many classes searches: nothing."""
    return Gallery(torch.zeros(0, classes, device=device), torch.zeros(0, dtype=torch.long, device=device))


@full_precision()
def embed(
    model: nn.Module,
    feed: Feed,
    view: Transform,
    workers: Workers,
    batch_size: int,
    rows: Int[Tensor, " rows"] | None = None,
    seen: View = "folded",
    shown: bool = False,
) -> Float[Tensor, "rows dim"]:
    """Embeddings of a split (or some rows of it), each worker computing its share; images as 8 bits hold them."""
    rows = torch.arange(len(feed)) if rows is None else rows
    if not len(rows):
        raise InputError("there is nothing to embed: the split is empty")
    embeddings: Tensor | None = None
    chunks = torch.arange(len(rows)).split(batch_size)
    lead = shown and workers.rank == 0
    with frozen(model, seen) as network, torch.no_grad(), Bar("embedding", len(rows), shown=lead) as bar:
        # A rank without a share still takes a chunk, to know the size of an embedding; its zeros add nothing.
        for positions in chunks[workers.rank :: workers.ranks] or chunks[:1]:
            inputs = as_bytes(feed.batch(rows[positions], view)).inputs
            with answering(model, inputs):
                z = of_each(model, network(inputs), inputs).float()
            if embeddings is None:
                embeddings = z.new_zeros(len(rows), z.shape[1])
            if workers.rank < len(chunks):
                embeddings[positions.to(z.device)] = z
            bar.advance(len(positions) * workers.ranks)
    assert embeddings is not None  # there is at least one chunk
    if not bool(torch.isfinite(embeddings).all()):
        bad = int((~torch.isfinite(embeddings).all(dim=1)).nonzero()[0])
        raise InputError(
            f"the model's embedding of {feed.names[int(rows[bad])]} holds NaN or infinity; check its weights"
        )
    return workers.total(embeddings)


def _seen(fast: bool) -> View:
    return "fast" if fast else "folded"


def data_fingerprint(dataset: Dataset) -> str:
    """16 hex digits of a SHA-256 of what is searched: labels, classes, names, shapes, and the bytes of some images.

    Ties a record to its data: a name and counts are shared by data sets that differ.
    """
    digest = hashlib.sha256()
    for split in (dataset.queries, dataset.gallery):
        if split is None:
            continue
        facts = [list(split.inputs.shape), str(split.inputs.dtype), split.class_names, split.names]
        digest.update(json.dumps(facts).encode())
        for values in (split.labels, split.sizes, split.inputs[_spread(len(split), SAMPLED)]):
            digest.update(values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _spread(count: int, most: int) -> Int[Tensor, " rows"]:
    """At most so many rows, evenly spread from the first to the last; in whole numbers, which are exact at any size."""
    few = min(count, most)
    return torch.arange(few) * (count - 1) // max(few - 1, 1)


def as_bytes(batch: Batch) -> Batch:
    """Images rounded to the 8 bits that a camera or a file holds; flat feature vectors stay as they are."""
    if batch.inputs.dim() < 3:
        return batch
    return Batch((batch.inputs * 255).round() / 255, batch.labels, batch.index)


def _aligned_labels(dataset: Dataset) -> Int[Tensor, " items"]:
    """Gallery labels in the numbering of the queries: classes are matched by name."""
    if dataset.gallery is None:
        return dataset.queries.labels
    return _renumber(dataset.gallery, dataset.queries.class_names)


def _renumber(split: Split, names: tuple[str, ...]) -> Int[Tensor, " items"]:
    number = {name: i for i, name in enumerate(names)}
    # A gallery class no query has gets a number of its own behind the queries' classes.
    table = [number.get(name, len(names) + i) for i, name in enumerate(split.class_names)]
    return torch.tensor(table)[split.labels]


def _draw(count: int, limit: int | None, seed: int) -> Int[Tensor, " rows"]:
    if limit is None or limit >= count:
        return torch.arange(count)
    if limit < 1:
        raise InputError(f"{limit} queries cannot be evaluated; expected at least 1")
    return torch.randperm(count, generator=generator(torch.device("cpu"), seed, 4))[:limit].sort().values
