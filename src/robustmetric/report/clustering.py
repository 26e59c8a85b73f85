"""Clustering under attack: records of kind `clustering` as tables, one for each suite and reading, and in sentences."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from robustmetric import recipe
from robustmetric.records import Record, validated_on
from robustmetric.report import clustering_rows
from robustmetric.report.clustering_schema import COSINES, FLAT, LONELY, SEARCH
from robustmetric.report.runs import Run
from robustmetric.report.scores import show, show_radius, title

KIND = "clustering"
CLEAN, BOTH, QUERY, GALLERY = "neither side", "both sides", "query only", "gallery only"
"""Which side of a search was perturbed, as the records say it."""
HEADLINE = ("V1, C1", "alone")
"""The reading of a model's headline numbers: the first vote of an ensemble; a single model has no other."""
STRONGEST = "strongest"
PAPERS_SUITE, PAPERS_ATTACK, PAPERS_RADIUS = "clustering", "A1", 8 / 255
"""What the paper's tables were measured by."""
ALL = ("R@1", "R@8", "NMI", "AMI", "F1")
SCORES: dict[str, tuple[str, ...]] = {CLEAN: ALL, BOTH: ALL, QUERY: ("R@1",), GALLERY: ("R@1",)}
"""By side, what the tables show."""
ONE_PLACE, APART, MOST = 0.95, 0.1, 50
"""Moved embeddings of a mean cosine above the first, and as far above that of clean ones, have fallen together."""
COLUMNS = tuple((sides, score) for sides in (BOTH, QUERY, GALLERY) for score in SCORES[sides])


@dataclass(frozen=True)
class Cell:
    """A number as it is shown, and below it its interval, its deviation over k-means seeds, or whose attack it is."""

    value: str
    below: str = ""


@dataclass(frozen=True)
class Line:
    """One run under one attack; a column that is absent was not measured."""

    attack: str
    style: int
    run: str
    reading: str
    cells: dict[tuple[str, str], Cell]


@dataclass(frozen=True)
class Table:
    """Lines that may be compared: of one group."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Group:
    """All clustering records of one data set, suite, precision, k-means and count, by run (its place in the report)."""

    data: str
    suite: str
    precision: str
    backend: str
    count: int
    records: dict[int, list[Record]]

    def __str__(self) -> str:
        precision = "" if self.precision == "fp32" else self.precision
        by = "" if self.backend == "torch" else f"k-means by {self.backend}"
        parts = (self.data, f"suite {self.suite}", precision, by, f"{self.count} queries")
        return ", ".join(part for part in parts if part)

    def headline(self, place: int) -> list[Record]:
        """The records of a run's headline reading."""
        return [record for record in self.records[place] if record.settings["reading"] in HEADLINE]


def groups(runs: Sequence[Run]) -> list[Group]:
    """The records of all runs, put together where they may be compared; of each run those of its newest weights."""
    found: dict[tuple[str, str, str, str, int], dict[int, list[Record]]] = {}
    for place, run in enumerate(runs):
        for record in newest(run):
            settings = record.settings
            key = (
                str(settings.get("data") or run.data),
                str(settings.get("suite", "")),
                f"sought in {settings[SEARCH]}" if SEARCH in settings else str(settings.get("precision", "fp32")),
                backend(record),
                record.count,
            )
            found.setdefault(key, {}).setdefault(place, []).append(record)
    return [Group(*key, records) for key, records in found.items()]


def newest(run: Run) -> list[Record]:
    """A run's records of clustering, by the weights that were evaluated last: a folder may have been trained again."""
    records = run.of_kind(KIND)
    return [r for r in records if r.settings.get("weights") == records[-1].settings.get("weights")]


def backend(record: Record) -> str:
    """Whose k-means made a record's clusters."""
    return str(record.settings.get("reading_rules", {}).get("backend", "torch"))


def tables(group: Group, runs: Sequence[Run]) -> list[Table]:
    """First the headline readings of all runs, then every other reading of the ensembles among them."""
    readings = dict.fromkeys(record.settings["reading"] for found in group.records.values() for record in found)
    others = [name for name in readings if name not in HEADLINE]
    return [
        Table("", _lines(group, runs, HEADLINE)),
        *(Table(reading, _lines(group, runs, (reading,))) for reading in others),
    ]


def by_reading(group: Group, runs: Sequence[Run]) -> Table | None:
    """Each member alone beside the mean, side by side and the votes: clean and under the strongest attack."""
    lines = []
    for place, records in group.records.items():
        readings = dict.fromkeys(record.settings["reading"] for record in records)
        for reading in readings if len(readings) > 1 else ():
            own = [r for r in records if r.settings["reading"] == reading and _is_first_radius(r, records)]
            for attack in ("clean", STRONGEST):
                some = [record for record in own if record.settings["trial"] == attack]
                lines += [Line(_title(some[0]), place, runs[place].label, reading, _cells(some))] if some else []
    return Table("members alone and together", tuple(lines)) if lines else None


