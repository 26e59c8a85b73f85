"""Verify, block by block: of real rows of digits what is measured agrees, and a number that was changed differs."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from robustmetric.attacks.suite import Suite
from robustmetric.errors import InputError
from robustmetric.jobs.ledger import write_rows
from robustmetric.jobs.origin import Typed
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.target import evaluate
from robustmetric.jobs.train import train
from robustmetric.jobs.verify import Verified, verify
from robustmetric.jobs.verify_turns import Turns
from robustmetric.jobs.workers import Hardware
from robustmetric.report.ledger import Row

CPU = Hardware(accelerator="cpu")
SMALL = ["epochs=30", "sampler.batch=224", "model.trunk.widths=[8, 16]", "model.trunk.hidden=16", "model.trunk.dim=8"]
NEITHER_TURNS_NOR_GROUPS = """
rounded: false
engine: {ball: {name: ball, radius: 0.1}}
attacks:
  FGSM: {attack: {name: misclassify, loss: cross_entropy}, engine: {name: pgd, steps: 1, step_size: 0.1}}
  PGD-20:
    attack: {name: misclassify, loss: cross_entropy}
    engine: &twenty {name: pgd, steps: 20, step_size: 0.025}
    repeats: 5
  CW-20: {attack: {name: misclassify, loss: margin}, engine: *twenty, repeats: 5}
