"""What a check of data says, in lines and for programs."""

import json

from robustmetric.data.census import Part, Sample
from robustmetric.jobs.findings import Finding, Report, equal

FACT = Finding("zero_shot", "fact", "zero-shot")
LOOK = Finding("small", "look", "small images", ("a", "b", "c", "d", "e"), "they are blurred")
MEND = Finding("unreadable", "mend", "unreadable files", ("a",))


def report(*findings: Finding) -> Report:
    parts = (Part.of("train", "aabbbbb"), Part.of("queries", "cc" * 600 + "dd" * 600), Part.of("gallery", "e"))
    return Report("photos", "a folder", "images", parts, findings, ("robustmetric demo",))


def test_a_finding_is_counted_and_its_first_items_are_named_below_it() -> None:
    assert LOOK.lines() == [
        "look: small images: 5; they are blurred",
        "    a",
        "    b",
        "    c",
        "    and 2 more",
    ]
    assert FACT.lines() == ["zero-shot"]


def test_what_must_be_mended_stands_last_before_the_verdict() -> None:
    lines = report(MEND, LOOK, FACT).lines()
    assert lines[:5] == [
        "photos: a folder",
        "train        7 images of 2 classes, of 2 to 5 (median 3.5)",
        "queries  2,400 images of 2 classes, each of 1,200",
        "gallery      1 images of 1 class",
        "zero-shot",
    ]
    assert lines[-4:] == [
        "mend: unreadable files: 1",
        "    a",
        "verdict: this data will not do yet; mend what is marked `mend`, then check again",
        "next: robustmetric demo",
    ]


def test_only_what_must_be_mended_makes_data_unusable() -> None:
    assert report(FACT).is_usable and report(FACT).verdict == "this data will do"
    assert report(LOOK).is_usable and report(LOOK).verdict == "this data will do; see what is marked `look`"
    assert not report(LOOK, MEND).is_usable


def test_programs_get_every_item() -> None:
    found = json.loads(json.dumps(report(LOOK).as_json()))
    assert found["findings"][0]["items"] == list("abcde") and found["is_usable"] is True
    assert found["parts"][0] == {
        "name": "train", "samples": 7, "classes": 2, "smallest": 2, "median": 3.5, "largest": 5,
    }  # fmt: skip


def test_of_many_copies_two_that_differ_are_shown() -> None:
    names = [("1", "cat"), ("2", "cat"), ("3", "dog")]
    group = tuple(Sample("train", name, label, b"") for name, label in names)
    assert equal(group, with_labels=True) == "1 (cat) = 3 (dog) (3 in all)"
    assert equal(group[:2]) == "1 = 2"
