# SPDX-License-Identifier: Apache-2.0
"""Linting of texts, as the tests need it. Nodes in a text are its inventory."""

from __future__ import annotations

from dovetail.advice.lint.engine import LintFinding, lint
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.inventory import facts_of
from dovetail.advice.lint.rule import Facts
from dovetail.advice.lint.rules import RULES
from dovetail.advice.lint.source import documents


def findings(text: str, *rules: str) -> list[LintFinding]:
    """What the rules, or all of them, find in a text."""
    read = list(documents("test.yaml", text))
    chosen = [rule for rule in RULES if not rules or rule.id in rules]
    return list(lint(read, facts(text), chosen))


def facts(text: str) -> Facts:
    objects = [whole for document in documents("test.yaml", text) for whole in document.objects()]
    nodes = facts_of(whole for whole in objects if whole.at("kind").text == "Node").nodes or None
    return Facts(nodes, None, tuple(objects))


def objects(text: str) -> list[Field]:
    return [whole for document in documents("test.yaml", text) for whole in document.objects()]
