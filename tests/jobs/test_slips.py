"""Slips of somebody who has read the README once: each is told in one line, before anything slow."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from commands import Command, environment
from robustmetric.cli.app import starting
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.errors import InputError, nearest
from robustmetric.jobs.answer import check_answer, checked_logits
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.state import State
from robustmetric.jobs.train import progress_note
from robustmetric.jobs.workers import Workers

ROOT = Path(__file__).parents[2]
ROW = ROOT / "results/tabular/digits-arml-seed0.json"
BIRDS = ROOT / "results/cub/cub-mobilenet_v2-act-eta8-short-seed0.json"
OWN = """
import torch
def broken():
    raise RuntimeError("my weights are gone")
def asking(path):
    return torch.nn.Flatten()
class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(10, 3)
    def forward(self, images):
        return self.layer(images.flatten(1))
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The name of a file of one's own in the folder where the command works."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    return name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate", "cub/act", "nosuite"], "'nosuite' is no file and no suite we ship"),
        (["train", "digits/plain", "suite=nosuite"], "suite 'nosuite' is no file and no suite we ship"),
        (["train", "digits/plain", "model.name=convnt"], "did you mean 'convnet'? (backbone, bn_inception, "),
        (["train", "digits/plain", "optimiser.rate=fast"], "rate 'fast' is a word; expected a number"),
        (["train", "digits/plain", "model.name=torch.nn.Flatten"], "Flatten has no parameters that want a gradient"),
        (["train", "digits/plain", "--accelerator", "tpu"], "this hardware cannot be had (accelerator 'tpu'"),
        (["train", "digits/madry", "defence.attack.ball.radius=8"], "did you mean 8/255?"),
        (["unpack", ROOT / "results/cub"], "results/cub is a folder; expected a row of the ledger"),
        (["compare", ROW, ROW], "is a file; expected a run folder, such as `robustmetric unpack` makes"),
        (
            ["ledger", "--table", "nowhere"],
            "nowhere is no folder of results; expected the path of one, such as results/",
        ),
        (["ledger", "--table", "results/cub"], "results/cub is no folder of results; expected the path"),
        (["certify", "digits/plain", "--sigma", "-1"], "sigma -1.0 is no deviation of noise"),
        (["certify", "digits/classifier_madry"], "'digits/classifier_madry' is a classifier, which searches nothing"),
    ],
)
def test_each_slip_is_told_in_one_line(words: list[object], said: str, command: Command) -> None:
    assert said in command(*words).error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", BIRDS, "--attack", "GTMM"], "'GTMM' is no attack of ers224; did you mean 'GTM'? (CA+, CA-, "),
        (["verify", BIRDS, "--attack", "ESS", "--model", "nowhere"], "'ESS' is no attack of ers224"),
        (["verify", BIRDS, "--device", "tpu"], "this hardware cannot be had (accelerator 'tpu'"),
        (
            ["train", "cub/act", "defence.attack.name=pdg"],
            "act.yaml.defence.attack: 'pdg' is not a known name; did you",
        ),
        (["train", "cub/act", "defence.attack.stps=4"], "'stps' is not a setting of PGD; did you mean 'steps'?"),
        (["train", "cub/act", "defence.attack.ball.norm=l3"], "norm 'l3' is not known; expected l2, linf"),
        (["train", "cub/act", "on_collapse=stp"], "on_collapse 'stp' is not known; did you mean 'stop'?"),
        (["sweep", "cub/act", "defence.attack.name=pgd,pdg"], "'pdg' is not a known name; did you mean 'pgd'?"),
        (["sweep", "cub/act", "seed=0,1", "--accelerator", "tpu"], "this hardware cannot be had (accelerator 'tpu'"),
        (["evaluate", "cub/act", "--mode", "fixd"], "mode 'fixd' is not known; did you mean 'fixed'?"),
        (["evaluate", "cub/act", "ers224", "--search", "tf23"], "search 'tf23' is not known; did you mean 'tf32'?"),
        (["evaluate", "cub/act", "clustering", "--kmeans", "fais"], "'fais' is not known; expected 'torch' or 'faiss'"),
        (["evaluate", "cub/act", "transfer", "--surrogate", "nowhere"], "nowhere is not a run folder"),
        (["evaluate", "cub/act", "ers224", "--accelerator", "tpu"], "this hardware cannot be had (accelerator 'tpu'"),
        (["evaluate", "cub/act", "--data", "digts"], "no CSV file and no data set; did you mean 'digits'?"),
        (["certify", "cub/act", "--device", "tpu"], "device 'tpu' cannot be used"),
    ],
)
def test_a_misspelt_name_is_told_before_data_or_weights_are_asked_for(
    words: list[object], said: str, command: Command
) -> None:
    assert said in command(*words).error


