"""Where masking checks turn from pass to unclear to fail; fixed on one half of the zoo of `benchmarks/detector.py`."""

import math
from dataclasses import dataclass
from typing import Literal

Word = Literal["pass", "fail", "unclear", "not run"]
"""How a check ended; `not run` where it could not be asked, which is no verdict: it counts neither for nor against."""


DIGITS = 9
"""After the point, of a number that is judged: one image of a million is 1e-4 percent."""


@dataclass(frozen=True)
class Limit:
    """A number below `unclear` passes, one from `fail` on fails."""

    unclear: float
    fail: float

    def judge(self, number: float) -> Word:
        """The verdict on a number; one that is not a number is unclear."""
        # 100 * 58 / 300 - 100 * 28 / 300 is 10 but for its last bits.
        number = round(number, DIGITS)
        if number >= self.fail:
            return "fail"
        return "pass" if number < self.unclear else "unclear"


# Where a check measures how many more points another attack wins, it fails at 10: masked is defined by that many.
BEATEN = Limit(unclear=5.0, fail=10.0)
"""Percent of the images that withstand the gradients of the model and fall to an attack that does not use them."""
RESTARTS = Limit(unclear=5.0, fail=10.0)
"""Points from the mean run to the worst case per image over the restarts."""
SPREAD = Limit(unclear=1.2, fail=3.0)
"""Of the losses that random starts end at, per image, as a share of what a climb gains."""
CHANCE = Limit(unclear=5.0, fail=10.0)
"""Points above chance at the largest radius."""
RISE = Limit(unclear=5.0, fail=10.0)
"""Points by which the score grows as the radius does."""
LATE = Limit(unclear=5.0, fail=10.0)
"""Points that fall after a tenth of the most steps."""
FLAT = Limit(unclear=5.0, fail=10.0)
"""Percent of the images without any gradient that withstand the usual attack; unclear also where that many fall."""
LOSSES = Limit(unclear=5.0, fail=10.0)
"""Points from the attack on the usual loss to the worst case per image over all losses."""
STEP_SIZES = Limit(unclear=5.0, fail=10.0)
"""Points from the usual step size to the best one."""
PLANTED = Limit(unclear=20.0, fail=40.0)
"""Percent of the planted adversarial examples that the attack does not find."""
AVERAGED = Limit(unclear=5.0, fail=10.0)
"""Points from the attack on single draws of a randomised model to the best one on their mean."""
WORST = Limit(unclear=5.0, fail=11.0)
"""Points from one run of the usual attack to the worst case per image over every attack that was run: more attacks than
define masked, and the most of many wins about a point by their number alone."""
EASY = 50.0
"""Percent of planted examples found by random points: from here on the test is no test."""
SMALL = 1e-3
"""A radius, a quarter of a step of 8 bits, below which a climb may gain nothing for the rounding of float32 alone."""
ROUNDING = 16 * 2.0**-23
"""Of a margin, or of 1 where it is less: what gains must exceed in such a ball to be told from rounding."""
FEWEST = 10
"""Images from which a share means something."""
STRANGE = 1e-6
"""Relative difference of two answers to one input from which a model counts as randomised."""
SWAYED = 1e-4
"""The same of one fixed draw, from which chance is left that may decide; sums in another order are to stay below it."""


def is_by_chance(right: int, count: int, share: float) -> bool:
    """Whether so many right answers are no more than two standard deviations above chance, a share of them."""
    return right <= count * share + 2 * math.sqrt(count * share * (1 - share))


def is_rounding(gain: float, margin: float, radius: float) -> bool:
    """Whether that little is gained in so small a ball that float32 may be the reason, and no hidden gradient."""
    return radius < SMALL and abs(gain) <= ROUNDING * max(margin, 1.0)
