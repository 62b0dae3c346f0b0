# SPDX-License-Identifier: Apache-2.0
"""Every rule finds what it is for, and only that; what it mends is mended."""

from __future__ import annotations

import pytest

from dovetail.advice.lint.fix import fixed
from dovetail.advice.lint.rule import Rule
from dovetail.advice.lint.rules import RULES
from dovetail.advice.lint.source import documents
from tests.advice.lint.linted import facts, findings
from tests.advice.lint.rules.cases_of import FOUND, NEAR_MISS, cases

_IDS = [rule.id for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=_IDS)
@pytest.mark.slow
def test_finds_what_it_is_for(rule: Rule) -> None:
    reported = list(cases(rule))
    assert {what for what, _ in reported} == {FOUND, NEAR_MISS}
    assert min(sum(what == one for what, _ in reported) for one in (FOUND, NEAR_MISS)) >= 2
    for what, text in reported:
        found = [one.message for one in findings(text, rule.id)]
        assert bool(found) == (what == FOUND), (text, found)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.fixable], ids=[r.id for r in RULES if r.fixable])
def test_mends_what_it_can(rule: Rule) -> None:
    mended = 0
    for what, text in cases(rule):
        if what == FOUND:
            mendable = [one for one in findings(text, rule.id) if one.fixable]
            mended += len(mendable)
            known = facts(text)
            after = "".join(fixed(each, known, [rule]).text for each in documents("test.yaml", text))
            assert not [one for one in findings(after, rule.id) if one.fixable], after
            assert (after != text) == bool(mendable)
            again = "".join(fixed(each, known, [rule]).text for each in documents("test.yaml", after))
            assert again == after
    assert mended


def test_findings_have_message_and_effect() -> None:
    for rule in RULES:
        assert rule.effect.endswith((".", "`")), rule.id
        assert rule.title[0].isupper() and not rule.title.endswith("."), rule.id
        assert rule.template or rule.whole, rule.id
        assert rule.fixable == any(one.fixable for _, text in cases(rule) for one in findings(text, rule.id)), rule.id


@pytest.mark.parametrize("rule", RULES, ids=_IDS)
def test_its_examples_show_nothing_else(rule: Rule) -> None:
    assert {one.rule for one in findings(rule.bad)} == {rule.id}
    assert findings(rule.good) == []


def test_ids_are_unique() -> None:
    assert len(set(_IDS)) == len(_IDS)
