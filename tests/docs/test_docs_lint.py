# SPDX-License-Identifier: Apache-2.0
"""The pages of the linter agree with it."""

from __future__ import annotations

import json

from click.testing import CliRunner

from dovetail.advice.lint.rule import Severity
from dovetail.advice.lint.rules import RULES
from dovetail.cli import cli
from dovetail.cli.lint.settings import LintSettings
from tests.docs.pages import page
from tests.paths import ROOT
from tools import lint_rules


def test_the_rules_page_is_made_from_the_rules() -> None:
    assert (ROOT / "docs/reference/lint-rules.md").read_text() == lint_rules.page(), (
        "python -m tools.lint_rules makes it"
    )


def test_levels() -> None:
    assert [row.code[0] for row in page("docs/reference/lint.md").rows("level")] == [
        [level.value] for level in Severity
    ]


def test_fields_of_the_json_answer() -> None:
    answer = CliRunner().invoke(cli, ["lint", "-", "-o", "json"], input=RULES[0].bad).stdout
    written = [name for row in page("docs/reference/lint.md").rows("field") for name in row.code[0]]
    assert written == list(json.loads(answer)[0])[2:]


def test_settings() -> None:
    written = [name for row in page("docs/reference/lint.md").rows("setting") for name in row.code[0]]
    assert written == list(LintSettings.__struct_encode_fields__)
