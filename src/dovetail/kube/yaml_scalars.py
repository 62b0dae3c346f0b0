# SPDX-License-Identifier: Apache-2.0
"""What a word of a YAML text means that stands there without quotes: PyYAML's table, in which a date is a text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import yaml

TAG = "tag:yaml.org,2002:"
TEXT, INT = f"{TAG}str", f"{TAG}int"
RESOLVERS = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{TAG}timestamp"]
    for first, resolvers in yaml.resolver.Resolver.yaml_implicit_resolvers.items()
}
"""By first character: tags and the patterns of their words."""
LONG = 64
"""Characters: a longer word is not remembered."""
_SMALL = 18
"""Digits of a number that is read without PyYAML's care for other notations."""
_CONSTRUCTED = frozenset(f"{TAG}{kind}" for kind in ("int", "float", "bool", "null"))


class NotSimple(Exception):
    """The word is more than a text, a number, a truth value or null; or it is long, and no text."""


def tag_of(word: str) -> str:
    """The tag of a word."""
    for tag, pattern in RESOLVERS.get(word[:1], ()):
        if pattern.match(word):
            return str(tag)
    return TEXT


short_tag_of = lru_cache(maxsize=4096)(tag_of)
"""Most words are keys and values that are there often."""


def whole_number(word: str) -> int | None:
    """The value of a few decimal digits, which need none of PyYAML's care for other notations; None for all else."""
    return int(word) if len(word) <= _SMALL and word.isdecimal() and word[0] != "0" else None


def value_of(word: str) -> Any:
    """The value of a word. Raises NotSimple."""
    tag = short_tag_of(word) if len(word) <= LONG else tag_of(word)
    if tag == TEXT:
        return word
    if tag not in _CONSTRUCTED or len(word) > LONG:
        raise NotSimple
    if tag == INT and (number := whole_number(word)) is not None:
        return number
    try:
        return _CONSTRUCTORS[tag](_CONSTRUCTOR, yaml.ScalarNode(tag, word))
    except (ValueError, LookupError, AttributeError, OverflowError) as error:
        raise NotSimple from error


_CONSTRUCTOR: Any = yaml.constructor.SafeConstructor()
_CONSTRUCTORS: Any = yaml.constructor.SafeConstructor.yaml_constructors
