"""What a certification is asked: by which method, with which settings; what is wrong leaves no folder behind."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from robustmetric import records
from robustmetric.certify.nearest import KNearest
from robustmetric.errors import InputError
from robustmetric.jobs import certify as job
from robustmetric.jobs import questions
from robustmetric.jobs.certified_ledger import read_certified_row
from robustmetric.jobs.learned import Fitted, Table
from robustmetric.jobs.questions import question_of
from robustmetric.learn import ARML
from robustmetric.records import Record
from robustmetric.report.certified_schema import faults

EUCLIDEAN = "tabular/digits-euclidean"
FEW = ["--points", "20"]


def names(out: str) -> list[str]:
    return [json.loads(line)["name"] for line in out.splitlines()]


# The method.


def test_a_method_picks_the_certificates_of_k_nearest_neighbours(tmp_path: Path, command: Command) -> None:
    for method, name in (("exact", "1-NN exact"), ("bound", "11-NN bound")):
        done = command("certify", EUCLIDEAN, "--method", method, "-o", method, "--json", *FEW)
        assert names(done.out) == ["fit", name]
        facts = json.loads((tmp_path / method / "run.json").read_text())
        assert facts["command"] == f"robustmetric certify {EUCLIDEAN} --points 20 --method {method}"
    # The folder holds the whole recipe: without the option the other one is added.
    assert names(command("certify", "exact", "--json").out) == ["fit", "1-NN exact", "11-NN bound"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([EUCLIDEAN, "--method", "exat"], "method 'exat' does not certify k-NN; did you mean 'exact'? (bound, exact)"),
        ([EUCLIDEAN, "--method", "smoothing"], "method 'smoothing' does not certify k-NN; expected bound, exact"),
        (["tabular/digits-crown", "--method", "exact"], "certifies a network, by crown: leave it out"),
        (
            [EUCLIDEAN, "certificates=[{name: knn_certificate}]", "--method", "bound"],
            "no certificate is of method 'bound'; add one to its certificates",
        ),
    ],
)
def test_a_method_that_certifies_nothing_is_refused(
    tmp_path: Path, command: Command, words: list[str], message: str
) -> None:
    assert message in command("certify", *words, "-o", "run").error
    assert not (tmp_path / "run").exists()


def test_an_encoder_is_certified_by_smoothing_alone(trained: Path, command: Command) -> None:
    words = ["certify", trained, "--samples", "200", "--points", "3", "-o", "out", "--json"]
    named, unnamed = json.loads(command(*words, "--method", "smoothing").out), json.loads(command(*words).out)
    assert named == unnamed and named["name"] == "smoothed retrieval"
    assert "which is not; did you mean 'smoothing'?" in command(*words, "--method", "smooth").error.replace(
        f"which {str(trained)!r} is not", "which is not"
    )
    assert "--method exact is for a recipe with a learner" in command(*words, "--method", "exact").error


# What a proof is called.


def test_a_proof_by_near_positives_is_not_called_exact(tmp_path: Path) -> None:
    assert KNearest().name == "1-NN exact" and KNearest(11, "bound").name == "11-NN bound"
    assert KNearest(positives=3).name == "1-NN, 3 near positives"
    assert KNearest(11, "bound", 8).name == "11-NN bound, 8 near positives"
    both = ["certificates=[{name: knn_certificate}, {name: knn_certificate, positives: 2}]", "points=20"]
    job.certify(EUCLIDEAN, tmp_path / "run", both)
    proofs = read_certified_row(tmp_path / "run")["certified"]
    assert [proof["name"] for proof in proofs] == ["1-NN exact", "1-NN, 2 near positives"]
    assert all(few >= all_ for few, all_ in zip(proofs[1]["error"], proofs[0]["error"], strict=True)), "looser"


@pytest.mark.parametrize(("device", "chunk"), [("cpu", 250), ("cuda", 1000)])
def test_a_gpu_is_asked_for_more_points_at_a_time(monkeypatch: pytest.MonkeyPatch, device: str, chunk: int) -> None:
    import torch

    monkeypatch.setattr(questions, "device_of", torch.device)
    rows = np.zeros((2, 1))
    table = Table(rows, np.arange(2), rows, np.arange(2), (1,))
    assert question_of(KNearest(), Fitted(Record("train", "fit", {}, {}), "0"), table, {}, device).chunk == chunk


# Settings that are wrong.

WRONG = [
    ("tabular/digits-arml", "learner.max_iter=abc", "learner: max_iter = 'abc'; expected a whole number >= 1"),
    ("tabular/digits-arml", "learner.max_iter=2.5", "learner: max_iter = 2.5; expected a whole number >= 1"),
    ("tabular/digits-arml", "learner.n_components=2.5", "learner: n_components = 2.5; expected a whole number >= 1"),
    ("tabular/digits-arml", "learner.random_state=abc", "learner: random_state = 'abc'; expected a whole number"),
    ("tabular/digits-arml", "learner.init=unit", "init 'unit' is not known"),
    ("tabular/digits-arml", "learner.n_components=65", "n_components = 65 of 64 features"),
    ("tabular/digits-crown", "learner.epochs=2.5", "learner: epochs = 2.5; expected a whole number >= 1"),
    ("tabular/digits-crown", "learner.network=cnn", "are no square images"),
    ("tabular/digits-pruning", "learner.radius=far", "learner: radius 'far' is no distance"),
    (EUCLIDEAN, "points=2.5", "points=2.5 certify nothing; expected a whole number"),
    (EUCLIDEAN, "seed=abc", "seed='abc' is not known; expected a whole number from 0"),
    (EUCLIDEAN, "shuffle=abc", "shuffle='abc' is not known; expected a whole number from 0"),
    (EUCLIDEAN, "shuffle=-1", "shuffle=-1 is not known; expected a whole number from 0"),
    (EUCLIDEAN, "shuffle=4294967296", "expected a whole number from 0 to 4294967295"),
    (EUCLIDEAN, "certificates=[]", "certificates: [] proves nothing; expected one or more"),
    (EUCLIDEAN, "certificates=[{name: knn_certificate, neighbours: 2.5, method: bound}]", "neighbours=2.5 with"),
    (EUCLIDEAN, "certificates=[{name: knn_certificate, neighbours: 5000, method: bound}]", "among 1257 rows"),
    (EUCLIDEAN, "certificates=[{name: knn_certificate, positives: 0}]", "positives=0 prove nothing for 1 votes"),
]
EACH = """
import contextlib, io, json, pathlib, sys
from robustmetric import cli
found = []
for recipe, change, _ in json.loads(sys.argv[1]):
    said, sys.argv = io.StringIO(), ["robustmetric", "certify", recipe, change, "-o", "run"]
    with contextlib.redirect_stderr(said):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        except Exception as error:
            code = repr(error)
    found.append([code, said.getvalue(), pathlib.Path("run").exists()])