"""
"""Three of the suite `classification`, its steps scaled with the radius."""
Change = Callable[[Row], Any]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was evaluated by suites of rankings in both modes, AutoRank, and clustering; and its row beside it."""
    home = tmp_path_factory.mktemp("encoder")
    run = train("digits/plain", SMALL, home / "run", hardware=CPU)
    evaluate(str(run), "ers_sketch224", radius=0.1, modes=["fixed", "compat"], batch_size=100, hardware=CPU)
    evaluate(str(run), "auto_rank", radius=0.3, hardware=CPU)
    evaluate(str(run), "clustering", hardware=CPU)
    write_rows([run], home)
    return home


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was evaluated by attacks on classifiers and by the masking checks; and its row beside it."""
    home = tmp_path_factory.mktemp("classifier")
    run = train("digits/classifier", ["model.trunk.widths=[8, 16]"], home / "run", hardware=CPU)
    (home / "classification.yaml").write_text(NEITHER_TURNS_NOR_GROUPS)
    evaluate(str(run), str(home / "classification.yaml"), hardware=CPU)
    evaluate(str(run), "masking", radius=0.5, queries=12, hardware=CPU)
    write_rows([run], home)
    return home


def again(home: Path, tmp_path: Path, change: Change = lambda row: None, **options: Any) -> Verified:
    """The row in `home`, changed, is verified by the weights of its run."""
    (path,) = home.glob("*.json")
    row = json.loads(path.read_text())
    change(row)
    (tmp_path / path.name).write_text(json.dumps(row))
    return verify(tmp_path / path.name, model=home / "run", device="cpu", **options)


def differing(found: Verified) -> list[str]:
    return [check.name for check in found.differing]


def test_attacks_in_mode_compat_agree_to_the_last_digit_but_for_one_that_was_changed(
    encoder: Path, tmp_path: Path
) -> None:
    def change(row: Row) -> None:
        row["attacks"]["compat"]["GTM"] += 0.6

    found = again(encoder, tmp_path, change, attacks=["ES", "GTM"])
    assert differing(found) == ["GTM compat"]
    both = {check.name: check for check in found.checks}
    for title in ("ES:D", "ES:R", "GTM", "ES:D compat", "ES:R compat"):
        assert both[title].found == pytest.approx(both[title].recorded, abs=1e-4)
    assert both["GTM compat"].found == pytest.approx(both["GTM compat"].recorded - 0.6, abs=1e-4)
    assert both["ES:D compat"].found != both["ES:D"].found, "two modes"
    assert set(found.left_out) == {"AutoRank", "clustering.pgd10 (name it: --attack clustering)"}


def test_of_a_sample_a_mean_of_batch_means_has_a_wider_interval(encoder: Path, tmp_path: Path) -> None:
    # 896 queries in batches of 100: the last, of 96, counts 1/9 and not 96/896.
    found = {check.name: check for check in again(encoder, tmp_path, attacks=["GTM"], queries=64).checks}
    assert found["GTM compat"].agrees and found["GTM compat"].count == 64
    one = {name: found[name].interval for name in ("GTM", "GTM compat")}
    apart = 100 * (1 / 9 - 96 / 896)
    if found["GTM"].found == found["GTM compat"].found:
        assert one["GTM compat"] == pytest.approx((one["GTM"][0] - apart, one["GTM"][1] + apart))

    def change(row: Row) -> None:
        row["attacks"]["compat"]["GTM"] = 99.0

    assert differing(again(encoder, tmp_path, change, attacks=["GTM"], queries=64)) == ["GTM compat"]


def test_a_command_names_the_radius_that_was_asked_for_and_no_other(encoder: Path) -> None:
    (path,) = encoder.glob("*.json")
    commands = json.loads(path.read_text())["command"].split(" && ")
    assert [one.split(" --radius ")[1:] for one in commands[1:]] == [["0.1 --batch 100"], ["0.3"], []]


def test_what_auto_rank_leaves_is_verified_at_the_row_s_own_radius(encoder: Path, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        assert row["auto_rank"]["radius"] == 0.3
        row["auto_rank"]["R@1"] += 1.0

    assert differing(again(encoder, tmp_path, change, attacks=["AutoRank"])) == ["AutoRank"]
    sampled = again(encoder, tmp_path, attacks=["AutoRank"], queries=32)
    assert sampled.differing == [] and sampled.checks[-1].name == "AutoRank" and sampled.checks[-1].count == 32
    assert "clustering (it needs all images: leave out --queries)" in sampled.left_out


def test_clustering_is_verified_on_all_images(encoder: Path, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        row["clustering"]["pgd10"]["query only"]["R@2"] -= 0.6
        row["clustering"]["pgd10"]["NMI"] += 2.5
        row["clustering"]["pgd10"]["cosines"]["own"] -= 0.02
        row["clustering"]["pgd10"]["cosines"]["moved"] -= 0.005
        row["clustering"]["clean"]["R@8"] += 0.6
        row["clustering"]["noise"] = {"8": {"R@1": 50.0}}
        row["command"] += " && robustmetric evaluate runs/run clustering_noise"

    found = again(encoder, tmp_path, change, attacks=["clustering"])
    names = {check.name for check in found.checks}
    wrong = ["clean, R@8", "pgd10, NMI", "pgd10, query only, R@2", "pgd10, cosines, own"]
    assert differing(found) == [f"clustering, {key}" for key in wrong]
    assert {"clustering, pgd10, R@1", "clustering, pgd10, gallery only, R@1", "clustering, clean, F1"} <= names
    assert [reason for reason in found.left_out if reason.startswith("clustering")] == [
        "clustering.noise (name it: --attack clustering_noise)"
    ]


def test_of_a_suite_that_was_cut_the_attacks_of_the_row_alone_are_run_again(encoder: Path, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        row["clustering"]["pgd10"] |= {"attacks": ["another"], "of": 2}

    found = again(encoder, tmp_path, change, attacks=["clustering"])
    names = {check.name for check in found.checks}
    assert "clustering, clean, R@1" in names and not any("pgd10" in name for name in names)


def test_under_attack_clustering_is_compared_on_like_hardware_alone(encoder: Path, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        row["hardware"] = "1 x GPU"

    found = again(encoder, tmp_path, change, attacks=["clustering"])
    assert found.differing == [] and "clustering, clean, R@1" in {check.name for check in found.checks}
    assert "clustering.pgd10 (other hardware draws other starts)" in found.left_out


def test_a_row_about_clustering_needs_all_images_and_its_clean_scores_are_those(encoder: Path, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        commands = row["command"].split(" && ")
        row["command"] = " && ".join([commands[0], *(one for one in commands if "clustering" in one)])
        row["clean"] = {score: row["clustering"]["clean"][score] for score in ("R@1", "NMI")}
        row["clean"]["R@1"] -= 0.6
        del row["attacks"], row["auto_rank"]

    assert differing(again(encoder, tmp_path, change)) == ["R@1"]
    with pytest.raises(InputError, match="is about clustering, which needs all images; leave out --queries"):
        again(encoder, tmp_path, change, queries=32)


def test_accuracy_under_attack_is_verified_with_the_runs_it_is_the_worst_of(classifier: Path, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        row["classification"]["accuracy"]["FGSM"] += 0.6
        row["classification"]["lowest run"]["PGD-20"] -= 0.6

    found = again(classifier, tmp_path, change, attacks=["FGSM", "PGD-20"])
    assert differing(found) == ["FGSM", "PGD-20, lowest run"]
    apart = {check.name: check.found - check.recorded for check in found.checks}
    assert [apart[name] for name in ("accuracy", "PGD-20", "PGD-20, max - min")] == pytest.approx([0.0] * 3, abs=1e-4)
    assert {"CW-20", "CW-20, lowest run", "CW-20, max - min", "masking"} == set(found.left_out)
    sampled = again(classifier, tmp_path, attacks=["PGD-20"], queries=64)
    assert sampled.differing == [] and {check.count for check in sampled.checks} == {64}


def test_the_words_of_the_masking_checks_are_verified(classifier: Path, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        assert row["masking"]["verdict"] == "honest", "a verdict that can be changed"
        row["masking"]["checks"]["steps"] = "fail"
        row["masking"]["verdict"] = "masked"

    found = again(classifier, tmp_path, change, attacks=["masking"])
    assert differing(found) == ["masking, steps", "masking, verdict"]
    (line,) = [line for line in found.lines() if line.startswith("masking, steps")]
    assert line.split()[2:] == ["fail", "pass", "pass", "to", "pass", "DIFFERS"]
    # Twelve checks, the number of images and the verdict: transfer, the thirteenth, was not run.
    assert len([check for check in found.checks if check.name.startswith("masking, ")]) == 12 + 2
    assert any("other images" in reason for reason in again(classifier, tmp_path, queries=32).left_out)


def test_what_hangs_on_another_model_s_weights_is_named_and_the_other_checks_are_verified(
    classifier: Path, tmp_path: Path
) -> None:
    def change(row: Row) -> None:
        row["masking"]["checks"] |= {"black_box": "fail", "steps": "fail"}
        row["masking"]["verdict"] = "masked"
        row["command"] += " --surrogate runs/other"

    found = again(classifier, tmp_path, change, attacks=["masking"])
    assert differing(found) == ["masking, steps"]
    unmeasured = {reason for reason in found.left_out if "climbed on runs/other" in reason}
    assert {reason.split(" (")[0] for reason in unmeasured} == {
        "masking, black_box", "masking, worst_case", "masking, verdict",
    }  # fmt: skip


def test_of_few_images_the_masking_checks_need_the_row_s_own_hardware(classifier: Path, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        row["hardware"] = "1 x GPU"

    found = again(classifier, tmp_path, change, attacks=["masking"])
    assert any(reason.startswith("masking (of fewer than 100 images") for reason in found.left_out)


def test_what_has_no_weights_or_no_suite_at_hand_is_named(classifier: Path, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        own = {"weights": "a" * 16, "queries": 9, "accuracy": {"PGD-20": 3.0}}
        row["transfer"] = {"norm": "linf", "radius": 0.1, "sources": {"other": own}}
        row["command"] += " && robustmetric evaluate runs/run little"

    found = again(classifier, tmp_path, change, attacks=["FGSM"])
    assert "suite little (not one we ship)" in found.left_out
    assert any(reason.startswith("transfer (its attacks climbed on other runs") for reason in found.left_out)


def turns(suite: Suite, recorded: Mapping[tuple[str, str], float]) -> Turns:
    return Turns(Typed("evaluate", "runs/run", [suite.name], {}), suite, recorded, 100)


@pytest.mark.parametrize(
    ("chosen", "run", "group"),
    [
        ({"FGSM"}, ["FGSM"], []),
        ({"FAB-T"}, ["APGD-CE", "APGD-T", "FAB-T"], ["APGD-CE", "APGD-T", "FAB-T"]),
        # On all images, whatever was lost before.
        ({"Square"}, ["Square"], ["Square"]),
        ({"AutoAttack"}, ["APGD-CE", "APGD-T", "FAB-T", "Square"], ["APGD-CE", "APGD-T", "FAB-T", "Square"]),
    ],
)
def test_of_attacks_that_take_turns_those_before_are_run_too(
    chosen: set[str], run: list[str], group: list[str]
) -> None:
    whole = load_suite("classification")
    reduced = turns(whole, {}).reduced(chosen)
    assert [trial.label for trial in reduced.trials] == run
    assert reduced.survivors == ({"AutoAttack": group} if group else {})
    assert turns(whole, {}).reduced({"worst case"}) == whole
