# SPDX-License-Identifier: Apache-2.0
"""What a path asks for, and that nothing else is a question."""

from __future__ import annotations

import pytest

from dovetail.aggregated.paths import GROUPS
from dovetail.aggregated.question import BadQuestion, Question
from dovetail.kube.objects.views import VIEWS
from dovetail.viewserver.answers import API

VERSION, GROUP = API.path, API.path.rpartition("/")[0]


@pytest.mark.parametrize(
    ("path", "query", "question"),
    [
        ("/namespaces/a/explanations/b-0", (), Question("explanations", "a", "b-0")),
        ("/explanations/a:b.c", (), Question("explanations", "", "a:b.c")),
        ("/explanations/a%3Ab", (("queue", "q"),), Question("explanations", "", "a:b", (("queue", "q"),))),
        ("/waitingjobs", (("timeout", "32s"),), Question("waitingjobs")),
        (
            "/namespaces/a/capacities", (("shape", "8"), ("cpuMilli", "1")),
            Question("capacities", "a", "", (("cpuMilli", "1"), ("shape", "8"))),
        ),
    ],
)  # fmt: skip
def test_a_question(path: str, query: tuple[tuple[str, str], ...], question: Question) -> None:
    assert API.question_of(VERSION + path, query) == question


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("", (), 404),
        ("/", (), 404),
        ("/explanations", (), 404),
        ("/waitingjobs/x", (), 404),
        ("/namespaces/a", (), 404),
        ("/namespaces/a/namespaces/b/waitingjobs", (), 404),
        ("/namespaces/a/explanations/x/status", (), 404),
        ("/namespaces//waitingjobs", (), 404),
        ("/namespaces/a%2Fwaitingjobs%2F..%2F..%2Fnamespaces%2Fb/waitingjobs", (), 404),
        ("/namespaces/../waitingjobs", (), 404),
        ("/namespaces/a/../b/waitingjobs", (), 404),
        ("/namespaces/a/explanations/%2e%2e", (), 404),
        ("/namespaces/a/explanations/b%252Fc", (), 404),
        ("/namespaces/A/waitingjobs", (), 404),
        ("/namespaces/a/explanations/" + "x" * 400, (), 404),
        ("/pods", (), 404),
        ("/waitingjobs", (("namespace", "b"),), 400),
        ("/waitingjobs", (("queue", "x" * 1025),), 400),
        ("/waitingjobs", (("queue", "a"), ("queue", "b")), 400),
        ("/whatifs", (), 405),
        ("/nodelists/n0", (), 404),
        ("/namespaces/a/nodeholders", (("name", "b"),), 400),
    ],
)
def test_no_question(path: str, query: tuple[tuple[str, str], ...], status: int) -> None:
    with pytest.raises(BadQuestion) as raised:
        API.question_of(VERSION + path, query)
    assert raised.value.status == status


def test_only_a_what_if_is_posted() -> None:
    assert API.question_of(f"{VERSION}/namespaces/a/whatifs", (), "POST") == Question("whatifs", "a")
    with pytest.raises(BadQuestion):
        API.question_of(f"{VERSION}/nodelists", (), "POST")


def test_discovery_lists_the_resources() -> None:
    listed = API.discovery(VERSION)
    assert listed is not None
    names = [one["name"] for one in listed["resources"]]  # type: ignore[attr-defined]
    assert names == [one.plural for one in VIEWS]
    assert API.discovery(GROUP) is not None and API.discovery(GROUPS) is not None
    assert API.discovery(f"{VERSION}/x") is None
