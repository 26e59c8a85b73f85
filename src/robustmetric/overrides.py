"""Settings changed on the command line: dotted keys, whose whole numbers are places in a list."""

from robustmetric.errors import InputError
from robustmetric.recipe import Spec, merge, parse


def override(spec: dict[str, Spec], assignments: list[str]) -> dict[str, Spec]:
    """A copy with dotted assignments applied: `defence.attack.steps=4`, `model.members.0.dim=64`.

    Another `name` makes another object, as in `merge`: it starts without the old one's settings.
    """
    spec = merge({}, spec)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise InputError(f"{assignment!r} is not an override; expected key=value, as in defence.attack.steps=4")
        try:
            value = parse(text)
            _assign(spec, path.split("."), value)
        except InputError as error:
            raise InputError(f"{assignment!r}: {error}") from error
    return spec


def _assign(spec: dict[str, Spec], path: list[str], value: Spec) -> None:
    """Set what the path leads to; what lies on the way is copied, since a recipe may mean one object in two places."""
    *parents, last = path
    node: Spec = spec
    for parent in parents:
        place = _place(node, parent)
        inner = node.get(place) if isinstance(node, dict) else node[place]
        if not isinstance(inner, dict | list | None):
            raise InputError(f"{parent!r} is a plain value, it has no setting {last!r}")
        node[place] = list(inner) if isinstance(inner, list) else dict(inner or {})
        node = node[place]
    place = _place(node, last)
    if parents and place == "name" and node.get("name", value) != value:
        node.clear()
    node[place] = value


def _place(node: Spec, part: str) -> str | int:
    """One part of a dotted key: of a mapping the key itself, of a list the number."""
    if not isinstance(node, list):
        return part
    if not part.isdecimal() or int(part) >= len(node):
        expected = f"a number from 0 to {len(node) - 1}" if node else "no number, for it is empty"
        raise InputError(f"{part!r} is no place in a list of {len(node)}; expected {expected}")
    return int(part)
