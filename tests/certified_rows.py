"""The recipes of the certified tables, made from one list: `python tests/certified_rows.py` writes recipes/tabular."""

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "recipes" / "tabular"
LEARNERS = {
    "euclidean": ("Euclidean distance", "euclidean"),
    "nca": ("NCA (Goldberger et al. 2004)", "nca"),
    "lmnn": ("LMNN (Weinberger & Saul 2009)", "lmnn"),
    "itml": ("ITML (Davis et al. 2007)", "itml"),
    "lfda": ("LFDA (Sugiyama 2007)", "lfda"),
    "arml": ("ARML (Wang et al. 2020)", "arml"),
    "perturbation_loss": ("LMNN with a perturbation loss (X. Yang et al. 2020)", "perturbation_loss"),
    "perturbation_loss_10": (
        "LMNN with ten times that loss (X. Yang et al. 2020)",
        "perturbation_loss, weight: 10",
    ),
    "pruning": ("adversarial pruning (Y. Yang et al. 2020)", "pruning, radius: {pruning}"),
}

NETWORKS = {
    "crown": ("an mlp, by CROWN", "network, widths: [256, 256]", "{name: crown}"),
    "smoothing": (
        "an mlp under noise of deviation 0.2, by randomised smoothing",
        "network, widths: [256, 256], sigma: 0.2",
        "{name: smoothing, sigma: 0.2}",
    ),
    "smoothing_1": (
        "an mlp under noise of deviation 1, by randomised smoothing",
        "network, widths: [256, 256], sigma: 1.0",
        "{name: smoothing, sigma: 1.0}",
    ),
    "crown_cnn": ("a cnn, by CROWN", "network, network: cnn", "{name: crown}"),
}
"""What k-NN is compared with on images (the rebuttal's Figure i); architecture and training are ours."""
IMAGES = ("digits", "mnist", "fashion")
PICTURES = {"digits": "{name: digits, closed: true}"}
"""The same images, in two dimensions, where the table has flat rows."""


class Table(NamedTuple):
    """One data set: how it is read, and the radii of its published row."""

    title: str
    data: str
    radii: tuple[float, ...]
    pruning: float
    """Rows of different labels stay at least twice this apart."""
    pruned: str
    """How many rows that removes."""
    published: dict[str, str]


