import json
from pathlib import Path

import pytest
from sample_runs import PLAIN, MakeRun, clean, epoch

from robustmetric.errors import InputError
from robustmetric.records import Record, append
from robustmetric.report.runs import read_run, read_runs


def test_a_run_is_read_whole(make_run: MakeRun):
    run = read_run(make_run("plain", *PLAIN, seed=3))
    assert (run.label, run.data, run.defence, run.model, run.seed) == ("plain", "digits", "plain", "convnet", 3)
    assert len(run.records) == len(PLAIN)
    assert "name: plain" in run.recipe
    assert run.context("versions") == ["torch 2.9.1"]


@pytest.mark.parametrize(
    ("command", "records", "said"),
    [
        ("robustmetric train digits/plain", (), ("trained at commit", "abc1234")),
        ("robustmetric certify tabular/digits-arml", (), ("fitted at commit", "abc1234")),
        ("", (epoch(1, triplet=0.2),), ("trained at commit", "abc1234")),
        ("", (), ("trained at commit", "not trained in this folder")),
    ],
)
def test_the_commit_of_an_evaluation_is_not_told_as_that_of_training(
    command: str, records: tuple[Record, ...], said: tuple[str, str], make_run: MakeRun
) -> None:
    assert read_run(make_run("plain", *PLAIN, *records, command=command)).made_at == said


def test_a_record_measured_again_counts_once_and_the_newest_wins(make_run: MakeRun):
    run = read_run(make_run("plain", clean(90.0), clean(91.0)))
    assert [record.scores["R@1"] for record in run.of_kind("clean")] == [91.0]


def test_a_folder_with_records_only_is_a_run(tmp_path: Path):
    append(tmp_path / "bare" / "results.jsonl", clean(90.0))
    run = read_run(tmp_path / "bare")
    assert (run.label, run.data, run.defence, run.recipe) == ("bare", "digits", "", "")


def test_the_resolved_recipe_stands_in_for_a_missing_file(make_run: MakeRun):
    path = make_run("plain", clean(90.0), recipe={"seed": 5})
    (path / "recipe.yaml").unlink()
    assert json.loads(read_run(path).recipe) == {"seed": 5}


def test_a_folder_without_results_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"results\.jsonl does not exist"):
        read_run(tmp_path)


def test_a_folder_of_run_folders_is_told_from_a_run(make_run: MakeRun) -> None:
    one, other = make_run("one", *PLAIN), make_run("other", *PLAIN)
    with pytest.raises(InputError, match="is no run folder but holds 2 of them; expected one: ") as error:
        read_run(one.parent)
    assert str(error.value).endswith(f": {one} {other}")


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # in a checkout, `make demo` may have made what is missing here
    with pytest.raises(InputError, match="nowhere is not a folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match="as `robustmetric demo` makes here"):
        read_run(Path("demo/plain"))


def test_empty_results_are_refused(tmp_path: Path):
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no record"):
        read_run(tmp_path)


@pytest.mark.parametrize("line", ['{"kind": "clean", "colour": "red"}', "[1, 2]"])
def test_lines_that_are_not_records_are_refused(tmp_path: Path, line: str):
    (tmp_path / "results.jsonl").write_text(f"{line}\n{line}\n")
    with pytest.raises(InputError, match="of this version"):
        read_run(tmp_path)


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[]", "expected an object")])
def test_a_broken_run_file_is_named(make_run: MakeRun, text: str, message: str):
    path = make_run("plain", clean(90.0))
    (path / "run.json").write_text(text)
    with pytest.raises(InputError, match=rf"run\.json.*{message}"):
        read_run(path)


def test_no_run_at_all_is_refused():
    with pytest.raises(InputError, match="no run was given"):
        read_runs([])


def test_runs_of_one_name_are_told_apart_by_seed_then_by_folder(make_run: MakeRun):
    paths = [make_run(f, clean(90.0), name="est", seed=s) for f, s in (("a", 0), ("b", 1), ("c", 1))]
    first, second, third = (run.label for run in read_runs(paths))
    assert first == "est (seed 0)"
    assert second != third and second.startswith("est (seed 1)") and str(paths[1]) in second


def test_a_folder_given_twice_is_one_run(make_run: MakeRun):
    path = make_run("plain", clean(90.0))
    assert len(read_runs([path, path / "."])) == 1
