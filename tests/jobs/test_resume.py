"""A finished record is known again by its settings, and one of other work is not taken for it."""

import pytest

from robustmetric.jobs.resume import UNUSUAL, find, is_same
from robustmetric.records import Record


def of(**settings: object) -> Record:
    return Record("attack", "PGD", {}, {"radius": 0.1, "weights": "w", **settings})


@pytest.mark.parametrize("key", UNUSUAL)
def test_a_setting_that_only_one_of_them_has_makes_it_other_work(key: str) -> None:
    assert is_same(of(**{key: "x"}), of(**{key: "x"}))
    assert not is_same(of(**{key: "x"}), of()) and not is_same(of(), of(**{key: "x"}))


def test_what_a_record_knows_beyond_what_is_asked_does_no_harm() -> None:
    assert is_same(of(), of(chance=10.0)) and not is_same(of(chance=10.0), of())
    assert not is_same(of(), Record("attack", "CW", {}, of().settings)) and not is_same(of(), of(radius=0.2))


def test_what_was_sought_in_tf32_is_not_taken_for_what_is_sought_in_fp32() -> None:
    assert find(of(), {"quick": of(search="tf32")}) is None
    assert find(of(search="tf32"), {"exact": of()}) is None
    assert find(of(search="fp16"), {"quick": of(search="tf32")}) is None


def test_the_newest_of_several_is_found() -> None:
    done = {"a": of(chance=1.0), "b": of(chance=2.0), "c": of(rounded=False)}
    assert find(of(), done) is done["b"] and find(of(radius=0.3), done) is None
