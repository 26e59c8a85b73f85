"""Certify: recipe -> data -> learner -> [points -> radii] -> records, resumed over points."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from sklearn.utils import shuffle

from robustmetric import recipe, records
from robustmetric.catalogue import NAMES
from robustmetric.certify.crown import Crown
from robustmetric.certify.knn import ATTACKS, METHODS
from robustmetric.certify.nearest import KNearest
from robustmetric.certify.smoothing import Smoothing
from robustmetric.data.base import Dataset, Split
from robustmetric.data.protocols import Source
from robustmetric.errors import InputError, nearest
from robustmetric.jobs import assemble
from robustmetric.jobs.folder import RunFolder, digest, summarise
from robustmetric.jobs.learned import Fitted, Learner, Rows, Table, fitted
from robustmetric.jobs.origin import origin
from robustmetric.jobs.own_table import TABLES, of_units, own_table, refuse_one_class
from robustmetric.jobs.progress import say
from robustmetric.jobs.proofs import Question, check_radii, proved
from robustmetric.jobs.questions import attack_question, question_of
from robustmetric.jobs.radii_told import lines, write_points
from robustmetric.jobs.words import refuse_words
from robustmetric.jobs.workers import describe
from robustmetric.learn import Network
from robustmetric.learn.base import MetricLearner, device_of
from robustmetric.numerics.numbers import LARGEST_SEED, is_whole
from robustmetric.overrides import override
from robustmetric.recipe import Spec
from robustmetric.records import Record
from robustmetric.report.certified import draw_curves

Certificate = KNearest | Crown | Smoothing
DEFAULT = ({"name": "knn_certificate"}, {"name": "knn_certificate", "neighbours": 11, "method": "bound"})
"""What a recipe is certified by when it names nothing: 1-NN exactly, 11-NN by the bound."""


@dataclass(frozen=True)
class Plan:
    """What a certification is made of. Its fields are the recipe's top-level keys."""

    data: Source
    learner: Learner
    certificates: Sequence[Certificate] = ()
    points: int = 1000
    """Test points, the first so many after a shuffle; fewer where there are fewer."""
    shuffle: int = 42
    """Seed of that shuffle (scikit-learn's; 42 is the published one)."""
    radii: Sequence[float | int] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    """Where records state the error, in the unit of the rows as the learner sees them."""
    seed: int = 0
    """Of the learner (`random_state`) and of a certificate's noise, where the recipe does not give them their own."""

    def __post_init__(self) -> None:
        if not is_whole(self.points):
            raise InputError(f"points={self.points!r} certify nothing; expected a whole number, 1 or more")
        for name in ("seed", "shuffle"):
            value = getattr(self, name)
            if not is_whole(value, 0, LARGEST_SEED):
                raise InputError(f"{name}={value!r} is not known; expected a whole number from 0 to {LARGEST_SEED}")
        check_radii(self.radii)


def certify(
    name: str,
    out: Path | None = None,
    overrides: list[str] | None = None,
    *,
    device: str = "cpu",
    points: int | None = None,
    method: str | None = None,
    attack: str | None = None,
    data: str | None = None,
) -> list[Record]:
    """Fit a recipe's learner, or load it where that was done, and certify; returns the records.

    `method` picks those of its k-NN certificates: "exact" or "bound". `attack` is tried beside them, with as many
    neighbours: the error that it reaches is the other side of what is proved. `data` is a table in the recipe's place.
    """
    overrides = [*own_table(data), *(overrides or [])]
    spec, where = resolve(name, [*overrides, *([] if points is None else [f"points={points}"])])
    plan = _chosen(_placed(load(spec, where), spec, device), method, where)
    _check_attack(attack, plan, where)
    of_data = "" if data is None else f"-{Path(data).stem}"
    folder = RunFolder(out or Path("runs") / f"{assemble.title(where)}{of_data}-seed{plan.seed}")
    context = records.context(describe(device_of(device)))
    dataset = plan.data.load()
    table = _table(dataset, plan)
    if data is not None and (warning := of_units(table.x, spec["data"])):
        say(warning)
    words = [*overrides, *_typed(points=points, method=method, attack=attack, device=device)]
    summary = summarise(spec, folder.path.name, context) | origin(where, words, "certify")
    with _begun(folder, spec, summary):
        known = fitted(plan.learner, table, folder, plan.seed, context)
    base = {
        "data": dataset.name,
        "learner": _described(spec["learner"]),
        "rows": len(table.x),
        "rows_digest": known.record.settings["rows_digest"],
        "points": len(table.test_x),
        "points_digest": digest(table.test_x, table.test_y),
        "learned": known.learned,
    }
    found, kept = [known.record], folder.certified
    for question in _questions(plan, attack, known, table, base, device):
        record, radii = proved(question, check_radii(plan.radii), kept, plan.seed, context)
        found.append(record := folder.keep(record))
        listed = write_points(kept, record.name, table, dataset.queries.class_names, radii)
        for line in (*lines(record, radii, plan.learner, spec["data"]), f"row by row, the weakest first: {listed}"):
            say(f"{folder.path.name}  {record.name}: {line}")
    draw_curves({folder.path.name: found[1:]}, kept)
    return found


