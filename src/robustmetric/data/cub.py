"""CUB-200 birds, releases 2011 (Wah et al.) and 2010 (Welinder et al.): classes 1-100 train, 101-200 are retrieved."""

from dataclasses import dataclass
from typing import Literal

from robustmetric.data.base import data_root
from robustmetric.data.files import Tree, find_tree
from robustmetric.data.listing import ImageFiles, Listing, Plan, class_folders, located
from robustmetric.errors import InputError

FOLDERS = {
    2011: ("CUB_200_2011", "cub_200_2011", "cub-200-2011", "CUB-200-2011", "cub", "CUB"),
    2010: ("CUB_200_2010", "cub_200_2010", "cub-200-2010", "CUB-200-2010", "CUB-200", "cub-200"),
}
ZIPS = {2011: ("cub-200-2011*.zip", "CUB_200_2011*.zip"), 2010: ("cub-200-2010*.zip", "CUB_200_2010*.zip")}
LISTS = {2011: "images.txt", 2010: "lists/files.txt"}
COUNTS = {2011: (5_864, 5_924, None), 2010: (2_944, 3_089, None)}
TRAIN_CLASSES = 100


@dataclass(frozen=True, kw_only=True)
class Cub(ImageFiles):
    """5,864 / 5,924 images (2011), 2,944 / 3,089 (2010); the official train/test flags play no part."""

    release: Literal[2010, 2011] = 2011

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.release not in COUNTS:
            raise InputError(f"release {self.release} of CUB is not known; expected 2010 or 2011")

    def plan(self) -> Plan:
        """In the order of the official list where there is one, else by class and as stored."""
        release = self.release
        expected = (
            f"expected images/NNN.Class_name/* in {FOLDERS[release][0]}/ (a folder, or zips named {ZIPS[release][0]}); "
            f"get it from Caltech's CUB-200-{release} page and unpack it"
        )
        tree = find_tree(data_root(self.root), FOLDERS[release], ZIPS[release], ("images",), expected)
        pairs = [(path, path.split("/")[-2]) for path in listed_paths(tree, LISTS[release])]
        train = Listing.of([pair for pair in pairs if class_number(pair[1]) <= TRAIN_CLASSES])
        test = Listing.of([pair for pair in pairs if class_number(pair[1]) > TRAIN_CLASSES])
        return Plan(f"cub{release}", tree, train, test, expected=COUNTS[release], layout=expected)


def listed_paths(tree: Tree, list_file: str) -> list[str]:
    """Image names in the order of the list (lines "id path" or "path"), or of the class folders under images/."""
    found = tree.find(list_file)
    if found is not None:
        return located(tree, [line.split(maxsplit=1)[-1] for line in tree.lines(found)])
    images = [name for name in tree.images() if "/images/" in f"/{name}"]
    if not images:
        return []
    prefix = images[0][: f"/{images[0]}".index("/images/")] + "images/"
    return [path for path, _ in class_folders(images, prefix)]


def class_number(folder: str) -> int:
    """7 for 007.Parakeet_Auklet."""
    number = folder.partition(".")[0]
    if not number.isdigit():
        raise InputError(f"{folder!r} is not a class folder of CUB; expected NNN.Class_name, as 007.Parakeet_Auklet")
    return int(number)
