"""`evaluate`: what it is pointed at, what it writes, and what it does not run again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from commands import Command
from robustmetric import records
from robustmetric.data.base import Dataset
from robustmetric.data.transforms import CentreCrop
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.evaluate import run_suite
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.own import own_data
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.target import evaluate, find_target
from robustmetric.jobs.workers import Workers

Pictures = Callable[..., Path]


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A trained run of the test's own, without the records of its training."""
    copy = shutil.copytree(trained, tmp_path / "run")
    (copy / "results.jsonl").unlink()
    return copy


def lines(run: Path) -> list[str]:
    return (run / "results.jsonl").read_text().splitlines()


def test_every_trial_is_recorded_and_a_second_run_writes_nothing(run: Path, suite: Path, command: Command) -> None:
    first = command("evaluate", run, suite, "--queries", 100)
    assert first.code == 0, first.err
    found = records.read(run / "results.jsonl")
    assert [(r.kind, r.name, r.settings.get("radius")) for r in found] == [
        ("clean", "clean", None),
        ("attack", "ES", 0.1),
        ("attack", "ES", 0.2),
        ("attack", "CA+", 0.2),
    ]
    assert all(r.count == 100 and r.settings["queries"] == 100 and r.settings["gallery"] == 896 for r in found)
    assert found[1].scores["ES:R"] >= found[2].scores["ES:R"] - 3
    for record in found:
        for name, (low, high) in record.intervals.items():
            assert low <= record.scores[name] <= high
    content = (run / "results.jsonl").read_bytes()
    again = command("evaluate", run, suite, "--queries", 100)
    assert again.code == 0 and "nothing to do" in again.err
    assert (run / "results.jsonl").read_bytes() == content


def test_other_weights_queries_or_seeds_are_other_work(run: Path, suite: Path, command: Command) -> None:
    words = ["evaluate", run, suite, "--queries", 40]
    command(*words)
    assert len(lines(run)) == 4
    command(*words, "--seed", 1)
    assert len(lines(run)) == 8
    weights = load_file(run / "model.safetensors")
    save_file({name: value * 1.1 for name, value in weights.items()}, run / "model.safetensors")
    command(*words)
    assert len(lines(run)) == 12
    command("evaluate", run, suite, "--queries", 41)
    assert len(lines(run)) == 16


def test_what_finished_before_a_failure_stays_and_is_not_run_again(run: Path, suite: Path, command: Command) -> None:
    text = suite.read_text()
    suite.write_text(text + "  boom: {attack: {name: own_parts.Boom}}\n")
    failed = command("evaluate", run, suite, "--queries", 40)
    assert failed.code == 2 and failed.err.splitlines()[-1] == "error: boom"
    before = lines(run)
    assert len(before) == 4
    suite.write_text(text)
    command("evaluate", run, suite, "--queries", 40)
    assert lines(run) == before


def test_one_radius_for_every_attack_and_records_as_json(run: Path, suite: Path, command: Command) -> None:
    done = command("evaluate", run, suite, "--queries", 40, "--radius", "8/255", "--json")
    printed = [json.loads(line) for line in done.out.splitlines()]
    assert [(r["name"], r["settings"].get("radius")) for r in printed] == [
        ("clean", None),
        ("ES", 8 / 255),
        ("CA+", 8 / 255),
    ]
    # The step shrinks with the radius: 0.1 for 0.2 is half of it.
    assert printed[1]["settings"]["step_size"] == pytest.approx(4 / 255)


def test_radius_0_changes_nothing(run: Path, suite: Path, command: Command) -> None:
    done = command("evaluate", run, suite, "--queries", 60, "--radius", "0", "--json")
    clean, shift, _ = [json.loads(line) for line in done.out.splitlines()]
    assert shift["scores"]["ES:R"] == pytest.approx(clean["scores"]["R@1"])
    assert shift["scores"]["ES:D"] == pytest.approx(0.0, abs=1e-3)


def test_the_batch_size_does_not_change_clean_numbers(run: Path, suite: Path, command: Command, tmp_path: Path) -> None:
    for batch in (128, 17):
        command("evaluate", run, suite, "--queries", 60, "--batch", batch, "--out", f"out{batch}")
    one, other = (records.read(tmp_path / f"out{batch}" / "results.jsonl")[0].scores for batch in (128, 17))
    assert one == pytest.approx(other, abs=1e-3)