def _typed(device: str, **options: Any) -> list[str]:
    """The options as they are typed, those left out left out."""
    given = {**options, "device": None if device == "cpu" else device}
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]


def _questions(
    plan: Plan, attack: str | None, known: Fitted, table: Table, base: Mapping[str, Any], device: str
) -> list[Question]:
    """What is to be proved, and what is to be attacked beside it: each number of neighbours once."""
    proofs = [question_of(certificate, known, table, base, device) for certificate in plan.certificates]
    if attack is None:
        return proofs
    numbers = dict.fromkeys(one.neighbours for one in plan.certificates if isinstance(one, KNearest))
    return [*proofs, *(attack_question(number, attack, known, table, base, device) for number in numbers)]


def _table(dataset: Dataset, plan: Plan) -> Table:
    """The rows, and the first so many test points; refused where they are too few to vote."""
    x, test_x = _rows(dataset.train), _rows(dataset.queries)
    refuse_one_class(dataset)
    for certificate in plan.certificates:
        if isinstance(certificate, KNearest):
            certificate.check_rows(len(x))
    test = test_x, dataset.queries.labels.numpy(), dataset.queries.names
    chosen, labels, ids = (part[: plan.points] for part in shuffle(*test, random_state=plan.shuffle))
    return Table(x, dataset.train.labels.numpy(), chosen, labels, dataset.train.shape, tuple(ids))


# The recipe.


def recipe_of(name: str, out: Path | None) -> tuple[str, Path | None] | None:
    """The recipe with a learner that `name` or a folder of that name holds, and its folder; None: it is an encoder."""
    folder = Path(name)
    if folder.is_dir():
        path = folder / "recipe.yaml"
        return (str(path), out or folder) if path.is_file() and "learner" in recipe.load(path) else None
    if folder.suffix.lower() in TABLES:
        raise InputError(
            f"{name!r} is a table; expected a recipe with a learner: robustmetric certify tabular/digits-arml "
            f"--data {name}"
        )
    try:
        path = recipe.locate(name)
    except InputError:
        return None
    return (str(path), out) if "learner" in recipe.load(path) else None


def resolve(name: str, overrides: list[str]) -> tuple[dict[str, Spec], str]:
    """The plain settings of a recipe with a learner, its base and overrides applied, and the name for errors."""
    path = recipe.locate(name)
    spec = override(recipe.load(path), overrides)
    known = [field.name for field in fields(Plan)]
    for key in spec:
        if key not in known:
            raise InputError(f"{path}: {key!r} is not a setting of a certified recipe{nearest(str(key), known)}")
    for key in ("data", "learner"):
        if key not in spec:
            raise InputError(f"{path}: the recipe has no {key!r}; expected one such as tabular/digits-arml")
    refuse_words(spec, str(path), csv="tabular")
    return {**spec, "certificates": spec.get("certificates", [dict(one) for one in DEFAULT])}, str(path)


