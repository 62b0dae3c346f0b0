# SPDX-License-Identifier: Apache-2.0
"""From YAML texts to values: the one place that reads YAML, within bounds of time and memory.

Rules
- As in Kubernetes, an unquoted date is a text. A key that is there twice with two values is an error, as in kustomize
  (kubectl takes the last); with the same text, it is one. A set (`!!set`) is a mapping to null. Everything else is as
  PyYAML reads it, merge keys (`<<`) included.
- A tag that is not known, such as `!Ref` or `!vault`, is ignored, as Go's readers ignore it.
- Aliases (`*a`) and merge keys may repeat MOST_REPEATED values in a document: a few hundred bytes can name billions,
  and whatever walks over them would walk over each.
- Values are nested DEEPEST levels at most, aliases written out. The reader recurses in C, where nothing else stops it.
- A number is of LONGEST_NUMBER characters at most: time to convert it grows with the square of its length.
- Most manifests are of a few forms, which `yaml_lines` reads, with the same values. PyYAML reads all else, without
  counting levels where a text has neither the indentation nor the brackets to be nested too deeply.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar

import msgspec
import yaml

from dovetail.kube.yaml_lines import UNREAD, read_lines
from dovetail.kube.yaml_scalars import LONG, RESOLVERS, TAG, TEXT, short_tag_of, tag_of, whole_number

T = TypeVar("T")

MOST_REPEATED = 100_000
DEEPEST = 200
LONGEST_NUMBER = 1000
_MAP, _LIST, _INT = (f"{TAG}{kind}" for kind in ("map", "seq", "int"))
_ANCHOR, _ALIAS = re.compile(r"&([\w-]+)", re.ASCII), re.compile(r"\*([\w-]+)", re.ASCII)
_MOST_SHOWN = 40
_LONG = 64
"""Characters: a long text counts as one value for each of these."""
_FLAT_INDENT, _FLAT_BRACKETS, _FLAT_CHARACTERS = 40, 50, 2**14
_INDENTS = bytes.maketrans(b"\t?:-", b" " * 4)
_TOO_FAR = b" " * (_FLAT_INDENT + 1)


class OverBounds(yaml.MarkedYAMLError):
    """The text may be YAML, but is over a bound: `problem` names the bound, and what to do."""

    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        super().__init__(None, None, problem, mark)


class _Size(msgspec.Struct, frozen=True):
    """Of a node with its aliases written out: the number of values, and the levels below it."""

    values: int
    levels: int


class Loader(yaml.CSafeLoader):
    """PyYAML's loader within the bounds, for `yaml.load`, `yaml.load_all` and `yaml.compose`. Raises YAMLError."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._level = 0
        self._may_repeat = not isinstance(stream, str) or _has_aliases(stream)
        self._flat: set[int] = set()

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        self._level = level = self._level + 1
        if level > DEEPEST and current_node is not None:
            raise _too_deep(current_node.start_mark)

    def ascend_resolver(self) -> None:
        self._level -= 1

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a node without one, as PyYAML finds it, without its work for what this loader does not have."""
        if kind is not yaml.ScalarNode:
            return _MAP if kind is yaml.MappingNode else _LIST
        if not implicit[0]:
            return TEXT
        return short_tag_of(value) if len(value) <= LONG else tag_of(value)

    def construct_document(self, node: yaml.Node | None) -> Any:
        if node is None:
            return None
        self._flat.clear()
        if self._may_repeat:
            _bounded(node)
        try:
            return self._value(node)
        finally:
            self.constructed_objects.clear()
            self.recursive_objects.clear()

    def _value(self, node: yaml.Node) -> Any:
        """The value of a node. Most have the usual tags and keys: PyYAML's way is long for those."""
        if isinstance(node, yaml.ScalarNode):
            if node.tag == TEXT:
                return node.value
            quick = _QUICK.get(node.tag)
            return quick(self, node) if quick is not None else self.construct_object(node, deep=True)
        if node.tag == _LIST and isinstance(node, yaml.SequenceNode):
            return [self._value(one) for one in node.value]
        if node.tag != _MAP or not isinstance(node, yaml.MappingNode):
            return self.construct_object(node, deep=True)
        for key, _ in node.value:
            if key.tag != TEXT or not isinstance(key, yaml.ScalarNode):
                return self.construct_object(node, deep=True)
        # Most values are texts: without a call for each of them.
        found = {
            key.value: inner.value if inner.tag == TEXT and type(inner) is yaml.ScalarNode else self._value(inner)
            for key, inner in node.value
        }
        if len(found) < len(node.value):
            self.flatten_mapping(node)
        return found

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put the pairs of merge keys in their place. PyYAML calls it again for each mapping that merges this one."""
        if id(node) in self._flat:
            return
        self._flat.add(id(node))
        seen: dict[tuple[str, str], tuple[str, str] | None] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                named = (key.tag, key.value)
                text = (value.tag, value.value) if isinstance(value, yaml.ScalarNode) else None
                if named in seen and (text is None or seen[named] != text):
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
                seen[named] = text
        super().flatten_mapping(node)


@lru_cache(maxsize=2048)
def _remembered_tag(kind: type[yaml.Node], value: Any, implicit: Any) -> str:
    if kind is not yaml.ScalarNode:
        return _MAP if kind is yaml.MappingNode else _LIST
    return tag_of(value) if implicit[0] else TEXT


class FlatLoader(Loader):
    """The reader of texts for which `is_flat` holds, with the same values and errors. What PyYAML asks for each value
    is answered by C: levels are not counted, and tags are remembered, of texts of a bounded length."""

    descend_resolver = staticmethod(operator.is_)  # type: ignore[assignment]
    ascend_resolver = staticmethod(tuple)  # type: ignore[assignment]
    resolve = staticmethod(_remembered_tag)  # type: ignore[assignment]


def is_flat(text: str) -> bool:
    """Whether a text is short, and nothing in it can be nested deeper than DEEPEST: a level is a bracket, which has
    another one in it as `[a: 1]` has, or takes a character before the first word of a line, which a list and its key
    may share."""
    return (
        len(text) <= _FLAT_CHARACTERS
        and text.count("[") + text.count("{") <= _FLAT_BRACKETS
        and _TOO_FAR not in text.encode(errors="replace").translate(_INDENTS)
    )


def loader_of(text: str) -> Loader:
    """The reader of a text with one document."""
    return FlatLoader(text) if is_flat(text) else Loader(text)


def _has_aliases(text: str) -> bool:
    """Whether a text may have aliases of its anchors."""
    return "&" in text and "*" in text and not set(_ANCHOR.findall(text)).isdisjoint(_ALIAS.findall(text))


def _bounded(root: yaml.Node) -> None:
    """Raises OverBounds."""
    sizes: dict[int, _Size | None] = {}
    written = 0

    def size_of(node: yaml.Node, level: int, mark: yaml.Mark) -> _Size:
        nonlocal written
        if isinstance(node, yaml.ScalarNode):
            weight = 1 + len(node.value) // _LONG
            if id(node) not in sizes:
                sizes[id(node)] = _Size(weight, 0)
                written += weight
            return _Size(weight, 0)
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise OverBounds("an anchor holds itself: write the value out", mark)
            if level + known.levels > DEEPEST:
                raise _too_deep(mark)
            return known
        if level >= DEEPEST:
            raise _too_deep(mark)
        sizes[id(node)] = None
        written += 1
        values, levels = 1, 0
        for one, near in _inside(node):
            # An alias has the mark of its anchor, which is above.
            place = near if one.start_mark.index < near.index else one.start_mark
            size = size_of(one, level + 1, place)
            values += size.values
            levels = max(levels, size.levels + 1)
            if values - written > MOST_REPEATED:
                raise OverBounds(
                    f"anchors and merge keys (`<<`) repeat more than {MOST_REPEATED:,} values here: write them out, or "
                    "split the file",
                    place,
                )
        sizes[id(node)] = found = _Size(values, levels)
        return found

    size_of(root, 0, root.start_mark)


def _inside(node: yaml.Node) -> Iterator[tuple[yaml.Node, yaml.Mark]]:
    """The keys, values and items of a node, each with a mark near it, of the key or of the list."""
    for inner in node.value:
        if isinstance(inner, tuple):
            yield from ((one, inner[0].start_mark) for one in inner)
        else:
            yield inner, node.start_mark


def _too_deep(mark: yaml.Mark) -> OverBounds:
    return OverBounds(f"values are nested deeper than {DEEPEST} levels: make it flatter", mark)


def _checked(construct: Callable[[Loader, Any], Any]) -> Callable[[Loader, Any], Any]:
    """The constructor of a scalar, which answers bad values with a YAMLError that has the line."""

    def checked(loader: Loader, node: yaml.Node) -> Any:
        if len(node.value) > LONGEST_NUMBER:
            raise OverBounds(
                f"a number has {len(node.value):,} characters, more than {LONGEST_NUMBER:,}: put a text in quotes",
                node.start_mark,
            )
        try:
            return construct(loader, node)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:
            kind = node.tag.removeprefix(TAG)
            problem = f"{str(node.value)[:_MOST_SHOWN]!r} is no {kind}: put a text in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    return checked


def _whole_number(loader: Loader, node: yaml.Node) -> Any:
    number = whole_number(node.value)
    return number if number is not None else Loader.yaml_constructors[node.tag](loader, node)


def _untagged(loader: Loader, node: yaml.Node) -> Any:
    """The value of a node without its tag."""
    if isinstance(node, yaml.MappingNode):
        return loader.construct_yaml_map(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_yaml_seq(node)
    return node.value


for _kind in ("int", "float", "bool", "timestamp"):
    Loader.add_constructor(TAG + _kind, _checked(yaml.CSafeLoader.yaml_constructors[TAG + _kind]))
Loader.add_constructor(None, _untagged)
Loader.add_constructor(TAG + "set", Loader.yaml_constructors[_MAP])
Loader.yaml_implicit_resolvers = RESOLVERS
_QUICK: dict[str, Callable[[Loader, Any], Any]] = {
    _INT: _whole_number,
    **{TAG + kind: Loader.yaml_constructors[TAG + kind] for kind in ("float", "bool", "null")},
}
"""Of the scalars whose values nothing can change later, by tag: PyYAML's way is long for those, too."""


def read_yaml(text: str | bytes) -> Any:
    """The value of a text with one document; None if it is empty. Raises YAMLError."""
    found = read_lines(text) if isinstance(text, str) else _read_bytes(text)
    if found is not UNREAD:
        return found[0]
    loader = loader_of(text) if isinstance(text, str) else Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _read_bytes(data: bytes) -> Any:
    try:
        return read_lines(data.decode())
    except UnicodeDecodeError:
        return UNREAD


def decode_yaml(text: str | bytes, kind: type[T] | UnionType) -> T:
    """The value of a text with one document, as a `kind`. Raises YAMLError, and msgspec's ValidationError."""
    return msgspec.convert(read_yaml(text), type=kind)
