"""Names of rows about clustering: two ways of training never share one."""

import inspect
from typing import Any

import pytest

from ensemble_rows import IN_ROWS
from robustmetric import recipe
from robustmetric.catalogue import NAMES
from robustmetric.report.clustering_names import OF_DEFENCES, OF_LOSSES, USUAL, backbone, in_id, kind, radius_of

LOSS = {"name": "proxy_anchor"}
ATTACK = {"name": "pgd", "ball": {"name": "ball", "radius": 8 / 255}, "steps": 10, "step_size": 2 / 255}
AT = {"name": "madry", "loss": LOSS, "attack": ATTACK, "objective": "shift"}
UNUSUAL = {"objective": "clean_proxy", "keep": "best", "norm": "l2", "bounds": [-1.0, 1.0], "climbed": LOSS}
"""Other values of settings that are neither numbers nor yes or no."""


def defence(name: str, **settings: Any) -> dict[str, Any]:
    """The usual defence of this name, but for these settings."""
    many = [{**LOSS, "seed": seed} if seed else LOSS for seed in range(3)]
    own = {"losses": many} if name in ("eat", "adp") else {"loss": LOSS}
    attack = {} if name in ("adp", "mixup", "plain") else {"attack": ATTACK}
    return {"name": name, **own, **attack, **({"objective": "shift"} if name == "madry" else {}), **settings}


def test_every_recipe_of_the_paper_has_a_name_of_its_own() -> None:
    for data in ("cub", "cars", "inshop"):
        made = {}
        for name in recipe.listing():
            if name.startswith(f"{data}/eat_"):
                spec = recipe.load(recipe.locate(name))
                made[name] = (
                    backbone(spec["model"]),
                    kind(spec["defence"], spec["epochs"] == 188),
                    radius_of(spec["defence"]),
                )
        assert len(set(made.values())) == len(made) > 5
        stem = {
            name.partition("/eat_")[2].removesuffix("-r16").removeprefix("bn_inception-").removeprefix("auxiliary-"): k
            for name, (_, k, _) in made.items()
        }
        assert all(found == IN_ROWS.get(wanted, wanted) for wanted, found in stem.items())


def test_names_say_what_differs() -> None:
    loss, five = LOSS, [{**LOSS, "seed": seed} for seed in range(5)]
    assert kind({"name": "eat", "losses": five, "objective": "label"}) == "eat_n5_label"
    assert kind({"name": "eat", "losses": five[:3], "shared": False}) == "eat_literal"
    assert kind({"name": "eat", "losses": five, "by_class": True}) == "by_class_n5"
    assert kind({"name": "madry", "loss": {"name": "triplet"}}) == "at_triplet_label"
    assert kind({"name": "trades", "loss": loss, "weight": 1}) == "trades_weight1"
    taught = {"name": "one_student", "loss": loss}
    for settings, name in (
        ({}, "one_student"), ({"clean_share": 0.25}, "one_student_clean_share0_25"),
        ({"growing": 0.4}, "one_student_growing0_4"),
    ):  # fmt: skip
        assert kind({**taught, "trained_by": {"name": "eat", "losses": five[:3], **settings}}) == name
    of_two = {"name": "eat", "losses": five[:2], "divided": False}
    assert kind({**taught, "trained_by": of_two}, is_long=True) == "one_student_no_split_n2_long"
    assert radius_of({"name": "plain", "loss": loss}) is None
    for steps, size, name in ((10, 2, "eat"), (40, 2, "eat_steps40"), (40, 0.5, "eat_steps40_step_size0_5")):
        climb = {"name": "pgd", "ball": {"name": "ball", "radius": 8 / 255}, "steps": steps, "step_size": size / 255}
        assert kind({"name": "eat", "losses": five[:3], "attack": climb}) == name
    member = {"name": "backbone", "architecture": "mobilenet_v2", "dim": 64}
    assert backbone(member) == backbone({"name": "ensemble", "members": [member] * 3}) == "mobilenet_v2_dim64"
    assert backbone({**member, "dim": 128}) == "mobilenet_v2"
    assert backbone({**member, "batch_norm": "auxiliary"}) == "mobilenet_v2_dim64_auxiliary"
    assert backbone({"name": "backbone", "architecture": "bn_inception", "dim": 512}) == "bn_inception"


