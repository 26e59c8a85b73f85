"""robustmetric: train, attack, certify and compare metric-learning models under adversarial perturbation.

The names below are imported when first used, so that a report can be built without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustmetric.api import attack as attack
    from robustmetric.api import evaluate as evaluate
    from robustmetric.certify.knn import RobustKNN as RobustKNN
    from robustmetric.errors import InputError as InputError
    from robustmetric.learn.arml import ARML as ARML
    from robustmetric.models.encoder import Encoder as Encoder
    from robustmetric.perturb.ball import Ball as Ball
    from robustmetric.perturb.pgd import PGD as PGD

_WHERE = {
    "attack": "robustmetric.api",
    "evaluate": "robustmetric.api",
    "RobustKNN": "robustmetric.certify.knn",
    "ARML": "robustmetric.learn.arml",
    "InputError": "robustmetric.errors",
    "Encoder": "robustmetric.models.encoder",
    "Ball": "robustmetric.perturb.ball",
    "PGD": "robustmetric.perturb.pgd",
}

__version__ = "0.1.0"
__all__ = ["ARML", "PGD", "Ball", "Encoder", "InputError", "RobustKNN", "attack", "evaluate"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'robustmetric' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
