# SPDX-License-Identifier: Apache-2.0
"""Where the fields of a document's text are: the place of one, and the parsed tree, whose nodes know where they begin
and end."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import yaml
from msgspec import Struct

from dovetail.advice.lint.field import Path
from dovetail.kube.yaml_lines import UNREAD, Places, read_lines
from dovetail.kube.yaml_text import loader_of


class FieldPlace(Struct, frozen=True):
    """Line and column, from 0, of the key or item of a field, or of its nearest ancestor that is there. If the value of
    that is a literal text, `rest` is how the path goes on in the manifest, `text`, that it may be, and the line is the
    one before it."""

    line: int
    column: int
    rest: Path = ()
    text: str = ""


def place(text: str, path: Path) -> FieldPlace | None:
    """The place of a field in a text with one document; None if that is empty. Raises YAMLError."""
    root, places = _read(text)
    return _in_tree(merged_tree(text), path) if root is UNREAD else _in_lines(root, places, path)


@lru_cache(maxsize=2)
def _read(text: str) -> tuple[Any, Places]:
    places: Places = {}
    return read_lines(text, places), places


def _in_lines(root: Any, places: Places, path: Path) -> FieldPlace:
    box = root
    slot: str | int = 0
    for depth, step in enumerate(path):
        inner = box[slot]
        if isinstance(inner, dict) and str(step) in inner:
            box, slot = inner, str(step)
        elif isinstance(inner, list) and isinstance(step, int) and step < len(inner):
            box, slot = inner, step
        else:
            line, column, literal = places[id(box), slot]
            return FieldPlace(line, column, path[depth:], inner) if literal else FieldPlace(line, column)
    line, column, _ = places[id(box), slot]
    return FieldPlace(line, column)


def _in_tree(root: yaml.Node | None, path: Path) -> FieldPlace | None:
    if root is None:
        return None
    node = at = root
    for depth, step in enumerate(path):
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in reversed(node.value) if pair[0].value == str(step)), None)
            if pair is None:
                break
            at, node = pair
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            at = node = node.value[step]
        elif isinstance(node, yaml.ScalarNode) and node.style == "|":
            return FieldPlace(node.start_mark.line, at.start_mark.column, path[depth:], node.value)
        else:
            break
    return FieldPlace(at.start_mark.line, at.start_mark.column)


@lru_cache(maxsize=2)
def tree(text: str) -> yaml.Node | None:
    """The tree of a text with one document, as it is written: not to be changed. None if it is empty. It is ten times
    as large as the value, and only findings and edits need it: those of a text come one after another. Raises
    YAMLError."""
    loader = loader_of(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def merged_tree(text: str) -> yaml.Node | None:
    """The tree with the pairs of merge keys in their place. Raises YAMLError."""
    return _merged(text) if "<<" in text else tree(text)


@lru_cache(maxsize=2)
def _merged(text: str) -> yaml.Node | None:
    loader = loader_of(text)
    try:
        root = loader.get_single_node()
        if root is not None:
            loader.construct_document(root)
        return root
    finally:
        loader.dispose()
