"""`evaluate(..., out=FOLDER)`: records are on disk as they come, go on after a cut, and are read by the commands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import robustmetric
from commands import Command
from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.jobs import evaluate as job
from robustmetric.jobs.folder import RunFolder
from robustmetric.models.encoder import Encoder

IMAGES = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = [place % 3 for place in range(24)]


class Net(nn.Module):
    """An encoder of few weights; `power` is no weight."""

    def __init__(self, scale: float = 1.0, power: int = 1) -> None:
        super().__init__()
        self.layer, self.power = nn.Linear(192, 4, bias=False), power
        self.parts = (object(),)  # shown by its address: not the same in two models
        self.layer.weight.data = scale * torch.randn(4, 192, generator=torch.Generator().manual_seed(1))

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1) ** self.power)


def classifier() -> nn.Module:
    network = Net()
    network.classes = 4
    return network


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is measured from now on, by name."""
    found = []
    clean, trial = job.measure_clean, job.measure_trial

    def measure_clean(*given):  # type: ignore[no-untyped-def]  # as it is
        found.append("clean")
        return clean(*given)

    def measure_trial(arena, one, *given, **settings):  # type: ignore[no-untyped-def]  # as it is
        found.append(one.label)
        return trial(arena, one, *given, **settings)

    monkeypatch.setattr(job, "measure_clean", measure_clean)
    monkeypatch.setattr(job, "measure_trial", measure_trial)
    return found


def test_the_first_attack_is_on_disk_when_the_second_raises_and_is_not_run_again(
    suite: Path, command: Command, tmp_path: Path, measured: list[str]
) -> None:
    whole, out = suite.read_text(), tmp_path / "mine"
    suite.write_text(whole.replace("[0.1, 0.2]", "[0.1]").split("  CA+")[0] + "  CA+: {attack: {name: own_parts.Boom}}")
    with pytest.raises(InputError, match="boom"):
        robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out=out)
    there = records.read(out / "results.jsonl")
    assert [record.name for record in there] == ["clean", "ES"] and measured == ["clean", "ES", "CA+"]
    measured.clear()
    suite.write_text(whole)
    found = robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out=str(out))
    assert measured == ["ES", "CA+"], "ES at its other radius, and what failed before"
    assert found[:2] == there
    assert [record.settings.get("radius") for record in found] == [None, 0.1, 0.2, 0.2]


@pytest.mark.parametrize(("model", "name"), [(Net, "ers28"), (classifier, "autoattack"), (Net, "clustering_short")])
def test_a_second_call_writes_nothing_and_gives_what_a_call_without_a_folder_gives(
    model: Callable[[], nn.Module], name: str, tmp_path: Path, measured: list[str]
) -> None:
    given, out = (IMAGES[:9], LABELS[:9], name, 0.3), tmp_path / "mine"
    robustmetric.evaluate(model(), *given, seed=1, out=out)
    first = robustmetric.evaluate(model(), *given, out=out)
    content = (out / "results.jsonl").read_bytes()
    measured.clear()
    again = robustmetric.evaluate(model(), *given, out=out)
    assert again == first and not measured and (out / "results.jsonl").read_bytes() == content
    alone = robustmetric.evaluate(model(), *given)
    assert [(r.name, r.scores, r.count) for r in first] == [(r.name, r.scores, r.count) for r in alone]


def test_a_folder_of_another_model_or_of_other_images_is_refused_and_left_as_it_was(
    suite: Path, tmp_path: Path, measured: list[str]
) -> None:
    out = tmp_path / "mine"
    robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out=out)
    content = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    measured.clear()
    # The same weights behind other pixel statistics, or raised to another power, are another model.
    shifted = [Encoder(Net(), mean=(mean,) * 3, std=(1.0,) * 3) for mean in (0.0, 0.5)]
    robustmetric.evaluate(shifted[0], IMAGES, LABELS, str(suite), out=tmp_path / "shifted")
    for model, images, labels, place, said in (
        (Net(scale=2), IMAGES, LABELS, "mine", "another model"),
        (Net(power=2), IMAGES, LABELS, "mine", "another model"),
        (shifted[1], IMAGES, LABELS, "shifted", "another model"),
        (Net(), 1 - IMAGES, LABELS, "mine", "other images or labels"),
        (Net(), IMAGES, LABELS[::-1], "mine", "other images or labels"),
        (Net(scale=2), IMAGES[1:], LABELS[1:], "mine", "another model, other images or labels"),
    ):
        with pytest.raises(InputError) as error:
            robustmetric.evaluate(model, images, labels, str(suite), out=tmp_path / place)
        assert str(error.value) == f"{tmp_path / place} is the folder of {said}; name another folder with out="
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == content


class Through(nn.Module):
    """A network behind what is no weight and no plain setting: code, or the entry of a dictionary."""

    def __init__(self, change: Callable[[Tensor], Tensor], **settings: float) -> None:
        super().__init__()
        self.network, self.change, self.settings = Net(), change, settings

    def forward(self, images: Tensor) -> Tensor:
        return self.network(self.change(images) * self.settings.get("gain", 1.0) + self.settings.get("bias", 0.0))


@pytest.mark.parametrize(
    "other",
    [
        Through(torch.round),
        Through(lambda images: images, bias=0.5),
        Through(lambda images: images + 0.2 * torch.rand_like(images)),
    ],
    ids=["code", "dictionary", "chance"],
)
def test_a_model_that_answers_otherwise_is_another(other: nn.Module, suite: Path, tmp_path: Path) -> None:
    one = Through(lambda images: images, gain=1.0)
    for first, second, name in ((one, other, "one"), (other, one, "other")):
        robustmetric.evaluate(first, IMAGES, LABELS, str(suite), out=tmp_path / name)
        content = (tmp_path / name / "results.jsonl").read_bytes()
        with pytest.raises(InputError, match="is the folder of another model; name"):
            robustmetric.evaluate(second, IMAGES, LABELS, str(suite), out=tmp_path / name)
        robustmetric.evaluate(first, IMAGES, LABELS, str(suite), out=tmp_path / name)
        assert (tmp_path / name / "results.jsonl").read_bytes() == content, "the same one is known again"