def test_pictures_are_kept_for_the_report(run: Path, suite: Path, command: Command) -> None:
    import numpy as np

    command("evaluate", run, suite, "--queries", 40)
    found = sorted(path.name for path in (run / "examples").iterdir())
    assert found == ["short-ES-25.50.npz", "short-ES-51.00.npz"]
    with np.load(run / "examples" / "short-ES-51.00.npz", allow_pickle=False) as pictures:
        moved = pictures["perturbed"].astype(int) - pictures["query"].astype(int)
        assert 0 < abs(moved).max() <= 51
        assert pictures["before"].shape == (6, 5, 1, 8, 8)


@pytest.mark.parametrize("model", ["own_parts.Net", "own_parts.make_net"])
def test_a_model_of_ones_own_on_a_folder_of_ones_own(
    model: str, pictures: Pictures, suite: Path, command: Command, tmp_path: Path
) -> None:
    pictures(tmp_path / "photos", classes=4, each=3)
    done = command("evaluate", model, suite, "--data", "photos", "--json")
    assert done.code == 0, done.err
    printed = [json.loads(line) for line in done.out.splitlines()]
    assert [r["name"] for r in printed] == ["clean", "ES", "ES", "CA+"]
    assert all(r["count"] == 12 for r in printed), "every image of a folder is a query"
    # Four of five grey levels, told apart by their mean colour.
    assert printed[0]["scores"]["R@1"] > 90
    # Unit length: two embeddings are at most 2 apart, whatever the model's own scale.
    assert 0 < printed[2]["scores"]["ES:D"] <= 2
    assert (tmp_path / "runs" / f"evaluate-{model}-photos" / "results.jsonl").is_file()


def test_a_csv_manifest_and_a_named_data_set_are_data_too(
    run: Path, pictures: Pictures, suite: Path, command: Command, tmp_path: Path
) -> None:
    pictures(tmp_path / "photos")
    files = sorted((tmp_path / "photos").rglob("*.png"))
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name},test" for path in files]
    (tmp_path / "list.csv").write_text("path,label,split\n" + "\n".join(rows))
    listed = command("evaluate", "own_parts.Net", suite, "--data", "list.csv", "--json")
    assert json.loads(listed.out.splitlines()[0])["count"] == 12
    named = command("evaluate", run, suite, "--data", "digits", "--queries", 30, "--json")
    assert json.loads(named.out.splitlines()[0])["settings"]["data"] == "digits"


def test_queries_and_gallery_are_matched_by_class_name(
    pictures: Pictures, suite: Path, command: Command, tmp_path: Path
) -> None:
    # The gallery has a class of its own that sorts first, so that equal numbers are not equal classes.
    pictures(tmp_path / "photos" / "train", classes=2, first=10)
    pictures(tmp_path / "photos" / "test", classes=3, first=1)
    pictures(tmp_path / "photos" / "gallery", classes=4, first=0)
    done = command("evaluate", "own_parts.Net", suite, "--data", "photos", "--json")
    assert done.code == 0, done.err
    clean = json.loads(done.out.splitlines()[0])
    assert (clean["settings"]["queries"], clean["settings"]["gallery"]) == (9, 12)
    assert clean["scores"]["R@1"] > 90
    # Each query has 3 of 12 items of its class.
    assert clean["settings"]["chance"] == pytest.approx(25.0)


def test_an_unreadable_image_is_named_and_skipped_only_when_asked(
    pictures: Pictures, suite: Path, command: Command, tmp_path: Path
) -> None:
    pictures(tmp_path / "photos")
    (tmp_path / "photos" / "class01" / "1.png").write_bytes(b"no image")
    error = command("evaluate", "own_parts.Net", suite, "--data", "photos").error
    assert "class01/1.png" in error
    done = command("evaluate", "own_parts.Net", suite, "--data", "photos", "--skip-unreadable", "--json")
    assert done.code == 0, done.err
    for line in done.out.splitlines():
        assert (json.loads(line)["settings"]["skipped"], json.loads(line)["count"]) == (1, 11)


