"""Schema of what was certified: a row of `results/tabular`, and the block `certified` of an encoder's row."""

from typing import Any

WORDS = ("id", "data", "learner", "recipe", "command", "commit", "hardware")
COUNTS = ("seed", "rows", "points")
PROOF = ("certificate", "name", "radii", "error", "seconds")
FOUND = ("attack", "name", "radii", "error", "seconds")
"""Of what an attack reached, in the block `empirical`."""
OPTIONAL = ("fit_seconds", "kept_rows", "published", "empirical")
RETRIEVAL = ("sigma", "samples", "search", "certificate", "queries", "radii", "R@1", "seconds")


def faults(row: Any) -> list[str]:
    """What keeps a row from being one of `results/tabular`, in words; nothing for a good row."""
    if not isinstance(row, dict):
        return [f"expected an object, found {type(row).__name__}"]
    needed = (*WORDS, *COUNTS, "certified")
    found = [f"{key} is missing" for key in needed if key not in row]
    found += [f"{key} is not known" for key in row if key not in (*needed, *OPTIONAL)]
    found += [f"{key} {row[key]!r} is no text" for key in WORDS if key in row and not isinstance(row[key], str)]
    counts = [key for key in (*COUNTS, "kept_rows") if key in row]
    found += [f"{key} {row[key]!r} is no count" for key in counts if not isinstance(row[key], int)]
    for block, parts in (("certified", PROOF), ("empirical", FOUND)):
        for curve in row.get(block, []):
            found += [f"{block}: {key} is missing" for key in parts if key not in curve]
            found += _curve_faults(curve)
    return found


def _curve_faults(curve: dict[str, Any]) -> list[str]:
    found = []
    errors = curve.get("error", [])
    if len(errors) != len(curve.get("radii", [])) or errors != sorted(errors):
        found.append(f"{curve.get('name')}: an error for each radius, none smaller than the one before, is expected")
    if not all(0 <= error <= 100 for error in errors):
        found.append(f"{curve.get('name')}: errors {errors} are not in percent")
    return found


def retrieval_faults(block: Any) -> list[str]:
    """What is wrong with the certificates of an encoder's row, in words."""
    if not isinstance(block, list) or not all(isinstance(proof, dict) for proof in block):
        return ["certified is no list of certificates"]
    found = []
    for proof in block:
        found += [f"certified: a proof lacks {key}" for key in RETRIEVAL if key not in proof]
        found += [f"certified.{key} is not known" for key in proof if key not in (*RETRIEVAL, "mean_radius")]
        rates = proof.get("R@1", [])
        if len(rates) != len(proof.get("radii", [])) or rates != sorted(rates, reverse=True):
            found.append("certified: a rate for each radius, none larger than the one before, is expected")
        if not all(0 <= rate <= 100 for rate in rates):
            found.append(f"certified: rates {rates} are not in percent")
    return found
