# SPDX-License-Identifier: Apache-2.0
"""The replicas of the benchmark: each whole in one clique, and as many as there is room for."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks import disaggregated
from benchmarks.disaggregated import ROLES, TRAYS, cluster, replica, split
from dovetail.core.cycle import step
from dovetail.core.event_handlers import apply
from dovetail.core.events import PodChanged
from dovetail.core.model import Pod

WHOLE = sum(ROLES.values())


@pytest.mark.parametrize("shape", ["parts", "sets"])
@pytest.mark.parametrize("seed", range(3))
def test_as_many_replicas_are_placed_as_fit_into_the_cliques(seed: int, shape: str) -> None:
    """Exact: every replica takes the same number of nodes of one clique."""
    chance = random.Random(seed)
    state = cluster(3 * TRAYS)
    taken = {0}
    for i in chance.sample(range(1, 3 * TRAYS), 20):
        taken.add(i)
        request = next(event.pod.request for event in replica(0, shape) if isinstance(event, PodChanged))
        apply(state, PodChanged(Pod(f"own-{i}", "default", f"own-{i}", request, node=f"tray-{i}")))
    free = [TRAYS - sum(i // TRAYS == clique for i in taken) for clique in range(3)]
    fitting = sum(one // WHOLE for one in free)
    for number in range(fitting + 2):
        for event in replica(number, shape):
            apply(state, event)
    now = 1
    while state.busy and now < 100:
        step(state, (), now)
        now += 1
    placed = {uid.partition("/")[0] for uid in state.cluster.placements if uid.startswith("replica-")}
    assert len(placed) == fitting and split(state) == 0


@pytest.mark.slow
def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--nodes", "36", "--replicas", "3", "--runs", "1"]
    monkeypatch.setattr("sys.argv", ["disaggregated.py", *options, "-o", "json"])
    disaggregated.main()
    rows = json.loads(capsys.readouterr().out)
    assert {shape: (row["unplaced_pods"], row["split"]) for shape, row in rows.items()} == {
        "parts": (0, 0), "sets": (0, 0),
    }  # fmt: skip
    monkeypatch.setattr("sys.argv", ["disaggregated.py", *options])
    disaggregated.main()
    assert capsys.readouterr().out.startswith("3 replicas on 36 nodes, CPU time")
