"""Records of kind `clustering` -> the block of that name in a row of the ledger. What was not measured is left out."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from robustmetric.jobs.clustering import alike, strongest
from robustmetric.jobs.suites import labels_of
from robustmetric.records import Record
from robustmetric.report.clustering import BOTH, CLEAN, GALLERY, HEADLINE, KIND, QUERY, STRONGEST, backend
from robustmetric.report.clustering_schema import COSINES, LONELY, NOISE, SEARCH, SUITES, SWEEP

Block = dict[str, Any]
FEW = ("R@1", "NMI", "F1")
"""Scores of the readings that are not the headline."""


def clustering_records(found: Iterable[Record], weights: str | None) -> list[Record]:
    """Those in fp32 of the weights that lie there, of one seed and one k-means, and as many queries as any.

    Of every suite those of one evaluation, which block, command and seconds of a row are of.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in found:
        settings = record.settings
        if record.kind != KIND or settings.get("precision", "fp32") != "fp32":
            continue
        if weights is None or weights.startswith(str(settings.get("weights", ""))):
            described = settings.get("weights"), settings.get("data_fingerprint")
            key = (record.seed, record.count, *described, backend(record))
            groups.setdefault(key, []).append(record)
    whole = [group for group in groups.values() if any(record.settings["sides"] == CLEAN for record in group)]
    if not whole:
        return []
    fullest = max(whole, key=lambda group: (group[0].count, len(group)))
    suites = dict.fromkeys(record.settings["suite"] for record in fullest)
    return [r for suite in suites for r in _tried([r for r in fullest if r.settings["suite"] == suite])]


def clean_record(records: Sequence[Record]) -> Record:
    """The clean one of the headline reading."""
    return next(r for r in records if r.settings["sides"] == CLEAN and r.settings["reading"] in HEADLINE)


def clustering_block(records: Sequence[Record], radius: float | None) -> Block:
    """All that a row says of clustering: at this radius or, where the data has no published one, the smallest."""
    headline = clean_record(records)
    radii = [float(r.settings["radius"]) for r in records if "radius" in r.settings]
    at = radius if radius is not None else min(radii, default=0.0)
    reading = headline.settings["reading"]
    block: Block = {"reading": reading, **_by_suite(records, reading, at)}
    block |= {LONELY: headline.settings[LONELY]} if LONELY in headline.settings else {}
    others = dict.fromkeys(r.settings["reading"] for r in records if r.settings["reading"] != reading)
    readings = {name: {k: _few(v) for k, v in _by_suite(records, name, at).items()} for name in others}
    block |= {"readings": readings} if readings else {}
    own = [r for r in records if r.settings["reading"] == reading]
    return block | _sweeps(own, at) | _noise(own)


def seconds(records: Iterable[Record]) -> float:
    """Of all trials: the sides and readings of one share their time."""
    trials = {
        (r.settings["suite"], r.settings["trial"], r.settings.get("radius")): r.seconds
        for r in records
        if r.settings["trial"] != STRONGEST
    }
    return math.fsum(trials.values())


def _by_suite(records: Iterable[Record], reading: str, radius: float) -> Block:
    """Clean, and under each suite what the strongest of its attacks that were run leaves, and how many of them were."""
    own = [record for record in records if record.settings["reading"] == reading]
    clean = [record for record in own if record.settings["sides"] == CLEAN]
    block: Block = {"clean": _rounded(clean[0])}
    for suite, key in SUITES.items():
        tried = [r for r in own if r.settings["suite"] == suite and r.settings["trial"] != STRONGEST]
        sides = {r.settings["sides"]: r for r in strongest(tried, {}) if _is_at(r, radius)}
        if BOTH not in sides:
            continue
        at = [r for r in tried if r.settings["sides"] == BOTH and _is_at(r, radius)]
        attacks = list(dict.fromkeys(str(r.settings["trial"]) for r in at))
        block[key] = _rounded(sides[BOTH])
        block[key] |= {side: _rounded(sides[side]) for side in (QUERY, GALLERY) if side in sides}
        of = len(attacks) + len(_left(suite, attacks))
        block[key] |= {"by": dict(sides[BOTH].settings["by"])} if len(attacks) > 1 else {}
        block[key] |= {"attacks": attacks, "of": of} if of > 1 else {}
        block[key] |= _search(at[0])
        if len(attacks) == 1 and COSINES in at[0].context:
            block[key][COSINES] = {pair: round(value, 4) for pair, value in at[0].context[COSINES].items()}
    return block


