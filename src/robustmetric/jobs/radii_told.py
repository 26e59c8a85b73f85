"""Proved radii as people read them: in words, and row by row as a table."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from robustmetric.jobs.folder import atomically
from robustmetric.jobs.learned import Learner, Table
from robustmetric.jobs.progress import terms
from robustmetric.jobs.proofs import CERTIFIED
from robustmetric.learn import Network
from robustmetric.recipe import Spec
from robustmetric.records import Record


def proof_in_words(radii: Float[np.ndarray, " points"], data: Mapping[str, Spec]) -> str:
    """How many points have a proof, and how far half of these proofs reach, with the unit."""
    proved = radii[radii > 0]
    unit = "each feature scaled to [0, 1]" if data.get("scale") else "in the unit of the rows"
    if not len(proved):
        return f"of {len(radii)} points none has a proof"
    reach = f"half of these hold against every change shorter than {np.median(proved):.3g} (l2, {unit})"
    return f"of {len(radii)} points {len(proved)} have a proof that the right answer stays; {reach}"


def lines(
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
