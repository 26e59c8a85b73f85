"""What tables and boards call the data of a row, and what they must tell of it: `CIFAR-10 (a JPEG copy)`."""

from collections.abc import Mapping
from typing import Any

NOTE = "data_note"
"""In a record's context and in a row: what is to be told of its data wherever its numbers stand."""
DATA = {
    "cub": "CUB-200-2011", "cifar10": "CIFAR-10", "cars": "CARS196", "fashion": "Fashion-MNIST", "mnist": "MNIST",
    "sop": "Stanford Online Products", "inshop": "In-Shop", "digits_table": "digits, as a table", "letter": "Letter",
    "pendigits": "Pendigits", "satimage": "Satimage", "splice_libsvm_form": "Splice", "usps": "USPS",
}  # fmt: skip
"""Names of data as people write them, first those that most have met; others stand as they are."""


def data_place(data: str) -> int:
    """Where boards of some data stand: in the order of `DATA`, then others."""
    return [*DATA, data].index(data)


def data_title(row: Mapping[str, Any]) -> str:
    """The data of a row as people write it, with its note."""
    data = str(row["data"])
    return with_note(DATA.get(data, data), row)


def with_note(name: str, row: Mapping[str, Any]) -> str:
    """A name of its data with the row's note in brackets, where it has one."""
    return f"{name} ({row[NOTE]})" if NOTE in row else name
