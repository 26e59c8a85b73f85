"""ERS against the published tables, errors against radius, and bootstrap intervals."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from robustmetric.errors import InputError
from robustmetric.metrics.robustness import (
    SUB_SCORES,
    area_under_error,
    bootstrap,
    bootstrap_each,
    ers,
    ers_per_query,
    robust_curve,
    robust_error,
)

NAMES = ["CA+", "CA-", "QA+", "QA-", "TMA", "ES:D", "ES:R", "LTM", "GTM", "GTT"]

# Zhou & Patel 2022, supplement, Tables 11 and 7 to 10: the ten numbers, the printed ERS, the row (and its
# number of PGD steps in training).
PUBLISHED = """
     0    100      0   99.9  0.883  1.762      0      0   14.1      0 |   3.8 | CUB HM[R,R]
  19.4     48   22.2     32  0.535  0.867   11.6   10.4   19.3    2.9 |  35.1 | CUB HM[R,M], 8
   0.2    100    0.4   99.6  0.849  1.640    0.2    0.1   19.1      0 |   5.4 | CUB HM[M,R], 8
   0.1    100    0.4   99.8  0.843  1.717    0.3    0.3   18.4      0 |   5.0 | CUB HM[M,M]
     2   84.4    1.4   85.4  0.835  0.895    6.1    1.6     21      0 |  13.7 | CUB HM[S,R], 8
  10.9   50.5   10.8   44.6  0.680  0.722   13.3   11.2   25.8    1.2 |  29.6 | CUB HM[S,M], 8
     0    100      0   99.6  0.942  1.272      0      0   19.2      0 |   6.2 | CUB HM[S,S]
     0    100    0.2    100  0.841  1.749    0.1      0     19      0 |   4.8 | CUB HM[D,R], 8
     0    100    0.3   99.9  0.841  1.744    0.2      0   18.5      0 |   4.8 | CUB HM[D,M], 8
     0    100    0.4   99.9  0.842  1.753      0      0   19.7      0 |   4.9 | CUB HM[D,D]
     0    100    0.2   99.8  0.874  1.569    0.4      0   18.6      0 |   5.4 | CUB HM[D,H], 8
     0    100    0.2   99.9  0.837  1.750      0      0   17.7      0 |   4.7 | CUB HM[H,R], 8
     0    100    0.2    100  0.841  1.750      0      0   18.9      0 |   4.8 | CUB HM[H,M], 8
     0    100    0.2   99.9  0.835  1.720    0.1      0     20      0 |   5.1 | CUB HM[H,D], 8
     0    100    0.4   99.9  0.830  1.752    0.2      0   19.5      0 |   5.0 | CUB HM[H,H]
  12.7   46.4   11.6   39.9  0.567  0.783   16.8   11.9   27.9    1.4 |  32.4 | CUB HM[S,g_LGA], 8
  13.4     36   17.2   26.1  0.934  0.244   20.1   15.9   27.3    3.8 |  36.1 | CUB HM[S,g_LGA] (u=2.2), 8
  34.9    3.8   36.7    2.3  0.879  0.093   35.3   36.5   35.2   49.1 |  60.1 | SOP HM[S,g_LGA]&ICS, lambda=0.5, 8
  36.1    3.1   37.6    2.1  0.873  0.086   35.7   36.8   34.7   50.2 |  60.8 | SOP HM[S,g_LGA]&ICS, lambda=0.5, 32
  12.6   48.6   12.3   41.3  0.562  0.825   13.5   12.9   26.9    1.8 |  31.7 | CUB HM[S,g_1/2], 8
  12.7   46.4   11.6   39.9  0.567  0.783   16.8   11.9   27.9    1.4 |  32.4 | CUB HM[S,g_LGA], 8
  12.9   45.1   13.2   39.1  0.599  0.738   17.7   12.8   27.5    1.9 |  33.1 | CUB HM[S,g_2], 8
  12.9   40.9   14.7   33.7  0.806  0.487   17.1   13.2   26.3    2.3 |  33.5 | CUB HM[S,g_LGA]&ICS, 8
  13.2   39.9   12.7   33.3  0.775  0.507   15.9   14.9   27.2    2.7 |  33.6 | CUB HM[S,g_LGA]&ICS, margin=0.2, 8
