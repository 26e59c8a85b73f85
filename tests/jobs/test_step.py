"""A defence of one's own that returns the wrong thing is told so in one line, and the next try can begin."""

import sys
from pathlib import Path

import pytest

from commands import Command

OWN = """
from robustmetric.defences.base import Defence
from robustmetric.losses.base import MetricLoss

class Own(Defence):
    def __init__(self, loss: MetricLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, model, batch{generator}):
        z = model(batch.inputs)
        return {returned}
"""
PLAIN = "{'metric': self.loss(z, batch.labels)}"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command):  # a function of its own
    """Trains with a defence whose forward returns this."""

    def run(returned: str, generator: str = ", generator=None", loss: str = "{name: triplet}"):
        (tmp_path / "own_lab.py").write_text(OWN.format(returned=returned, generator=generator))
        sys.modules.pop("own_lab", None)
        monkeypatch.syspath_prepend(tmp_path)
        defence = f"defence={{name: own_lab.Own, loss: {loss}}}"
        return command("train", "digits/plain", defence, "epochs=1", "-o", "run")

    return run


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("self.loss(z, batch.labels)", "returned a Tensor; expected a dict of named loss terms"),
        ("{}", "returned no term at all"),
        ("{'metric': 0.5}", "term 'metric' is a float, no tensor"),
        ("{'metric': z}", "term 'metric' has shape (112, 64)"),
        ("{'metric': self.loss(z.detach(), batch.labels)}", "no term (metric) depends on a parameter"),
    ],
)
def test_terms_that_cannot_be_summed_or_differentiated_are_named(own, returned: str, said: str) -> None:
    assert f"Own.forward{'' if said.startswith('returned') else ':'} {said}" in own(returned).error


def test_a_defence_without_a_generator_is_refused_before_its_first_step(own) -> None:
    assert "expected forward(self, model, batch, generator=None)" in own(PLAIN, generator="").error


def test_a_word_for_a_part_of_ones_own_defence_is_refused(own) -> None:
    assert "plain.yaml.defence: loss 'triplet' is a word; write {name: triplet}" in own(PLAIN, loss="triplet").error


def test_a_training_that_failed_at_its_first_step_does_not_refuse_the_next(own, tmp_path: Path) -> None:
    own("{}")
    assert not (tmp_path / "run" / "recipe.yaml").exists()
    assert own(PLAIN).code == 0
    assert "exists" in own(PLAIN).error
