# SPDX-License-Identifier: Apache-2.0
"""What a JSON text can be wrong about is one error, whichever decoder finds it."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct
from msgspec.json import Decoder

from dovetail.core.json_text import JsonError, NestedTooDeeply, decode_json, decode_json_by
from tests.paths import ROOT

WAYS: list[Callable[[Any, Any], Any]] = [decode_json, lambda text, kind: decode_json_by(Decoder(kind), text)]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


class Named(Struct):
    name: str


@pytest.mark.parametrize("way", WAYS)
@given(value=VALUES)
@pytest.mark.slow
def test_what_json_writes_is_read(way: Callable[[Any, Any], Any], value: object) -> None:
    text = json.dumps(value)
    for form in (text, text.encode(), Raw(text)):
        assert way(form, object) == value


@pytest.mark.parametrize("way", WAYS)
@given(text=st.binary(max_size=64))
def test_any_bytes_are_a_value_or_the_error(way: Callable[[Any, Any], Any], text: bytes) -> None:
    """The standard library decides which; it takes NaN, and numbers that msgspec does not."""
    try:
        found = way(text, dict[str, str])
    except JsonError:
        return
    assert json.loads(text.decode()) == found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "truncated"),
        (b"{,", "malformed"),
        (b'{"name": "\xff"}', "utf-8"),
        ('{"name": "\ud800"}', "surrogates"),
        (b'{"name": 1}', r"Expected `str`, got `int` - at `\$\.name`"),
        (b"{}", "missing required field `name`"),
    ],
)
def test_the_message_names_the_fault(way: Callable[[Any, Any], Any], text: bytes | str, message: str) -> None:
    with pytest.raises(JsonError, match=message) as caught:
        way(text, Named)
    assert not isinstance(caught.value, NestedTooDeeply)


@pytest.mark.parametrize("way", WAYS)
def test_nesting_has_an_error_of_its_own(way: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(NestedTooDeeply):
        way(b"[" * 100_000, object)


@pytest.mark.slow
def test_no_other_module_decodes_json_by_itself() -> None:
    """msgspec raises three exceptions without a common class of its own: a handler elsewhere forgets one."""
    paths = [path for path in (ROOT / "src/dovetail").rglob("*.py") if "msgspec" in path.read_text()]
    assert len(paths) > 100
    found = [path.name for path in paths if _decodes(ast.parse(path.read_text()))]
    assert found == ["json_text.py"]


def _decodes(tree: ast.AST) -> bool:
    """Whether it calls msgspec.json.decode, or makes a decoder and calls its `decode`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "msgspec.json":
            if any(alias.name == "decode" for alias in node.names):
                return True
        elif isinstance(node, ast.Attribute) and node.attr == "decode":
            of = ast.unparse(node.value)
            if of.endswith(("json", "Decoder", "_decoder")) or "Decoder(" in of:
                return True
    return False


@pytest.mark.parametrize(
    "source",
    [
        "from msgspec.json import Decoder, decode",
        "import msgspec\nmsgspec.json.decode(b'')",
        "from msgspec import json\njson.decode(b'')",
        "_decode = msgspec.json.Decoder(int).decode",
        "self._decoder.decode(data)",
    ],
)
def test_a_module_that_does_is_found(source: str) -> None:
    assert _decodes(ast.parse(source))
