"""What a certificate is asked of the points of a table: k-NN under the learned metric, or the learned network."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from robustmetric.certify.crown import Crown
from robustmetric.certify.knn import RobustKNN
from robustmetric.certify.nearest import KNearest
from robustmetric.certify.smoothing import Smoothing
from robustmetric.jobs.learned import Fitted, Table
from robustmetric.jobs.proofs import EMPIRICAL, Question, Radii
from robustmetric.numerics.devices import device_of

ATTACKED = 25
"""Points attacked at a time: an attack takes longer than a proof."""


def question_of(
    certificate: KNearest | Crown | Smoothing, fitted: Fitted, table: Table, base: Mapping[str, Any], device: str
) -> Question:
    """What a certificate is to prove of the points of a table."""
    settings = {**base, "certificate": repr(certificate)}
    if isinstance(certificate, KNearest):
        chunk = _chunk(device)
        prove, name = _by_neighbours(certificate, fitted, table, device), certificate.name
    else:
        is_slow = isinstance(certificate, Smoothing)
        prove, chunk = _by_network(certificate, fitted, table, device), 1 if is_slow else 10
        name = type(certificate).__name__.lower()
    return Question(name, len(table.test_x), settings, prove, chunk)


def attack_question(
    neighbours: int, method: str, fitted: Fitted, table: Table, base: Mapping[str, Any], device: str
) -> Question:
    """The other side of a proof: the length at which an attack on k-NN gets through, of each point of a table."""
    classifier = _classifier(KNearest(neighbours, "bound"), fitted, table, device)

    def attack(part: slice) -> Radii:
        radii = classifier().attack(table.test_x[part], table.test_y[part], method)
        assert not isinstance(radii, tuple)  # no perturbation was asked for
        return radii

    settings = {**base, "attack": method, "neighbours": neighbours}
    return Question(
        f"{neighbours}-NN attacked, {method}", len(table.test_x), settings, attack, ATTACKED, kind=EMPIRICAL
    )


def _chunk(device: str) -> int:
    return 1000 if device_of(device).type == "cuda" else 250


def _classifier(certificate: KNearest, fitted: Fitted, table: Table, device: str) -> Callable[[], RobustKNN]:
    """k-NN among the rows that the learner kept, made when it is first asked."""
    kept = slice(None) if fitted.kept is None else fitted.kept
    return cache(lambda: certificate.fit(fitted.matrix, table.x[kept], table.y[kept], device))


def _by_neighbours(certificate: KNearest, fitted: Fitted, table: Table, device: str) -> Callable[[slice], Radii]:
    classifier = _classifier(certificate, fitted, table, device)

    def prove(part: slice) -> Radii:
        radii = classifier().certify(
            table.test_x[part], table.test_y[part], certificate.method, positives=certificate.positives
        )
        assert not isinstance(radii, tuple)  # no perturbation was asked for
        return radii

    return prove


def _by_network(certificate: Crown | Smoothing, fitted: Fitted, table: Table, device: str) -> Callable[[slice], Radii]:
    def prove(part: slice) -> Radii:
        assert fitted.network is not None and fitted.classes is not None  # checked when the recipe was read
        network = fitted.network.to(device)
        codes = {label: code for code, label in enumerate(fitted.classes.tolist())}
        x = torch.from_numpy(table.test_x[part]).float().view(-1, *table.shape).to(device)
        y = torch.tensor([codes.get(label, -1) for label in table.test_y[part].tolist()], device=device)
        radii = torch.zeros(len(x), dtype=torch.float64, device=device)
        seen = y >= 0  # a label that was not trained on is never given
        if isinstance(certificate, Crown):
            radii[seen] = certificate.certify(network.double(), x[seen], y[seen])
        else:
            found = certificate.certify(network.float(), x, first=part.start)
            radii = found.radius.where(found.label == y, radii)
        return radii.cpu().numpy()

    return prove