NONE = "none, it seems (errors equal those of the Euclidean distance; rows were not counted)"
TABLES = {
    "digits": Table("the digits", "{name: digits_table}", (0, 0.2, 0.4, 0.6, 0.8, 1.0), 0.8, "48 of 1,257 rows", {}),
    "satimage": Table(
        "Satimage", "{name: tabular, file: tabular/satimage.npz, scale: true}", (0, 0.15, 0.30, 0.45, 0.60, 0.75), 0.1,
        "46 of 4,435 rows",
        {
            "euclidean": ".108 .642 .864 .905 .928 .951", "nca": ".103 .710 .885 .915 .940 .963",
            "lmnn": ".092 .665 .871 .912 .944 .969", "itml": ".127 .807 .979 1 1 1",
            "lfda": ".125 .836 .919 .956 .992 1", "arml": ".095 .605 .839 .899 .920 .946",
        },
    ),
    "pendigits": Table(
        "Pendigits", "{name: tabular, file: tabular/pendigits.npz, scale: true}", (0, 0.1, 0.2, 0.3, 0.4, 0.5), 0.1,
        "4 of 7,494 rows",
        {
            "euclidean": ".039 .126 .316 .577 .804 .932", "nca": ".038 .196 .607 .884 .997 1",
            "lmnn": ".034 .180 .568 .898 .993 .999", "itml": ".060 .334 .773 .987 1 1",
            "lfda": ".047 .228 .595 .904 1 1", "arml": ".035 .114 .308 .568 .780 .937",
        },
    ),
    "usps": Table(
        "USPS", "{name: tabular, file: tabular/usps.npz, scale: true}", (0, 0.5, 1.0, 1.5, 2.0, 2.5), 0.5,
        "1 of 7,291 rows",
        {
            "euclidean": ".045 .224 .585 .864 .970 .999", "nca": ".056 .384 .888 1 1 1", "lmnn": ".046 .825 1 1 1 1",
            "itml": ".060 .720 .999 1 1 1", "lfda": ".098 1 1 1 1 1", "arml": ".043 .204 .565 .857 .970 .999",
        },
    ),
    "letter": Table(
        "Letter", "{name: tabular, file: tabular/letter.npz, scale: true}", (0, 0.05, 0.1, 0.15, 0.2, 0.25), 0.05,
        "23 of 16,000 rows", {},
    ),
    "splice": Table(
        "Splice, EI and IE against N, 1,000 rows drawn by seed 0 to learn from",
        '{name: tabular, file: tabular/splice_libsvm_form.npz, scale: true, join: [["1", "2"]], test_share: 0.685, '
        "seed: 0}",
        (0, 0.1, 0.2, 0.3, 0.4, 0.5), 1.4, "26 of 1,000 rows",
        {
            "euclidean": ".320 .513 .677 .800 .854 .880", "nca": ".130 .252 .404 .584 .733 .836",
            "lmnn": ".190 .345 .533 .697 .814 .874", "itml": ".306 .488 .679 .809 .862 .882",
            "lfda": ".264 .434 .605 .760 .845 .872", "arml": ".130 .233 .370 .526 .652 .758",
        },
    ),
    "mnist": Table(
        "MNIST", "{name: mnist}", (0, 0.5, 1.0, 1.5, 2.0, 2.5), 1.0, NONE,
        {
            "euclidean": ".033 .112 .274 .521 .788 .945", "nca": ".025 .140 .452 .839 .977 1",
            "lmnn": ".032 .641 .999 1 1 1", "itml": ".073 .571 .928 1 1 1", "lfda": ".152 1 1 1 1 1",
            "arml": ".024 .089 .222 .455 .757 .924",
        },
    ),
    "fashion": Table(
        "Fashion-MNIST", "{name: fashion}", (0, 0.5, 1.0, 1.5, 2.0, 2.5), 0.5, NONE,
        {
            "euclidean": ".145 .381 .606 .790 .879 .943", "nca": ".116 .538 .834 .950 .998 1",
            "lmnn": ".142 .756 .991 1 1 1", "itml": ".163 .672 .929 .998 1 1", "lfda": ".211 1 1 1 1 1",
            "arml": ".127 .348 .568 .763 .859 .928",
        },
    ),
}  # fmt: skip


def recipe(data: str, learner: str) -> str:
    """The text of one file."""
    table, (title, spec) = TABLES[data], LEARNERS[learner]
    known = table.published.get(learner)
    checked = "" if data == "satimage" else " (not checked against the paper)"
    lines = [
        f"# Certified k-NN on {table.title}: {title}; 1-NN exactly, 11-NN by the bound.",
        f"# command: robustmetric certify tabular/{data}-{learner}",
        f"# published: 1-NN certified errors {known}{checked}" if known else "# published: none for this setting",
        f"# measured: results/tabular/{data}-{learner}-seed0.json, where it has been",
    ]
    if learner == "pruning":
        lines.append(f"# removed: {table.pruned}")
    if learner != "euclidean":
        spec = spec.replace("{pruning}", f"{table.pruning:g}")
        return "\n".join([*lines, f"base: {data}-euclidean.yaml", f"learner: {{name: {spec}}}"]) + "\n"
    radii = ", ".join(f"{radius:g}" for radius in table.radii)
    return "\n".join([*lines, f"data: {table.data}", f"learner: {{name: {spec}}}", f"radii: [{radii}]"]) + "\n"


def network(data: str, certificate: str) -> str:
    """The text of one file about a network."""
    title, learner, proof = NETWORKS[certificate]
    lines = [
        f"# Certified classification on {TABLES[data].title} by {title}.",
        f"# command: robustmetric certify tabular/{data}-{certificate}",
        "# published: a curve only, of a network that is not described",
        f"# measured: results/tabular/{data}-{certificate}-seed0.json, where it has been",
        f"base: {data}-euclidean.yaml",
        *([f"data: {PICTURES[data]}"] if data in PICTURES and certificate.endswith("cnn") else []),
        f"learner: {{name: {learner}}}",
        f"certificates: [{proof}]",
    ]
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """Every file with its text."""
    metrics = {FOLDER / f"{data}-{learner}.yaml": recipe(data, learner) for data in TABLES for learner in LEARNERS}
    networks = {FOLDER / f"{data}-{proof}.yaml": network(data, proof) for data in IMAGES for proof in NETWORKS}
    return metrics | networks


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
    print(f"{len(files())} recipes in {FOLDER}")
