"""Devices, ranks and randomness; two processes do what one does."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from commands import Command, finish, start
from robustmetric.errors import InputError
from robustmetric.jobs.workers import Hardware, Workers, describe, leads
from robustmetric.numerics.randomness import generator

CPU = torch.device("cpu")
TWO = ["--devices", "2", "--accelerator", "cpu"]


def draw(*parts: int) -> list[float]:
    return torch.rand(4, generator=generator(CPU, *parts)).tolist()


def test_randomness_depends_on_its_numbers_and_their_places() -> None:
    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert len({tuple(draw(*parts)) for parts in [(1, 2), (2, 1), (1, 2, 3), (1, 3), (0, 1)]}) == 5


@pytest.mark.parametrize(
    "hardware",
    [
        Hardware(accelerator="abacus"),
        Hardware(accelerator="cpu", precision="half"),
        Hardware(accelerator="cpu", strategy="dpp"),
        Hardware(accelerator="cpu", devices="none"),
        Hardware(accelerator="cpu", devices="0"),
    ],
)
def test_hardware_that_cannot_be_had_is_one_line(hardware: Hardware) -> None:
    with pytest.raises(InputError, match="this hardware cannot be had") as caught:
        hardware.fabric()
    assert "\n" not in str(caught.value)


def test_one_process_is_alone() -> None:
    workers = Workers.of(Hardware(accelerator="cpu").fabric())
    assert (workers.rank, workers.ranks, leads()) == (0, 1, True)
    assert torch.equal(workers.total(torch.ones(2)), torch.ones(2))
    assert describe(CPU) == f"CPU, {torch.get_num_threads()} threads"
    assert describe(CPU, 2).endswith(", 2 processes")


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    attack = "{name: pgd, ball: {name: ball, radius: 0.25}, steps: 1, step_size: 0.1}"
    inner = f"{{name: madry, loss: {{name: triplet, miner: {{name: semihard}}}}, attack: {attack}}}"
    defence = f"defence={{name: own_parts.Witness, folder: {tmp_path}, inner: {inner}}}"
    words = ["train", "digits/plain", "epochs=1", defence, *TWO, "--strategy", "ddp", "--out", "run"]
    done = finish(start(tmp_path, *words))
    assert done.code == 0, done.err
    assert done.out.split() == ["run"], "the first rank speaks for both"
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())
    # 451 anchors a rank, 56 pairs a step: 9 steps, each from weights of its own, the same on both ranks.
    first, second = ((tmp_path / f"rank{rank}.txt").read_text().split() for rank in (0, 1))
    assert first == second and len(set(first)) == len(first) == 9
    found = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in found] == ["train", "validation"]
    # 902 anchors (901, one again so that both ranks have as many) with their partners.
    assert found[0]["count"] == pytest.approx(2 * 901, abs=4)
    # Each rank embedded its share of the gallery.
    assert found[1]["scores"]["R@1"] > 80


def test_two_processes_evaluate_to_the_numbers_of_one(
    trained: Path, suite: Path, command: Command, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        shutil.copytree(trained, tmp_path / name)
        (tmp_path / name / "results.jsonl").unlink()
    words = [suite, "--queries", 60, "--batch", 16, "--json"]
    process = start(tmp_path, "evaluate", "two", *words, *TWO)
    one = [json.loads(line) for line in command("evaluate", "one", *words).out.splitlines()]
    done = finish(process)
    assert done.code == 0, done.err
    two = [json.loads(line) for line in done.out.splitlines()]
    assert [record["name"] for record in two] == ["clean", "ES", "ES", "CA+"]
    for left, right in zip(one, two, strict=True):
        assert left["settings"] == right["settings"]
        assert left["scores"] == pytest.approx(right["scores"], abs=0.02)


def test_randomness_differs_with_every_part_and_with_their_number():
    cpu = torch.device("cpu")
    parts = [(1, 2), (1, 2, 0), (2, 1), (1, 3), (-1, 2), (1,)]
    seeds = {generator(cpu, *these).initial_seed() for these in parts}
    assert len(seeds) == len(parts)
    assert generator(cpu, 1, 2).initial_seed() == generator(cpu, 1, 2).initial_seed()


def test_two_processes_validate_the_model_they_save_and_decode_the_data_once(tmp_path: Path, command: Command) -> None:
    parts = [f"data={{name: own_parts.Cached, folder: {tmp_path}}}", "model={name: own_parts.Normed}"]
    words = ["train", "digits/plain", "epochs=2", "validate_every=1", "sampler.batch=32", *parts]
    done = finish(start(tmp_path, *words, *TWO, "--out", "run"))
    assert done.code == 0, done.err
    assert (tmp_path / "loads.txt").read_text().split() == ["decoded", "found"]
    found = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    (tmp_path / "run" / "results.jsonl").unlink()
    words = [*words, "--out", "run", "--resume", "--accelerator", "cpu"]
    assert command(*words).code == 0, "a finished epoch may be resumed by another number of processes"
    alone = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in found] == ["train", "validation", "train", "validation"]
    assert found[-1]["scores"] == pytest.approx(alone[-1]["scores"], abs=1e-3)


def test_a_nan_on_one_rank_stops_both_at_its_step(tmp_path: Path) -> None:
    defence = "defence={name: own_parts.Broken, at: 4, rank: 1}"
    done = finish(start(tmp_path, "train", "digits/plain", "epochs=1", defence, *TWO, "--out", "run"))
    assert done.code == 2 and "Traceback" not in done.err, done.err
    assert set(re.findall(r"NaN or infinite at epoch 1, step (\d+)", done.err)) == {"4"}, done.err


def test_a_recipe_two_processes_cannot_build_keeps_neither_waiting(tmp_path: Path) -> None:
    done = finish(start(tmp_path, "train", "digits/plain", "defence.loss.miner=semihard", *TWO, "--out", "run"))
    assert done.code == 2 and "Traceback" not in done.err, done.err
    assert "miner 'semihard' is a word; write {name: semihard}" in done.err
    assert not (tmp_path / "run").exists()


def test_a_member_without_an_image_in_one_ranks_batch_keeps_neither_waiting(tmp_path: Path) -> None:
    # Batches of two classes of five, and members that know other classes: some have no image on some rank.
    member = "{name: convnet, side: 8, kernel: 3, widths: [4, 8], hidden: 16, dim: 8}"
    encoder = f"{{name: encoder, trunk: {member}}}"
    losses = [f"{{name: proxy_anchor, classes: $classes, dim: 8, seed: {seed}}}" for seed in (0, 1)]
    attack = "{name: pgd, ball: {name: ball, radius: 0.1}, steps: 1, step_size: 0.1}"
    words = [
        f"model={{name: ensemble, members: [{encoder}, {encoder}]}}",
        f"defence={{name: eat, by_class: true, losses: [{', '.join(losses)}], attack: {attack}}}",
        "sampler={name: balanced, batch: 24, per_class: 12}",
    ]
    done = finish(start(tmp_path, "train", "digits/plain", "epochs=1", *words, *TWO, "--out", "run"))
    assert done.code == 0, done.err
