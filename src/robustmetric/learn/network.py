"""A small classifier trained with or without noise, as a scikit-learn estimator: what k-NN is compared with."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.models.classifier import cnn, mlp
from robustmetric.numerics.devices import device_of
from robustmetric.numerics.numbers import is_whole
from robustmetric.numerics.randomness import Purpose, generator
from robustmetric.numerics.settings import check_choice, check_counts, check_distances, check_positive
from robustmetric.types import Progress


class Network(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """`mlp` or `cnn` of models/classifier.py under cross-entropy; `sigma` is the noise of its training.

    Rows of `fit` keep their shape: (n, features) for an mlp, (n, channels, side, side) for a cnn. `random_state` is the
    seed of weights, order and noise.
    """

    progress: Progress | None = None
    """Told of each epoch, as a metric learner tells of its iterations."""
    network_: nn.Module
    classes_: np.ndarray
    loss_curve_: list[float]

    def __init__(
        self,
        network: Literal["mlp", "cnn"] = "mlp",
        *,
        widths: Sequence[int] | None = None,
        sigma: float = 0.0,
        epochs: int = 30,
        batch: int = 128,
        rate: float = 1e-3,
        random_state: int = 0,
        device: str = "cpu",
    ) -> None:
        self.network = network
        self.widths = widths
        self.sigma = sigma
        self.epochs = epochs
        self.batch = batch
        self.rate = rate
        self.random_state = random_state
        self.device = device

    def check_settings(self) -> None:
        """Refuse settings that go with no rows: `fit` does so, and a job does before it begins anything."""
        check_choice("network", self.network, ("mlp", "cnn"))
        check_distances(sigma=self.sigma)
        check_counts(epochs=self.epochs, batch=self.batch)
        check_counts(0, random_state=self.random_state)
        check_positive(rate=self.rate)
        widths = (1,) if self.widths is None else self.widths
        if not isinstance(widths, Sequence) or not all(map(is_whole, widths)):
            raise InputError(f"widths = {self.widths!r}; expected whole numbers >= 1, such as [256, 256]")

    def build(self, shape: Sequence[int], classes: int) -> nn.Module:
        """The network for inputs of this shape, its weights drawn by the seed."""
        self.check_settings()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            if self.network == "mlp":
                return mlp(int(np.prod(shape)), classes, self.widths or (256, 256))
            if len(shape) != 3 or shape[1] != shape[2]:
                raise InputError(
                    f"inputs of shape {tuple(shape)} are no square images; expected (channels, side, side)"
                )
            return cnn(shape[0], shape[1], classes, self.widths or (16, 32))

    def fit(self, X: Any, y: Any) -> "Network":
        """Train on these rows and labels."""
        given, labels = np.asarray(X, dtype=np.float64), np.asarray(y)
        check_classification_targets(labels)
        if not np.isfinite(given).all():
            raise InputError("some inputs are NaN or infinite; expected finite numbers: clean or drop those rows")
        if np.abs(given).max(initial=0) > np.finfo(np.float32).max:
            raise InputError("some inputs are too large for float32; expected rows of moderate size: scale them first")
        inputs = given.astype(np.float32)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        device = device_of(self.device)
        self.network_ = self.build(inputs.shape[1:], len(self.classes_)).to(device)
        self.loss_curve_ = fit_classifier(
            self.network_, torch.from_numpy(inputs).to(device), torch.from_numpy(codes).to(device),
            sigma=self.sigma, epochs=self.epochs, batch=self.batch, rate=self.rate, seed=self.random_state,
            progress=self.progress,
        )  # fmt: skip
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row."""
        with torch.no_grad():
            logits = self.network_(torch.from_numpy(np.asarray(X, dtype=np.float32)).to(device_of(self.device)))
        return self.classes_[logits.argmax(dim=1).cpu().numpy()]


def fit_classifier(
    model: nn.Module,
    inputs: Float[Tensor, "n *shape"],
    labels: Int[Tensor, " labels"],
    *,
    sigma: float = 0.0,
    epochs: int = 30,
    batch: int = 128,
    rate: float = 1e-3,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[float]:
    """Train in place by cross-entropy and Adam on inputs with Gaussian noise; the mean loss of each epoch.

    Noise of the deviation that will smooth the classifier, not clipped, as smoothing does not clip either; 0 for none.
    """
    if not sigma >= 0 or epochs < 1 or batch < 1:
        raise InputError(f"sigma={sigma}, epochs={epochs}, batch={batch}; expected sigma >= 0 and at least 1 of each")
    if len(inputs) != len(labels) or not len(inputs):
        raise InputError(f"{len(inputs)} inputs and {len(labels)} labels; expected as many of each, at least 1")
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    losses = []
    for epoch in range(epochs):
        source = generator(inputs.device, seed, epoch, purpose=Purpose.TRAINING)
        total = 0.0
        for rows in torch.randperm(len(inputs), generator=source, device=inputs.device).split(batch):
            clean = inputs[rows]
            noisy = clean + sigma * torch.randn(clean.shape, generator=source, device=clean.device, dtype=clean.dtype)
            loss = functional.cross_entropy(model(noisy), labels[rows])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(rows)
        losses.append(total / len(inputs))
        if progress is not None:
            progress(epoch + 1, epochs)
    model.eval()
    return losses
