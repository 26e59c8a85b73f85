"""Whether a classifier's two parts are the whole, found on a few images."""

import pytest
import torch
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.jobs.answer import check_features

IMAGES = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))


class Parts(nn.Module):
    """A network of one hidden layer; of `forgotten`, the features are those before the activation."""

    def __init__(self, classes: int, forgotten: bool, temperature: float = 1.0) -> None:
        super().__init__()
        self.classes, self.forgotten, self.temperature = classes, forgotten, temperature
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(16, 8), nn.Linear(8, classes)

    def features(self, inputs: Tensor) -> Tensor:
        z = self.body(inputs.flatten(1) - 0.5)
        return z if self.forgotten else z.relu()

    def logits(self, features: Tensor) -> Tensor:
        return self.head(features)

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.head(self.features(inputs).relu()) / self.temperature).log_softmax(dim=1)


@pytest.mark.parametrize("classes", [2, 3])
def test_parts_that_are_not_the_whole_are_refused_also_of_two_classes(classes: int) -> None:
    model = Parts(classes, forgotten=True)
    with torch.no_grad():
        whole, parts = model(IMAGES), model.logits(model.features(IMAGES))
    # Which class is named tells them apart on few images, or on none of the first.
    assert (whole.argmax(dim=1) == parts.argmax(dim=1)).float().mean() > 0.5
    with pytest.raises(InputError, match="expected the same logits"):
        check_features(model, IMAGES)
    for temperature in (0.1, 1.0, 7.0):
        check_features(Parts(classes, forgotten=False, temperature=temperature), IMAGES)
        check_features(Parts(classes, forgotten=False, temperature=temperature), IMAGES[:1])


def test_a_difference_that_the_first_image_does_not_show_is_found_on_the_next() -> None:
    class Late(Parts):
        """Its parts are the whole on the first image of a batch alone."""

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) + torch.arange(len(inputs))[:, None] * torch.tensor([1.0, 0.0, 0.0])

    check_features(Late(3, forgotten=False), IMAGES[:1])
    with pytest.raises(InputError, match="expected the same logits"):
        check_features(Late(3, forgotten=False), IMAGES)
