"""Boards of the ledger: who may be compared with whom, what counts, and who stands first."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from robustmetric.report import clustering_rows, comparison
from robustmetric.report.board import Board, Chapter
from robustmetric.report.boards import STRONGEST, chapters, strongest, strongest_of_clustering
from robustmetric.report.scores import DASH
from robustmetric.report.seeds import mean, over_seeds


@pytest.fixture(scope="module", autouse=True)
def published_once() -> Iterator[None]:
    """What is published of a data set is looked up once, and not in all recipes for every board."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "published_kinds", functools.cache(comparison.published_kinds))
        patch.setattr(clustering_rows, "published_ways", functools.cache(clustering_rows.published_ways))
        yield


def row(defence: str, r1: float, seed: int = 0, protocol: str = "short", **changes: Any) -> dict[str, Any]:
    fixed = {"ES:R": 9.0, "LTM": 5.0, "GTM": 4.0}
    return {
        "id": f"cub-mobilenet_v2-{defence}-eta8-{protocol}-seed{seed}", "data": "cub", "model": "mobilenet_v2",
        "defence": defence, "recipe": "recipes/cub/mobilenet_v2-act.yaml", "command": "robustmetric train cub/act",
        "commit": "abc", "hardware": "1 x GPU", "protocol": protocol, "seed": seed, "queries": 1000,
        "clean": {"R@1": r1}, "attacks": {"fixed": fixed}, "cost_fe": 21.5, **changes,
    }  # fmt: skip


def under(**scores: float) -> dict[str, Any]:
    return {"attacks": {"fixed": {key.replace("_", ":"): value for key, value in scores.items()}}}


def chapter_of(*rows: dict[str, Any], own: tuple[dict[str, Any], ...] = ()) -> Chapter:
    """The one that has boards; what is published of other data is there too."""
    (chapter,) = (c for c in chapters([*((one, False) for one in rows), *((one, True) for one in own)]) if c.boards)
    return chapter


def boards(*rows: dict[str, Any], own: tuple[dict[str, Any], ...] = ()) -> tuple[Board, ...]:
    return chapter_of(*rows, own=own).boards


def column(board: Board, title: str, is_published: bool = False) -> list[str]:
    place = [(c.title, c.is_published) for c in board.columns].index((title, is_published))
    return [entry.cells[place].text for entry in board.entries]


def test_the_strongest_attack_is_the_one_that_leaves_the_least_and_it_is_named() -> None:
    assert strongest(row("act", 30.0)) == ("GTM", 4.0)
    assert strongest(row("act", 30.0, **under(ES_R=3.0, GTM=4.0))) == ("ES", 3.0)
    assert strongest({**row("act", 30.0), "auto_rank": {"norm": "linf", "radius": 8 / 255, "R@1": 1.5}}) == (
        "AutoRank",
        1.5,
    )
    # At another radius it is another question.
    assert strongest({**row("act", 30.0), "auto_rank": {"norm": "linf", "radius": 2 / 255, "R@1": 1.5}}) == ("GTM", 4.0)
    assert strongest(row("act", 30.0, attacks={})) is None


def test_entries_stand_by_what_the_strongest_attack_leaves_not_by_clean_scores_or_weak_attacks() -> None:
    weak = row("weak", 60.0, **under(ES_R=50.0, LTM=40.0, GTM=0.5))
    strong = row("strong", 30.0, **under(ES_R=9.0, LTM=7.0, GTM=5.0))
    tied = row("tied", 20.0, **under(ES_R=9.0, LTM=7.0, GTM=5.0))
    (board,) = boards(weak, tied, strong)
    assert [entry.name for entry in board.entries] == ["strong, 8 steps", "tied, 8 steps", "weak, 8 steps"]
    assert board.columns[board.headline].title == STRONGEST
    assert column(board, STRONGEST) == ["5.0", "5.0", "0.5"]


def test_a_collapsed_model_stands_last_whatever_its_scores() -> None:
    fallen = row("fallen", 99.0, collapsed=True, **under(ES_R=99.0, GTM=99.0))
    (board,) = boards(fallen, row("act", 30.0))
    assert [entry.name for entry in board.entries] == ["act, 8 steps", "fallen, 8 steps"]
    assert board.entries[1].flags == ("collapsed",)


def test_seeds_of_one_way_of_training_are_one_entry_with_mean_and_deviation() -> None:
    (board,) = boards(row("act", 30.0), row("act", 32.0, seed=1))
    (entry,) = board.entries
    # (30 + 32) / 2 = 31; sqrt((1 + 1) / (2 - 1)) = 1.41.
    assert column(board, "clean R@1") == ["31.0 ± 1.4"] and len(entry.rows) == 2


