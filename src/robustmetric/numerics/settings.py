"""Settings that are refused in one line: what was given, and what was expected."""

from robustmetric.errors import InputError, nearest
from robustmetric.numerics.numbers import is_number, is_whole


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not one of the choices."""
    if value not in choices:
        raise InputError(f"{name} {value!r} is not known{nearest(value, choices)}")


def check_positive(**values: object) -> None:
    """Refuse settings that must be numbers above 0."""
    for name, value in values.items():
        if not is_number(value, 0) or value == 0:
            raise InputError(f"{name} = {value!r}; expected a number > 0")


def check_distances(**values: object) -> None:
    """Refuse settings that must be numbers of 0 or more."""
    for name, value in values.items():
        if not is_number(value, 0):
            raise InputError(f"{name} = {value!r}; expected a number >= 0")


def check_factors(**values: object) -> None:
    """Refuse settings that must be numbers of 1 or more."""
    for name, value in values.items():
        if not is_number(value, 1):
            raise InputError(f"{name} = {value!r}; expected a number >= 1")


def check_shares(**values: object) -> None:
    """Refuse settings that must be numbers from 0 to 1."""
    for name, value in values.items():
        if not is_number(value, 0, 1):
            raise InputError(f"{name} = {value!r}; expected a number from 0 to 1")


def check_parts(**values: object) -> None:
    """Refuse settings that must be numbers between 0 and 1: something, and not all."""
    for name, value in values.items():
        if not is_number(value, 0, 1) or value in (0, 1):
            raise InputError(f"{name} = {value!r}; expected a number > 0 and < 1")


def check_counts(least: int = 1, /, **values: object) -> None:
    """Refuse settings that must be whole numbers of `least` or more."""
    for name, value in values.items():
        if not is_whole(value, least):
            raise InputError(f"{name} = {value!r}; expected a whole number >= {least}")


def check_optional_counts(**values: object) -> None:
    """Refuse settings that must be whole numbers of 1 or more, or None: not set."""
    for name, value in values.items():
        if value is not None and not is_whole(value):
            raise InputError(f"{name} = {value!r}; expected a whole number >= 1, or None")
