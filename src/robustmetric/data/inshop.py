"""In-Shop Clothes Retrieval of DeepFashion (Liu et al. 2016): train, query and gallery of the official list."""

from dataclasses import dataclass

from robustmetric.data.base import data_root
from robustmetric.data.files import Tree, find_tree
from robustmetric.data.listing import ImageFiles, Listing, Plan, located
from robustmetric.errors import InputError

LIST = "list_eval_partition.txt"
FOLDERS = ("In-shop", "inshop", "InShop", "In-shop Clothes Retrieval Benchmark", "deepfashion_inshop")
COUNTS = {"train": 25_882, "query": 14_218, "gallery": 12_612}
EXPECTED = (
    f"expected Eval/{LIST} and img/ (or Img/img/) in inshop/ (or a zip inshop*.zip); get it from the DeepFashion page "
    "of the Chinese University of Hong Kong, In-shop Clothes Retrieval Benchmark"
)


@dataclass(frozen=True, kw_only=True)
class InShop(ImageFiles):
    """25,882 training, 14,218 query and 12,612 gallery images; `query_only`: the queries search one another."""

    query_only: bool = False

    def plan(self) -> Plan:
        """From list_eval_partition.txt."""
        markers = (LIST, f"Eval/{LIST}", f"Anno/{LIST}")
        tree = find_tree(
            data_root(self.root), FOLDERS, ("inshop*.zip", "In-shop*.zip", "InShop*.zip"), markers, EXPECTED
        )
        parts = partition(tree)
        gallery = None if self.query_only else parts["gallery"]
        counts = (COUNTS["train"], COUNTS["query"], COUNTS["gallery"])
        # The official training list is taken as it is, products with one picture included.
        return Plan("inshop", tree, parts["train"], parts["query"], gallery, counts, needs_pairs=False, layout=EXPECTED)


def partition(tree: Tree) -> dict[str, Listing]:
    """The three parts: a count, a header, then lines "image_name item_id evaluation_status"."""
    found = tree.find(LIST)
    if found is None:
        raise InputError(f"{tree.home} has no {LIST}; {EXPECTED}")
    rows = [line.split() for line in tree.lines(found)[2:]]
    broken = next((i for i, row in enumerate(rows) if len(row) != 3 or row[2] not in COUNTS), None)
    if broken is not None:
        raise InputError(f"{found}, line {broken + 3}: expected image_name item_id train|query|gallery")
    paths = located(tree, [row[0] for row in rows])
    pairs = [(path, row[1], row[2]) for path, row in zip(paths, rows, strict=True)]
    return {part: Listing.of([(path, item) for path, item, where in pairs if where == part]) for part in COUNTS}
