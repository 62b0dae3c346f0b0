# SPDX-License-Identifier: Apache-2.0
"""The documents of a YAML text, each with the lines of its fields.

Rules
- Values, lines and errors are those of PyYAML, which reads the text as one stream. A text is split before lines that
  begin with `---`; `yaml_lines` reads the parts that it can, PyYAML each of the others.
- A part with an error may have one only because it ends there, as a text in quotes does: PyYAML reads all from there
  on. A text with directives, ends of documents (`...`), rare breaks of lines, or characters that YAML does not
  have is not split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml
from msgspec import Struct

from dovetail.kube.yaml_lines import UNREAD, Places, read_lines
from dovetail.kube.yaml_text import Loader, loader_of

_STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")
_BOUNDARY = re.compile(r"\n---(?=[ \t\r\n]|\Z)")
_ODD = re.compile("[^\t\n\r -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|\r(?!\n)")
"""Characters that YAML does not have, and rare breaks of lines. U+FEFF may only begin a text.
Source: https://github.com/yaml/libyaml: yaml_parser_update_buffer of src/reader.c, IS_BREAK of src/yaml_private.h."""


class NodePlace(Struct, frozen=True):
    """The place of a value that PyYAML read: its node in a text that begins after `before` lines."""

    node: yaml.Node
    before: int = 0

    def inside(self, field: str) -> NodePlace:
        """The place of a field such as `spec.containers[0].name` or `metadata.labels[a.b/c]`, or of the deepest value
        above it that is there."""
        node = self.node
        for step in _steps(field):
            children = node.value
            if isinstance(node, yaml.MappingNode):
                found = next((inner for name, inner in children if name.value == step), None)
            else:
                inside = isinstance(node, yaml.SequenceNode) and step.isdecimal() and int(step) < len(children)
                found = children[int(step)] if inside else None
            if found is None:
                break
            node = found
        return NodePlace(node, self.before)

    @property
    def line(self) -> int:
        """The line at which the value begins, from 1."""
        return self.before + self.node.start_mark.line + 1


class TextPlace(Struct, frozen=True):
    """The place of a value that was read line by line, in a text that begins after `before` lines. The text is read
    again if the line is asked for: the lines of all values would take more memory than they."""

    text: str
    before: int = 0
    path: tuple[str, ...] = ()

    def inside(self, field: str) -> TextPlace:
        """As `NodePlace.inside`."""
        return TextPlace(self.text, self.before, (*self.path, *_steps(field)))

    @property
    def line(self) -> int:
        """As `NodePlace.line`."""
        box, places = _placed(self.text)
        slot: str | int = 0
        for step in self.path:
            inner = box[slot]
            if isinstance(inner, dict) and step in inner:
                box, slot = inner, step
            elif isinstance(inner, list) and step.isdecimal() and int(step) < len(inner):
                box, slot = inner, int(step)
            else:
                break
        value = box[slot]
        if isinstance(value, dict | list) and value:
            # The places are those of keys and items: a collection begins where its first one does.
            box, slot = value, next(iter(value)) if isinstance(value, dict) else 0
        return self.before + places[id(box), slot][0] + 1


class StreamDocument(Struct, frozen=True):
    """One document: its value and its place."""

    value: Any
    place: NodePlace | TextPlace


def stream_documents(text: str) -> Iterator[StreamDocument]:
    """The documents in order. Raises YAMLError."""
    if text.startswith(("%", "...")) or "\n%" in text or "\n..." in text or _ODD.search(text):
        yield from _by_nodes(Loader(text))
        return
    start = before = 0
    for end in (*[found.start() + 1 for found in _BOUNDARY.finditer(text)], len(text)):
        part = text[start:end]
        found = read_lines(part)
        if found is not UNREAD:
            yield StreamDocument(found[0], TextPlace(part, before))
        else:
            try:
                documents = list(_by_nodes(loader_of(part), before))
            except yaml.YAMLError:
                yield from _by_nodes(Loader("\n" * before + text[start:]))
                return
            yield from documents
        start, before = end, before + part.count("\n")


def _by_nodes(loader: Loader, before: int = 0) -> Iterator[StreamDocument]:
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "there is one"
            yield StreamDocument(loader.construct_document(node), NodePlace(node, before))
    finally:
        loader.dispose()


@lru_cache(maxsize=2)
def _placed(text: str) -> tuple[Any, Places]:
    places: Places = {}
    return read_lines(text, places), places


def _steps(field: str) -> tuple[str, ...]:
    return tuple([key or bracketed for key, bracketed in _STEP.findall(field)])