def test_rows_of_the_reader_never_share_an_entry_with_ours() -> None:
    (board,) = boards(row("act", 30.0), own=(row("act", 40.0, **under(GTM=9.0)),))
    assert [(entry.is_own, entry.cells[board.headline].text) for entry in board.entries] == [
        (True, "9.0"),
        (False, "4.0"),
    ]


def test_another_protocol_is_another_board_and_a_sketch_is_marked() -> None:
    short, sketch = boards(row("act", 30.0), row("act", 20.0, protocol="sketch", queries=500))
    assert "protocol short" in short.title and "15 epochs at rate 3e-05; 1,000 seeded queries." in short.says
    assert "protocol sketch" in sketch.title and (short.is_sketch, sketch.is_sketch) == (False, True)


def test_what_is_published_stands_in_columns_of_its_own_and_the_rest_is_listed() -> None:
    (board,) = boards(row("act", 30.0), row("mine", 30.0))
    assert column(board, "R@1", is_published=True) == ["30.6", DASH]
    missing = dict(chapter_of(row("act", 30.0)).unmeasured)
    assert missing["hm_zero, 8 steps"] == "R@1 0.8, ERS 29.7; not measured" and "act, 8 steps" not in missing
    assert missing["eat-r8 (clustering)"] == "R@1 52.8 clean, R@1 24.0 under PGD-10; not measured"


def test_data_that_is_not_at_hand_has_its_published_rows_and_says_so() -> None:
    missing = {chapter.title: dict(chapter.unmeasured) for chapter in chapters([])}
    assert missing["Stanford Online Products"]["act, 8 steps"] == "R@1 45.3, ERS 49.5; not measured: no data"
    assert missing["In-Shop"]["plain (clustering)"].endswith("not measured: no data")


def test_a_board_of_one_entry_stands_behind_those_to_compare_on() -> None:
    found = boards(row("plain", 50.0, protocol="full"), row("act", 30.0), row("plain", 20.0))
    assert [len(board.entries) for board in found] == [2, 1] and "protocol full" in found[1].title


def test_a_board_says_that_a_stronger_attack_was_not_run() -> None:
    ranked = row("act", 30.0, auto_rank={"norm": "linf", "radius": 8 / 255, "R@1": 0.5})
    assert "AutoRank" not in boards(ranked)[0].says and not boards(ranked)[0].is_provisional
    assert boards(ranked, row("est", 30.0))[0].is_provisional
    assert "Not on record for some of them: AutoRank" in boards(ranked, row("est", 30.0))[0].says
    assert "Not on record for any of them: AutoRank" in boards(row("est", 30.0))[0].says


def attacked(name: str, left: float, **more: Any) -> dict[str, Any]:
    """A row about clustering of which its strongest attack leaves this much; with `adaptive_short`, that is whose."""
    block = {**CLUSTERED["clustering"], "pgd10": {"R@1": left}, **more}
    return {**row(name, 46.0, protocol="full"), **CLUSTERED, "clustering": block}


SUITES = "all of clustering_short or clustering_adaptive"


def test_an_entry_does_not_rise_by_an_attack_that_it_never_met() -> None:
    hard = {"R@1": 0.5, "attacks": ["margin", "joint"], "of": 2}
    met = [attacked("one", 30.0, adaptive_short=hard), attacked("two", 35.0, adaptive_short={**hard, "R@1": 1.5})]
    cut = attacked("cut", 30.0, adaptive_short={"R@1": 9.0, "attacks": ["margin"], "of": 2})
    (board,) = boards(attacked("weak", 26.0), cut, *met)
    assert [(place, entry.name, entry.lacking) for place, entry in board.placed] == [
        (1, "two", ""),
        (2, "one", ""),
        (None, "weak", SUITES),
        (None, "cut", SUITES),
    ]
    assert column(board, STRONGEST) == ["1.5", "0.5", "≤ 26.0", "≤ 9.0"]
    assert "Not on record for some of them" in board.says and "They stand behind the others." in board.says
    # One that alone was attacked so hard would be first by that, whatever is left of it.
    (lone,) = boards(attacked("weak", 26.0), met[0])
    assert [place for place, _ in lone.placed] == [1, 2] and lone.entries[0].name == "weak"
    assert "Their order may change by it." in lone.says and column(lone, STRONGEST) == ["26.0", "0.5"]
    (cut_alone,) = boards(attacked("weak", 26.0), met[0], cut)
    assert "Their order may change by it." in cut_alone.says, "a suite that was cut counts for neither"


