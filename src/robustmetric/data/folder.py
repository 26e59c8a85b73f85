"""Your own images: one sub-folder per class, plain or in a zip."""

from dataclasses import dataclass, field

from robustmetric.data.base import data_root
from robustmetric.data.files import open_tree
from robustmetric.data.listing import ImageFiles, Listing, Plan, class_folders
from robustmetric.errors import InputError

EXPECTED = (
    "expected one sub-folder of images per class, or train/ and test/ (and gallery/, searched by test/) with such "
    "sub-folders in each"
)


@dataclass(frozen=True)
class Folder(ImageFiles):
    """Class sub-folders: the last `test_share` of the classes, by name, are retrieved; the others train.

    `test_share` 1 keeps all of them for retrieval. With train/ and test/ sub-folders the split is yours; test/ searches
    gallery/ where that is there too.
    """

    # Without field() the default of the base class would stand, and no folder is a sensible default.
    root: str = field()
    test_share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.test_share <= 1:
            raise InputError(f"test_share {self.test_share} is not a share of the classes; expected 0 < share <= 1")

    def plan(self) -> Plan:
        """By train/ and test/ where they are there, else by class name."""
        root = data_root(self.root)
        if not root.exists():
            raise InputError(f"{root} does not exist; {EXPECTED}")
        tree = open_tree([root])
        images = tree.images()
        if not images:
            raise InputError(f"{root} holds no images; {EXPECTED}")
        top = top_folder(images)
        firsts = {name[len(top) :].split("/")[0] for name in images}
        if {"train", "test"} <= firsts:
            parts = {part: Listing.of(class_folders(images, f"{top}{part}/")) for part in ("train", "test", "gallery")}
            gallery = parts["gallery"] if "gallery" in firsts else None
            return Plan(root.stem, tree, parts["train"], parts["test"], gallery, layout=EXPECTED, upright=True)
        pairs = class_folders(images, top)
        names = sorted({name for _, name in pairs})
        count = round(len(names) * (1 - self.test_share))
        if not names:
            raise InputError(f"{root} holds {len(images)} images but no folder of a class; {EXPECTED}")
        if count == len(names) or (count == 0 and self.test_share < 1):
            raise InputError(
                f"{root}: {len(names)} class folders cannot be cut at test_share {self.test_share}; {EXPECTED}"
            )
        trained = set(names[:count])
        train = Listing.of([pair for pair in pairs if pair[1] in trained])
        test = Listing.of([pair for pair in pairs if pair[1] not in trained])
        return Plan(root.stem, tree, train, test, may_lack_train=count == 0, layout=EXPECTED, upright=True)


def top_folder(names: list[str]) -> str:
    """The folder (with its slash) that everything lies under, "" where there is none; a class folder is not one."""
    top = ""
    while True:
        parts = [name[len(top) :].split("/") for name in names]
        # Three levels, one common: top/class/file. With two, the common folder is itself a class.
        if len({part[0] for part in parts}) != 1 or min(map(len, parts)) < 3:
            return top
        top += parts[0][0] + "/"