print(json.dumps(found))
"""


def test_what_is_wrong_is_one_line_and_leaves_no_folder(tmp_path: Path) -> None:
    """In a process where no types are checked, as a user's is."""
    command = [sys.executable, "-c", EACH, json.dumps(WRONG)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for (_, change, message), (code, said, is_there) in zip(WRONG, found, strict=True):
        assert code == 2 and message in said and said.count("\n") == 1, (change, code, said)
        assert not is_there, change


def test_a_fit_that_fails_leaves_the_folder_to_the_corrected_command(tmp_path: Path, command: Command) -> None:
    words = ["certify", "tabular/digits-arml", "-o", "run", "--method", "exact", *FEW]
    assert "n_components = 65" in command(*words, "learner.n_components=65").error
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert "n_components = 65" in command(*words, "learner.n_components=65").error
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]
    assert command(*words, "learner.max_iter=2").code == 0
    # What was recorded stays, whatever is asked next.
    assert "holds another recipe" in command(*words, "learner.max_iter=3").error
    assert (tmp_path / "run" / "recipe.yaml").is_file()


def test_errors_of_a_foreign_learner_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise TypeError("two\nlines")

    monkeypatch.setattr(ARML, "_learn", refuse)
    with pytest.raises(InputError, match=r"ARML\(.*\) could not be fitted: two lines"):
        job.certify("tabular/digits-arml", tmp_path / "run", ["points=2"])


# Rows that were kept.


def test_a_row_says_how_many_rows_pruning_kept(tmp_path: Path) -> None:
    for name, kept in (("pruning", 1209), ("euclidean", None)):
        job.certify(f"tabular/digits-{name}", tmp_path / name, ["points=20"], method="exact")
        (fit,) = (record for record in records.read(tmp_path / name / "results.jsonl") if record.kind == "train")
        row = read_certified_row(tmp_path / name)
        assert (fit.scores.get("kept"), row.get("kept_rows")) == (kept, kept) and row["rows"] == 1257
    assert faults({**row, "kept_rows": 1.5}) == ["kept_rows 1.5 is no count"]


# Networks of other kinds.


def test_a_cnn_and_wide_noise_are_certified(tmp_path: Path) -> None:
    _, crown = job.certify("tabular/digits-crown_cnn", tmp_path / "cnn", ["learner.epochs=2", "points=6"])
    assert crown.name == "crown" and crown.settings["rows"] == 1257 and crown.scores["mean radius"] > 0
    words = [
        "learner.epochs=2",
        "points=6",
        "certificates=[{name: smoothing, sigma: 1.0, samples: 200, selection: 20}]",
    ]
    _, smoothing = job.certify("tabular/digits-smoothing_1", tmp_path / "smoothing", words)
    assert smoothing.name == "smoothing" and "sigma=1.0" in smoothing.settings["learner"]