def _tried(records: Sequence[Record]) -> list[Record]:
    """The attacks of a suite, whether it came to its end or was cut; of evaluations that differ, that of most attacks.

    Of as many that which searched in fp32 counts, and then the newest.
    """
    own = [record for record in records if record.settings["trial"] != STRONGEST]
    bases = [
        {key: value for key, value in record.settings.items() if key not in ("trial", "sides", "reading")}
        for record in reversed(own)
        if record.settings["sides"] == CLEAN
    ]
    return max((alike(own, base, own[0].seed) for base in bases), key=_rank, default=[])


def _rank(records: Sequence[Record]) -> tuple[int, bool]:
    attacked = [record.settings for record in records if record.settings["sides"] != CLEAN]
    return len({(one["trial"], one.get("radius")) for one in attacked}), SEARCH not in records[0].settings


def _left(suite: str, attacks: Iterable[str]) -> list[str]:
    """Attacks of a suite that are not among these; a transfer is told with its source, `transferred shift from RUN`."""
    return [
        label for label in labels_of(suite) if not any(f"{each} from ".startswith(f"{label} from ") for each in attacks)
    ]


def _few(block: Block) -> Block:
    return {score: block[score] for score in FEW if score in block}


def _sweeps(records: Iterable[Record], radius: float) -> Block:
    """The curves by steps at one radius, and by radius in 255ths at ten steps."""
    own = [r for r in records if r.settings["suite"] == SWEEP and r.settings["trial"] not in (STRONGEST, "clean")]
    steps = _curve((str(r.settings["steps"]), r) for r in own if _is_at(r, radius))
    radii = _curve((_in_255ths(r), r) for r in own if r.settings["steps"] == 10)
    return {name: curve for name, curve in (("steps", steps), ("radii", radii)) if curve}


def _noise(records: Iterable[Record]) -> Block:
    """The curve by the radius of noise in 255ths."""
    own = [r for r in records if r.settings["suite"] == NOISE and r.settings["trial"] not in (STRONGEST, "clean")]
    found = _curve((_in_255ths(r), r) for r in own)
    return {"noise": found} if found else {}


def _curve(points: Iterable[tuple[str, Record]]) -> Block:
    """R@1 and F1 by where they stand, and R@1 where queries alone are moved."""
    found: dict[str, Block] = {}
    for at, record in points:
        if record.settings["sides"] == BOTH:
            scores = {score: round(record.scores[score], 4) for score in ("R@1", "F1")}
            # Without a step nothing is searched, whatever was asked for.
            found.setdefault(at, {}).update(scores | (_search(record) if record.settings["steps"] else {}))
        elif record.settings["sides"] == QUERY:
            found.setdefault(at, {})[QUERY] = {"R@1": round(record.scores["R@1"], 4)}
    return found


def _in_255ths(record: Record) -> str:
    return f"{255 * float(record.settings['radius']):g}"


def _search(record: Record) -> dict[str, Any]:
    """What an attack searched in, where that is not fp32."""
    return {SEARCH: record.settings[SEARCH]} if SEARCH in record.settings else {}


def _rounded(record: Record) -> dict[str, float]:
    return {name: round(value, 4) for name, value in record.scores.items()}


def _is_at(record: Record, radius: float) -> bool:
    return math.isclose(float(record.settings.get("radius", -1)), radius, rel_tol=1e-3)
