# SPDX-License-Identifier: Apache-2.0
"""Application of rules to documents: findings with their positions, without those that a comment suppresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from dovetail.advice.lint.edits import Edit, json_patch
from dovetail.advice.lint.field import Field, Path
from dovetail.advice.lint.mentions import applicable
from dovetail.advice.lint.pods import WholeField, templates_of
from dovetail.advice.lint.rewrite import NotRewritten, rewritten
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.rules import BY_ID
from dovetail.advice.lint.source import SourceDocument, Unreadable
from dovetail.advice.lint.suppressions import Silence, suppressions

UNREADABLE = "G00"
"""The id of findings about unreadable documents and invalid suppression comments."""
_PLACEHOLDER = re.compile(r"^\$\w+$|\$\{\w+|\$\(\w+\)|\{\{|\{%|<%")
"""Of envsubst, kustomize, Argo, Jinja and ERB."""
_NOT_READ = "Nothing in this document was checked."
_NOT_SILENCED = "The comment silences nothing."


class LintFinding(Struct, frozen=True, dict=True):
    """A finding in a file. `line` and `column` count from 1; `line` is 0 for the whole file."""

    rule: str
    level: Severity
    file: str
    line: int
    column: int
    object: str
    path: str
    message: str
    effect: str
    guess: bool
    edits: tuple[Edit, ...]
    document: SourceDocument | None = None

    @cached_property
    def patch(self) -> tuple[dict[str, Any], ...]:
        """The edits of the document as a JSON patch (RFC 6902); none where something else stands in their place."""
        try:
            return tuple(json_patch(self.document.value, self.edits)) if self.document is not None else ()
        except (LookupError, TypeError):
            return ()

    @cached_property
    def fixable(self) -> bool:
        """Whether edits fix it, and can be made in the text: not where they would change more than that."""
        if self.document is None or not self.edits:
            return False
        try:
            return bool(rewritten(self.document.text, self.edits, self.document.value))
        except NotRewritten:
            return False

    @property
    def rendered_from(self) -> tuple[str, int]:
        """The file of the Helm template, and the line of what was rendered from it; ("", 0) if not from Helm."""
        return self.document.rendered_from(self.line) if self.document is not None else ("", 0)


def lint(documents: Iterable[SourceDocument], facts: Facts, rules: Sequence[Rule]) -> Iterator[LintFinding]:
    """All findings, in the order of the documents, sorted by position in each."""
    for document in documents:
        yield from sorted(_of(document, facts, rules), key=lambda one: (one.line, one.column, one.rule, one.path))


def unreadable(file: str, error: Unreadable, document: SourceDocument | None = None) -> LintFinding:
    """The finding of a file or a document that cannot be read."""
    return LintFinding(
        UNREADABLE, Severity.ERROR, file, error.line, error.column, "", "", error.message, _NOT_READ, False, (),
        document,
    )  # fmt: skip


def _of(document: SourceDocument, facts: Facts, rules: Sequence[Rule]) -> Iterator[LintFinding]:
    if document.error is not None:
        yield unreadable(document.file, document.error, document)
        return
    valid = []
    for one in suppressions(document.text, BY_ID):
        if one.wrong:
            line = document.first_line + one.line - 1
            yield LintFinding(
                UNREADABLE, Severity.ERROR, document.file, line, 1, "", "", one.wrong, _NOT_SILENCED, False, (),
                document,
            )  # fmt: skip
        else:
            valid.append(one)
    silence = Silence(valid)
    rules = applicable(rules, document.text)
    for read in document.objects():
        whole = WholeField(read.value, read.path)
        matches = _found(whole, facts, rules)
        if not matches:
            continue
        name = name_of(whole)
        own = document.holds(read.path)
        for rule, found in matches:
            line, column = document.position(found.field.path)
            if silence.covers(rule.id, line - document.first_line + 1):
                continue
            level = Severity.WARNING if found.guess and rule.level is Severity.ERROR else rule.level
            yield LintFinding(
                rule.id, level, document.file, line, column, name, str(found.field), found.message,
                found.effect or rule.effect,
                found.guess, found.edits if own else (), document,
            )  # fmt: skip


def _found(whole: Field, facts: Facts, rules: Sequence[Rule]) -> list[tuple[Rule, RuleMatch]]:
    """All matches, one of several at a place that pods share; those of a backstop where no other rule has an error at
    the place, above it or below it. Of a value that a program fills in later nothing is known."""
    once = {
        (rule.id, match.field.path, match.message): (rule, match) for rule, match in _all_found(whole, facts, rules)
    }
    if not once:
        return []
    found = [one for one in once.values() if not _PLACEHOLDER.search(one[1].field.text)]
    taken = [match.field.path for rule, match in found if rule.level is Severity.ERROR and not rule.backstop]
    return [
        (rule, match)
        for rule, match in found
        if not rule.backstop or not any(_nested(match.field.path, path) for path in taken)
    ]


def _nested(one: Path, other: Path) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _all_found(whole: Field, facts: Facts, rules: Sequence[Rule]) -> Iterator[tuple[Rule, RuleMatch]]:
    pods = templates_of(whole)
    for rule in rules:
        if rule.whole is not None:
            for found in rule.whole(whole, facts):
                yield rule, found
        if rule.template is not None:
            for pod in pods:
                for found in rule.template(pod, facts):
                    yield rule, found


def name_of(whole: Field) -> str:
    """The kind and name of an object, as in `Job train` or `Job ml/train`."""
    meta = whole.at("metadata")
    name = meta.at("name").text or meta.at("generateName").text
    namespace = meta.at("namespace").text
    return f"{whole.at('kind').text} {namespace}{'/' if namespace else ''}{name}".rstrip()
