# SPDX-License-Identifier: Apache-2.0
"""Matchers of labels in PromQL, as a user names them: they are put into a question, so nothing else may be in them."""

from __future__ import annotations

import re
from collections.abc import Collection

_LABEL = re.compile(r'[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"([^"\\\n]|\\.)*"')
_MATCHERS = re.compile(rf"{_LABEL.pattern}(\s*,\s*{_LABEL.pattern})*")


def without(text: str, labels: Collection[str]) -> str:
    """The matchers of all other labels than these."""
    every = (found.group() for found in _LABEL.finditer(text))
    return ",".join(one for one in every if re.split(r"\W", one, maxsplit=1)[0] not in labels)


def is_matchers(text: str) -> bool:
    """Whether the text is matchers of labels, as in `cluster="eu",job=~"dove.*"`."""
    return _MATCHERS.fullmatch(text.strip()) is not None
