"""Ensembles in the training job: the parts come from its labels, and a run can be repeated and taken up again."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.jobs.assemble import load_model, resolve
from robustmetric.jobs.train import train

LOSSES = "[{name: proxy_anchor, classes: $classes, dim: 8}, {name: proxy_anchor, classes: $classes, dim: 8, seed: 1}]"
ATTACK = "{name: pgd, ball: {name: ball, radius: 0.1}, steps: 2, step_size: 0.05}"
TRUNK = "trunk: {name: convnet, side: 8, kernel: 3, widths: [4, 8], hidden: 16, dim: 8}"
MODEL = f"{{name: ensemble, members: [{{name: encoder, {TRUNK}}}, {{name: encoder, {TRUNK}}}]}}"
OPTIMISER = "{name: adamw, rate: 1e-3, loss_rate_factor: 100, clip: 10, warmup: 1}"


def written(path: Path, defence: str, sampler: str = "{name: balanced, batch: 60, per_class: 12}") -> Path:
    base = recipe.shelf() / "digits" / "plain.yaml"
    path.write_text(
        f"base: {base}\nmodel: {MODEL}\ndefence: {defence}\noptimiser: {OPTIMISER}\nsampler: {sampler}\nepochs: 2\n"
    )
    return path


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def test_a_run_follows_from_its_seed_and_is_taken_up_again_where_it_ended(tmp_path: Path) -> None:
    file = str(written(tmp_path / "eat.yaml", f"{{name: eat, losses: {LOSSES}, attack: {ATTACK}}}"))
    whole = weights(train(file, [], tmp_path / "whole"))
    train(file, ["epochs=1"], tmp_path / "parts")
    resumed = weights(train(file, [], tmp_path / "parts", resume=True))
    other = weights(train(file, ["seed=1"], tmp_path / "other"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not any(torch.equal(whole[name], other[name]) for name in whole)


def test_a_warm_up_leaves_the_trunk_as_it_was(tmp_path: Path) -> None:
    file = str(written(tmp_path / "eat.yaml", f"{{name: eat, losses: {LOSSES}, attack: {ATTACK}}}"))
    begun = load_model(*resolve(file, [])).state_dict()
    warm = weights(train(file, ["epochs=1"], tmp_path / "warm"))
    after = weights(train(file, [], tmp_path / "after"))
    for name in begun:
        assert torch.equal(begun[name], warm[name]) == ("features" in name), name
        assert not torch.equal(warm[name], after[name]), name


@pytest.mark.parametrize(
    "defence",
    [
        f"{{name: adp, losses: {LOSSES}}}",
        f"{{name: naive_ensemble, defences: [{{name: plain, loss: {LOSSES[1:].split('}')[0]}}}}}, "
        f"{{name: madry, loss: {LOSSES[1:].split('}')[0]}}}, attack: {ATTACK}, objective: shift}}]}}",
        f"{{name: eat, losses: {LOSSES}, attack: {ATTACK}, shared: false, divided: false}}",
        f"{{name: eat, losses: {LOSSES}, attack: {ATTACK}, by_class: true}}",
    ],
)
def test_the_other_ensembles_train_from_a_recipe(tmp_path: Path, defence: str) -> None:
    run = train(str(written(tmp_path / "own.yaml", defence)), ["epochs=1"], tmp_path / "run")
    assert all(weight.isfinite().all() for weight in weights(run).values())


def test_more_members_than_images_of_a_class_are_refused_before_the_first_step(tmp_path: Path) -> None:
    many = 200  # of a digit there are fewer
    losses = "[" + ", ".join(["{name: proxy_anchor, classes: $classes, dim: 8}"] * many) + "]"
    file = str(written(tmp_path / "eat.yaml", f"{{name: eat, losses: {losses}, attack: {ATTACK}}}"))
    with pytest.raises(InputError, match="cannot be cut into 200 parts"):
        train(file, [], tmp_path / "run")


def test_a_radius_that_grows_is_small_in_the_first_epoch_and_whole_at_the_end(tmp_path: Path) -> None:
    strong = "{name: pgd, ball: {name: ball, radius: 0.3}, steps: 4, step_size: 0.1}"
    file = str(written(tmp_path / "eat.yaml", f"{{name: eat, losses: {LOSSES}, attack: {strong}, clean_share: 0}}"))

    def losses(name: str, *changes: str) -> list[float]:
        run = train(file, ["optimiser.rate=1e-12", "optimiser.warmup=0", *changes], tmp_path / name)
        epochs = [record for record in records.read(run / "results.jsonl") if record.name == "epoch"]
        return [record.scores["adversarial"] for record in epochs]

    # Next to nothing is learned at this rate, so that the loss tells the radius alone.
    still, grown = losses("still"), losses("grown", "defence.growing=0.5")
    assert grown[0] < still[0] - 0.05 and grown[1] == pytest.approx(still[1], abs=1e-4)
