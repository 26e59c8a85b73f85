"""Randomness that can be repeated."""

import pytest
import torch

from robustmetric.numerics.randomness import Purpose, generator, noise, seeded

CPU = torch.device("cpu")
EARLIER = [3717377837946358015, 1525927469314224606, 1635861484108433181]
"""Seeds that records of earlier runs were made with."""


def draw(*parts: int) -> float:
    return torch.rand((), generator=generator(CPU, *parts)).item()


def test_the_same_numbers_give_the_same_draws_and_others_others() -> None:
    keys = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (-1,)]
    assert [draw(*key) for key in keys] == [draw(*key) for key in keys]
    assert len({draw(*key) for key in keys}) == len(keys)


def test_draws_of_one_purpose_are_those_of_no_other_and_of_no_other_numbers() -> None:
    keys = [(0,), (0, 1), (0, 2), (0, 0, 1), (0, 1, 1), (1, 0, 0, 1), (0, 0, 0, 1, 1)]
    seeds = [generator(CPU, *key, purpose=purpose).initial_seed() for key in keys for purpose in (None, *Purpose)]
    assert len(set(seeds)) == len(keys) * (1 + len(Purpose)) and len(Purpose) >= 4
    assert generator(CPU, 0, 1, purpose=Purpose.TRAINING).initial_seed() in seeds


def test_without_a_purpose_draws_are_those_of_earlier_records() -> None:
    assert [generator(CPU, *key).initial_seed() for key in ((0,), (7, 3), (1, 2, 3, 4, 5))] == EARLIER


def test_within_a_seed_torch_draws_what_it_does_of_that_seed_and_after_goes_on() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with seeded(CPU, 5):
        assert torch.equal(torch.rand(4), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_parts_of_noise_are_no_larger_than_asked_and_as_many_as_asked() -> None:
    parts = list(noise(torch.Size((2, 3)), 10, 4, generator(CPU, 0), torch.float64))
    assert [tuple(part.shape) for part in parts] == [(4, 2, 3), (4, 2, 3), (2, 2, 3)]
    assert all(part.dtype == torch.float64 for part in parts)


@pytest.mark.parametrize("size", [1, 5, 64, 100])
def test_noise_does_not_depend_on_the_size_of_its_parts(size: int) -> None:
    whole = torch.cat(list(noise(torch.Size((3,)), 150, 1000, generator(CPU, 0))))
    assert torch.equal(torch.cat(list(noise(torch.Size((3,)), 150, size, generator(CPU, 0)))), whole)


def test_noise_is_standard_gaussian() -> None:
    drawn = torch.cat(list(noise(torch.Size((4,)), 20_000, 3_000, generator(CPU, 1))))
    torch.testing.assert_close(drawn.T.cov(), torch.eye(4), atol=0.05, rtol=0)
    torch.testing.assert_close(drawn.mean(dim=0), torch.zeros(4), atol=0.03, rtol=0)
