# SPDX-License-Identifier: Apache-2.0
"""The reader of lines: where it answers, it answers as PyYAML does; and it answers on nearly all manifests."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.kube.yaml_lines import UNREAD, Places, read_lines
from dovetail.kube.yaml_text import loader_of
from tests.kube.yaml_texts import MANIFESTS, mutated, texts


def test_it_answers_on_nearly_all_manifests() -> None:
    read = sum(read_lines(text) is not UNREAD for text in MANIFESTS)
    assert read > 0.8 * len(MANIFESTS) > 150


@given(st.one_of(texts, mutated()))
@settings(max_examples=150)
@example("a:\n- b\n-\n  c: |\n\n    d\n\n  # e\n- - {f: [g, {h: }], i: 'j''k'}\n  -\n")
@example("--- # a\n- b\n")
@example("---\n---\na: b\n")
@example("a:\n  - b\n  c: d\n")
@example("- a\n-\n- b\n  c\n")
@example("a: |\n   \n  b\n")
@example("a: |+\n  b\n   \n\n \nc: d\n")
@pytest.mark.slow
def test_where_it_answers_the_value_and_the_places_are_those_of_pyyaml(text: str) -> None:
    check(text)


def check(text: str) -> bool:
    """Whether the text was read, if as PyYAML reads it."""
    places: Places = {}
    found = read_lines(text, places)
    loader = loader_of(text)
    try:
        node = loader.get_single_node()
        value = loader.construct_document(node)
    except yaml.YAMLError:
        assert found is UNREAD
        return False
    finally:
        loader.dispose()
    if found is UNREAD:
        return False
    # Also the types, the order of keys, and numbers that are none.
    assert repr(found[0]) == repr(value)
    assert repr(read_lines(text)) == repr(found)
    assert node is not None
    wanted: Places = {(id(found), 0): (node.start_mark.line, node.start_mark.column, False)}
    _placed(node, found[0], wanted)
    assert places == wanted
    return True


def _placed(node: yaml.Node, value: Any, places: Places) -> None:
    """Add the places of what is in a node and in its value."""
    if isinstance(node, yaml.ScalarNode):
        return
    inside = [pair if isinstance(pair, tuple) else (pair, pair) for pair in node.value]
    for index, (first, inner) in enumerate(inside):
        slot = first.value if isinstance(node, yaml.MappingNode) else index
        literal = isinstance(inner, yaml.ScalarNode) and inner.style == "|"
        places[id(value), slot] = (first.start_mark.line, first.start_mark.column, literal)
        _placed(inner, value[slot], places)
