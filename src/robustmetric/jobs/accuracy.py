"""A classifier without an attack: its accuracy as one record."""

import time
from collections.abc import Mapping
from typing import Any

import torch

from robustmetric.attacks.margin import accuracy, check_logits
from robustmetric.jobs.arena import Arena, embed
from robustmetric.jobs.ers import PerQuery
from robustmetric.jobs.over_queries import intervals
from robustmetric.records import Record


def measure_accuracy(
    arena: Arena, settings: Mapping[str, Any], seed: int, context: Mapping[str, Any]
) -> tuple[Record, PerQuery]:
    """The record, and 100 or 0 for each query. Chance is that of always naming the most frequent class."""
    began = time.monotonic()
    labels = arena.queries.labels[arena.rows].to(arena.workers.device)
    logits = embed(arena.model, arena.queries, arena.view, arena.workers, arena.batch_size, arena.rows, arena.seen)
    check_logits(logits, labels)
    per_query = {"accuracy": accuracy(logits, labels).cpu()}
    chance = 100 * float(torch.bincount(labels).max()) / len(labels)
    record = Record(
        kind="clean",
        name="clean",
        scores={"accuracy": float(per_query["accuracy"].mean())},
        settings={**settings, **arena.settings(), "chance": chance},
        intervals=intervals(per_query),
        count=len(labels),
        seconds=time.monotonic() - began,
        seed=seed,
        context=dict(context),
    )
    return record, per_query
