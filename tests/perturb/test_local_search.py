"""Local search: probes, changes and squares by hand, what it keeps, and that only the clipped form is bounded."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.local_search import LocalSearch, _squares, wrapped
from robustmetric.types import Value

CLIPPED = LocalSearch(Ball(0.1), rounds=8, probes=12, half_side=2, pixels=3)
UNBOUNDED = replace(CLIPPED, clipped=False)
ENGINES = pytest.mark.parametrize("engine", [CLIPPED, UNBOUNDED], ids=["clipped", "unbounded"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(rows: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, *shape, generator=seeded(seed))


def bumpy(x: Tensor) -> Tensor:
    return torch.sin(9 * x).flatten(1).sum(dim=1)


def watched(value: Value) -> tuple[Value, list[Tensor]]:
    """The same value, and a list that fills with the points it is asked at."""
    points: list[Tensor] = []

    def watching(x: Tensor) -> Tensor:
        points.append(x.clone())
        return value(x)

    return watching, points


# --- by hand --------------------------------------------------------------------------------------------------------


def test_values_wrap_around_the_ends() -> None:
    v = torch.tensor([-0.5, -0.3, 0.0, 0.2, 0.4, 0.5])
    # 1.5 v is -0.75, -0.45, 0, 0.3, 0.6, 0.75; those past an end come in at the other.
    torch.testing.assert_close(wrapped(1.5 * v), torch.tensor([0.25, -0.45, 0.0, 0.3, -0.4, -0.25]))
    everything = torch.linspace(-0.5, 0.5, 101)
    for r in (0.0, 1.0, 1.5, 2.0):
        assert wrapped(r * everything).abs().max() <= 0.5


def test_one_round_by_hand() -> None:
    """One pixel of 2 x 2, whichever is drawn first: 0.9 is 0.4 on the scale, 0.6, wrapped -0.4, which is 0.1."""
    clean = torch.full((1, 1, 2, 2), 0.9)
    value, points = watched(lambda x: -x.flatten(1).sum(dim=1))
    moved = replace(UNBOUNDED, rounds=1)(value, clean, seeded())
    _, probe, changed = points
    # A tenth of four pixels is none, so one is probed: 0.5 + 10 * sign(0.4).
    assert sorted(probe.flatten().tolist()) == pytest.approx([0.9, 0.9, 0.9, 10.5])
    place = probe.flatten().argmax()
    assert changed.flatten()[place].item() == pytest.approx(0.1)
    assert torch.equal(moved, changed)
    # In the ball it goes down to 0.8 alone.
    assert replace(CLIPPED, rounds=1)(value, clean, seeded()).flatten()[place].item() == pytest.approx(0.8)


def test_squares_by_hand() -> None:
    chosen = torch.zeros(1, 4, 5).bool()
    chosen[0, 0, 0] = chosen[0, 2, 4] = True
    assert _squares(chosen, 1)[0].int().tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 1, 1],
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1],
    ]
    assert torch.equal(_squares(chosen, 0), chosen) and _squares(chosen, 4).all()


def test_the_pixels_whose_probes_raise_the_value_most_are_changed() -> None:
    """All channels of a pixel are probed and changed together; weights say which pixels matter."""
    weights = torch.arange(36.0).view(1, 1, 6, 6).repeat(1, 2, 1, 1)
    clean = torch.full((1, 2, 6, 6), 0.7)
    value, points = watched(lambda x: (weights * x).flatten(1).sum(dim=1))
    replace(UNBOUNDED, rounds=2, half_side=5)(value, clean, seeded())
    # A tenth of 36: three probes, all of which are changed (0.2 becomes 0.3); then twelve, of which three are.
    first = [int((x != clean)[0, 0].flatten().nonzero()) for x in points[1:4]]
    changed = points[4]
    assert sorted(first) == (changed != clean)[0, 0].flatten().nonzero()[:, 0].tolist()
    torch.testing.assert_close(changed[0, :, first[0] // 6, first[0] % 6], torch.full((2,), 0.8))
    second = [int((x != changed)[0, 0].flatten().nonzero()) for x in points[5:17]]
    last = (points[17] != changed)[0, 0].flatten().nonzero()[:, 0].tolist()
    assert len(set(second)) == 12 and len(points) == 18
    assert last == sorted(second)[-3:], "those of the largest weights"


# --- what every engine promises -------------------------------------------------------------------------------------


@ENGINES
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9), (7,), (2, 5)], ids=str)
def test_images_lie_in_the_bounds_and_the_best_is_kept(engine: LocalSearch, shape: tuple[int, ...]) -> None:
    clean = images(4, *shape)
    value, points = watched(bumpy)
    moved = engine(value, clean, seeded())
    assert moved.min() >= 0 and moved.max() <= 1 and not torch.equal(moved, clean)
    assert ((moved - clean).abs().max() > 0.1 + 1e-6) == (not engine.clipped)
    inside = torch.stack([bumpy(x) for x in points if x.min() >= 0 and x.max() <= 1]).amax(dim=0)
    assert (bumpy(moved) >= inside - 1e-5).all() and (bumpy(moved) >= bumpy(clean)).all()
    assert sum(map(len, points)) <= 4 * engine.queries


def test_queries_by_hand() -> None:
    # 8 rounds of 12 probes and an image, and the clean input.
    assert CLIPPED.queries == 8 * 13 + 1


def test_same_seed_same_result_together_or_not_and_radius_zero_changes_nothing() -> None:
    clean = images(4, 1, 8, 8)
    first, again, other = (CLIPPED(bumpy, clean, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)
    for together in (1, 5, 100):
        assert torch.equal(replace(CLIPPED, together=together)(Rowwise(bumpy), clean, seeded(3)), first)
    assert torch.equal(replace(CLIPPED, ball=Ball(0.0))(bumpy, clean, seeded()), clean)


def test_no_gradient_is_asked_for_and_nan_never_wins() -> None:
    def value(x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        height = bumpy(x)
        return torch.where(x.flatten(1).amax(dim=1) > 2, torch.nan, height)

    clean = images(4, 1, 8, 8)
    moved = UNBOUNDED(value, clean, seeded())
    assert (bumpy(moved) >= bumpy(clean)).all() and not bumpy(moved).isnan().any()


def test_rows_at_their_goal_leave() -> None:
    clean = torch.full((8, 1, 8, 8), 0.8)
    sizes: list[int] = []

    def rows(x: Tensor, need: Tensor) -> Tensor:
        sizes.append(len(x))
        return (x - 0.8).flatten(1).abs().sum(dim=1) - need

    value = Rowwise(rows, (torch.tensor([0.05] * 7 + [99.0]),))
    moved = replace(CLIPPED, goal=0.0, together=1)(value, clean, seeded())
    assert sizes[0] == 8 and sizes[-1] == 1
    assert (value(moved)[:7] >= 0).all() and value(moved)[7] < 0
    # A row that is there from the start is left as it is.
    value = replace(value, constants=(torch.tensor([-1.0] * 8),))
    assert torch.equal(replace(CLIPPED, goal=0.0)(value, clean, seeded()), clean)


def test_a_row_of_three_inputs_changes_the_same_pixels_of_each() -> None:
    clean = torch.full((6, 1, 5, 5), 0.7)
    value = Rowwise(lambda x, sign: sign * x.view(3, len(sign), -1).sum(dim=(0, 2)), (torch.tensor([1.0, 2.0]),), 3)
    moved = replace(CLIPPED, rounds=2)(value, clean, seeded())
    changed = (moved != clean).view(3, 2, 25)
    assert changed.any(dim=2).all() and torch.equal(changed[0], changed[1]) and torch.equal(changed[0], changed[2])
    assert not torch.equal(changed[0, 0], changed[0, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(CLIPPED, rounds=0), "rounds=0"),
        (lambda: replace(CLIPPED, pixels=0), "pixels=0"),
        (lambda: replace(CLIPPED, half_side=-1), "half_side=-1"),
        (lambda: replace(CLIPPED, r=2.5), "r=2.5 wraps past"),
        (lambda: replace(CLIPPED, p=math.nan), "p=nan"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
