"""The published rows of Zhou & Patel 2022, and the recipe file each of them must have.

`python tests/published.py` writes the files that are generated; lines that begin with `# measured:` are kept.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROWS = Path(__file__).with_name("published_rows.txt")
RECIPES = Path(__file__).parents[1] / "recipes"
CLEAN = ("R@1", "R@2", "mAP", "mAP@10", "NMI")
ATTACKED = ("CA+", "CA-", "QA+", "QA-", "TMA", "ES:D", "ES:R", "LTM", "GTM", "GTT")
TITLES = {"cub": "CUB-200-2011", "cars": "CARS-196", "sop": "Stanford Online Products"}
NO_DATA = ("sop",)
MINERS = {"R": "random", "M": "semihard", "S": "softhard", "D": "distance_weighted", "H": "hardest"}
GOALS = {
    "g_LGA": ("lga", ""),
    "g_B(M)": ("gb", "{name: boosted, miner: {name: semihard}}"),
    "g_2": ("g2", "{power: 2}"),
    "g_1/2": ("g_half", "{power: 0.5}"),
    "0": ("zero", "{name: fixed, value: 0}"),
    "-gamma/2": ("half_margin", "{name: fixed, value: -0.1}"),
    "-gamma": ("margin", "{name: fixed, value: -0.2}"),
}
"""Destinations other than a miner: the word in the file's name, and what the recipe says."""
EXTRAS = {
    "": ("", ""),
    "(u 2.2)": ("_u2_2", "destination: {cap: 2.2}"),
    "(weight 1)": ("_weight1", "structure: {weight: 1.0}"),
    "(weight 0.5)": ("_weight0_5", ""),
    "(margin 0.2)": ("_margin0_2", "structure: {margin: 0.2}"),
}
BY_HAND = ("plain", "est", "act", "hm_lga", "hm_lga_ics")
"""The recipes on CUB that the others are based on."""
PROTOCOLS = (
    "# protocols: full as it is; short epochs=15 optimiser.rate=3e-5; sketch epochs=4 optimiser.rate=5e-5 "
    "(queries: all; 1000; 500)\n"
)
MOBILENET = "model: {architecture: mobilenet_v2, weights: weights/mobilenet_v2-imagenet-features.pth}\n"


