"""Learners of a Mahalanobis metric, as scikit-learn estimators: `ARML`, and what it is compared with."""

from robustmetric.learn.arml import ARML
from robustmetric.learn.itml import ITML
from robustmetric.learn.lfda import LFDA
from robustmetric.learn.lmnn import LMNN
from robustmetric.learn.nca import NCA
from robustmetric.learn.network import Network
from robustmetric.learn.perturbation_loss import PerturbationLoss
from robustmetric.learn.plain import Euclidean, Given
from robustmetric.learn.pruning import AdversarialPruning

__all__ = [
    "ARML",
    "ITML",
    "LFDA",
    "LMNN",
    "NCA",
    "AdversarialPruning",
    "Euclidean",
    "Given",
    "Network",
    "PerturbationLoss",
]