def test_a_collapsed_entry_stands_last_of_those_that_met_the_same_and_sets_no_rule() -> None:
    hard = {"R@1": 0.5, "attacks": ["margin"], "of": 1}
    fallen = {**attacked("fallen", 30.0, adaptive_short={**hard, "R@1": 5.0}), "collapsed": True}
    weak, one, two = (
        attacked("weak", 26.0), attacked("one", 30.0, adaptive_short=hard), attacked("two", 30.0, adaptive_short=hard)
    )  # fmt: skip
    (board,) = boards(weak, fallen, one, two)
    assert [(place, entry.name) for place, entry in board.placed] == [
        (1, "one"), (2, "two"), (3, "fallen"), (None, "weak")
    ]  # fmt: skip
    (few,) = boards(weak, fallen, one)
    assert [place for place, _ in few.placed] == [1, 2, 3] and few.entries[-1].name == "fallen"


def test_rows_of_the_reader_take_no_place_from_ours() -> None:
    hard = {"R@1": 0.5, "attacks": ["margin"], "of": 1}
    mine = tuple(attacked(name, 30.0, adaptive_short=hard) for name in ("mine", "other"))
    (board,) = boards(attacked("weak", 26.0), own=mine)
    assert [(place, entry.name) for place, entry in board.placed] == [(1, "weak"), (2, "mine"), (3, "other")]


def test_seeds_that_met_a_part_alone_do_not_lift_the_mean() -> None:
    whole, part = {"R@1": 0.5, "attacks": ["a", "b"], "of": 2}, {"R@1": 9.0, "attacks": ["a"], "of": 2}
    seeds = [{**attacked("at", 30.0, adaptive_short=block), "seed": seed} for seed, block in enumerate((whole, part))]
    (board,) = boards(*seeds)
    assert column(board, STRONGEST) == ["0.5"]


def test_autorank_counts_at_the_radius_of_its_board() -> None:
    def ranked(name: str, radius: float) -> dict[str, Any]:
        return row(name, 30.0, auto_rank={"norm": "linf", "radius": radius, "R@1": 0.5})

    (board,) = boards(ranked("act", 8 / 255), ranked("est", 8 / 255), ranked("ses", 1 / 255))
    assert [entry.lacking for entry in board.entries] == ["", "", "AutoRank"]
    assert column(board, STRONGEST)[-1].startswith("≤ ")


def test_of_classifiers_those_without_autoattack_stand_behind() -> None:
    def judged(name: str, **accuracy: float) -> dict[str, Any]:
        block = {"norm": "linf", "radius": 8 / 255, "accuracy": accuracy}
        made = row(name, 0.0, protocol="scaled", data="cifar10", clean={"accuracy": 90.0}, classification=block)
        return {**made, "id": f"cifar10-small_resnet-{name}-scaled-seed0", "model": "small_resnet"}

    full = {"PGD-20": 50.0, "AutoAttack": 30.0}
    (board,) = boards(judged("weak", **{"PGD-20": 60.0}), judged("one", **full), judged("two", **full))
    assert [place for place, _ in board.placed] == [1, 2, None] and column(board, "strongest")[-1] == "≤ 60.0"


def test_a_masked_model_carries_its_flag_and_the_checks_that_failed() -> None:
    masking = {"verdict": "masked", "checks": {"steps": "fail", "restarts": "pass"}, "radius": 0.03, "images": 200}
    (board,) = boards(row("act", 30.0, masking=masking))
    assert board.entries[0].flags == ("masked (steps)",)


CLUSTERED = {
    "paper": "arXiv 2501.01025",
    "published": {"clean": {"R@1": 40.0}, "pgd10": {"R@1": 14.2}},
    "clustering": {
        "reading": "alone",
        "clean": {"R@1": 46.0, "F1": 10.0},
        "pgd10": {"R@1": 26.0, "query only": {"R@1": 28.0}, "gallery only": {"R@1": 24.0}},
    },
}


def test_of_clustering_the_lowest_counts_whoevers_images_are_moved() -> None:
    one = {**row("at", 46.0, protocol="full"), **CLUSTERED}
    assert strongest_of_clustering(one) == ("PGD-10, gallery alone", 24.0)
    adaptive = {**CLUSTERED["clustering"], "adaptive_short": {"R@1": 0.4}}
    assert strongest_of_clustering({**one, "clustering": adaptive}) == ("adaptive, both sides", 0.4)
    (board,) = boards(one)
    assert column(board, "PGD-10 R@1", is_published=True) == ["14.2"] and column(board, STRONGEST) == ["24.0"]
    assert "60 epochs at rate 0.0001" in board.says and "know of neighbours" in board.says


@pytest.mark.parametrize(("of", "is_said"), [(1, False), (4, True)])
def test_a_board_says_that_adaptive_attacks_were_cut(of: int, is_said: bool) -> None:
    block = {**CLUSTERED["clustering"], "adaptive_short": {"R@1": 0.4, "attacks": ["margin"], "of": of}}
    (board,) = boards({**row("at", 46.0, protocol="full"), **CLUSTERED, "clustering": block})
    assert column(board, "adaptive") == ["0.4"]
    assert ("Some met a part of the adaptive attacks alone" in board.says) is is_said


