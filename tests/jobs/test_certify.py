"""Certifying a recipe: fitted once, proved in parts, resumed, and written down as it was proved."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Command
from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.jobs import certify as job
from robustmetric.jobs.certified_ledger import retrieval_block, retrieval_commands, retrieval_proofs
from robustmetric.jobs.proofs import Question, curve, proved
from robustmetric.records import Record
from robustmetric.report.certified import certified_table, read_certified
from robustmetric.report.certified_schema import faults, retrieval_faults

FEW = ["--points", "40"]


def table(folder: Path) -> Path:
    """Two classes of a line, and a recipe that certifies the nearest neighbour on it."""
    np.savez(
        folder / "line.npz",
        x_train=np.array([[0.0], [1.0]]), y_train=np.array([0, 1]),
        x_test=np.array([[0.0], [0.2], [0.5], [0.9], [0.6]]), y_test=np.array([0, 0, 0, 1, 0]),
    )  # fmt: skip
    path = folder / "line.yaml"
    path.write_text(
        f"data: {{name: tabular, file: {folder / 'line.npz'}}}\nlearner: {{name: euclidean}}\n"
        "certificates: [{name: knn_certificate}]\nradii: [0, 0.1, 0.35, 0.45]\n"
    )
    return path


def test_errors_are_the_shares_of_radii_that_are_no_larger(tmp_path: Path) -> None:
    _, record = job.certify(str(table(tmp_path)), tmp_path / "run")
    # The border lies at 0.5: radii 0.5, 0.3, 0 (on it), 0.4, and 0 (wrong), in some order.
    assert record.scores == pytest.approx(
        {"error@0": 40, "error@0.1": 40, "error@0.35": 60, "error@0.45": 80, "area": 100 * (0.15 + 0.05 + 0.9) / 2.25,
         "mean radius": 0.24}
    )  # fmt: skip
    assert record.count == 5 and record.settings["rows"] == 2 and record.name == "1-NN exact"
    assert record.context["curve"]["radii"] == pytest.approx([0, 0.3, 0.4, 0.5])
    assert record.context["curve"]["error"] == pytest.approx([40, 60, 80, 100])
    assert {path.name for path in (tmp_path / "run" / "certified").iterdir()} >= {"curves.png", "curves.svg"}


def test_a_second_run_fits_and_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = job.certify(str(table(tmp_path)), tmp_path / "run")
    monkeypatch.setattr(job.KNearest, "fit", lambda *given: pytest.fail("there is nothing left to prove"))
    monkeypatch.setattr("robustmetric.jobs.learned._fit", lambda *given: pytest.fail("the learner was fitted"))
    assert job.certify(str(table(tmp_path)), tmp_path / "run") == first
    assert len((tmp_path / "run" / "results.jsonl").read_text().splitlines()) == 2
    # Other radii are read off what was proved.
    _, other = job.certify(str(table(tmp_path)), tmp_path / "run", ["radii=[0.2, 0]"])
    assert other.scores["error@0.2"] == 40 and other.settings["radii"] == [0.0, 0.2]


@pytest.mark.parametrize("changed", ["x_train", "x_test"])
def test_other_rows_are_fitted_and_proved_anew(tmp_path: Path, changed: str) -> None:
    _, first = job.certify(str(table(tmp_path)), tmp_path / "run")
    arrays = dict(np.load(tmp_path / "line.npz"))
    arrays[changed] = arrays[changed] + 0.2
    np.savez(tmp_path / "line.npz", **arrays)
    path = tmp_path / "line.yaml"
    _, second = job.certify(str(path), tmp_path / "run")
    _, fresh = job.certify(str(path), tmp_path / "fresh")
    assert second.scores == fresh.scores != first.scores


def test_a_metric_that_was_fitted_again_is_proved_again(tmp_path: Path) -> None:
    words = ["learner.max_iter=5", "points=30", "certificates=[{name: knn_certificate}]"]
    _, first = job.certify("tabular/digits-arml", tmp_path / "run", words)
    learned = tmp_path / "run" / "learned.npz"
    matrix = dict(np.load(learned))["matrix"]
    np.savez(learned, matrix=np.diag(np.linspace(0.1, 3, len(matrix))))
    _, second = job.certify("tabular/digits-arml", tmp_path / "run", words)
    assert second.scores != first.scores and second.settings["learned"] != first.settings["learned"]
    learned.write_bytes(learned.read_bytes()[:200])
    _, third = job.certify("tabular/digits-arml", tmp_path / "run", words)
    assert third.scores == first.scores, "a damaged file is fitted again, to the same metric"


def test_the_seed_is_that_of_the_learner(tmp_path: Path) -> None:
    words = ["learner.max_iter=5", "points=30", "certificates=[{name: knn_certificate}]"]
    found = [job.certify("tabular/digits-arml", tmp_path / str(seed), [*words, f"seed={seed}"])[1] for seed in (0, 1)]
    assert found[0].settings["learned"] != found[1].settings["learned"] and [r.seed for r in found] == [0, 1]
    own = job.certify("tabular/digits-arml", tmp_path / "own", [*words, "seed=1", "learner.random_state=0"])[1]
    assert own.settings["learned"] == found[0].settings["learned"]


def test_a_network_never_gives_a_label_it_was_not_trained_on(tmp_path: Path) -> None:
    recipe = table(tmp_path)
    arrays = dict(np.load(tmp_path / "line.npz"))
    x = np.repeat(arrays["x_train"], 20, axis=0) + np.linspace(0, 0.05, 40)[:, None]
    np.savez(
        tmp_path / "line.npz", x_train=x, y_train=np.repeat([0, 2], 20), x_test=np.array([[0.0], [1.0], [0.5]]),
        y_test=np.array([0, 2, 1]),
    )  # fmt: skip
    for certificate in ("{name: crown}", "{name: smoothing, sigma: 0.1, samples: 200, selection: 20}"):
        words = ["learner={name: network, widths: [8], epochs: 60, rate: 0.03}", f"certificates=[{certificate}]"]
        _, record = job.certify(str(recipe), tmp_path / certificate[7:12], words)
        assert record.scores["error@0"] == pytest.approx(100 / 3), "the unseen label alone is wrong"


def test_a_radius_that_is_none_is_refused_and_not_kept(tmp_path: Path) -> None:
    broken = Question("broken", 4, {}, lambda part: np.array([1.0, np.nan, 1.0, 1.0])[part], chunk=1)
    with pytest.raises(InputError, match="a radius of points 1 to 1 is NaN or negative"):
        proved(broken, [0.0], tmp_path, 0, {})
    asked: list[slice] = []

    def mended(part: slice) -> np.ndarray:
        asked.append(part)
        return np.full(part.stop - part.start, 2.0)

    _, radii = proved(replace(broken, prove=mended), [0.0], tmp_path, 0, {})
    assert radii.tolist() == [1.0, 2.0, 2.0, 2.0] and asked[0] == slice(1, 2)


def question(asked: list[slice], stop_after: int | None = None) -> Question:
    def prove(part: slice) -> np.ndarray:
        if stop_after is not None and len(asked) == stop_after:
            raise KeyboardInterrupt
        asked.append(part)
        return np.arange(part.start, part.stop, dtype=float)

    return Question("counted", 7, {"of": "test"}, prove, chunk=3)


def test_a_stopped_proof_goes_on_where_it_was(tmp_path: Path) -> None:
    asked: list[slice] = []
    with pytest.raises(KeyboardInterrupt):
        proved(question(asked, stop_after=2), [0.0, 2.0], tmp_path, 0, {})
    assert asked == [slice(0, 3), slice(3, 6)]
    record, radii = proved(question(asked), [0.0, 2.0], tmp_path, 0, {})
    assert asked[2:] == [slice(6, 7)] and radii.tolist() == list(range(7))
    assert record.scores["error@2"] == pytest.approx(300 / 7) and record.count == 7
    # Other settings are another question.
    proved(replace(question(asked), settings={"of": "other"}), [0.0], tmp_path, 0, {})
    assert len(asked) == 6


@pytest.mark.parametrize("spoil", [b"", b"junk"])
def test_a_damaged_file_of_radii_is_proved_again(tmp_path: Path, spoil: bytes) -> None:
    asked: list[slice] = []
    proved(question(asked), [0.0], tmp_path, 0, {})
    next(tmp_path.glob("*.npz")).write_bytes(spoil)
    _, radii = proved(question(asked), [0.0], tmp_path, 0, {})
    assert len(asked) == 6 and radii.tolist() == list(range(7))


def test_infinite_radii_are_right_at_every_radius(tmp_path: Path) -> None:
    safe = Question("safe", 4, {}, lambda part: np.array([0.0, 1.0, np.inf, np.inf])[part])
    record, _ = proved(safe, [0.0, 2.0], tmp_path, 0, {})
    assert record.scores == {"error@0": 25.0, "error@2": 50.0, "area": 100 * (2 + 1) / 8}, "and no mean radius"
    assert record.context["curve"] == {"radii": [0.0, 1.0], "error": [25.0, 50.0]}
    again, _ = proved(safe, [0.0, 2.0], tmp_path, 0, {})
    assert again.scores == record.scores
    kept = replace(safe, is_retrieval=True, settings={"of": "queries"})
    retrieved, _ = proved(kept, [0.0, 2.0], tmp_path, 0, {})
    assert retrieved.scores == {"R@1@0": 75.0, "R@1@2": 50.0}


def test_a_curve_of_many_radii_is_thinned_from_end_to_end() -> None:
    found = curve(np.linspace(0, 1, 5001))
    assert len(found["radii"]) == 200 and (found["radii"][0], found["radii"][-1]) == (0.0, 1.0)
    assert found["error"][-1] == 100.0


def test_pruned_rows_are_left_out_of_the_search(tmp_path: Path) -> None:
    recipe = table(tmp_path)
    recipe.write_text(recipe.read_text().replace("name: euclidean", "name: pruning, radius: 0.6"))
    # 1 apart is less than 1.2: one of the two rows goes, and with one class left nothing can change.
    _, record = job.certify(str(recipe), tmp_path / "run")
    assert record.scores["error@0"] in (20.0, 80.0) and record.scores["error@0.45"] == record.scores["error@0"]


def test_networks_are_certified_by_their_own_proofs(tmp_path: Path) -> None:
    small = ["learner.epochs=3", "learner.widths=[8]", "points=12"]
    _, crown = job.certify("tabular/digits-crown", tmp_path / "crown", small)
    more = ["learner.epochs=3", "learner.widths=[8]", "points=12"]
    more += ["certificates=[{name: smoothing, sigma: 0.2, samples: 200, selection: 20}]"]
    _, smoothing = job.certify("tabular/digits-smoothing", tmp_path / "smoothing", more)
    for record, name in ((crown, "crown"), (smoothing, "smoothing")):
        assert record.name == name and record.count == 12 and 0 < record.scores["mean radius"] < 2
    again = job.certify("tabular/digits-crown", tmp_path / "crown", small)
    assert again[1] == crown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("learner={name: network}", "expected a metric, such as learner: {name: arml}"),
        ("certificates=[{name: crown}]", "does not certify Euclidean(); expected learner: {name: network}"),
        ("certificates=[{name: pgd}]", "PGD needs 'ball'"),
        ("certificates=[{name: digits}]", "is no list of certificates; see `robustmetric list certificates`"),
        ("certificates=3", "3 is no list of certificates"),
        ("learner={name: digits}", "learns no metric and is no network; see `robustmetric list learners`"),
        ("learner={name: sklearn.neighbors.NearestCentroid}", "learns no metric and is no network"),
        ("data={name: euclidean}", "is not a data set; it has no load()"),
        ("seed=-1", "seed=-1 is not known"),
        ("radii=[0.1, 0.10000001]", "are nearly equal"),
        ("points=0", "points=0 certify nothing"),
        ("radii=[]", "are no list of distances"),
        ("radii=[-1]", "are no list of distances"),
        ("epochs=3", "'epochs' is not a setting of a certified recipe"),
        ("certificates=[{name: knn_certificate, neighbours: 3}]", "expected 1, or method 'bound'"),
        ("certificates=[{name: knn_certificate, method: exat}]", "did you mean 'exact'"),
        ("data.join=[[a, b]]", "class 'a' to join is not there"),
    ],
)
def test_what_cannot_be_certified_is_said_in_one_line(
    tmp_path: Path, command: Command, change: str, message: str
) -> None:
    assert message in command("certify", table(tmp_path), change, "-o", "run").error


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_there_is_said_before_anything_is_done(tmp_path: Path, command: Command) -> None:
    error = command("certify", table(tmp_path), "--device", "cuda", "-o", "run").error
    assert "device 'cuda' cannot be used" in error and not (tmp_path / "run").exists()


def test_of_many_recipes_only_the_nearest_are_named(command: Command) -> None:
    error = command("certify", "tabular/satimage-armll").error
    assert "did you mean 'tabular/satimage-arml'" in error and len(error) < 500


def test_a_folder_of_another_recipe_is_not_added_to(tmp_path: Path, command: Command) -> None:
    assert command("certify", table(tmp_path), "-o", "run").code == 0
    assert "holds another recipe" in command("certify", table(tmp_path), "points=3", "-o", "run").error
    # Other radii and certificates are asked of the same learner.
    assert command("certify", table(tmp_path), "radii=[0, 0.3]", "-o", "run").code == 0
    assert command("certify", "run", "--json").out.count("\n") == 2, "a folder goes by its own recipe"


def test_training_a_certified_recipe_names_the_right_command(command: Command) -> None:
    assert "run `robustmetric certify tabular/digits-arml`" in command("train", "tabular/digits-arml").error


def test_rows_of_the_ledger_hold_what_was_proved(tmp_path: Path, command: Command) -> None:
    done = command("certify", "tabular/digits-euclidean", "-o", "run", *FEW, "--json")
    by_name = {line["name"]: line for line in map(json.loads, done.out.splitlines())}
    assert set(by_name) == {"fit", "1-NN exact", "11-NN bound"}
    assert command("ledger", "run", "-o", "results/tabular").code == 0
    (row,) = read_certified(tmp_path / "results" / "tabular")
    assert row["id"] == "digits-euclidean-seed0" and row["points"] == 40 and row["rows"] == 1257
    assert row["command"] == "robustmetric certify tabular/digits-euclidean --points 40"
    assert [proof["name"] for proof in row["certified"]] == ["1-NN exact", "11-NN bound"]
    for proof in row["certified"]:
        scores = by_name[proof["name"]]["scores"]
        assert proof["error"] == [round(scores[f"error@{radius:g}"], 2) for radius in proof["radii"]]
    shown = command("ledger", "--table", "results/tabular").out
    assert "### digits_table, 1-NN exact" in shown and "| euclidean |" in shown
    assert certified_table(tmp_path / "results" / "tabular") in shown
    assert "is no folder of results" in command("ledger", "--table", "gone/tabular").error


def test_a_spoiled_row_is_refused_with_the_reason(tmp_path: Path) -> None:
    good = {
        "id": "a-seed0", "data": "d", "learner": "l()", "recipe": "r", "command": "c", "commit": "0", "hardware": "h",
        "seed": 0, "rows": 2, "points": 3,
        "certified": [{"certificate": "k", "name": "1-NN", "radii": [0, 1], "error": [1.0, 2.0], "seconds": 1.0}],
    }  # fmt: skip
    assert faults(good) == [] and faults([]) == ["expected an object, found list"]
    assert faults({**good, "rows": "2"}) == ["rows '2' is no count"] and faults({**good, "x": 1}) == ["x is not known"]
    proof = good["certified"][0]  # type: ignore[index]
    for errors, message in (
        ([2.0, 1.0], "none smaller"),
        ([1.0], "an error for each radius"),
        ([1.0, 101.0], "percent"),
    ):
        assert any(message in fault for fault in faults({**good, "certified": [{**proof, "error": errors}]}))
    (tmp_path / "b-seed0.json").write_text(json.dumps(good))
    with pytest.raises(InputError, match="id 'a-seed0' is not the name of the file"):
        read_certified(tmp_path)
    (tmp_path / "b-seed0.json").write_text("{")
    with pytest.raises(InputError, match=r"b-seed0.json, line 1: not valid JSON"):
        read_certified(tmp_path)


def test_an_encoders_certificates_stand_in_its_row() -> None:
    """The newest of each, of the weights that lie there alone, with the command that made it."""

    def proof(rate: float, weights: str = "ab", search: str = "vote", count: int = 500) -> Record:
        settings = {"certificate": f"S({search})", "sigma": 0.25, "samples": 1000, "search": search, "radii": [0.1]}
        scores = {"R@1@0": 60.0, "R@1@0.1": rate, "mean radius": 0.2}
        return Record("certified", "smoothed retrieval", scores, {**settings, "weights": weights}, count=count)

    records = [proof(10.0), proof(20.0), proof(30.0, weights="cd"), proof(40.0, search="mean", count=12)]
    found = retrieval_proofs([*records, Record("certified", "1-NN exact", {}, {})], "ab12")
    block = retrieval_block(found)
    assert [one["R@1"] for one in block] == [[60.0, 20.0], [60.0, 40.0]] and retrieval_faults(block) == []
    assert block[0]["radii"] == [0.0, 0.1] and block[1]["queries"] == 12 and block[0]["mean_radius"] == 0.2
    assert retrieval_commands({"name": "x"}, found) == [
        "robustmetric certify runs/x --sigma 0.25 --samples 1000 --search vote",
        "robustmetric certify runs/x --sigma 0.25 --samples 1000 --search mean --points 12",
    ]
    assert "none larger" in retrieval_faults([{**block[0], "R@1": [1.0, 2.0]}])[0]
    assert "percent" in retrieval_faults([{**block[0], "R@1": [101.0, 2.0]}])[0]
    assert "lacks sigma" in retrieval_faults([{k: v for k, v in block[0].items() if k != "sigma"}])[0]
    assert "not known" in retrieval_faults([{**block[0], "colour": 1}])[0] and retrieval_faults("x") and not block[2:]


def test_an_encoders_retrieval_is_certified_and_resumed(trained: Path, command: Command, tmp_path: Path) -> None:
    words = ["certify", trained, "--sigma", "0.1", "--samples", "200", "--points", "12", "-o", "out", "--json"]
    words += ["--search", "vote"]
    first = json.loads(command(*words).out)
    assert first["name"] == "smoothed retrieval" and first["count"] == 12
    shares = [first["scores"][f"R@1@{radius:g}"] for radius in (0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2)]
    assert shares == sorted(shares, reverse=True) and shares[0] > 0
    again = json.loads(command(*words).out)
    assert again == first and len(records.read(tmp_path / "out" / "results.jsonl")) == 1
    mean = json.loads(command(*words, "--search", "mean", "--radius", "0.05").out)
    assert set(mean["scores"]) == {"R@1@0", "R@1@0.05", "mean radius"}
    assert "did you mean 'vote'" in command(*words, "--search", "vot").error
    assert "changes a recipe with a learner" in command("certify", trained, "learner.max_iter=3").error
    misspelt = command("certify", "tabular/digit-arml", "learner.max_iter=3")
    assert "'tabular/digit-arml' is no file and no recipe we ship; did you mean" in misspelt.error
    assert "are no list of distances" in command(*words, "--radius", "-1").error
    assert "are no list of distances" in command(*words, "--radius", "nan").error
    other = command("certify", "tabular/digits-euclidean", "-o", "table", *FEW)
    assert other.code == 0 and "holds another recipe" in command(*words, "-o", "table").error
    assert "--sigma is for encoders" in command("certify", "tabular/digits-euclidean", "--sigma", "1").error


def test_a_run_without_proofs_makes_no_row(tmp_path: Path, command: Command) -> None:
    assert command("certify", table(tmp_path), "-o", "run").code == 0
    results = tmp_path / "run" / "results.jsonl"
    kept = [record for record in records.read(results) if record.kind == "train"]
    results.unlink()
    for record in kept:
        records.append(results, record)
    assert "holds nothing certified" in command("ledger", "run", "-o", "rows").error
    assert isinstance(kept[0], Record) and kept[0].scores["seconds"] >= 0


def test_joined_classes_are_one(tmp_path: Path) -> None:
    from robustmetric.data.tabular import Tabular

    x = np.arange(12.0)[:, None]
    np.savez(tmp_path / "three.npz", x=x, y=np.arange(12) % 3 + 1)
    data = Tabular(str(tmp_path / "three.npz"), join=(("1", "2"),)).load()
    assert data.train.class_names == ("1+2", "3")
    everything = torch.cat([data.train.labels, data.queries.labels])
    assert torch.bincount(everything).tolist() == [8, 4]


def test_digits_as_a_table_have_all_classes_in_both_parts() -> None:
    from robustmetric.data.digits import DigitsTable

    data = DigitsTable().load()
    assert (len(data.train), len(data.queries)) == (1257, 540) and data.train.shape == (64,)
    assert len(data.train.labels.unique()) == len(data.queries.labels.unique()) == 10
    assert float(data.train.inputs.max()) == 1.0 and not set(data.train.names) & set(data.queries.names)


def test_a_page_shows_what_was_proved(tmp_path: Path, command: Command, trained: Path) -> None:
    for name in ("euclidean", "arml"):
        assert command("certify", f"tabular/digits-{name}", "-o", name, *FEW).code == 0
    words = ["--samples", "200", "--points", "5", "--search", "vote", "-o", "encoder"]
    assert command("certify", trained, *words).code == 0
    page = Path(command("report", "euclidean", "arml", "encoder", "-o", "page").out.strip()).read_text()
    assert page.count("<h2>Certified: ") == 4 and "has not been evaluated" not in page
    titles = ("1-NN exact, digits_table", "all certificates, digits_table", "smoothed retrieval, digits")
    assert all(f"Certified: {title}" in page for title in titles)
    assert "euclidean, 11-NN bound" in page and "arml, 1-NN exact" in page
    assert "nothing is said about robustness" not in page
    errors = {r.name: r.scores for r in records.read(tmp_path / "arml" / "results.jsonl")}
    assert f"<td>{errors['11-NN bound']['error@0.6']:.1f}</td>" in page