def test_a_recipe_is_evaluated_as_built(suite: Path, command: Command, tmp_path: Path) -> None:
    done = command("evaluate", "digits/plain", suite, "--queries", 20)
    assert done.code == 0 and "as its recipe builds it, not trained" in done.err
    assert (tmp_path / "runs" / "evaluate-digits-plain" / "recipe.yaml").is_file()
    (tmp_path / "own.yaml").write_text("{model: {name: torch.nn.Flatten}, data: {name: digits}}")
    own = command("evaluate", "own.yaml", suite, "--queries", 20)
    assert own.code == 0 and "not trained" not in own.err, "nobody knows what was trained elsewhere"
    assert "not trained" not in command("evaluate", "runs/evaluate-digits-plain", suite, "--queries", 20).err
    assert command("report", "runs/evaluate-digits-plain").code == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<dt>trained at commit</dt><dd>not trained in this folder</dd>" in page


def test_a_recipe_that_was_left_without_a_record_gives_way(run: Path, suite: Path, command: Command) -> None:
    out = RunFolder(run.parent / "out")
    out.begin({"model": {"name": "another"}}, {"name": "another"})
    done = command("evaluate", run, suite, "--queries", 20, "-o", "out")
    assert done.code == 0, done.err
    assert out.read_recipe() == RunFolder(run).read_recipe()
    assert json.loads(out.summary.read_text())["name"] == "out"


def test_results_do_not_go_into_the_folder_of_another_model(
    run: Path, sibling: Path, suite: Path, command: Command
) -> None:
    assert command("evaluate", run, suite, "--queries", 20, "-o", "out").code == 0
    content = (run.parent / "out" / "results.jsonl").read_bytes()
    (run.parent / "own.yaml").write_text("{model: {name: torch.nn.Flatten}, data: {name: digits}}")
    for other, said in ((sibling, "seed"), ("own.yaml", "model and defence")):
        error = command("evaluate", other, suite, "--queries", 20, "-o", "out").error
        assert f"out is the folder of another model (its recipe has another {said}); name another folder" in error
    assert (run.parent / "out" / "results.jsonl").read_bytes() == content
    assert command("evaluate", run, suite, "--data", "digits", "--queries", 10, "-o", "out").code == 0, "of other data"


def test_a_file_in_the_place_of_the_folder_is_told_before_anything_is_measured(
    run: Path, suite: Path, command: Command
) -> None:
    (run.parent / "out").touch()
    assert "File exists" in (done := command("evaluate", run, suite, "--queries", 20, "-o", "out")).error
    assert "clean" not in done.err


def test_a_truncated_model_is_named(run: Path, suite: Path, command: Command) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "model.safetensors cannot be read as weights; it is truncated" in command("evaluate", run, suite).error
    path.unlink()
    assert "has no model.safetensors" in command("evaluate", run, suite).error


def test_weights_of_another_architecture_are_refused(run: Path, suite: Path, command: Command) -> None:
    save_file({"layer": torch.zeros(3)}, run / "model.safetensors")
    error = command("evaluate", run, suite).error
    assert "belongs to another architecture" in error and "model.safetensors" in error


