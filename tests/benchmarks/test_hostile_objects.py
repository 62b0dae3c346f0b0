# SPDX-License-Identifier: Apache-2.0
"""What objects that are meant to hurt cost: each kind is made, measured and printed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.hostile_objects import objects, world
from benchmarks.hostile_objects.cost import measure, write
from benchmarks.hostile_objects.objects import HOSTILE


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "WHOLE", 20_000)
    monkeypatch.setattr(world, "ORDINARY", 4)


def test_each_kind_is_made(tmp_path: Path) -> None:
    for kind in HOSTILE:
        assert len(write(kind, 1, 0, tmp_path)[0].read_bytes().splitlines()) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["long values", "anti-affinity, running", "JobSet", "a chain of groups", "CEL selectors"]
)
def test_a_kind_is_measured(kind: str, tmp_path: Path) -> None:
    cost = measure(kind, write(kind, 2, 2, tmp_path))
    assert (cost.kind, len(cost.left_mib)) == (kind, 2)
    assert min(cost.size, cost.cpu_ms, cost.ordinary_ms, cost.beside_ms) > 0


def test_no_two_rounds_bring_the_same_objects(tmp_path: Path) -> None:
    files = write("170 anti-affinity terms, running", 2, 2, tmp_path)
    lines = [line for file in files for line in file.read_bytes().splitlines()[1::3]]
    names = [msgspec.json.decode(line)["object"]["metadata"]["name"] for line in lines]
    assert len(set(names)) == len(names) == 6