@pytest.mark.parametrize("words", [["evaluate", "cub/act"], ["evaluate", "cub/mobilenet_v2-act", "ers224"]])
def test_missing_data_are_told_before_weights_are_asked_for(words: list[str], command: Command) -> None:
    """The first recipe downloads its weights, the second has them where data lie."""
    assert "no data folder given; set root: in the recipe or the environment variable ROBUST" in command(*words).error


def test_a_model_that_is_misspelt_or_has_no_weights_is_told_before_data_are_read(
    trained: Path, own: str, command: Command, tmp_path: Path
) -> None:
    unreadable = tmp_path / "photos.zip"
    unreadable.write_text("no zip")
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "model.safetensors").unlink()
    for model, said in ((f"{own}.Nowhere", "Nowhere"), ("run", "run has no model.safetensors; finish it with")):
        assert said in command("evaluate", model, "demo", "--data", unreadable).error
    recipe = (run / "recipe.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(recipe.replace("name: convnet", "name: convnt"))
    assert "did you mean 'convnet'?" in command("evaluate", "mine.yaml", "demo", "--data", unreadable).error


def test_a_name_that_one_of_several_rows_lacks_is_told_before_the_first_is_measured(
    command: Command, tmp_path: Path
) -> None:
    row = json.loads(BIRDS.read_text())
    short = tmp_path / BIRDS.name
    short.write_text(json.dumps({**row, "command": row["command"].replace("ers224", "ers_sketch224")}))
    error = command("verify", BIRDS, short, "--attack", "TMA").error
    assert "'TMA' is no attack of ers_sketch224; " in error and "(ES, GTM)" in error


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "could not be built (RuntimeError: my weights are gone)"),
        ("asking", "expected a function that needs no argument"),
        ("Small", "the model failed on inputs of shape (128, 1, 8, 8), torch.float32: "),
    ],
)
def test_a_model_of_ones_own_that_fails_says_on_what(name: str, said: str, own: str, command: Command) -> None:
    assert said in command("evaluate", f"{own}.{name}", "demo", "--data", "digits").error


def test_a_model_that_fails_on_the_images_is_refused_before_training(
    own: str, tmp_path: Path, command: Command
) -> None:
    error = command("train", "digits/plain", f"model.name={own}.Small", "--out", "run").error
    assert "the model failed on inputs of shape (2, 1, 8, 8)" in error
    assert not (tmp_path / "run").exists()


def test_trying_a_model_leaves_no_trace() -> None:
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(), nn.Flatten())
    before, state = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    check_answer(model, [1, 4, 4])
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_model_that_gives_no_tensor_is_refused() -> None:
    class Pair(nn.Module):
        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, int]:
            return images, 1

    with pytest.raises(InputError, match="Pair returned a tuple"):
        check_answer(Pair(), [3])


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda x: (x.flatten(1)[:, :3], 1), r"Own returned a tuple for 2 inputs; expected a tensor of its logits"),
        (lambda x: x.flatten(1).argmax(1), r"Own returned shape \(2,\) for 2 inputs.*\(2, 3\)"),
        (lambda x: x.flatten(1)[:, :4], r"Own returned shape \(2, 4\) .* it tells 3 classes apart"),
        (lambda x: x @ x.new_zeros(9, 3), r"the model failed on inputs of shape \(2, 1, 4, 4\)"),
    ],
)
def test_a_classifier_that_gives_no_logits_is_refused(forward: Callable[[torch.Tensor], object], message: str) -> None:
    class Own(nn.Module):
        classes = 3

        def forward(self, images: torch.Tensor) -> object:
            return forward(images)

    with pytest.raises(InputError, match=message):
        checked_logits(Own(), torch.zeros(2, 1, 4, 4), 3)


