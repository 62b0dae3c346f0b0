# SPDX-License-Identifier: Apache-2.0
"""Three thousand pods that come to random nodes: what the kubelet's own managers answer to each and what is
held on the node after every step, and what we predict."""

from collections import Counter
from pathlib import Path

import pytest

from tests.referee.kubelet_stories import Story, disagreements, story
from tools.controlplane import referee

pytestmark = pytest.mark.plane

CHUNKS, STORIES, PODS = 2, 250, 10


def stories(chunk: int) -> dict[str, Story]:
    return {str(seed): story(seed, PODS) for seed in range(chunk * STORIES, (chunk + 1) * STORIES)}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_pod_gets_what_we_predict_or_is_refused_in_the_kubelets_own_words(program: Path, chunk: int) -> None:
    reported = stories(chunk)
    pods = sum(len(one.asked_pods) - one.uncertain for one in reported.values())
    assert pods * CHUNKS > 3_000
    answered = 0
    # Only cases with the same gates are answered side by side.
    asked = sorted((one.case() for one in reported.values()), key=lambda case: sorted(case["gates"].items()))
    for answer in referee.answers(program, asked):
        assert "error" not in answer, answer
        assert list(disagreements(reported[answer["id"]], answer)) == []
        answered += 1
    assert answered == len(reported)


def test_the_stories_know_every_policy_and_every_way_of_being_refused() -> None:
    verdicts: Counter[tuple[str, str, str]] = Counter()
    reasons: Counter[str] = Counter()
    refuses = uncertain = 0
    for one in stories(0).values():
        refuses += one.refuses is not None
        uncertain += one.uncertain
        for step, stated in zip(one.steps, one.stated, strict=True):
            for verdict in stated["verdicts"].values():
                reason = "admitted" if verdict["admitted"] else verdict["reason"]
                reasons[reason] += 1
                scope = one.node.scope if one.node.topology_policy != "none" else "-"
                verdicts[one.node.topology_policy, scope, "admitted" if verdict["admitted"] else "refused"] += 1
                reasons["restart"] += "restart" in step
    assert len(verdicts) == 14, verdicts
    assert min(verdicts.values()) > 10, verdicts
    expected = {"admitted", "restart", "TopologyAffinityError", "UnexpectedAdmissionError", "SMTAlignmentError"}
    expected |= {"OutOfcpu", "OutOfmemory", "OutOfpods"}
    assert {reason for reason in expected if reasons[reason] < 5} == set(), reasons
    assert 0 < refuses < STORIES / 4
    assert uncertain < STORIES / 3
