"""The likely mistakes of somebody with a folder of images and a model of one's own."""

from pathlib import Path

import pytest
from PIL import Image

from commands import Command


def photos(root: Path, names: list[str]) -> Path:
    for place, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * place, 90, 40)).save(root / name)
    return root


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["0.png", "1.png"], "holds 2 images but no folder of a class"),
        (["a/0.png", "a/1.png"], "images of one class only"),
        (["a/0.png", "b/1.png"], "one image of each class"),
    ],
)
def test_images_that_cannot_be_searched_are_refused_before_any_attack(
    names: list[str], said: str, tmp_path: Path, command: Command
) -> None:
    folder = photos(tmp_path / "photos", names)
    assert said in command("evaluate", "torch.nn.Flatten", "demo", "--data", folder).error
    assert not (tmp_path / "runs").exists()


def test_a_classifier_is_attacked_on_one_image_of_each_class(tmp_path: Path, command: Command) -> None:
    photos(tmp_path / "photos", ["a/0.png", "b/1.png", "c/2.png", "d/3.png"])
    layers = "torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 4)"
    made = f"    net = torch.nn.Sequential({layers})\n    net.classes = 4\n    return net\n"
    (tmp_path / "company.py").write_text(f"import torch\ndef build():\n{made}")
    (tmp_path / "short.yaml").write_text("{base: local_search, engine: {rounds: 1}}")
    done = command("evaluate", "company.build", "short.yaml", "--data", "photos")
    assert done.code == 0 and "of 4 images" in done.err, done.err


@pytest.mark.parametrize("name", ["company.py", "company.gone", "model.pt"])
def test_a_model_that_cannot_be_found_says_how_ones_own_is_named(name: str, tmp_path: Path, command: Command) -> None:
    folder = photos(tmp_path / "photos", ["a/0.png", "a/1.png", "b/2.png"])
    assert "named FILE.FUNCTION, as in company.build" in command("evaluate", name, "demo", "--data", folder).error


@pytest.mark.parametrize(
    ("words", "function"),
    [
        (["evaluate", "company.py", "demo", "--data", "photos"], "company.build"),
        (["evaluate", "company.py"], "company.build"),
        (["evaluate", "./company.py", "demo"], "company.build"),
        (["evaluate", "my_lab/company.py"], "my_lab.company.build"),
        (["evaluate", "../company.py"], "company.build"),
        (["evaluate", "/lab/company.py"], "company.build"),
        (["certify", "company.py"], "company.build"),
        (["train", "digits/plain", "model={name: company.py}"], "company.build"),
        (["evaluate", "company.build", "transfer", "--data", "photos", "--surrogate", "company.py"], "company.build"),
    ],
)
def test_a_file_in_place_of_the_function_in_it_is_told(
    words: list[str], function: str, tmp_path: Path, command: Command
) -> None:
    photos(tmp_path / "photos", ["a/0.png", "a/1.png", "b/2.png"])
    (tmp_path / "company.py").write_text("import torch\ndef build():\n    return torch.nn.Flatten()\n")
    error = command(*words).error
    assert f"company.py' is a file; name the function in it, such as {function}" in error
    assert "has no attribute" not in error and not (tmp_path / "runs").exists()


def test_a_radius_in_bytes_is_refused(tmp_path: Path, command: Command) -> None:
    folder = photos(tmp_path / "photos", ["a/0.png", "a/1.png", "b/2.png"])
    words = ["evaluate", "torch.nn.Flatten", "demo", "--data", folder, "--radius", "8"]
    assert "did you mean 8/255?" in command(*words).error


def test_one_image_as_data_is_told_to_be_a_folder(tmp_path: Path, command: Command) -> None:
    image = photos(tmp_path, ["x.jpg"]) / "x.jpg"
    assert (
        "x.jpg is neither a folder nor a zip; name the folder"
        in command("evaluate", "torch.nn.Flatten", "demo", "--data", image).error
    )


def test_a_bare_name_of_a_network_says_how_ones_own_model_is_named(command: Command) -> None:
    error = command("evaluate", "resnet18").error
    assert "no run folder and no recipe" in error and "as in company.build" in error and "cars/" not in error
    assert "did you mean 'digits/plain'" in command("evaluate", "digits/plian").error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "digits/plain", "data=photos"], "data 'photos' is a word; write data.name=folder data.root=photos"),
        (["train", "digits/plain", "data=a.csv"], "write data.name=manifest data.file=a.csv"),
        (["certify", "tabular/digits-arml", "data=a.csv"], "write data.name=tabular data.file=a.csv"),
        (["train", "digits/plain", "data=cup"], "expected data.name=NAME; did you mean 'cub'?"),
        (["train", "digits/plain", "defence=madry"], "defence 'madry' is a word; write defence.name=madry"),
        (["train", "digits/plain", "model=my.build"], "write model.name=my.build"),
        (["certify", "tabular/digits-arml", "learner=nca"], "learner 'nca' is a word; write learner.name=nca"),
    ],
)
def test_a_word_for_a_part_of_a_recipe_says_what_to_write(
    words: list[str], said: str, tmp_path: Path, command: Command
) -> None:
    photos(tmp_path / "photos", ["a/0.png"])
    assert said in command(*words).error
    assert not (tmp_path / "runs").exists()
