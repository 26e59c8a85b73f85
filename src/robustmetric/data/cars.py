"""CARS196 (Krause et al. 2013): the first 98 classes train, the other 98 are retrieved."""

import struct
import zlib
from dataclasses import dataclass
from io import BytesIO

from scipy.io import loadmat

from robustmetric.data.base import data_root
from robustmetric.data.files import Tree, find_tree
from robustmetric.data.listing import ImageFiles, Listing, Plan, located
from robustmetric.errors import InputError

FOLDERS = ("cars196", "CARS196", "cars", "CARS", "stanford_cars", "car_data")
ANNOTATIONS = "cars_annos.mat"
CLASSES = 196
TRAIN_CLASSES = 98
EXPECTED = (
    "expected car_ims/ with cars_annos.mat, or 196 class folders (in train/ and test/, or together), in cars196/ or "
    "a zip cars196*.zip; get it from Stanford's Cars page (3D Object Representations, Krause et al.)"
)


@dataclass(frozen=True, kw_only=True)
class Cars(ImageFiles):
    """8,054 / 8,131 images of 98 / 98 classes; the official train/test flags play no part."""

    def plan(self) -> Plan:
        """From the annotations where they are there, else from class folders."""
        markers = (ANNOTATIONS, "car_ims", "train")
        tree = find_tree(
            data_root(self.root), FOLDERS, ("cars196*.zip", "CARS196*.zip", "stanford_cars*.zip"), markers, EXPECTED
        )
        rows = annotated(tree) or by_folder(tree)
        train = Listing.of([(path, name) for path, number, name in rows if number <= TRAIN_CLASSES])
        test = Listing.of([(path, name) for path, number, name in rows if number > TRAIN_CLASSES])
        return Plan("cars196", tree, train, test, expected=(8_054, 8_131, None), layout=EXPECTED)


def annotated(tree: Tree) -> list[tuple[str, int, str]]:
    """(path, class number from 1, class name) by file path, from cars_annos.mat; empty where there is none."""
    found = tree.find(ANNOTATIONS)
    if found is None:
        return []
    try:
        content = loadmat(BytesIO(tree.read(found)), squeeze_me=True)
        names = [str(name) for name in content["class_names"].reshape(-1)]
        rows = content["annotations"].reshape(-1)
        listed = sorted(
            (str(path), int(number)) for path, number in zip(rows["relative_im_path"], rows["class"], strict=True)
        )
        paths = located(tree, [path for path, _ in listed])
        return [(path, number, names[number - 1]) for path, (_, number) in zip(paths, listed, strict=True)]
    except (ValueError, KeyError, IndexError, TypeError, NotImplementedError, struct.error, zlib.error) as error:
        raise InputError(f"{found} is not the annotation file of CARS196 ({error}); {EXPECTED}") from error


def by_folder(tree: Tree) -> list[tuple[str, int, str]]:
    """The same from class folders: their alphabetical order (capitals first) is the official one."""
    images = [name for name in tree.images() if "/" in name]
    names = sorted({path.split("/")[-2] for path in images})
    if images and len(names) != CLASSES:
        raise InputError(f"{tree.home} has {len(names)} class folders, CARS196 has {CLASSES}; {EXPECTED}")
    number = {name: i + 1 for i, name in enumerate(names)}
    rows = [(path, number[path.split("/")[-2]], path.split("/")[-2]) for path in images]
    return sorted(rows, key=lambda row: (row[1], row[0].rpartition("/")[2], row[0]))
