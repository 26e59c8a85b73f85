"""The model of a row, ready to be measured again as the row's commands say: what `verify` begins from."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from robustmetric import recipe
from robustmetric.attacks.suite import Suite
from robustmetric.data.base import Dataset
from robustmetric.jobs import assemble
from robustmetric.jobs.agreement import REROUTED, Check
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.evaluations import BATCH, SUITES
from robustmetric.jobs.origin import Typed, typed
from robustmetric.jobs.row_model import RowModel, weights_file
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.workers import Workers
from robustmetric.report.ledger import Row


@dataclass(frozen=True)
class Part:
    """What came of one block of a row."""

    checks: Sequence[Check] = ()
    left_out: Sequence[str] = ()
    """What of it was not measured again; in brackets why, where it could not be."""

    def __add__(self, other: "Part") -> "Part":
        return Part([*self.checks, *other.checks], [*self.left_out, *other.left_out])


@dataclass(frozen=True)
class Again:
    """A row and how it was evaluated; its model and data are read when they are first needed."""

    row: Row
    path: Path
    """Of the row."""
    given: Path | None
    """The file or run folder of its weights, where one was named."""
    workers: Workers
    asked: int
    """Queries to be asked; where the row has fewer of a block, those."""
    _arenas: dict[tuple[Any, ...], Arena] = field(default_factory=dict)

    @cached_property
    def evaluations(self) -> tuple[Typed, ...]:
        """The row's commands; that of its clean scores comes first."""
        return tuple(one for one in typed(self.row["command"]) if one.job == "evaluate" and one.words)

    @cached_property
    def file(self) -> Path:
        """Of the weights."""
        return weights_file(self.path, self.given)

    @cached_property
    def model(self) -> RowModel:
        """That of the row's recipe, with the weights of the file, which must be the row's."""
        return RowModel.of(self.row, self.file)

    @cached_property
    def dataset(self) -> Dataset:
        """The data of the row's recipe."""
        return assemble.load_data(self.model.spec, self.model.where)

    @property
    def is_whole(self) -> bool:
        """Whether all queries of the row are asked."""
        return self.asked == self.row["queries"]

    @property
    def is_on_like_hardware(self) -> bool:
        """Whether the row was made on this kind of hardware, which draws, and fits, the same."""
        return is_like(self.row, self.workers.device)

    @property
    def rerouted(self) -> float:
        """Points that an attack may be off on the same queries and hardware, besides the tolerance."""
        return REROUTED if self.model.is_copy else 0.0

    @property
    def attacked(self) -> int:
        """Queries of the row's attacks on rankings."""
        return int(self.row["attacked_queries"] if "attacked_queries" in self.row else self.row["queries"])

    @property
    def tested(self) -> list[Typed]:
        """The commands that measure clean scores of single queries."""
        return [one for one in self.evaluations if one.words[0].startswith(SUITES)]

    @property
    def strange(self) -> list[str]:
        """The suites of the commands that we do not ship: a row has their names alone."""
        return [one.words[0] for one in self.evaluations if one.words[0] not in recipe.listing("suites")]

    def by(self, *suites: str) -> list[Typed]:
        """The commands whose suites' names begin so, of those that we ship."""
        return [one for one in self.evaluations if one.words[0].startswith(suites) and one.words[0] not in self.strange]

    def arena(self, command: Typed, recorded: int | None = None) -> Arena:
        """Where a command was run: on its queries (`recorded` of them, or as many as it says), or on a sample."""
        said = int(command.options.get("queries", len(self.dataset.queries))) if recorded is None else recorded
        limit, seed = said if self.is_whole else min(self.asked, said), seed_of(command)
        batch, search = int(command.options.get("batch", BATCH)), command.options.get("search", "fp32")
        if (limit, seed, batch, search) not in self._arenas:
            self._arenas[limit, seed, batch, search] = Arena.prepare(
                self.model.network, self.dataset, assemble.load_view(self.model.spec, self.model.where), self.workers,
                limit=limit, seed=seed, batch_size=batch, search=search, shown=True,
            )  # fmt: skip
        return self._arenas[limit, seed, batch, search]

    def is_same(self, arena: Arena, recorded: int) -> bool:
        """Whether all is as it was for the row: as many queries, and this kind of hardware."""
        return len(arena.rows) == recorded and self.is_on_like_hardware


Measure = Callable[[Again, Collection[str]], Part]
"""A block of a row measured again: those of its numbers whose attack is among the names."""


def seed_of(command: Typed) -> int:
    """Of a command that names none it is 0."""
    return int(command.options.get("seed", 0))


def radius_of(command: Typed) -> float | None:
    """The one radius for every attack, where a command asks for it."""
    return float(recipe.parse(command.options["radius"])) if "radius" in command.options else None


def is_like(row: Row, device: torch.device) -> bool:
    """Whether a row was made on this kind of hardware."""
    return str(row["hardware"]).startswith("CPU") == (device.type == "cpu")


def suite_at(name: str, radius: float) -> Suite:
    """A suite at the radius that a row has, which is rounded: its own trials there, or all of them moved there."""
    suite = load_suite(name)
    own = [trial for trial in suite.trials if math.isclose(trial.engine.ball.radius, radius, rel_tol=1e-3)]
    return suite if len(own) == len(suite.trials) else suite.at(radius)
