"""What proved radii say in words."""

import numpy as np

from robustmetric.jobs.radii_told import proof_in_words


def test_half_of_the_proofs_reach_the_middle_one() -> None:
    said = proof_in_words(np.array([0.0, 0.1, 0.2, 0.4, 0.0]), {"scale": True})
    assert said.startswith("of 5 points 3 have a proof") and "shorter than 0.2 " in said
    assert proof_in_words(np.zeros(2), {}) == "of 2 points none has a proof"
