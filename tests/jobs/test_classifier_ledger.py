"""Names and numbers of classifiers' rows: no two recipes of the rebuttal's tables share a row."""

from robustmetric import recipe
from robustmetric.jobs.classifier_ledger import auto_rank, batch_name, classification, model_name
from robustmetric.jobs.ledger import cost
from robustmetric.records import Record
from robustmetric.report.names import label, steps


def test_every_recipe_of_a_classifier_has_a_row_of_its_own() -> None:
    names = [name for name in recipe.listing() if name.startswith(("cifar10/fs_", "cifar10/transform_"))]
    assert len(names) > 30
    rows = {}
    for name in names:
        spec = recipe.load(recipe.locate(name))
        kind = (model_name(spec, "other"), label(spec["defence"], "cifar10"), steps(spec["defence"]), *batch_name(spec))
        rows.setdefault(kind, []).append(name)
    assert [shared for shared in rows.values() if len(shared) > 1] == []


def test_labels_by_hand() -> None:
    loss = {"name": "cross_entropy", "smoothing": 0.5}
    assert label({"name": "madry", "loss": {"name": "cross_entropy"}}) == "madry"
    assert label({"name": "scattering", "loss": loss}) == "scattering_smoothing0_5"
    matched = {"name": "scattering", "loss": loss, "matching": {"name": "uniform_matching"}, "detached": True}
    assert label(matched) == "scattering_uniform_detached_smoothing0_5"
    inner = {"trunk": {"name": "wide_resnet", "depth": 16, "width": 8}}
    assert model_name({"model": inner}, "x") == "wide_resnet16_8"
    assert model_name({"model": {"trunk": {"name": "small_resnet"}}}, "x") == "resnet18"
    assert model_name({"model": {"model": inner, "transforms": [{"name": "jpeg"}]}}, "x") == "jpeg_wide_resnet16_8"
    assert model_name({"model": {"trunk": {"name": "convnet"}}}, "convnet") == "convnet"
    assert batch_name({"sampler": {"batch": 40}}) == ["batch40"] and batch_name({"sampler": {"batch": 60}}) == []


def test_cost_in_forward_passes_is_that_of_the_specification() -> None:
    # FS: a clean forward, one step of two, an update of three. Random targets: seven steps of two, and the update.
    assert cost({"name": "scattering", "attack": {"steps": 1}}) == 6
    assert cost({"name": "random_target", "attack": {"steps": 7}}) == 17


def attacked(
    name: str, suite: str, value: float, kind: str = "attack", radius: float = 8 / 255, score: str = "accuracy"
) -> Record:
    settings = {"suite": suite, "norm": "linf", "radius": radius}
    return Record(kind, name, {score: value}, settings, {score: (value - 1, value + 1)}, 200)


def test_the_fuller_suite_counts_and_local_search_stands_aside() -> None:
    found = [
        attacked("worst case", "classification", 30.0, "worst_case"),
        attacked("PGD-20", "classification", 60.0),
        attacked("worst case", "autoattack", 36.0, "worst_case"),
        attacked("PGD-20", "classification", 1.0, radius=0.5),
    ]
    local = [attacked("Local search, unbounded", "local_search", 5.0)]
    assert classification(found, local, 8 / 255) == {
        "norm": "linf", "radius": 0.031373, "accuracy": {"worst case": 30.0, "PGD-20": 60.0},
        "local_search": {"Local search, unbounded": 5.0}, "local_search_queries": 200,
        "worst_case_interval": [29.0, 31.0],
    }  # fmt: skip
    assert classification([], [], None) == {} and auto_rank(found, None) == {}


def test_a_row_says_which_attacks_met_only_what_others_left() -> None:
    swept = attacked("Square", "autoattack_pgd100", 36.0)
    swept.settings["standing"] = 370
    assert classification([attacked("PGD-100", "autoattack_pgd100", 60.0), swept], [], None)["in_turn"] == ["Square"]
    # On all images by the fuller suite, whose number counts.
    assert "in_turn" not in classification([swept, attacked("Square", "classification", 50.0)], [], None)


def test_auto_rank_is_in_a_row_of_retrieval() -> None:
    found = [attacked("AutoRank", "auto_rank", 12.5, "worst_case", score="R@1")]
    assert auto_rank(found, None) == {"norm": "linf", "radius": 0.031373, "R@1": 12.5, "R@1_interval": [11.5, 13.5]}
    assert classification(found, [], None) == {}


def test_the_radius_of_a_block_is_that_of_its_own_records() -> None:
    shifted = attacked("ES", "ers28", 10.0, radius=77 / 255, score="ES:R")
    ranked = attacked("AutoRank", "auto_rank", 12.5, "worst_case", score="R@1")
    named = attacked("PGD-20", "classification", 60.0, radius=0.1)
    found = [shifted, ranked, named]
    assert auto_rank(found, None)["radius"] == 0.031373 and classification(found, [], None)["radius"] == 0.1
    local = [attacked("Local search, clipped", "local_search", 88.0)]
    assert "local_search" not in classification(found, local, None), "at another radius than the other attacks"


def test_radius_0_attacks_nothing_and_is_no_row() -> None:
    still = attacked("PGD-20", "classification", 99.0, radius=0.0)
    assert classification([still], [], None) == {}
    moved = attacked("PGD-20", "classification", 60.0, radius=0.1)
    assert classification([still, moved], [], None)["accuracy"] == {"PGD-20": 60.0}


def test_groups_of_a_larger_batch_are_part_of_a_row_s_name() -> None:
    fast = {"sampler": {"batch": 240}, "defence": {"group": 60}}
    assert batch_name(fast) == ["batch240", "group60"]
    assert batch_name({**fast, "defence": {"group": 40}}) == ["batch240", "group40"], "another row"
    assert batch_name({**fast, "defence": {}}) == batch_name({**fast, "defence": {"group": 240}}) == ["batch240"]
    assert batch_name({"sampler": {"batch": 60}, "defence": {"group": 60}}) == []