@dataclass(frozen=True)
class Row:
    """One published row: `title` as the paper has it, `steps` None where nothing is attacked in training."""

    data: str
    title: str
    steps: int | None
    tables: tuple[str, ...]
    scores: dict[str, str]
    """As printed; empty where the row collapsed."""

    @property
    def source(self) -> str:
        """`Zhou & Patel 2022, Tables 3 and 6`."""
        named = [f"supplement Table {t[1:]}" if t[0] == "S" else f"Table {t}" for t in self.tables]
        return f"Zhou & Patel 2022, {', '.join(named)}"

    @property
    def kind(self) -> str:
        """The row without its steps, as files name it: `hm_r_m_ics`."""
        return self._parsed[0]

    @property
    def stem(self) -> str:
        """The file: 8 steps, the usual number, go without saying."""
        return self.kind if self.steps in (None, 8) else f"{self.kind}-eta{self.steps}"

    @property
    def changes(self) -> list[str]:
        """What its defence changes in `base`."""
        return self._parsed[1]

    @property
    def base(self) -> str:
        return self._parsed[2]

    @property
    def _parsed(self) -> tuple[str, list[str], str]:
        trained = re.fullmatch(r"(plain|EST|ACT)\[(.)\]", self.title)
        if trained:
            name, letter = trained[1].lower(), trained[2]
            plain = letter == "R"
            change = [] if plain else [f"source: {{name: {MINERS[letter]}}}"]
            return (name if plain else f"{name}_{letter.lower()}"), change, name
        found = re.fullmatch(r"HM\[(.),(.+?)\](&ICS)?(\(.*\))?", self.title)
        assert found, self.title
        source, goal, ics, extra = found[1], found[2], bool(found[3]), found[4] or ""
        word, destination = GOALS.get(goal) or (goal.lower(), f"{{name: mined, miner: {{name: {MINERS[goal]}}}}}")
        # Softhard is the source of all rows with a goal of their own, but for HM[R,g_LGA]: only that one says so.
        letter = [] if goal in GOALS and source == "S" else [source.lower()]
        name = "_".join(["hm", *letter, word, *(["ics"] if ics else [])]) + EXTRAS[extra][0]
        changes = [] if source == "S" else [f"source: {{name: {MINERS[source]}}}"]
        changes += [f"destination: {destination}"] if destination else []
        changes += [EXTRAS[extra][1]] if EXTRAS[extra][1] else []
        return name, changes, "hm_lga_ics" if ics else "hm_lga"

    def header(self) -> str:
        """What the row is, how to run it and what was published."""
        steps = "" if self.steps is None else f", {self.steps} steps"
        devices = "--devices 2" if self.base in ("plain", "est") else "--fast"
        return (
            f"# {self.title} on {TITLES[self.data]}, ResNet-18{steps} ({self.source}).\n"
            f"# command: robustmetric train {self.data}/{self.stem} {devices}\n"
            + published(self.scores)
            + PROTOCOLS
            + f"# measured: no (no {'data or weights' if self.data in NO_DATA else 'ResNet-18 weights'} at hand)\n"
        )

    def recipe(self) -> str:
        """The whole file of a generated row."""
        body = f"base: {self._base_file()}\n"
        if self._is_root and self.data != "cub":
            body += f"data: {{name: {self.data}}}\n"
        changes = self._own_changes()
        if changes:
            body += f"defence: {{{', '.join(changes)}}}\n"
        return self.header() + body

    def mobilenet(self) -> str:
        """The whole file of the same row with MobileNetV2, whose ImageNet weights are at hand."""
        steps = "" if self.steps is None else f", {self.steps} steps"
        known = "collapsed" if not self.scores else f"R@1 {self.scores['R@1']}, ERS {self.scores['ERS']}"
        # Two GPUs of 112 images are one of 224: the published number of steps.
        wide = "sampler: {batch: 224}\n" if self.base in ("plain", "est") else ""
        return (
            f"# {self.title} on {TITLES[self.data]}, MobileNetV2 from a local file under ROBUSTMETRIC_DATA{steps}.\n"
            f"# command: robustmetric train {self.data}/mobilenet_v2-{self.stem} --fast\n"
            f"# published: none for this backbone (ResNet-18: {known})\n"
            + PROTOCOLS
            + f"# measured: no{' (no data at hand)' if self.data in NO_DATA else ''}\n"
            + f"base: {self.stem}.yaml\n{MOBILENET}{wide}"
        )

    @property
    def _is_root(self) -> bool:
        return self.stem == self.kind

    def _base_file(self) -> str:
        if not self._is_root:
            return f"{self.kind}.yaml"
        return f"{self.base}.yaml" if self.data == "cub" else f"../cub/{self.base}.yaml"

    def _own_changes(self) -> list[str]:
        if not self._is_root:
            return [f"attack: {{steps: {self.steps}}}"]
        # The paper's weight of ICS on SOP; 0.5, that of CUB and CARS, is the row of the supplement's Table 8.
        small = self.data == "sop" and self.kind == "hm_lga_ics"
        return [*self.changes, *(["structure: {weight: 0.05}"] if small else [])]


def published(scores: dict[str, str]) -> str:
    """The lines of a header that say what was published."""
    if not scores:
        return "# published: collapsed\n"
    clean = ", ".join(f"{name} {scores[name]}" for name in (*CLEAN, "ERS") if name in scores)
    attacked = ", ".join(f"{name} {scores[name]}" for name in ATTACKED)
    return f"# published: {clean}\n# attacked: {attacked}\n"


@cache
def rows() -> tuple[Row, ...]:
    """All published rows of ResNet-18."""
    return tuple(_row(line) for line in ROWS.read_text().splitlines() if not line.startswith("#"))


def _row(line: str) -> Row:
    data, title, steps, tables, *numbers = (part.strip() for part in line.split("|"))
    scores: dict[str, str] = {}
    if numbers != ["collapsed"]:
        recall, (precision, kind), rest = numbers[0].split(), numbers[1].split(), numbers[2].split()
        scores = dict(zip(("R@1", "R@2"), recall, strict=True))
        scores["mAP" if kind == "full" else "mAP@10"] = precision
        scores |= dict(zip(("NMI", *ATTACKED, "ERS"), rest, strict=True))
    return Row(data, title, None if steps == "-" else int(steps), tuple(tables.split(",")), scores)


def generated() -> dict[Path, str]:
    """The files that follow from the rows, and what they must hold."""
    ours = [row for row in rows() if row.data != "cub" or row.stem not in BY_HAND]
    files = {RECIPES / row.data / f"{row.stem}.yaml": row.recipe() for row in ours}
    return files | {RECIPES / row.data / f"mobilenet_v2-{row.stem}.yaml": row.mobilenet() for row in rows()}


def unmeasured(text: str) -> list[str]:
    """The lines that do not depend on what was measured since."""
    return [line for line in text.splitlines() if not line.startswith("# measured:")]


if __name__ == "__main__":
    for path, text in generated().items():
        if not path.is_file() or unmeasured(path.read_text()) != unmeasured(text):
            path.write_text(text)
            print(path)
