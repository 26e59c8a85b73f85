"""Random-targeted adversarial training (after Kurakin et al., ICLR 2017): towards a wrong class drawn at random."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.attacks.base import Engine
from robustmetric.defences.base import Defence, require
from robustmetric.losses.cross_entropy import CrossEntropy
from robustmetric.models.classifier import Classifies
from robustmetric.types import Batch, Embed, Inputs, Labels


class RandomTarget(Defence):
    """Per image, one of the K - 1 wrong classes; descend its cross entropy, and train on the result with the true one.

    The target is a hard label, whatever the smoothing of the loss. A classifier's: K is the number of logits.
    """

    def __init__(self, loss: CrossEntropy, attack: Engine) -> None:
        super().__init__()
        require(loss, CrossEntropy, "loss")
        require(attack, Engine, "attack")
        self.loss, self.attack = loss, attack

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        with self.attacked(model) as embed:
            target = wrong_labels(batch.labels, _classes(model, embed, batch.inputs), generator)

            def value(x: Inputs) -> Float[Tensor, " batch"]:
                return -functional.cross_entropy(embed(x), target, reduction="none")

            adversarial = self.attack(value, batch.inputs, generator)
        return {"adversarial": self.loss(model(adversarial), batch.labels)}


def _classes(model: nn.Module, embed: Embed, inputs: Inputs) -> int:
    """As the model says, else as many as it has logits."""
    if isinstance(model, Classifies):
        return model.classes
    with torch.no_grad():
        return embed(inputs[:1]).shape[1]


def wrong_labels(labels: Labels, classes: int, generator: torch.Generator | None) -> Labels:
    """For each label another one, all others alike."""
    ahead = torch.randint(1, classes, labels.shape, generator=generator, device=labels.device)
    return (labels + ahead) % classes