def test_weights_of_nan_are_refused_with_the_first_image_named(run: Path, suite: Path, command: Command) -> None:
    weights = load_file(run / "model.safetensors")
    save_file({name: value * float("nan") for name, value in weights.items()}, run / "model.safetensors")
    assert "embedding of digits/0005 holds NaN or infinity" in command("evaluate", run, suite).error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["own_parts.Net", "demo"], "'own_parts.Net' brings no data; name some with --data"),
        (["own_parts.make_nothing", "demo", "--data", "digits"], "gave a int; expected a torch module"),
        (["own_parts.NUMBER", "demo", "--data", "digits"], "is a int; expected a class or a function"),
        (["own_parts.Gone", "demo", "--data", "digits"], "cannot import 'own_parts.Gone'"),
        (
            ["own_parts.Net", "demo", "--data", "digit"],
            "is no folder, no CSV file and no data set; did you mean 'digits'",
        ),
        (["digits/plian", "demo"], "no recipe we ship; did you mean 'digits/plain'"),
        (["digits/plain", "dmo"], "no suite we ship; did you mean 'demo'"),
        (["digits/plain", "demo", "--queries", "0"], "0 queries cannot be evaluated"),
        (["digits/plain", "demo", "--batch", "0"], "a batch of 0 images"),
        (["digits/plain", "demo", "--radius", "-1/255"], "radius '-1/255' is not a distance"),
        (["digits/plain", "demo", "--radius", "far"], "radius 'far' is not a distance"),
        (["digits/plain", "demo", "--radius", "true"], "radius 'true' is not a distance"),
        (["digits/plain", "demo", "--radius", ".nan"], "radius '.nan' is not a distance"),
        (["digits/plain", "demo", "--radius", ".inf"], "radius inf is not a distance"),
        (["digits/plain", "demo", "--radius", "[1"], "not valid YAML"),
        (
            ["runs/typo", "demo"],
            "error: no run folder 'runs/typo' exists; recipes are listed by `robustmetric list recipes`",
        ),
        (["elsewhere/my-run", "demo"], "no run folder 'elsewhere/my-run' exists"),
        (["runs/digits/plain", "demo"], "no run folder 'runs/digits/plain' exists"),
        (
            ["own_parts.Net", "demo", "--data", "folder"],
            "--data folder: Folder needs 'root'; give the path of a folder",
        ),
        (
            ["own_parts.Net", "demo", "--data", "manifest"],
            "Manifest needs 'file'; give the path of a folder, zip or CSV",
        ),
        (["own_parts.Net", "demo", "--data", "tabular"], "Tabular needs 'file'; give the path of a folder, zip or CSV"),
        (["own_parts.Net", "demo", "--data", "digits", "--skip-unreadable"], "'digits' reads none, leave it out"),
        (["digits/plain", "demo", "--skip-unreadable"], "--skip-unreadable is for data sets of image files"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(words: list[str], message: str, command: Command, tmp_path: Path) -> None:
    assert message in command("evaluate", *words).error
    assert not list(tmp_path.rglob("results.jsonl"))


def test_missing_empty_and_single_image_data_are_refused(pictures: Pictures, command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    error = command("evaluate", "own_parts.Net", "demo", "--data", "empty").error
    assert "empty holds no images; expected one sub-folder of images per class" in error


def test_the_function_returns_the_latest_records(run: Path, suite: Path) -> None:
    found = evaluate(str(run), str(suite), queries=30)
    assert [record.name for record in found] == ["clean", "ES", "ES", "CA+"]
    assert evaluate(str(run), str(suite), queries=30) == found


def test_an_image_that_is_grey_is_data_like_others(suite: Path, command: Command, tmp_path: Path) -> None:
    for name, shade in (("a", 20), ("b", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(2):
            Image.new("L", (16, 16), shade + i).save(tmp_path / "photos" / name / f"{i}.png")
    # The pool of CA+ and the clusters of so small a gallery are what may fail here; ES must run.
    only = suite.read_text().split("  CA+")[0]
    suite.write_text(only)
    done = command("evaluate", "own_parts.Net", suite, "--data", "photos", "--json")
    assert done.code == 0, done.err


def test_folders_of_one_name_and_size_but_other_images_are_both_evaluated(
    pictures: Pictures, suite: Path, command: Command, tmp_path: Path
) -> None:
    pictures(tmp_path / "one" / "photos")
    other = pictures(tmp_path / "two" / "photos")
    for path in other.rglob("*.png"):
        with Image.open(path) as image:
            flipped = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        flipped.save(path)
    results = tmp_path / "runs" / "evaluate-own_parts.Net-photos" / "results.jsonl"
    for place, count in (("one", 4), ("two", 8), ("one", 8), ("two", 8)):
        done = command("evaluate", "own_parts.Net", suite, "--data", f"{place}/photos")
        assert done.code == 0, done.err
        assert len(results.read_text().splitlines()) == count
    assert len({record.settings["data_fingerprint"] for record in records.read(results)}) == 2


def test_a_run_says_which_data_is_its_own(trained: Path, suite: Path, command: Command, tmp_path: Path) -> None:
    """The recipe's, by whatever name it is evaluated: what is published is of that."""
    own = shutil.copytree(trained, tmp_path / "own")
    validated = records.validated_on(records.read(own / "results.jsonl"))
    done = command("evaluate", own, suite, "--queries", 10, "--data", "digits")
    assert done.code == 0, done.err
    assert validated == {one.settings["data_fingerprint"] for one in records.read(own / "results.jsonl")[-4:]}


def test_an_existing_folder_wins_over_a_data_set_of_its_name(
    pictures: Pictures, suite: Path, command: Command, tmp_path: Path
) -> None:
    pictures(tmp_path / "digits", classes=4, each=3)
    done = command("evaluate", "own_parts.Net", suite, "--data", "digits", "--json")
    assert json.loads(done.out.splitlines()[0])["count"] == 12


def test_a_named_data_set_of_image_files_is_told_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    from robustmetric.data.cub import Cub
    from robustmetric.data.digits import Digits

    asked = []

    def load(self: Cub) -> Dataset:
        asked.append(self.skip_unreadable)
        return Digits().load()

    monkeypatch.setattr(Cub, "load", load)
    own_data("cub")
    own_data("cub", skip_unreadable=True)
    assert asked == [False, True]


def test_radii_are_shown_as_the_report_shows_them(run: Path, suite: Path, command: Command) -> None:
    suite.write_text(suite.read_text().replace("radii: [0.1, 0.2]", "radii: [0.05, 8/255]"))
    shown = command("evaluate", run, suite, "--queries", 20).err
    assert "ES at 0.05: " in shown and "ES at 8/255: " in shown and "12.75" not in shown


def test_other_data_are_seen_through_the_view_of_the_run(run: Path, pictures: Pictures, tmp_path: Path) -> None:
    pictures(tmp_path / "photos")
    guessed = find_target(str(run), data=str(tmp_path / "photos"), out=None)
    assert guessed.view == CentreCrop(224)
    assert guessed.folder.path == run, "a run keeps its results together"
    with (run / "recipe.yaml").open("a") as file:
        file.write("view: {name: centre_crop, size: 100}\n")
    assert find_target(str(run), data=str(tmp_path / "photos"), out=None).view == CentreCrop(100)


def test_a_fast_evaluation_says_what_it_changed(run: Path, suite: Path, command: Command) -> None:
    result = command("evaluate", str(run), str(suite), "--fast", "--queries", "20", "--accelerator", "cpu")
    assert result.code == 0 and "(fast, off by " in result.err
    found = [record for record in records.read(run / "results.jsonl") if record.kind == "attack"]
    for record in found[-1:]:
        # On a CPU the fast view is fp32 too, and this model has no batch norm to fold: nothing changes.
        assert record.settings["precision"] == "fp32"
        assert record.context["fast_minus_fp32"] == dict.fromkeys(record.scores, 0.0)


def transferring(suite: Path, surrogate: Path) -> Path:
    """A suite of one attack, and the same from a surrogate."""
    moved = f"{{name: transfer, attack: {{name: top1_misranking}}, surrogate: {surrogate}}}"
    suite.write_text(
        "engine: {name: pgd, ball: {name: ball, radius: 0.2}, steps: 4, step_size: 0.1, random_start: false}\n"
        f"attacks:\n  GTM: {{attack: {{name: top1_misranking}}}}\n  GTM from there: {{attack: {moved}}}\n"
    )
    return suite


def test_a_transferred_attack_climbs_on_the_surrogate_of_a_run_folder(
    run: Path, trained: Path, sibling: Path, command: Command, tmp_path: Path
) -> None:
    suite = transferring(tmp_path / "moved.yaml", sibling)
    first = command("evaluate", run, suite, "--queries", 50)
    assert first.code == 0, first.err
    white, moved = (r for r in records.read(run / "results.jsonl") if r.kind == "attack")
    assert moved.settings["surrogate_weights"] != white.settings["weights"]
    # Below the command, which refuses a model as its own surrogate.
    target = find_target(str(run), data=None, out=None)
    arena = Arena.prepare(target.model, target.dataset, target.view, Workers(torch.device("cpu")), limit=50)
    own = load_suite(str(transferring(tmp_path / "own.yaml", trained)))
    same, itself = (record for record, _ in run_suite(arena, own, 0, {}) if record.kind == "attack")
    assert same.scores == white.scores != moved.scores
    # The surrogate has the target's own weights: what moves it moves the target as far.
    assert itself.settings["surrogate_weights"] == white.settings["weights"]
    assert itself.scores == pytest.approx(white.scores, abs=1e-3)
    before = lines(run)
    assert command("evaluate", run, suite, "--queries", 50).code == 0
    assert lines(run) == before