def test_a_count_of_calls_does_not_make_another_model(suite: Path, tmp_path: Path) -> None:
    class Counting(Net):
        calls = 0

        def forward(self, images: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(images)

    model, state = Counting(), torch.get_rng_state()
    first = robustmetric.evaluate(model, IMAGES, LABELS, str(suite), out=tmp_path / "mine")
    assert model.calls > 1 and torch.equal(torch.get_rng_state(), state)
    for again in (model, Counting()):
        assert robustmetric.evaluate(again, IMAGES, LABELS, str(suite), out=tmp_path / "mine") == first


def test_a_run_folder_of_a_training_is_not_added_to(trained: Path, suite: Path) -> None:
    with pytest.raises(InputError, match="is the folder of another model"):
        robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out=trained)


def test_report_and_compare_read_the_folder(suite: Path, command: Command, tmp_path: Path) -> None:
    for name, scale in (("plain", 1.0), ("other", 2.0)):
        robustmetric.evaluate(Net(scale), IMAGES, LABELS, str(suite), out=tmp_path / name)
    drawn = command("report", "plain", "other", "-o", "page")
    assert drawn.code == 0, drawn.err
    page = (tmp_path / "page" / "index.html").read_text()
    assert "not trained in this folder" in page and "Net" in page
    compared = command("compare", "plain", "other")
    assert compared.code == 0, compared.err
    assert "ES:R at 0.2" in compared.out and "CA+" in compared.out


def test_a_failure_before_the_first_record_leaves_the_folder_free(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mine"
    monkeypatch.setattr(job, "measure_clean", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out=out)
    assert not out.exists()


def killed_before_its_first_record(model: nn.Module, suite: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is interrupted where it measures first."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(job, "measure_clean", killed)
        robustmetric.evaluate(model, IMAGES, LABELS, str(suite), out=out)


@pytest.mark.parametrize(
    ("first", "model"),
    [
        (Net(scale=-1), Net()),
        (Through(lambda images: images + torch.rand_like(images)), Through(torch.sin)),
        (Through(torch.sin), Through(lambda images: images + torch.rand_like(images))),
    ],
    ids=["other weights", "chance before", "chance after"],
)
def test_a_model_is_known_again_where_another_was_killed_before_its_first_record(
    first: nn.Module, model: nn.Module, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_before_its_first_record(first, suite, tmp_path / "mine", monkeypatch)
    found = robustmetric.evaluate(model, IMAGES, LABELS, str(suite), out=tmp_path / "mine")
    assert robustmetric.evaluate(model, IMAGES, LABELS, str(suite), out=tmp_path / "mine") == found


@pytest.mark.parametrize("first", [Net(power=2), Encoder(Net(), mean=(0.5,) * 3, std=(1.0,) * 3)])
def test_a_folder_whose_call_was_killed_before_its_first_record_is_free_for_any_model(
    first: nn.Module, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_before_its_first_record(first, suite, tmp_path / "mine", monkeypatch)
    assert list((tmp_path / "mine").iterdir()) == []
    # As other versions left one, or a kill while the first record was written.
    RunFolder(tmp_path / "mine").begin({"model": {"name": "Other"}, "data": {"name": "tensors"}}, {"name": "other"})
    found = robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out=tmp_path / "mine")
    assert RunFolder(tmp_path / "mine").read_recipe()["model"]["name"] == "Net"
    assert json.loads((tmp_path / "mine" / "run.json").read_text())["name"] == "mine"
    assert robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out=tmp_path / "mine") == found


def test_calls_at_once_on_one_folder_keep_all_records_and_each_once(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another suite, and the same one, begin and end while the first call measures its first record."""
    out, other, clean = tmp_path / "mine", tmp_path / "other.yaml", job.measure_clean
    other.write_text(suite.read_text())

    def meanwhile(*given):  # type: ignore[no-untyped-def]  # as it is
        monkeypatch.setattr(job, "measure_clean", clean)
        for name in (other, suite):
            robustmetric.evaluate(Net(), IMAGES, LABELS, str(name), out=out)
        return clean(*given)

    monkeypatch.setattr(job, "measure_clean", meanwhile)
    found = robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out=out)
    there = records.read(out / "results.jsonl")
    assert len(there) == len({record.key for record in there}) == 2 * len(found) == 8
    assert found == [record for record in there if record.settings["suite"] == suite.stem]


def test_what_is_no_folder_is_told_in_one_line(suite: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; expected a folder"):
        robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out=tmp_path / "file")
    with pytest.raises(InputError, match="out '' is no folder; expected a path"):
        robustmetric.evaluate(Net(), IMAGES, LABELS, str(suite), out="")


def test_a_model_whose_parts_are_made_by_its_first_answer_is_known_again(suite: Path, tmp_path: Path) -> None:
    class Late(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            if not hasattr(self, "net"):
                self.net = Net()
            return self.net(images)

    model = Late()
    first = robustmetric.evaluate(model, IMAGES, LABELS, str(suite), out=tmp_path / "mine")
    for again in (model, Late()):
        assert robustmetric.evaluate(again, IMAGES, LABELS, str(suite), out=tmp_path / "mine") == first
