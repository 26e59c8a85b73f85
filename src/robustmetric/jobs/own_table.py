"""A table of one's own in the place of a recipe's data: its name, the unit of its radii, and these row by row."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from robustmetric.errors import InputError
from robustmetric.jobs.folder import atomically
from robustmetric.jobs.learned import Learner, Table
from robustmetric.jobs.progress import terms
from robustmetric.jobs.proofs import CERTIFIED
from robustmetric.learn import Network
from robustmetric.recipe import Spec
from robustmetric.records import Record

TABLES = (".csv", ".npz")
UNEVEN = 100
"""A column that spreads so many times as widely as another leaves it no say in a distance."""


def own_table(file: str | None) -> list[str]:
    """The data of a recipe replaced by the user's own, as it is typed; nothing where there is none."""
    if file is None:
        return []
    if Path(file).suffix.lower() not in TABLES:
        raise InputError(f"--data {file!r} is no table; expected a {' or '.join(TABLES)} file")
    return [f"data={json.dumps({'name': 'tabular', 'file': file})}"]


def of_units(x: Float[np.ndarray, "rows features"], data: Mapping[str, Spec]) -> str:
    """A warning where columns as they are have spreads that no distance can weigh; "" where all is well."""
    spreads = x.std(axis=0)
    varied = np.flatnonzero(spreads > 0)
    if data.get("name") != "tabular" or data.get("scale") or not len(varied):
        return ""
    widest, narrowest = (varied[pick(spreads[varied])] for pick in (np.argmax, np.argmin))
    times = spreads[widest] / spreads[narrowest]
    if times < UNEVEN:
        return ""
    return (
        f"feature {widest + 1} spreads {times:.2g} times as widely as feature {narrowest + 1}, and distances and radii "
        "are in their units; data.scale=true maps each to [0, 1]"
    )


def proof_in_words(radii: Float[np.ndarray, " points"], data: Mapping[str, Spec]) -> str:
    """How many points have a proof, and how far half of these proofs reach, with the unit."""
    proved = radii[radii > 0]
    unit = "each feature scaled to [0, 1]" if data.get("scale") else "in the unit of the rows"
    if not len(proved):
        return f"of {len(radii)} points none has a proof"
    reach = f"half of these hold against every change shorter than {np.median(proved):.3g} (l2, {unit})"
    return f"of {len(radii)} points {len(proved)} have a proof that the right answer stays; {reach}"


def told(
    record: Record, radii: Float[np.ndarray, " points"], learner: Learner, data: Mapping[str, Spec]
) -> Iterator[str]:
    """A record's scores and, of proofs for k-NN, what they say in words."""
    yield terms(record.scores)
    if record.kind == CERTIFIED and not isinstance(learner, Network):
        yield proof_in_words(radii, data)


def write_points(
    folder: Path, name: str, table: Table, class_names: Sequence[str], radii: Float[np.ndarray, " points"]
) -> Path:
    """The radius of each point as a table, the weakest first, so that somebody can look at these rows."""
    order = np.argsort(radii, kind="stable").tolist()
    lines = [[table.ids[i], class_names[table.test_y[i]], f"{radii[i]:.6g}"] for i in order]

    def write(partial: Path) -> None:
        with partial.open("w", newline="") as file:
            csv.writer(file).writerows([["row", "label", "radius"], *lines])

    path = folder / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.csv"
    atomically(path, write)
    return path