@pytest.mark.parametrize(
    "words", [["train", "digits/plian"], ["sweep", "digits/plian", "seed=0,1"], ["evaluate", "digits/plain", "dmo"]]
)
def test_a_misspelt_name_is_refused_before_torch_is_imported(words: list[str], tmp_path: Path) -> None:
    script = "import sys; from robustmetric.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=tmp_path,
        env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
    )
    assert "did you mean" in done.stderr and done.stdout.strip() == "False"


def test_no_rate_is_told_before_one_is_known() -> None:
    assert progress_note(0, 3, {}, State(images=8)) == "epoch 1/3"
    assert progress_note(0, 3, {"metric": 0.5}, State(images=8, seconds=2.0)) == "epoch 1/3  metric 0.5  4 images/s"


def test_a_name_that_is_there_in_two_modes_is_listed_once() -> None:
    assert nearest("EX", ["GTM", "ES", "ES"]) == "; expected ES, GTM"


@pytest.mark.parametrize(("forced", "said"), [("1", True), (None, False)])
def test_a_terminal_is_told_that_a_command_starts(
    forced: str | None, said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if forced:
        monkeypatch.setenv("FORCE_COLOR", forced)  # rich takes the stream for a terminal
    with starting():
        pass
    assert ("starting" in capsys.readouterr().err) == said


def no_room_on_the_gpu() -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB of which 1 GiB is free. "
        "Process 12 has 70 GiB memory in use. Of the allocated memory 60 GiB is allocated by PyTorch"
    )


def no_room_here() -> None:
    torch.empty(1 << 50)


@pytest.mark.parametrize(
    ("fails", "said"),
    [(no_room_on_the_gpu, "of which 1 GiB is free. Expected room"), (no_room_here, "allocate memory")],
)
def test_a_full_memory_is_told_in_one_line(
    fails: Callable[[], None], said: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robustmetric.jobs.train.train", lambda *_, **__: fails())
    result = command("train", "digits/plain")
    assert result.code == 2 and result.err.startswith("error: ") and result.err.count("\n") == 1
    assert said in result.err and "sampler.batch=N" in result.err
    with pytest.raises(RuntimeError):
        command("--debug", "train", "digits/plain")


def test_another_fault_is_no_full_memory(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty() -> None:
        torch.zeros(2) @ torch.zeros(3)

    monkeypatch.setattr("robustmetric.jobs.train.train", lambda *_, **__: faulty())
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        command("train", "digits/plain")


def test_one_embedding_for_many_images_is_refused() -> None:
    class First(nn.Flatten):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[:1]

    # Spread over the gallery, it would be searched as if it were the embedding of each.
    with pytest.raises(InputError, match=r"returned embeddings of shape \(1, 64\) for 128 inputs; expected one"):
        Arena.prepare(First(), Digits().load(), Identity(), Workers(torch.device("cpu")))
    with pytest.raises(InputError, match=r"returned embeddings of shape \(1, 64\) for 2 inputs; expected one"):
        check_answer(First(), (1, 8, 8))


def test_a_map_of_features_in_the_place_of_an_embedding_is_refused_before_training() -> None:
    """It used to train to the end, and to fail at the search with a traceback."""
    with pytest.raises(
        InputError, match=r"Conv2d returned a tensor of shape \(2, 4, 8, 8\) for 2 inputs; expected one"
    ):
        check_answer(nn.Conv2d(1, 4, 1), (1, 8, 8))
    with pytest.raises(InputError, match=r"returned a tensor of shape \(2,\) for 2 inputs; expected one"):
        check_answer(nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.Flatten(0)), (1, 8, 8))


def test_a_model_without_values_is_told_before_it_is_trained() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(InputError, match=r"1\.weight of the model has no values, only a shape"):
        check_answer(model, (1, 8, 8))
