# SPDX-License-Identifier: Apache-2.0
"""Edits of the text of a YAML or JSON document that change no other byte.

A round-trip library would rewrite the whole file, with its indentation, folds and blanks. Here the marks of the parsed
tree determine the bytes to change. The new text is parsed again and compared with the edited value: if they
differ (a shared anchor, a merge key, an unusual layout), the edit is not made. One word in place of another needs no
such proof, where nothing in the text lets it be in two places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import yaml

from dovetail.advice.lint.edits import Edit, edited
from dovetail.advice.lint.tree import tree
from dovetail.kube.yaml_text import read_yaml

_BLOCK_SCALARS = ("|", ">")
_WORD = re.compile(r"[A-Za-z0-9]{1,64}")
_ELSEWHERE = re.compile(r"[&*!%]|<<")
"""What a text has where a value is in several places, or has a tag or a directive; other texts may have it, too."""
_MOST = 10**18
"""A number below has digits only, whoever writes it."""


class NotRewritten(Exception):
    """The edit would change other parts of the text."""


def rewritten(text: str, edits: Iterable[Edit], value: Any = None) -> str:
    """The text of one document with the edits applied in order. `value` is that of the text, if it is known already.
    Raises NotRewritten."""
    try:
        for edit in edits:
            root = tree(text)
            value = _value(text) if value is None else value
            swapped = _swapped(text, root, edit, value)
            if swapped is not None:
                text, value = swapped, None
                continue
            meant = edited(value, (edit,))
            if root is None:
                raise NotRewritten("the document is empty")
            text = _Text(text, root).made(edit)
            value = _value(text)
            if value != meant:
                raise NotRewritten(f"{edit.op} at {edit.path} would change more than that")
    except (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise NotRewritten(str(error)) from error
    return text


def _value(text: str) -> Any:
    return read_yaml(text)


def _swapped(text: str, root: yaml.Node | None, edit: Edit, value: Any) -> str | None:
    """The text with one word in place of another, with the same quotes or none; None where that is not the edit, or not
    sure to be all of it: no key on the way may be there twice, as text and as a number."""
    number = type(edit.value) is int and 0 <= edit.value < _MOST
    if edit.op != "put" or not (number or (type(edit.value) is str and _WORD.fullmatch(edit.value))):
        return None
    if root is None or not edit.path or _ELSEWHERE.search(text):
        return None
    node = root
    for step in edit.path:
        here = [one for key, one in node.value if key.value == step] if isinstance(node, yaml.MappingNode) else None
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            here = [node.value[step]]
        known = step in value if isinstance(value, dict) else isinstance(value, list)
        if here is None or len(here) != 1 or not known:
            return None
        node, value = here[0], value[step]
    if not isinstance(node, yaml.ScalarNode) or not _WORD.fullmatch(node.value):
        return None
    start, end, quote = node.start_mark.index, node.end_mark.index, node.style or ""
    if text[start:end] != f"{quote}{node.value}{quote}" or number == bool(quote):
        return None
    return f"{text[:start]}{quote}{edit.value}{quote}{text[end:]}"


class _Text:
    """The text of one document with its parsed tree."""

    def __init__(self, text: str, root: yaml.Node) -> None:
        self._text, self._root = text, root
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._list_indent = _list_indent(root)
        self._json = text.lstrip().startswith(("{", "["))

    def made(self, edit: Edit) -> str:
        *above, last = edit.path
        parent = self._root
        for at, step in enumerate(above):
            key_value = _entry(parent, step)
            if key_value is None or _is_null(key_value[1]):
                # The parent is missing: put it together with the value.
                value = [edit.value] if edit.op == "append" else edit.value
                for below in reversed(edit.path[at + 1 :]):
                    value = {below: value}
                return self._put(parent, step, value)
            parent = key_value[1]
        return self._made_in(parent, last, edit)

    def _made_in(self, parent: yaml.Node, last: str | int, edit: Edit) -> str:
        if edit.op == "put":
            return self._put(parent, last, edit.value)
        found = _entry(parent, last)
        if edit.op == "append" and (found is None or _is_null(found[1])):
            return self._put(parent, last, [edit.value])
        if found is None:
            raise NotRewritten(f"{last} is not there")
        key, value = found
        if edit.op == "append":
            return self._add_item(value, edit.value)
        if edit.op == "drop":
            return self._drop(parent, key, value)
        assert key is not None
        return self._spliced(key.start_mark.index, key.end_mark.index, self._scalar(edit.value, key, flow=self._json))

    def _spliced(self, start: int, end: int, new: str) -> str:
        return self._text[:start] + new + self._text[end:]

    def _put(self, parent: yaml.Node, key: str | int, value: Any) -> str:
        found = _entry(parent, key)
        if found is None:
            if not isinstance(parent, yaml.MappingNode) or not isinstance(key, str):
                raise NotRewritten(f"{key} has no mapping to stand in")
            return self._add_key(parent, key, value)
        key_node, old = found
        simple = not isinstance(value, dict | list)
        if isinstance(old, yaml.ScalarNode) and old.style not in _BLOCK_SCALARS and simple:
            new = self._scalar(value, old, flow=self._in_flow(parent))
            glue = "" if old.start_mark.index < old.end_mark.index else " "
            return self._spliced(old.start_mark.index, old.end_mark.index, glue + new)
        if key_node is None:
            raise NotRewritten("an item of a list is replaced by hand")
        start, end = key_node.end_mark.index, self._end(old, key_node.end_mark.index)
        if self._in_flow(parent) or simple:
            return self._spliced(start, max(end, self._colon(start)), ": " + self._flow(value))
        block = self._block(value, key_node.start_mark.column)
        return self._spliced(start, max(end, self._colon(start)), ":" + block)

    def _colon(self, index: int) -> int:
        return self._text.index(":", index) + 1

    def _add_key(self, parent: yaml.MappingNode, key: str, value: Any) -> str:
        if not self._in_flow(parent):
            indent = parent.value[0][0].start_mark.column
            simple = not isinstance(value, dict | list) or not value
            rest = " " + self._flow(value) if simple else self._block(value, indent)
            return self._new_line(parent, f"{' ' * indent}{self._flow(key)}:{rest}")
        entry = f"{self._flow(key)}: {self._flow(value)}"
        if not parent.value:
            start = parent.start_mark.index + 1
            return self._spliced(start, parent.end_mark.index - 1, entry)
        first, last = parent.value[0][0], parent.value[-1]
        if self._json or first.style == '"':
            entry = f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        return self._after_in_flow(first, self._end(last[1], last[0].end_mark.index), parent, entry)

    def _add_item(self, items: yaml.Node, value: Any) -> str:
        if not isinstance(items, yaml.SequenceNode):
            raise NotRewritten("is no list")
        if not self._in_flow(items):
            column = items.start_mark.column
            block = self._block([value], column - self._list_indent).lstrip("\r\n")
            return self._new_line(items, block)
        if not items.value:
            return self._spliced(items.start_mark.index + 1, items.end_mark.index - 1, self._flow(value))
        end = self._end(items.value[-1], items.value[0].start_mark.index)
        return self._after_in_flow(items.value[0], end, items, self._flow(value))

    def _after_in_flow(self, first: yaml.Node, end: int, parent: yaml.Node, entry: str) -> str:
        """The text with an entry added to a flow collection: on its own line if the first entry has its own line."""
        own_line = first.start_mark.line > parent.start_mark.line
        glue = f",{self._newline}{' ' * first.start_mark.column}" if own_line else ", "
        return self._spliced(end, end, glue + entry)

    def _new_line(self, block: yaml.Node, line: str) -> str:
        """The text with lines added after a block collection; comments at the end of its last line stay there."""
        end = self._line_end(self._end(block, block.start_mark.index))
        return self._spliced(end, end, self._newline + line)

    def _drop(self, parent: yaml.Node, key: yaml.Node | None, value: yaml.Node) -> str:
        first = key if key is not None else value
        entries = [pair[0] if isinstance(pair, tuple) else pair for pair in parent.value]
        at = next(i for i, entry in enumerate(entries) if entry is first)
        start, end = first.start_mark.index, self._end(value, first.end_mark.index)
        if len(entries) == 1:
            empty = "{}" if isinstance(parent, yaml.MappingNode) else "[]"
            if self._in_flow(parent):
                return self._spliced(parent.start_mark.index, parent.end_mark.index, empty)
            head = self._text[: parent.start_mark.index]
            bare = head.rstrip()
            # The empty value follows its key or dash, unless a comment is in between.
            return (f"{bare} " if bare.endswith((":", "-")) else head) + empty + self._text[end:]
        if self._in_flow(parent):
            if at + 1 < len(entries):
                return self._spliced(start, entries[at + 1].start_mark.index, "")
            before = parent.value[at - 1]
            pair = before if isinstance(before, tuple) else (before, before)
            return self._spliced(self._end(pair[1], pair[0].end_mark.index), end, "")
        line = self._text.rfind("\n", 0, start) + 1
        if not self._text[line:start].strip(" -" if key is None else " "):
            return self._spliced(line, min(self._line_end(end) + len(self._newline), len(self._text)), "")
        # The first key after a dash: the next key takes its place.
        return self._spliced(start, entries[at + 1].start_mark.index, "")

    def _line_end(self, index: int) -> int:
        found = self._text.find("\n", index)
        end = found if found >= 0 else len(self._text)
        return end - 1 if self._newline == "\r\n" and found > 0 else end

    def _end(self, node: yaml.Node, least: int) -> int:
        """The index at which the content of a node ends.

        The marks of block collections and block scalars extend to the next content. An alias has the marks of its
        anchor, which are before `least`; it ends with its line."""
        if node.end_mark.index < least:
            line = self._text[least : self._line_end(least)]
            return least + len(re.split(r"\s#", line)[0].rstrip(" ,]}"))
        if isinstance(node, yaml.ScalarNode):
            if node.style not in _BLOCK_SCALARS:
                return int(node.end_mark.index)
            return node.start_mark.index + len(self._text[node.start_mark.index : node.end_mark.index].rstrip())
        if self._in_flow(node):
            return int(node.end_mark.index)
        last = node.value[-1]
        key, value = last if isinstance(last, tuple) else (last, last)
        return self._end(value, key.end_mark.index if key is not value else node.start_mark.index)

    @staticmethod
    def _in_flow(node: yaml.Node) -> bool:
        return bool(getattr(node, "flow_style", False))

    def _scalar(self, value: Any, like: yaml.Node, flow: bool) -> str:
        """The value as a scalar; a string keeps the quotes of the old value."""
        if isinstance(value, str) and getattr(like, "style", None) == '"':
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, str) and value.isprintable() and getattr(like, "style", None) == "'":
            return "'" + value.replace("'", "''") + "'"
        return json.dumps(value) if self._json else self._flow(value)

    def _flow(self, value: Any) -> str:
        if self._json:
            return json.dumps(value, ensure_ascii=False)
        if type(value) is int:
            return str(value)
        # A scalar on its own is closed by the line "...".
        made = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=2**31, allow_unicode=True)
        return made.removesuffix("...\n").rstrip("\n")

    def _block(self, value: Any, indent: int) -> str:
        """The value as block lines below a key at `indent`."""
        if not value:
            return " " + self._flow(value)
        deeper = indent + (self._list_indent if isinstance(value, list) else 2)
        made = yaml.dump(
            value, Dumper=_Dumper if self._list_indent == 0 else _IndentedDumper, default_flow_style=False,
            sort_keys=False, width=2**31, allow_unicode=True,
        )  # fmt: skip
        return "".join(f"{self._newline}{' ' * deeper}{line}" for line in made.splitlines())


class _Dumper(yaml.SafeDumper):
    def choose_scalar_style(self) -> str:
        style: str = super().choose_scalar_style()
        return '"' if style == "'" else style

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _IndentedDumper(_Dumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _entry(node: yaml.Node, step: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
    """(key, value) of an entry of a mapping, or (None, item) of a list. With merge keys, the last entry counts."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in reversed(node.value) if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return None, node.value[step]
    return None


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _list_indent(root: yaml.Node) -> int:
    """The indentation of the first list below a key, so that new lists match the style of the file."""
    waiting = [root]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(value, yaml.SequenceNode) and not value.flow_style:
                    return max(0, int(value.start_mark.column - key.start_mark.column))
                waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
    return 0