def test_seeds_that_never_met_adaptive_attacks_say_nothing_of_them() -> None:
    met = {**CLUSTERED["clustering"], "adaptive_short": {"R@1": 0.4, "search": "bf16"}}
    first, second = ({**row("at", 46.0, protocol="full", seed=seed), **CLUSTERED} for seed in (0, 1))
    (board,) = boards(first, {**second, "clustering": met})
    assert column(board, "adaptive") == column(board, STRONGEST) == ["0.4"], "not the mean with 24.0"
    place = [one.title for one in board.columns].index("adaptive")
    assert board.entries[0].cells[place].below == "1 of 2 seeds"
    assert "searched in bf16; all are scored in fp32" in board.says and "Not on record" not in board.says


def test_of_classifiers_the_worst_case_counts_and_attacks_in_turn_have_no_column() -> None:
    accuracy = {"PGD-20": 70.0, "AutoAttack": 36.6, "worst case": 36.1, "Square": 40.0}
    block = {"norm": "linf", "radius": 8 / 255, "accuracy": accuracy, "in_turn": ["Square"]}
    one = row("scattering", 0.0, protocol="scaled", data="cifar10", clean={"accuracy": 90.0}, classification=block)
    (board,) = boards({**one, "id": "cifar10-small_resnet-scattering-scaled-seed0", "model": "small_resnet"})
    assert [c.title for c in board.columns] == ["clean", "strongest", "PGD-20", "AutoAttack", "worst case"]
    assert not board.is_provisional
    weaker = {**block, "accuracy": {"PGD-20": 70.0, "Square": 61.0}}
    (cut,) = boards(one, {**one, "id": "cifar10-small_resnet-madry-scaled-seed0", "classification": weaker})
    assert cut.is_provisional and "Not on record for some of them: AutoAttack" in cut.says
    assert [entry.cells[cut.headline].below for entry in cut.entries] == ["a part of AutoAttack", "worst case"]
    assert column(cut, "strongest") == ["61.0", "36.1"], "what stood against its parts was attacked by them all"
    untold = {**block, "accuracy": {"PGD-20": 70.0}, "in_turn": []}
    (board_without,) = boards({**one, "classification": untold})
    assert board_without.entries[0].cells[1].below == "PGD-20, without AutoAttack"
    told = {**one, "data_note": "a JPEG copy"}
    titles = [chapter.title for chapter in chapters([(told, False), (one, False)]) if chapter.boards]
    assert titles == ["CIFAR-10", "CIFAR-10 (a JPEG copy)"]
    assert column(board, "strongest") == ["36.1"] and board.entries[0].cells[board.headline].below == "worst case"


@pytest.mark.parametrize(
    ("batch", "protocol", "is_said"), [(240, "scaled", True), (240, "scaled_0.4", False), (80, "scaled", False)]
)
def test_of_classifiers_a_rate_for_smaller_batches_is_told(batch: int, protocol: str, is_said: bool) -> None:
    block = {"norm": "linf", "radius": 8 / 255, "accuracy": {"AutoAttack": 36.6}}
    one = row("madry", 0.0, protocol=protocol, data="cifar10", clean={"accuracy": 90.0}, classification=block)
    (board,) = boards({**one, "id": f"cifar10-resnet18-madry-eta7-batch{batch}-{protocol}-seed0"})
    # 0.1 is for batches of 60: for 240 it wants 0.4.
    assert (f"Rows of batch{batch} had the rate 0.1, which is for smaller batches" in board.says) is is_said


def proof(name: str, *errors: float) -> dict[str, Any]:
    certified = [{"name": "1-NN exact", "radii": [0.0, 0.5], "error": list(errors), "area": sum(errors) / 2}]
    return {
        "id": f"digits-{name}-seed0", "data": "digits_table", "learner": f"{name}()", "points": 10, "rows": 5,
        "recipe": f"recipes/tabular/digits-{name}.yaml", "certified": certified, "seed": 0,
    }  # fmt: skip


def test_of_proofs_the_smallest_mean_error_stands_first() -> None:
    chapter = chapter_of(proof("euclidean", 1.0, 50.0), proof("arml", 2.0, 30.0))
    (board,) = chapter.boards
    assert chapter.title == "digits, as a table: proofs" and [entry.name for entry in board.entries] == [
        "arml",
        "euclidean",
    ]
    assert [entry.cells[board.headline].text for entry in board.entries] == ["16.0", "25.5"]


@pytest.mark.parametrize(
    ("values", "text", "middle"),
    [([1.0], "1.0", 1.0), ([1.0, None], DASH, None), ([], DASH, None), ([1.0, 3.0], "2.0 ± 1.4", 2.0)],
)
def test_a_number_of_several_seeds(values: list[float | None], text: str, middle: float | None) -> None:
    assert over_seeds(values) == text and mean(values) == middle
