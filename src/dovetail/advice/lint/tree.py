# SPDX-License-Identifier: Apache-2.0
"""The parsed tree of a document's text, whose nodes know where they begin and end."""

from __future__ import annotations

from functools import lru_cache

import yaml

from dovetail.kube.yaml_text import loader_of


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