@pytest.mark.parametrize("name", USUAL)
def test_what_a_name_leaves_out_is_the_default(name: str) -> None:
    given = inspect.signature(recipe.find(NAMES[name], {}, "test")).parameters
    defaults = {key: each.default for key, each in given.items() if each.default is not each.empty}
    known = {**USUAL[name], "bounds": (0.0, 1.0)} if name == "ball" else USUAL[name]
    told = {*OF_LOSSES, *OF_DEFENCES, "step_size"}
    # AT climbs the shift in this paper, and PGD has no usual number of steps but the paper's.
    expected = {key: value for key, value in defaults.items() if key not in told or key in known}
    assert known == expected | {key: USUAL[name][key] for key in ("objective", "steps") if key in USUAL[name]}


@pytest.mark.parametrize("name", ["adp", "eat", "iat", "madry", "mixup", "trades"])
def test_every_setting_of_a_defence_is_in_its_name(name: str) -> None:
    usual = defence(name)
    made = [kind(usual)]
    for key, value in USUAL[name].items():
        assert kind({**usual, key: value}) == made[0], "said or not, the usual is the same way of training"
        other = UNUSUAL[key] if key in UNUSUAL else not value if isinstance(value, bool) else value + 3
        made.append(kind({**usual, key: other}))
    for part in ("ball", "pgd"):
        for key, value in USUAL[part].items():
            other = UNUSUAL[key] if key in UNUSUAL else not value if isinstance(value, bool) else value + 3
            changed = {**ATTACK, key: other} if part == "pgd" else {**ATTACK, "ball": {**ATTACK["ball"], key: other}}
            made += [kind({**usual, "attack": changed})] if "attack" in usual else []
    assert len(set(made)) == len(made)
    assert all(len(each) < 40 for each in made)


def test_settings_read_as_words() -> None:
    assert kind(defence("adp", sharpness=32, entropy_weight=1)) == "adp_entropy_weight1_sharpness32"
    assert kind(defence("iat", summed=True)) == "iat_summed"
    assert kind(defence("iat", separate=True, per_image=False)) == "iat_no_per_image_separate"
    assert kind(defence("trades", as_proxies=True)) == "trades_as_proxies"
    assert kind(defence("mixup", concentration=0.2)) == "mixup_concentration0_2"
    assert kind(defence("mixup", goal="embedding")) == "mixup_literal"
    assert kind(defence("eat", seed=7)) == "eat_seed7"
    assert kind(defence("eat", small_classes=True)) == "eat", "it says what is refused, not what is done"
    assert kind(defence("madry", attack={**ATTACK, "random_start": False})) == "at_no_random_start"
    assert kind(defence("madry", attack={**ATTACK, "name": "apgd"})) == "at_apgd_steps10"


def test_losses_are_told_with_their_settings() -> None:
    assert kind(defence("plain", loss={**LOSS, "margin": 0.2})) == "plain_loss_margin0_2"
    assert kind(defence("plain", loss={**LOSS, "classes": 98, "dim": 128})) == "plain"
    assert kind(defence("eat", losses=[{**LOSS, "seed": seed} for seed in (0, 1, 5)])) == "eat_loss_seed5"
    mixed = [LOSS, {"name": "triplet", "seed": 1}, {"name": "triplet", "seed": 2}]
    assert kind(defence("eat", losses=mixed)) == "eat_proxy_anchor_triplet"
    named = {"name": "pytorch_metric_learning", "loss": "ArcFaceLoss"}
    assert kind(defence("madry", loss=named)) == "at_pytorch_metric_learning_loss_loss_ArcFaceLoss"


def test_members_with_defences_of_their_own() -> None:
    def naive(*members: dict[str, Any]) -> str:
        each = [{**part, "loss": {**LOSS, "seed": place}} for place, part in enumerate(members)]
        return kind({"name": "naive_ensemble", "defences": each})

    plain = {"name": "plain"}
    assert naive(AT, AT, AT) == "naive" and naive(plain, plain, plain) == "naive_plain"
    assert naive(AT, AT) == "naive_n2"
    grown = {**AT, "growing": 0.4}
    assert naive(grown, grown, grown) == "naive_at_growing0_4"
    shared = {**AT, "clean_share": 0.5}
    assert naive(shared, shared, shared) == "naive_at_clean_share0_5"
    assert naive(AT, AT, plain) == "naive_at_at_plain" and naive(AT, plain, plain) == "naive_at_plain_plain"


def test_without_a_radius_an_id_tells_the_loss() -> None:
    assert in_id("plain", defence("plain")) == "plain_proxy_anchor"
    assert in_id("eat", defence("eat")) == "eat-r8"
