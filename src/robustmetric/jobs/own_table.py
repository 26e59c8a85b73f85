"""A table of one's own in the place of a recipe's data: its name, and the unit of its columns."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from robustmetric.data.base import Dataset
from robustmetric.errors import InputError
from robustmetric.recipe import Spec

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


def of_units(x: Float[np.ndarray, "rows features"], data: Mapping[str, Spec], names: Sequence[str] = ()) -> str:
    """A warning where columns as they are have spreads that no distance can weigh; "" where all is well."""
    spreads = x.std(axis=0)
    varied = np.flatnonzero(spreads > 0)
    if data.get("name") != "tabular" or data.get("scale") or not len(varied):
        return ""
    widest, narrowest = (int(varied[pick(spreads[varied])]) for pick in (np.argmax, np.argmin))
    times = spreads[widest] / spreads[narrowest]
    if times < UNEVEN:
        return ""
    return (
        f"{called(widest, names)} spreads {times:.2g} times as widely as {called(narrowest, names)}, and distances and "
        "radii are in their units; data.scale=true maps each to [0, 1]"
    )


def called(feature: int, names: Sequence[str] = ()) -> str:
    """A column as people find it: by its number from 1 and, where the file has a header, its name."""
    return f"feature {feature + 1}{f' ({names[feature]})' if len(names) else ''}"


def refuse_one_class(dataset: Dataset) -> None:
    """Refuse rows of one class, by the name it has in the file: no learner can tell it from others."""
    names = [dataset.train.class_names[place] for place in dataset.train.labels.unique().tolist()]
    if len(names) < 2:
        others = len(set(dataset.queries.labels.tolist()) - set(dataset.train.labels.tolist()))
        hint = " (others are in the test part alone: another data.seed cuts otherwise)" if others else ""
        raise InputError(
            f"{dataset.name}: the {dataset.train.n:,} rows to learn from are all of class {', '.join(names)!r}{hint}; "
            "expected two classes or more to tell apart; data.label=COLUMN names the column of labels"
        )
