"""Recipe to objects: every piece is what it should be, or the recipe is at fault at a named place."""

from pathlib import Path

import pytest
import torch

from commands import Command
from robustmetric.errors import InputError
from robustmetric.jobs.assemble import load_data, load_model, load_plan, resolve, title


def test_the_same_seed_makes_the_same_model_and_leaves_the_global_randomness_alone() -> None:
    spec, where = resolve("digits/plain", [])
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = load_model(spec, where), load_model(spec, where)
    assert torch.equal(torch.rand(1), expected)
    other = load_model({**spec, "seed": 1}, where)
    weights = [next(model.parameters()) for model in (one, two, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_plan_knows_classes_and_dimension() -> None:
    spec, where = resolve("digits/plain", [])
    loss = {"name": "proxy_anchor", "classes": "$classes", "dim": "$dim"}
    plan, dataset = load_plan({**spec, "defence": {"name": "plain", "loss": loss}}, where)
    assert dataset.train.classes == 5
    assert {tuple(p.shape) for p in plan.defence.parameters()} == {(5, 64)}


def test_a_model_that_does_not_know_its_size_trains_unless_the_recipe_asks(command: Command) -> None:
    spec, where = resolve("digits/plain", ["model={name: encoder, trunk: {name: own_parts.Net}}"])
    load_plan(spec, where)
    loss = {"name": "proxy_anchor", "classes": "$classes", "dim": "$dim"}
    with pytest.raises(InputError, match=r"defence.loss.dim: '\$dim' is not known here"):
        load_plan({**spec, "defence": {"name": "plain", "loss": loss}}, where)


def test_a_recipe_in_the_working_folder_names_its_run_plainly() -> None:
    assert title("own.yaml") == "own"
    assert title("recipes/digits/plain.yaml") == "digits-plain"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["epocs=3"], "'epocs' is not a setting of a recipe; did you mean 'epochs'"),
        (["defense.steps=3"], "'defense' is not a setting of a recipe; did you mean 'defence'"),
        (
            ["defence.loss.margn=3"],
            r"plain.yaml.defence.loss: 'margn' is not a setting of Triplet; did you mean 'margin'",
        ),
        (["defence.loss.name=triplets"], "'triplets' is not a known name; did you mean 'triplet'"),
        (["epochs=0"], "epochs 0 is not known; expected a whole number >= 1"),
        (["epochs=many"], "epochs 'many' is not known"),
        (["seed=x"], "seed 'x' is not known; expected a whole number >= 0"),
        (["seed=-1"], "seed -1 is not known"),
        (["checkpoint_seconds=-1"], "checkpoint_seconds -1 is no time"),
        (["validate_every=0.5"], "validate_every 0.5 is not known"),
        (["optimiser.rate=0.0"], "learning rate 0.0 does not train"),
        (["sampler=3"], "sampler: int is not a sampler"),
        (["defence={name: convnet}"], "defence: ConvNet is not a defence"),
        (["data={name: convnet}"], "ConvNet is not a data set"),
        (["model={name: digits}"], "Digits is not a torch module"),
        (["view={name: digits}"], "view: Digits is not a transform"),
    ],
)
def test_a_recipe_at_fault_says_where(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_plan(*resolve("digits/plain", overrides))


def test_the_data_set_is_built_once(tmp_path: Path, command: Command) -> None:
    import own_parts

    before = own_parts.Cached.built
    load_plan(*resolve("digits/plain", [f"data={{name: own_parts.Cached, folder: {tmp_path}}}"]))
    assert own_parts.Cached.built == before + 1


def test_what_a_recipe_lacks_is_named() -> None:
    with pytest.raises(InputError, match=r"needs .*'defence'"):
        load_plan({"data": {"name": "digits"}}, "own.yaml")
    with pytest.raises(InputError, match=r"own\.yaml: the recipe has no 'data'"):
        load_data({}, "own.yaml")
