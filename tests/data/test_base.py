from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robustmetric.data.base import Dataset, Split, data_root, hold_out, keep_classes, require_pairs, share_classes
from robustmetric.errors import InputError


def split(labels: list[int], class_names: tuple[str, ...]) -> Split:
    n = len(labels)
    return Split(
        inputs=torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1),
        labels=torch.tensor(labels),
        names=tuple(f"image {i}" for i in range(n)),
        sizes=torch.ones(n, 2, dtype=torch.long),
        class_names=class_names,
    )


def test_a_split_tells_its_size_classes_and_shape() -> None:
    one = split([0, 1, 1], ("cat", "dog"))
    assert (len(one), one.n, one.classes, one.shape) == (3, 3, 2, (1, 1, 1))


def test_a_subset_keeps_rows_together_and_in_the_order_given() -> None:
    part = split([0, 1, 1, 0], ("cat", "dog")).subset([3, 1])
    assert part.inputs.flatten().tolist() == [3, 1]
    assert part.labels.tolist() == [0, 1]
    assert part.names == ("image 3", "image 1")


def test_a_run_of_rows_is_a_view_not_a_copy() -> None:
    whole = split([0, 1, 1, 0], ("cat", "dog"))
    assert whole.subset([1, 2]).inputs.data_ptr() == whole.inputs[1:].data_ptr()
    assert whole.subset([2, 1]).inputs.data_ptr() != whole.inputs[2:].data_ptr()


def test_kept_classes_are_relabelled_in_the_order_given() -> None:
    kept = keep_classes(split([0, 1, 2, 1], ("a", "b", "c")), torch.tensor([2, 1]))
    assert kept.class_names == ("c", "b")
    assert kept.inputs.flatten().tolist() == [1, 2, 3]
    assert kept.labels.tolist() == [1, 0, 1]


def test_queries_and_gallery_share_labels_by_class_name() -> None:
    queries, gallery = share_classes(split([0, 1], ("x", "y")), split([0, 1, 0], ("y", "z")))
    assert queries.class_names == gallery.class_names == ("x", "y", "z")
    assert queries.labels.tolist() == [0, 1]
    assert gallery.labels.tolist() == [1, 2, 1]


@given(classes=st.integers(4, 12), share=st.floats(0.2, 0.8), seed=st.integers(0, 5))
def test_held_out_classes_are_disjoint_and_complete(classes: int, share: float, seed: int) -> None:
    names = tuple(f"class {i}" for i in range(classes))
    train = split([i % classes for i in range(3 * classes)], names)
    test = split([0, 0], ("test class",))
    held = hold_out(Dataset("toy", train, test), share, seed)
    assert set(held.train.class_names).isdisjoint(held.queries.class_names)
    assert sorted(held.train.class_names + held.queries.class_names) == sorted(names)
    assert held.queries.classes == round(share * classes)
    for part in (held.train, held.queries):
        for row in range(part.n):
            original = train.inputs.flatten().tolist().index(part.inputs.flatten()[row])
            assert part.class_names[part.labels[row]] == names[train.labels[original]]


def test_hold_out_is_the_same_for_the_same_seed_only() -> None:
    train = split(list(range(20)) * 2, tuple(f"{i:02d}" for i in range(20)))
    dataset = Dataset("toy", train, train)
    assert hold_out(dataset, 0.3, 1).queries.class_names == hold_out(dataset, 0.3, 1).queries.class_names
    assert hold_out(dataset, 0.3, 1).queries.class_names != hold_out(dataset, 0.3, 2).queries.class_names


@pytest.mark.parametrize("share", [0.0, 0.05, 0.99, 1.0])
def test_hold_out_refuses_to_leave_a_side_empty(share: float) -> None:
    train = split([0, 0, 1, 1], ("a", "b"))
    with pytest.raises(InputError, match=r"leaves one side empty; try 0\.2"):
        hold_out(Dataset("toy", train, train), share, 0)


def test_a_training_class_with_one_image_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match=r"training class 'dog' has 1 image, at least 2 .* add images to it or remove it"
    ):
        require_pairs(split([0, 0, 1], ("cat", "dog")))
    require_pairs(split([0, 0, 1, 1], ("cat", "dog")))


def test_a_training_class_alone_is_refused_for_want_of_negatives() -> None:
    with pytest.raises(InputError, match=r"training class 'cat' is the only one, so no image has a negative"):
        require_pairs(split([0, 0, 0], ("cat",)))


def test_unmatched_queries_are_those_without_a_partner() -> None:
    queries = split([0, 0, 1], ("a", "b"))
    assert Dataset("self", queries, queries).unmatched == 1  # b has only itself
    gallery = split([1], ("a", "b"))
    assert Dataset("gallery", queries, queries, gallery).unmatched == 2  # both of a


def test_the_data_root_is_the_argument_else_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="set root: in the recipe or the environment variable ROBUSTMETRIC_DATA"):
        data_root(None)
    monkeypatch.setenv("ROBUSTMETRIC_DATA", str(tmp_path))
    assert data_root(None) == tmp_path
    assert data_root("/elsewhere") == Path("/elsewhere")
    assert data_root("no/such/file.npz") == tmp_path / "no/such/file.npz"
