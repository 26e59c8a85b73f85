"""robustmetric: train, attack, certify and compare metric-learning models under adversarial perturbation.

The names below are imported when first used, so that a report can be built without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from robustmetric.version import VERSION

if TYPE_CHECKING:
    from robustmetric.api import attack as attack
    from robustmetric.api import evaluate as evaluate
    from robustmetric.api import load as load
    from robustmetric.certify.knn import RobustKNN as RobustKNN
    from robustmetric.certify.scaling import fold as fold
    from robustmetric.errors import InputError as InputError
    from robustmetric.learn.arml import ARML as ARML
    from robustmetric.metrics.robustness import area_under_error as area_under_error
    from robustmetric.metrics.robustness import robust_curve as robust_curve
    from robustmetric.metrics.robustness import robust_error as robust_error
    from robustmetric.models.encoder import Encoder as Encoder
    from robustmetric.perturb.ball import Ball as Ball
    from robustmetric.perturb.pgd import PGD as PGD

_WHERE = {
    "attack": "robustmetric.api",
    "evaluate": "robustmetric.api",
    "load": "robustmetric.api",
    "RobustKNN": "robustmetric.certify.knn",
    "fold": "robustmetric.certify.scaling",
    "ARML": "robustmetric.learn.arml",
    "robust_error": "robustmetric.metrics.robustness",
    "robust_curve": "robustmetric.metrics.robustness",
    "area_under_error": "robustmetric.metrics.robustness",
    "InputError": "robustmetric.errors",
    "Encoder": "robustmetric.models.encoder",
    "Ball": "robustmetric.perturb.ball",
    "PGD": "robustmetric.perturb.pgd",
}

__version__ = VERSION
__all__ = [
    "ARML",
    "PGD",
    "Ball",
    "Encoder",
    "InputError",
    "RobustKNN",
    "area_under_error",
    "attack",
    "evaluate",
    "fold",
    "load",
    "robust_curve",
    "robust_error",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'robustmetric' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
