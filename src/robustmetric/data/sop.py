"""Stanford Online Products (Song et al. 2016): 11,318 classes train, 11,316 others are retrieved."""

from dataclasses import dataclass

from robustmetric.data.base import data_root
from robustmetric.data.files import Tree, find_tree
from robustmetric.data.listing import ImageFiles, Listing, Plan, located
from robustmetric.errors import InputError

FOLDERS = ("Stanford_Online_Products", "stanford_online_products", "sop", "SOP")
EXPECTED = (
    "expected Ebay_train.txt, Ebay_test.txt and the *_final folders in Stanford_Online_Products/ (or its zip); get it "
    "from Stanford's Online Products page (Song et al.)"
)


@dataclass(frozen=True, kw_only=True)
class Sop(ImageFiles):
    """59,551 / 60,502 images, in the order of the official lists."""

    def plan(self) -> Plan:
        """From Ebay_train.txt and Ebay_test.txt."""
        zips = ("Stanford_Online_Products*.zip", "stanford_online_products*.zip", "sop*.zip")
        tree = find_tree(data_root(self.root), FOLDERS, zips, ("Ebay_train.txt",), EXPECTED)
        train, test = products(tree, "Ebay_train.txt"), products(tree, "Ebay_test.txt")
        counts = (59_551, 60_502, None)
        # The official lists are taken as they are, whatever the size of a class.
        return Plan("sop", tree, train, test, expected=counts, needs_pairs=False, layout=EXPECTED)


def products(tree: Tree, file: str) -> Listing:
    """One list: a header, then lines "image_id class_id super_class_id path"."""
    found = tree.find(file)
    if found is None:
        raise InputError(f"{tree.home} has no {file}; {EXPECTED}")
    rows = [line.split() for line in tree.lines(found)[1:]]
    broken = next((i for i, row in enumerate(rows) if len(row) != 4), None)
    if broken is not None:
        raise InputError(f"{found}, line {broken + 2}: expected image_id class_id super_class_id path")
    paths = located(tree, [row[3] for row in rows])
    return Listing.of([(path, row[1]) for path, row in zip(paths, rows, strict=True)])
