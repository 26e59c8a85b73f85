"""Certified retrieval of a trained encoder: run -> gallery -> [queries -> radii] -> record, resumed over queries."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from robustmetric import records
from robustmetric.certify.smoothed_retrieval import Search, SmoothedRetrieval
from robustmetric.errors import InputError, nearest
from robustmetric.jobs.arena import Arena, as_bytes
from robustmetric.jobs.folder import summarise
from robustmetric.jobs.progress import say, terms
from robustmetric.jobs.proofs import Question, Radii, check_radii, proved
from robustmetric.jobs.target import Target, find_target
from robustmetric.jobs.workers import Workers, describe
from robustmetric.learn.base import device_of
from robustmetric.models.classifier import Classifies
from robustmetric.records import Record
from robustmetric.report.certified import draw_curves

NAME = "smoothed retrieval"
OPTIONS = ("sigma", "samples", "search")
QUERIES = 500
SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Radii at which the result is stated where none are asked for, in units of sigma."""


def certify_retrieval(
    name: str,
    *,
    sigma: float = 0.1,
    samples: int = 10_000,
    search: str = "mean",
    data: str | None = None,
    view: str | None = None,
    out: Path | None = None,
    queries: int | None = None,
    radii: Sequence[float] | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> list[Record]:
    """Certified R@1 against radius (l2, in pixel units) of a run's encoder under Gaussian noise.

    The record says what was proved: of the smoothed search, not of the encoder alone; of a gallery that the attacker
    cannot touch; with chance `alpha` of error per query.
    """
    if search not in get_args(Search):
        raise InputError(f"search {search!r} is not known{nearest(search, get_args(Search))}")
    certificate = SmoothedRetrieval(sigma, samples, search=cast(Search, search), seed=seed)
    radii = check_radii([share * sigma for share in SHARES] if radii is None else radii)
    workers = Workers(device_of(device))
    target = find_target(name, data=data, out=out, view=view)
    if isinstance(target.model, Classifies):
        raise InputError(f"{name!r} is a classifier, which searches nothing; expected an encoder")
    context = records.context(describe(workers.device))
    _begin(target, context)
    arena = Arena.prepare(
        target.model, target.dataset, target.view, workers, limit=QUERIES if queries is None else queries, seed=seed
    )

    def prove(part: slice) -> Radii:
        rows = arena.rows[part]
        batch = as_bytes(arena.queries.batch(rows, arena.view, index=arena.places[part]))
        found = certificate.certify(arena.model, batch, arena.gallery, first=part.start)
        return found.radius_if_right(batch.labels).cpu().numpy()

    asked = {word: getattr(certificate, word) for word in OPTIONS}
    settings = {"data": target.dataset.name, "certificate": repr(certificate), **asked, **arena.settings()}
    question = Question(NAME, len(arena.rows), settings, prove, chunk=1, is_retrieval=True)
    kept = target.folder.certified
    record = target.folder.keep(proved(question, radii, kept, seed, context)[0])
    draw_curves({target.name: [record]}, kept)
    say(f"{target.name}  {record.name}: {terms(record.scores)}")
    return [record]


def _begin(target: Target, context: Mapping[str, Any]) -> None:
    """The folder with its recipe; one that holds another recipe is not added to."""
    if not target.folder.recipe.exists():
        target.folder.begin(target.spec, summarise(target.spec, target.name, context))
    elif target.folder.read_recipe() != target.spec:
        raise InputError(f"{target.folder.path} holds another recipe; name another folder with --out")
    target.say_if_as_built()