"""


def published() -> list[tuple[str, dict[str, float], float]]:
    rows = [line.split("|") for line in PUBLISHED.strip().splitlines()]
    return [(row.strip(), dict(zip(NAMES, map(float, raw.split()), strict=True)), float(s)) for raw, s, row in rows]


@pytest.mark.parametrize(("row", "raw", "printed"), published())
def test_ers_equals_the_published_one(row: str, raw: dict[str, float], printed: float) -> None:
    # The inputs are rounded to one digit (three for TMA and ES:D), which moves ERS by at most 0.11.
    assert ers(raw) == pytest.approx(printed, abs=0.11), row


def test_all_24_published_rows_are_here() -> None:
    assert len(published()) == 24


def test_ers_by_hand() -> None:
    # 2*10, 100-80, 2*20, 100-70, 100*(1-0.5), 100*(2-1.5)/2, 7, 6, 5, 4 -> 20+20+40+30+50+25+7+6+5+4 = 207
    raw = dict(zip(NAMES, [10, 80, 20, 70, 0.5, 1.5, 7, 6, 5, 4], strict=True))
    assert ers(raw) == pytest.approx(20.7)


def test_ers_is_100_for_a_model_nothing_moves_and_0_for_one_that_always_falls() -> None:
    assert ers(dict(zip(NAMES, [50, 0, 50, 0, 0, 0, 100, 100, 100, 100], strict=True))) == pytest.approx(100)
    assert ers(dict(zip(NAMES, [0, 100, 0, 100, 1, 2, 0, 0, 0, 0], strict=True))) == pytest.approx(0)


def test_ers_takes_each_of_the_ten_and_names_what_is_missing() -> None:
    assert list(SUB_SCORES) == NAMES
    for name in NAMES:
        raw = dict.fromkeys(NAMES, 1.0) | {"R@1": 50.0}
        del raw[name]
        with pytest.raises(InputError, match=rf"missing: {name.replace('+', '[+]')}$"):
            ers(raw)


def test_the_mean_of_ers_per_query_is_ers_of_the_means() -> None:
    generator = torch.Generator().manual_seed(0)
    raw = {name: 100 * torch.rand(30, generator=generator) for name in NAMES}
    values = ers_per_query(raw)
    assert float(values.mean()) == pytest.approx(ers({name: float(v.mean()) for name, v in raw.items()}), rel=1e-4)
    assert float(values[3]) == pytest.approx(ers({name: float(v[3]) for name, v in raw.items()}), rel=1e-4)
    with pytest.raises(InputError, match="missing: GTT"):
        ers_per_query({name: v for name, v in raw.items() if name != "GTT"})


def test_the_interval_is_the_normal_one_for_many_values() -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0)) + 3
    for level in (0.95, 0.8):
        half = float(norm.ppf((1 + level) / 2) * values.std() / 2000**0.5)
        low, high = bootstrap(values, samples=4000, level=level)
        assert low == pytest.approx(float(values.mean()) - half, abs=0.08 * half)
        assert high == pytest.approx(float(values.mean()) + half, abs=0.08 * half)


def test_the_interval_of_a_weighted_mean() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(0))
    even = torch.full((400,), 0.3)
    assert bootstrap(values, weights=even) == pytest.approx(bootstrap(values))
    # Weight on the second half alone: its own mean, from half as many queries.
    second = (torch.arange(400) >= 200).float()
    half = 1.96 * float(values[200:].std()) / 200**0.5
    low, high = bootstrap(values, samples=4000, weights=second)
    assert low == pytest.approx(float(values[200:].mean()) - half, abs=0.15 * half)
    assert high == pytest.approx(float(values[200:].mean()) + half, abs=0.15 * half)


def test_equal_values_leave_no_doubt() -> None:
    assert bootstrap(torch.full((20,), 0.25)) == (0.25, 0.25)
    assert bootstrap(torch.full((20,), 0.25), samples=1) == (0.25, 0.25)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = torch.Generator().manual_seed(0)
    inside = 0
    for seed in range(200):
        low, high = bootstrap((torch.rand(80, generator=generator) < 0.3).float(), seed=seed, samples=300, level=0.9)
        inside += low <= 0.3 <= high
    assert 165 <= inside <= 195  # 180 expected, standard deviation 4.2


def test_the_seed_decides_and_chunks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.rand(50, generator=torch.Generator().manual_seed(0))
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1) != bootstrap(values, seed=2)
    whole = bootstrap(values, seed=1)
    monkeypatch.setattr("robustmetric.metrics.robustness.BLOCK", 50 * 7)
    assert bootstrap(values, seed=1) == pytest.approx(whole)


def test_intervals_of_several_scores_are_those_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    hits = 100 * (torch.rand(40, 3, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.2, 0.5, 0.9])).float()
    scores = {("V1", k): hits[:, k] for k in range(3)}
    expected = {name: bootstrap(values, seed=2) for name, values in scores.items()}
    assert bootstrap_each(scores, seed=2) == expected  # sums of hits are whole numbers: to the last bit
    monkeypatch.setattr("robustmetric.metrics.robustness.BLOCK", 40 * 7)
    assert bootstrap_each(scores, seed=2) == expected
    assert bootstrap_each({}) == {}
    with pytest.raises(InputError, match="no values"):
        bootstrap_each({"R@1": torch.zeros(0)})


@pytest.mark.parametrize("setting", [{"level": 0.0}, {"level": 1.0}, {"samples": 0}])
def test_an_interval_that_means_nothing_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected 0 < level < 1"):
        bootstrap(torch.ones(3), **setting)


def test_no_values_have_no_interval() -> None:
    with pytest.raises(InputError, match="no values"):
        bootstrap(torch.zeros(0))


# Two wrong (0), then 0.5 twice, 2, and one that nothing turns.
RADII = torch.tensor([0.0, 0.5, 2.0, 0.0, math.inf, 0.5])


def test_the_robust_error_by_hand() -> None:
    # "at most": at 0.5 the two wrong and the two at 0.5 count, 4 of 6.
    assert [robust_error(RADII, r) for r in (0, 0.4, 0.5, 2, 100)] == pytest.approx([2 / 6, 2 / 6, 4 / 6, 5 / 6, 5 / 6])
    assert robust_error(RADII.numpy(), 0.5) == robust_error(RADII, 0.5) == robust_error(RADII.tolist(), 0.5)


def test_the_robust_error_at_several_radii_is_that_of_each() -> None:
    expected = [5 / 6, 2 / 6, 4 / 6]  # in the order asked for
    for several in ([2, 0, 0.5], (2.0, 0.0, 0.5), np.array([2, 0, 0.5])):
        found = robust_error(RADII, several)
        assert isinstance(found, np.ndarray) and found.tolist() == pytest.approx(expected)
    assert robust_error(RADII, [math.inf]).tolist() == [1]
    for wrong in ([0.5, -1.0], [math.nan], np.ones((2, 2))):
        with pytest.raises(InputError, match="is not a length; expected a number >= 0, or several"):
            robust_error(RADII, wrong)


def test_the_curve_steps_where_a_radius_lies() -> None:
    steps, error = robust_curve(RADII)
    assert steps.tolist() == [0, 0.5, 2] and error.tolist() == pytest.approx([2 / 6, 4 / 6, 5 / 6])
    # From 0 on, also where all are right there.
    steps, error = robust_curve(np.array([1.0, 1.0]))
    assert steps.tolist() == [0, 1] and error.tolist() == [0, 1]
    for step, value in zip(*robust_curve(RADII), strict=True):
        assert robust_error(RADII, float(step)) == pytest.approx(float(value))


def test_the_area_under_the_error_is_that_of_its_steps() -> None:
    # Up to 1: 2/6 on [0, 0.5], 4/6 on [0.5, 1].
    assert area_under_error(RADII, 1.0) == pytest.approx((2 / 6 + 4 / 6) / 2)
    assert area_under_error(torch.zeros(3), 2.0) == 1 and area_under_error(torch.full((3,), 9.0), 2.0) == 0


@pytest.mark.parametrize("radii", [torch.tensor([]), torch.tensor([0.1, -0.1]), torch.tensor([math.nan])])
def test_what_is_no_radius_is_refused(radii: torch.Tensor) -> None:
    for curve in (robust_curve, lambda r: robust_error(r, 0.1), lambda r: area_under_error(r, 1.0)):
        with pytest.raises(InputError, match="expected one number >= 0 per query"):
            curve(radii)


def test_a_radius_or_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="radius -1"):
        robust_error(RADII, -1)
    for limit in (0.0, math.inf, math.nan):
        with pytest.raises(InputError, match="bounds no area"):
            area_under_error(RADII, limit)
