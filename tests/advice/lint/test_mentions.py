# SPDX-License-Identifier: Apache-2.0
"""A rule that is left out because a document does not mention its words would have found nothing there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.advice.lint import mentions
from dovetail.advice.lint.engine import LintFinding, lint
from dovetail.advice.lint.rules import BY_ID, RULES
from dovetail.advice.lint.source import documents
from tests.advice.lint.linted import facts
from tests.advice.lint.rules.cases_of import cases

HERE = Path(__file__).parent
TEXTS = [
    *(file.read_text() for file in sorted((HERE / "corpus").iterdir())),
    *(text for rule in RULES for _, text in cases(rule)),
]


def found(text: str) -> list[LintFinding]:
    return list(lint(documents("test.yaml", text), facts(text), RULES))


@pytest.mark.slow
def test_no_finding_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with_words = [found(text) for text in TEXTS]
    assert sum(map(len, with_words)) > 200
    monkeypatch.setattr(mentions, "MENTIONS", {})
    assert with_words == [found(text) for text in TEXTS]


def test_each_word_is_of_a_rule_and_leaves_some_out() -> None:
    assert mentions.MENTIONS.keys() <= BY_ID.keys()
    pod = "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, image: 'a:1'}]}\n"
    assert len(mentions.applicable(RULES, pod)) < len(RULES) - len(mentions.MENTIONS) + 3


def test_a_word_in_escapes_is_found() -> None:
    """JSON may write a slash, and any letter, in another way."""
    pod = {"kind": "Pod", "spec": {"containers": [{"name": "a", "resources": {"requests": {"nvidia.com/gpu": 1}}}]}}
    text = json.dumps({"apiVersion": "v1"} | pod)
    escaped = text.replace("/", "\\/").replace("requests", "\\u0072equests")
    assert {one.rule for one in found(escaped)} == {one.rule for one in found(text)} >= {"G01"}


def test_a_word_is_found_wherever_it_is_in_a_piece_of_any_length() -> None:
    assert not any(set(word) & set(" \t\n") for words in mentions.MENTIONS.values() for word in words)
    for rule, words in mentions.MENTIONS.items():
        for word in words:
            for around in ("{0}", "a {0}\n", "{{a:{0},b}}", "a" * 100 + "{0}", "{0}" + "\xa0", "- '{0}'\r\n"):
                assert BY_ID[rule] in mentions.applicable(RULES, around.format(word)), (rule, word, around)
    assert BY_ID["G21"] not in mentions.applicable(RULES, "NCCL _DEBUG")
