"""Your own images by a CSV manifest: path, label, split, and optionally is_query, is_gallery, camera."""

import csv
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robustmetric.data.base import data_root
from robustmetric.data.files import open_tree
from robustmetric.data.listing import ImageFiles, Listing, Plan
from robustmetric.errors import InputError

NEEDED = ("path", "label", "split")
MORE = ("is_query", "is_gallery", "camera")
SPLITS = {"train": "train", "test": "test", "val": "validation", "validation": "validation"}
YES, NO = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no", ""})
EXPECTED = "expected the files that the manifest lists, relative to its own folder or to root:"

log = logging.getLogger(__name__)

Row = dict[str, str]


@dataclass(frozen=True)
class Manifest(ImageFiles):
    """Images listed in a CSV file; paths are relative to `root`, or to the file's own folder."""

    file: str
    use_validation: bool = False
    """Rows of split "validation" (or "val") are the queries and gallery instead of those of "test"."""

    def plan(self) -> Plan:
        """Rows of split "train" train (there may be none); those of "test", or of "validation", are searched."""
        path = data_root(self.file)
        rows = read_rows(path)
        root = path.parent if self.root is None else data_root(self.root)
        if not root.exists():
            raise InputError(f"{root} does not exist; {EXPECTED}")
        tree = open_tree([root])
        train = [row for row in rows if row["split"] == "train"]
        searched, left = ("validation", "test") if self.use_validation else ("test", "validation")
        test = [row for row in rows if row["split"] == searched]
        unused = sum(row["split"] == left for row in rows)
        if unused and not test:
            other = str(not self.use_validation).lower()
            raise InputError(
                f"{path} has no row of split {searched!r}, but {unused} of {left!r}; set use_validation: {other}"
            )
        if unused:
            log.warning(
                "%s: %d rows of split %r are left out; the queries are those of %r", path, unused, left, searched
            )
        queries, gallery = roles(test, path)
        if any(row.get("camera") for row in rows):
            log.warning("%s: cameras are kept with the images, but matches of the same camera are not left out", path)
        listed = None if gallery is None else listing(gallery, path)
        return Plan(
            path.stem,
            tree,
            listing(train, path),
            listing(queries, path),
            listed,
            may_lack_train=not train,
            layout=EXPECTED,
            upright=True,
        )


def is_manifest(path: Path) -> bool:
    """Whether a CSV file lists images: its header has two of the needed columns, where a table has labels alone."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            header = next(csv.reader(file), [])
    except (OSError, csv.Error):
        return False
    return len(set(NEEDED) & set(_named(header))) >= 2


def _named(header: Sequence[str]) -> list[str]:
    """The columns' names, in small letters: spreadsheets like to begin them with a capital."""
    return [name.strip().lower() for name in header]


def read_rows(path: Path) -> list[Row]:
    """The rows of the file, with checked columns and split names."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames = _named(reader.fieldnames or ())
            rows = [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read as CSV ({error}); expected a file with columns path,label,split"
        ) from error
    twice = [column for column in (*NEEDED, *MORE) if columns.count(column) > 1]
    if twice:
        raise InputError(
            f"{path} has two columns {twice[0]!r}, which capitals do not tell apart; rename the one that is not meant"
        )
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise InputError(
            f"{path} has no column {missing[0]!r} (found: {', '.join(columns)}); needed are {', '.join(NEEDED)}"
        )
    for number, row in enumerate(rows, 2):
        if row["split"].lower() not in SPLITS:
            raise InputError(
                f"{path}, line {number}: split {row['split']!r} is not known; expected train, test or validation"
            )
        row["split"] = SPLITS[row["split"].lower()]
        row["line"] = str(number)
    return rows


def roles(test: list[Row], path: Path) -> tuple[list[Row], list[Row] | None]:
    """Queries and gallery; None for a gallery that is the queries themselves."""
    if not test or not {"is_query", "is_gallery"} & test[0].keys():
        return test, None
    queries = [row for row in test if flag(row, "is_query", path)]
    gallery = [row for row in test if flag(row, "is_gallery", path)]
    if queries == gallery:
        return queries, None
    both = [row for row in queries if flag(row, "is_gallery", path)]
    if both:
        # A query would find itself in the gallery: only a gallery that is the queries leaves each one out.
        raise InputError(
            f"{path}, line {both[0]['line']}: {both[0]['path']!r} is query and gallery while others are not; "
            f"mark every {both[0]['split']} row as both, or each as one"
        )
    return queries, gallery


def flag(row: Row, column: str, path: Path) -> bool:
    """A yes or no; yes where the file has no such column."""
    if column not in row:
        return True
    text = row[column].lower()
    if text not in YES | NO:
        raise InputError(f"{path}, line {row['line']}: {column} {row[column]!r} is neither true nor false")
    return text in YES


def listing(rows: list[Row], path: Path) -> Listing:
    """Rows as a listing; labels keep the order in which they first appear."""
    cameras = None
    if rows and all(row.get("camera") for row in rows):
        try:
            cameras = tuple(int(row["camera"]) for row in rows)
        except ValueError as error:
            raise InputError(f"{path}: a camera is not a whole number ({error})") from error
    found = Listing.of([(row["path"], row["label"]) for row in rows])
    return Listing(found.paths, found.class_of, found.class_names, cameras)
