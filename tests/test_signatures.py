"""What the suite refuses wherever it calls the package: other types and shapes than a signature says."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from checked import checked, jaxtyped
from robustmetric.numerics.distances import pairwise
from robustmetric.types import Batch

EITHER = pytest.mark.parametrize("decorator", [checked, jaxtyped])
"""Ours, and jaxtyping's own that it stands for."""
A, B = torch.zeros(2, 3), torch.zeros(4, 3)


def test_the_package_is_checked_by_it() -> None:
    assert jaxtyping.jaxtyped is checked
    with pytest.raises(TypeCheckError):
        pairwise(A, torch.zeros(4, 5))
    with pytest.raises(TypeCheckError):
        Batch(A, torch.zeros(3, dtype=torch.long), torch.zeros(2, dtype=torch.long))


@EITHER
def test_a_letter_is_one_size_among_arguments_and_the_answer(decorator: Callable[..., Callable]) -> None:
    @decorator(typechecker=beartype)
    def first(a: Float[Tensor, "n dim"], b: Float[Tensor, "m dim"], *, answer: Tensor) -> Float[Tensor, "n m"]:
        return answer

    assert first(A, B, answer=torch.zeros(2, 4)).shape == (2, 4)
    for a, b, answer in ((A, A.T, A @ A.T), (A, B, B @ A.T), (A.long(), B, A @ B.T), (A[0], B, A @ B.T)):
        with pytest.raises(TypeCheckError):
            first(a, b, answer=answer)
    with pytest.raises(TypeCheckError):
        first(A, B, answer="none")
    assert first(B, A, answer=torch.zeros(4, 2)).shape == (4, 2), "sizes of one call are not those of the next"


@EITHER
def test_a_call_within_a_call_has_letters_of_its_own(decorator: Callable[..., Callable]) -> None:
    @decorator(typechecker=beartype)
    def inner(a: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return a

    @decorator(typechecker=beartype)
    def outer(a: Float[Tensor, " n"], longer: bool) -> Float[Tensor, " n"]:
        other = inner(torch.zeros(7))
        return other if longer else a

    assert len(outer(A[0], False)) == 3
    with pytest.raises(TypeCheckError):
        outer(A[0], True)


@EITHER
def test_fields_of_a_dataclass_are_checked_together(decorator: Callable[..., Callable]) -> None:
    @decorator(typechecker=beartype)
    @dataclass
    class Pair:
        a: Float[Tensor, "n dim"]
        b: Float[Tensor, "n dim"]

    assert Pair(A, A).b is A
    with pytest.raises(TypeCheckError):
        Pair(A, B)


@EITHER
def test_a_generator_is_checked_by_its_arguments(decorator: Callable[..., Callable]) -> None:
    @decorator(typechecker=beartype)
    def rows(a: Float[Tensor, "n dim"], b: Float[Tensor, "n dim"]) -> Iterator[Float[Tensor, " dim"]]:
        yield from a

    assert len(list(rows(A, A))) == 2
    with pytest.raises(TypeCheckError):
        rows(A, B)


@EITHER
def test_an_error_of_the_function_is_its_own(decorator: Callable[..., Callable]) -> None:
    @decorator(typechecker=beartype)
    def fails(a: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails(A[0])


@EITHER
def test_a_name_that_only_a_type_checker_knows_hinders_nothing(decorator: Callable[..., Callable]) -> None:
    @decorator(typechecker=beartype)
    def rows(a: Float[Tensor, "n dim"], b: "Unknown") -> int:
        return len(a)

    assert rows(A, 1) == 2
    with pytest.raises(TypeCheckError):
        rows(A[0], 1)