def load(spec: Mapping[str, Spec], where: str) -> Plan:
    """Everything a certification needs, but for the data itself."""
    parts = {key: recipe.build(value, NAMES, f"{where}.{key}") for key, value in spec.items()}
    learner, certificates = parts["learner"], parts["certificates"]
    if not isinstance(parts["data"], Source):
        raise InputError(f"{where}.data: {parts['data']!r} is not a data set; it has no load()")
    if not isinstance(learner, Learner):
        raise InputError(
            f"{where}.learner: {learner!r} learns no metric and is no network; see `robustmetric list learners`"
        )
    if not isinstance(certificates, list) or not all(isinstance(one, Certificate) for one in certificates):
        raise InputError(
            f"{where}.certificates: {certificates!r} is no list of certificates; see `robustmetric list certificates`"
        )
    if not certificates:
        raise InputError(f"{where}.certificates: [] proves nothing; expected one or more, such as {DEFAULT[0]}")
    is_network = isinstance(learner, Network)
    for certificate in certificates:
        if isinstance(certificate, KNearest) == is_network:
            wanted = "a metric, such as learner: {name: arml}" if is_network else "learner: {name: network}"
            raise InputError(f"{where}: {certificate!r} does not certify {learner!r}; expected {wanted}")
    plan: Plan = recipe.call(Plan, parts, where)
    if isinstance(learner, MetricLearner | Network):
        try:
            learner.check_settings()
        except InputError as error:
            raise InputError(f"{where}.learner: {error}") from error
    return _seeded(plan, spec)


def _seeded(plan: Plan, spec: Mapping[str, Spec]) -> Plan:
    """The plan's seed where the recipe gives none to the learner or to a certificate."""
    learner: Any = plan.learner
    if "random_state" in learner.get_params() and "random_state" not in spec["learner"]:
        learner.set_params(random_state=plan.seed)
    certificates = [
        replace(one, seed=plan.seed) if isinstance(one, Smoothing) and "seed" not in given else one
        for one, given in zip(plan.certificates, spec["certificates"], strict=True)
    ]
    return replace(plan, certificates=certificates)


def _placed(plan: Plan, spec: Mapping[str, Spec], device: str) -> Plan:
    """The plan's learner on that device, if it can be there and the recipe does not say where it is."""
    learner: Any = plan.learner
    if "device" in learner.get_params() and "device" not in spec["learner"]:
        learner.set_params(device=device)
    return plan


def _chosen(plan: Plan, method: str | None, where: str) -> Plan:
    """The plan with the k-NN certificates of that method alone; None: with all there are."""
    if method is None:
        return plan
    if isinstance(plan.learner, Network):
        named = ", ".join(type(one).__name__.lower() for one in plan.certificates)
        raise InputError(f"method {method!r} is of k-NN; {where} certifies a network, by {named}: leave it out")
    if method not in METHODS:
        raise InputError(f"method {method!r} does not certify k-NN{nearest(method, METHODS)}")
    chosen = [one for one in plan.certificates if isinstance(one, KNearest) and one.method == method]
    if not chosen:
        raise InputError(
            f"{where}: no certificate is of method {method!r}; add one to its certificates, or leave it out"
        )
    return replace(plan, certificates=chosen)


def _check_attack(attack: str | None, plan: Plan, where: str) -> None:
    """Refuse, before anything is begun, an attack that is none on k-NN."""
    if attack is not None and isinstance(plan.learner, Network):
        raise InputError(f"--attack {attack} is on k-NN; {where} certifies a network: leave it out")
    if attack is not None and attack not in ATTACKS:
        raise InputError(f"attack {attack!r} on k-NN is not known{nearest(attack, ATTACKS)}")


@contextmanager
def _begun(folder: RunFolder, spec: Mapping[str, Spec], summary: Mapping[str, Any]) -> Iterator[None]:
    """The folder with its recipe; where nothing comes to be recorded in it, a new one is as it was before."""
    is_new = not folder.recipe.exists()
    if not is_new:
        _check_same(folder, spec)
    try:
        if is_new:
            folder.begin(spec, summary)
        yield
    finally:
        if is_new and not folder.results.exists():
            folder.recipe.unlink(missing_ok=True)
            folder.summary.unlink(missing_ok=True)
            with suppress(OSError):  # of a folder that holds something else
                folder.path.rmdir()


def _check_same(folder: RunFolder, spec: Mapping[str, Spec]) -> None:
    """Refuse to add to a folder that holds another recipe; other certificates and radii may be added."""
    before = folder.read_recipe()
    other = sorted(key for key in {*before, *spec} - {"certificates", "radii"} if before.get(key) != spec.get(key))
    if other:
        raise InputError(
            f"{folder.path} holds another recipe ({', '.join(map(str, other))} differ); name another folder with --out"
        )


def _rows(split: Split) -> Rows:
    """Flat rows in float64; pixels in [0, 1]."""
    values = split.inputs.flatten(1)
    return (values.double() / 255 if values.dtype == torch.uint8 else values.double()).numpy()


def _described(spec: Spec) -> str:
    return f"{spec['name']}({', '.join(f'{key}={value}' for key, value in spec.items() if key != 'name')})"
