# SPDX-License-Identifier: Apache-2.0
"""Ten thousand random sets of hints: what the kubelet's own Topology Manager decides, and what we do."""

from collections import Counter
from pathlib import Path

import pytest

from dovetail.core.devices.kubelet.topology import TopologyManager
from tests.referee.kubelet_merges import POLICIES, merges
from tools.controlplane import referee

pytestmark = pytest.mark.plane

CHUNKS, CASES, PER_CASE = 1, 100, 100


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_topology_manager_decides_as_the_kubelets(program: Path, chunk: int) -> None:
    first = chunk * CASES
    asked = {str(seed): merges(seed, PER_CASE) for seed in range(first, first + CASES)}
    decided: Counter[tuple[bool, bool]] = Counter()
    for answer in referee.answers(program, [one.case(name) for name, one in asked.items()]):
        assert "error" not in answer, answer
        case = asked.pop(answer["id"])
        managers = {policy: TopologyManager(case.machine(policy)) for policy in POLICIES}
        for i, (policy, hints) in enumerate(case.asked):
            best, admit = managers[policy].merge(hints)
            theirs = answer["merges"][i]
            ours = {"mask": best.mask, "preferred": best.preferred, "admit": admit}
            assert ours == theirs, (answer["id"], i, policy, hints)
            decided[admit, best.preferred] += 1
    assert asked == {}
    assert min(decided[True, True], decided[True, False], decided[False, False]) > CASES * PER_CASE / 100, decided
