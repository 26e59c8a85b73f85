"""Counts of a data set, each on an example small enough to count by hand."""

import pytest

from robustmetric.data.census import Part, Sample, copies, in_both, labels_of, unmatched


def sample(name: str, label: str, digest: str, part: str = "train") -> Sample:
    return Sample(part, name, label, digest.encode())


def test_a_part_knows_its_smallest_median_and_largest_class() -> None:
    # Of a 1, of b 2, of c 3, of d 6: the middle of 2 and 3 is 2.5.
    assert Part.of("train", "abbcccdddddd") == Part("train", 12, 4, 1, 2.5, 6)


def test_a_single_image_has_no_match_among_the_queries_themselves() -> None:
    assert unmatched(["a", "b", "b", "c"], None) == ["a", "c"]


def test_a_query_needs_its_class_in_the_gallery_and_no_second_query() -> None:
    assert unmatched(["a", "b", "b"], ["a", "c"]) == ["b"]


def test_classes_of_both_parts_are_named_once() -> None:
    assert in_both(["a", "a", "b"], ["c", "b", "b", "a"]) == ["b", "a"]
    assert in_both(["a"], ["b"]) == []


def test_a_group_of_copies_counts_under_the_worst_that_it_is() -> None:
    samples = [
        sample("1", "cat", "same label, both parts"),
        sample("2", "cat", "other label, both parts"),
        sample("3", "cat", "same label, train"),
        sample("4", "cat", "same label, train"),
        sample("5", "cat", "alone"),
        sample("6", "cat", "same label, both parts", "queries"),
        sample("7", "dog", "other label, both parts", "queries"),
        sample("8", "dog", "same label, tested", "queries"),
        sample("9", "dog", "same label, tested", "gallery"),
    ]
    found = copies(samples)
    assert [[one.name for one in group] for group in found.mislabelled] == [["2", "7"]]
    assert [[one.name for one in group] for group in found.leaked] == [["1", "6"]]
    assert [[one.name for one in group] for group in found.repeated] == [["3", "4"], ["8", "9"]]


@pytest.mark.parametrize("count", [0, 1])
def test_what_is_there_once_is_no_copy(count: int) -> None:
    found = copies([sample(str(i), "cat", str(i)) for i in range(count)])
    assert not (found.mislabelled or found.leaked or found.repeated)


def test_labels_are_those_of_the_parts_asked_for() -> None:
    samples = [sample("1", "cat", "x"), sample("2", "dog", "y", "queries"), sample("3", "owl", "z", "gallery")]
    assert labels_of(samples, "train") == ["cat"]
    assert labels_of(samples, "queries", "gallery") == ["dog", "owl"]