def sentences(group: Group, runs: Sequence[Run]) -> list[str]:
    """For each run, what the strongest attack on both sides leaves of R@1 and F1, and what chance would."""
    said = []
    for place in group.records:
        records = group.headline(place)[::-1]  # the newest first: it is what the tables show
        clean = next((r for r in records if r.settings["sides"] == CLEAN), None)
        strongest = [r for r in records if r.settings["trial"] == STRONGEST and r.settings["sides"] == BOTH]
        if clean is None or not strongest:
            continue
        worst = min(strongest, key=lambda record: float(record.settings["radius"]))
        falls = [
            f"{score} falls from {show(score, clean.scores[score])} to {show(score, worst.scores[score])}"
            f" ({worst.settings['by'][score]})"
            for score in ("R@1", "F1")
            if score in clean.scores and score in worst.scores
        ]
        chance = clean.context.get("chance")
        tail = "" if chance is None else f" By chance R@1 is {show('R@1', chance)}."
        radius = show_radius(float(worst.settings["radius"]))
        what = f"every image moved by at most {radius}, {worst.count:,} queries"
        said.append(f"{runs[place].label}, {what}: {', '.join(falls)}.{tail}")
        lonely = clean.settings.get(LONELY)
        found = [f"{lonely:,} queries have no image of their class to find."] if lonely else []
        found += [*_flat(records), *_fallen(records, float(worst.settings["radius"]))]
        said += [f"{runs[place].label}: {words}" for words in found]
    return said


def _flat(records: Sequence[Record]) -> list[str]:
    """Attacks that could not begin to move most images: what they leave says little of the model."""
    shares = {r.settings["trial"]: float(r.context[FLAT]) for r in reversed(records) if FLAT in r.context}
    return [
        f"{trial} has no gradient to begin with on {share:.0f} % of the images: what it leaves says little."
        for trial, share in shares.items()
        if share > MOST
    ]


def _fallen(records: Sequence[Record], radius: float) -> list[str]:
    """What attacks of this radius, the newest of each, brought to one place though it lay apart."""
    found: dict[str, str] = {}
    for record in records:
        cosines, settings = record.context.get(COSINES), record.settings
        if cosines is None or (settings["sides"], settings.get("radius")) != (BOTH, radius):
            continue
        if cosines["moved"] > ONE_PLACE and cosines["clean"] < cosines["moved"] - APART:
            found.setdefault(
                record.settings["trial"],
                f"{record.settings['trial']} brings all images to one place (mean cosine of two "
                f"{cosines['moved']:.2f}, clean {cosines['clean']:.2f}; {cosines['own']:.2f} to the own clean image), "
                "where neighbours are left to small differences.",
            )
    return list(found.values())


def _lines(group: Group, runs: Sequence[Run], readings: Sequence[str]) -> tuple[Line, ...]:
    """A line per attack and run, attacks in the order of the suite, the strongest last."""
    found: dict[tuple[bool, str], dict[int, list[Record]]] = {}
    for place, records in group.records.items():
        for record in records:
            if record.settings["reading"] in readings:
                key = (record.settings["trial"] == STRONGEST, _title(record))
                found.setdefault(key, {}).setdefault(place, []).append(record)
    lines = []
    for (_, attack), by_run in sorted(found.items(), key=lambda entry: entry[0][0]):
        for place, some in by_run.items():
            lines.append(Line(attack, place, runs[place].label, some[0].settings["reading"], _cells(some)))
            lines += _published(attack, place, runs[place], some) if readings == HEADLINE else []
    return tuple(lines)


def _published(title: str, place: int, run: Run, records: Sequence[Record]) -> list[Line]:
    """What the paper has of the same row: clean, or under its attack, as suite `clustering` has it; else nothing.

    Nothing either of data that is not the recipe's, on which the run was validated as it was trained.
    """
    settings, recipe_of_run = records[0].settings, run.path / "recipe.yaml"
    trial = {"clean": "clean", PAPERS_ATTACK: "pgd10"}.get(str(settings["trial"]))
    if trial is None or settings["suite"] != PAPERS_SUITE or not recipe_of_run.is_file():
        return []
    if not math.isclose(settings.get("radius", PAPERS_RADIUS), PAPERS_RADIUS, rel_tol=1e-3):
        return []
    if settings.get("data_fingerprint") not in validated_on(run.records):
        return []
    block = clustering_rows.published_of(run.recipe_file, recipe.load(recipe_of_run))
    if block is None:
        return []
    release = f", {block['release']}" if "release" in block else ""
    cells = {(BOTH, score): Cell(show(score, block[trial][score])) for score in ALL if score in block[trial]}
    return [Line(title, place, f"{run.label}, published", f"{block['source']}{release}", cells)]


def _title(record: Record) -> str:
    """The attack and its radius; of an attack without one (clean), its name."""
    return title(str(record.settings["trial"]), record.settings)


def _cells(records: Iterable[Record]) -> dict[tuple[str, str], Cell]:
    """By side and score; what is clean stands where both sides do."""
    cells = {}
    for record in records:
        sides = record.settings["sides"]
        for score in SCORES[sides]:
            if score in record.scores:
                cells[BOTH if sides == CLEAN else sides, score] = Cell(
                    show(score, record.scores[score]), _below(record, score)
                )
    return cells


def _below(record: Record, score: str) -> str:
    if record.settings["trial"] == STRONGEST:
        return f"by {record.settings['by'][score]}"
    if f"{score} std" in record.scores:
        return f"± {show(score, record.scores[f'{score} std'])}"
    interval = record.intervals.get(score)
    return f"{show(score, interval[0])} to {show(score, interval[1])}" if interval else ""


def _is_first_radius(record: Record, records: Iterable[Record]) -> bool:
    """Whether an attack is at the smallest radius there is, where several would not fit."""
    radii = [float(other.settings["radius"]) for other in records if "radius" in other.settings]
    return "radius" not in record.settings or float(record.settings["radius"]) == min(radii)
