"""Supervised one-step training by the fast gradient sign (Goodfellow et al., ICLR 2015), which may leak labels."""

from robustmetric.defences.madry import Madry
from robustmetric.losses.base import MetricLoss
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD


def one_step(
    loss: MetricLoss,
    ball: Ball,
    step_size: float | None = None,
    random_start: bool = True,
    climbed: MetricLoss | None = None,
) -> Madry:
    """Adversarial training with a single step up the loss, by default as long as the radius.

    From a clean start (`random_start` off) the step is a function of the label that the model can learn to read: its
    accuracy under this attack is then above that on clean inputs (label leaking, Kurakin et al. 2017).
    """
    step = ball.radius if step_size is None else step_size
    return Madry(loss, PGD(ball, steps=1, step_size=step, random_start=random_start), climbed=climbed)
