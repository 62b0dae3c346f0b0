# SPDX-License-Identifier: Apache-2.0
"""The text of a file with all that can be mended mended.

One finding at a time: what an edit changes may end another finding, or change what mends it. An edit that cannot be
made in the text is left to the user, and so is the finding.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.advice.lint.engine import lint
from dovetail.advice.lint.rewrite import NotRewritten, rewritten
from dovetail.advice.lint.rule import Facts, Rule
from dovetail.advice.lint.source import SourceDocument, document

_MOST = 200
"""Edits of one document: rules that undo each other must not go on for ever."""


def fixed(of: SourceDocument, facts: Facts, rules: Sequence[Rule]) -> SourceDocument:
    """The document with its text mended, or itself where nothing can be."""
    refused: set[tuple[str, str]] = set()
    for _ in range(_MOST):
        findings = (one for one in lint((of,), facts, rules) if one.fixable and (one.rule, one.path) not in refused)
        finding = next(findings, None)
        if finding is None:
            break
        try:
            of = document(of.file, rewritten(of.text, finding.edits), of.first_line)
        except NotRewritten:
            refused.add((finding.rule, finding.path))
    return of
