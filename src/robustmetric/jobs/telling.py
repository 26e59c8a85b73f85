"""What an evaluation says of each record as it comes: a line, or one for all attacks that had nothing left to do."""

from robustmetric.jobs.ers import APART
from robustmetric.jobs.progress import say, terms
from robustmetric.records import Record
from robustmetric.report.masking_flag import NOT_RUN
from robustmetric.report.scores import title
from robustmetric.report.turns import AFTER, STANDING, then

UNTOLD = ("mAP@R", "AMI", "AMI std")
"""Scores that are recorded and not told as they come: there are enough beside them."""


class Teller:
    """Tells the records of one model."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: dict[str, list[str]] = {}
        """Attacks in turn that came to nobody and are not told yet, by where they would have been."""

    def tell(self, record: Record) -> None:
        """Say a record; of attacks to which those before them left nothing, later and all at once."""
        if record.context.get(AFTER) and record.settings[STANDING] == 0:
            self._idle.setdefault(title("", record.settings) + _mode(record), []).append(record.name)
            return
        self.finish()
        say(f"{self._name}  {line(record)}")

    def finish(self) -> None:
        """Say what was not told yet."""
        for where, names in self._idle.items():
            others = f"the other {len(names)}: " if len(names) > 1 else ""
            say(f"{self._name}  nothing is left{where} for {others}{', '.join(names)}")
        self._idle.clear()


def line(record: Record) -> str:
    """A record as it is told when it comes."""
    shown = terms({key: value for key, value in record.scores.items() if key not in UNTOLD})
    is_after = bool(record.context.get(AFTER))
    left = f" (on the {record.settings[STANDING]} of {record.count} still right)" if is_after else ""
    name = then(title(record.name, record.settings), is_after)
    return f"{name}{_mode(record)}: {_judged(record)}{shown}{left}{_apart(record)}"


def _mode(record: Record) -> str:
    return " (compat)" if record.settings.get("mode") == "compat" else ""


def _judged(record: Record) -> str:
    """How a check of the masking diagnostics ended; nothing for an ordinary record."""
    if record.kind != "masking":
        return ""
    word = record.context["said"] if record.context["verdict"] == NOT_RUN else record.context["verdict"]
    return f"{word}  " if record.scores else str(word)


def _apart(record: Record) -> str:
    """What the fast view changed, in words; nothing for an ordinary record."""
    apart = record.context.get(APART, {})
    return f" (fast, off by {', '.join(f'{value:+.2g}' for value in apart.values())} on one batch)" if apart else ""
