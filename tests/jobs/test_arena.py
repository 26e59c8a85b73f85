"""The arena: what a model is tested on, embedded once, shared fairly between processes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from robustmetric.data.base import Dataset, Split
from robustmetric.data.transforms import Identity
from robustmetric.errors import InputError
from robustmetric.jobs.arena import SAMPLED, Arena, data_fingerprint, embed
from robustmetric.jobs.evaluate import measure_clean
from robustmetric.jobs.feed import Feed
from robustmetric.jobs.workers import Workers
from robustmetric.perturb.seeking import Search

CPU = torch.device("cpu")
VIEW = Identity()


def split(rows: torch.Tensor, labels: list[int], names: tuple[str, ...] = ("a", "b")) -> Split:
    sizes = torch.tensor([1, rows.shape[1]]).expand(len(rows), 2)
    return Split(rows, torch.tensor(labels), tuple(f"row {i}" for i in range(len(rows))), sizes, names)


ROWS = split(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]), [0, 0, 1, 1])


def arena(dataset: Dataset, workers: Workers, batch_size: int = 2) -> Arena:
    return Arena.prepare(nn.Identity(), dataset, VIEW, workers, batch_size=batch_size)


def test_ranks_together_cover_every_query_once() -> None:
    dataset = Dataset("rows", ROWS, ROWS)
    seen = [
        positions.tolist() for rank in (0, 1) for _, positions, _ in arena(dataset, Workers(CPU, rank, 2)).batches()
    ]
    assert sorted(position for positions in seen for position in positions) == [0, 1, 2, 3]


def test_shares_of_the_embedding_add_up_to_the_whole() -> None:
    feed = Feed(ROWS, CPU)
    whole = embed(nn.Identity(), feed, VIEW, Workers(CPU), 2)
    for ranks in (2, 3):
        shares = [embed(nn.Identity(), feed, VIEW, Workers(CPU, rank, ranks), 2) for rank in range(ranks)]
        assert torch.equal(torch.stack(shares).sum(dim=0), whole)


def test_fewer_batches_than_processes_is_said_by_every_rank() -> None:
    for rank in range(3):
        with pytest.raises(InputError, match="4 queries in batches of 2 are too few for 3 processes; lower --batch"):
            next(arena(Dataset("rows", ROWS, ROWS), Workers(CPU, rank, 3)).batches())


def test_queries_that_search_one_another_leave_themselves_out() -> None:
    record, per_query = measure_clean(arena(Dataset("rows", ROWS, ROWS), Workers(CPU)), {}, 0, {})
    # Each row's nearest other row is of its class; 1 of the 3 others is.
    assert record.scores["R@1"] == 100.0 and per_query["R@1"].tolist() == [100.0] * 4
    assert record.scores["probe"] == 100.0, "two of each class, apart: the second is told by the first"
    assert record.settings["chance"] == pytest.approx(100 / 3)


def test_a_gallery_in_another_order_of_classes_is_matched_by_name() -> None:
    items = split(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.6]]), [1, 0, 2], ("b", "a", "neither"))
    found = arena(Dataset("rows", ROWS, ROWS, items), Workers(CPU))
    # Queries number a 0 and b 1; a class that only the gallery has comes behind them.
    assert found.gallery.labels.tolist() == [0, 1, 4]
    assert found.places.tolist() == [-1] * 4
    record, _ = measure_clean(found, {}, 0, {})
    assert record.scores["R@1"] == 100.0
    assert record.settings["chance"] == pytest.approx(100 / 3)


def test_a_row_of_nan_is_named() -> None:
    holed = split(torch.tensor([[1.0, 0.0], [float("nan"), 0.0]]), [0, 1])
    with pytest.raises(InputError, match="row 1: the input holds NaN or infinity"):
        arena(Dataset("rows", holed, holed), Workers(CPU))


def test_some_queries_are_drawn_by_the_seed() -> None:
    dataset = Dataset("rows", ROWS, ROWS)
    drawn = [
        Arena.prepare(nn.Identity(), dataset, VIEW, Workers(CPU), limit=2, seed=seed).rows.tolist() for seed in range(9)
    ]
    assert all(len(rows) == 2 and rows == sorted(rows) for rows in drawn)
    assert len({tuple(rows) for rows in drawn}) > 1
    again = Arena.prepare(nn.Identity(), dataset, VIEW, Workers(CPU), limit=2, seed=0).rows.tolist()
    assert again == drawn[0]


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to embed"):
        embed(nn.Identity(), Feed(ROWS.subset([]), CPU), VIEW, Workers(CPU), 2)


def test_the_fingerprint_of_data_tells_apart_what_shares_a_name_and_counts() -> None:
    other = replace(ROWS, inputs=ROWS.inputs.flip(0))
    renamed = replace(ROWS, names=tuple(f"file {i}" for i in range(4)))
    swapped = replace(ROWS, labels=torch.tensor([0, 1, 0, 1]))
    classes = replace(ROWS, class_names=("a", "c"))
    reshaped = replace(ROWS, inputs=ROWS.inputs[:, :, None])
    datasets = [Dataset("rows", ROWS, found) for found in (ROWS, other, renamed, swapped, classes, reshaped)]
    datasets += [Dataset("rows", ROWS, ROWS, gallery) for gallery in (ROWS, other)]
    found = [data_fingerprint(dataset) for dataset in datasets]
    assert len(set(found)) == len(found)
    assert found[0] == data_fingerprint(Dataset("rows", other, ROWS)), "the training split plays no part"
    assert arena(datasets[1], Workers(CPU)).settings()["data_fingerprint"] == found[1]
    assert len(found[0]) == 16 and int(found[0], 16) >= 0


def test_the_fingerprint_of_many_images_reads_the_first_the_last_and_some_between() -> None:
    many = split(torch.zeros(1000, 1), [0] * 1000)
    clean = data_fingerprint(Dataset("rows", many, many))
    noticed = 0
    for row in range(1000):
        inputs = many.inputs.clone()
        inputs[row] = 1
        changed = data_fingerprint(Dataset("rows", many, replace(many, inputs=inputs))) != clean
        noticed += changed
        assert changed or row not in (0, 999)
    assert noticed == SAMPLED


@pytest.mark.parametrize("search", ["tf32", "fp16"])
def test_attacks_search_in_less_than_fp32_on_a_gpu_alone_and_settings_say_so(
    search: Search, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = Dataset("rows", ROWS, ROWS)
    usual = Arena.prepare(nn.Identity(), dataset, VIEW, Workers(CPU), search=search, shown=True)
    assert f"--search {search} is for a GPU: on cpu attacks search in fp32" in capsys.readouterr().err
    assert usual.search == "fp32", "records do not say so on a CPU, so nothing may differ there"
    assert "search" not in usual.settings()
    on_gpu = replace(usual, search=search, workers=Workers(torch.device("cuda")))
    assert on_gpu.settings()["search"] == search and on_gpu.settings()["precision"] == "fp32"


def test_a_search_that_is_not_known_or_has_no_meaning_is_refused() -> None:
    dataset = Dataset("rows", ROWS, ROWS)
    with pytest.raises(InputError, match="search 'tf23' is not known; did you mean 'tf32'"):
        Arena.prepare(nn.Identity(), dataset, VIEW, Workers(CPU), search="tf23")
    with pytest.raises(InputError, match="--fast is bfloat16 throughout; expected it without --search tf32"):
        Arena.prepare(nn.Identity(), dataset, VIEW, Workers(CPU), search="tf32", fast=True)
