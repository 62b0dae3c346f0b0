# SPDX-License-Identifier: Apache-2.0
"""The text of a file with all fixable findings fixed.

Findings are fixed one at a time, as an edit may end another finding or change its fix. A finding stays if its edits
cannot be made in the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.advice.lint.engine import lint
from dovetail.advice.lint.rewrite import NotRewritten, rewritten
from dovetail.advice.lint.rule import Facts, Rule
from dovetail.advice.lint.source import SourceDocument, document

_MOST = 200
"""The most findings to fix in one document: rules that undo each other must not loop forever."""


def fixed(of: SourceDocument, facts: Facts, rules: Sequence[Rule]) -> SourceDocument:
    """The document with its text fixed, or the same document if nothing can be fixed."""
    refused: set[tuple[str, str]] = set()
    for _ in range(_MOST):
        findings = (one for one in lint((of,), facts, rules) if one.edits and (one.rule, one.path) not in refused)
        finding = next(findings, None)
        if finding is None:
            break
        try:
            of = document(of.file, rewritten(of.text, finding.edits), of.first_line)
        except NotRewritten:
            refused.add((finding.rule, finding.path))
    return of
