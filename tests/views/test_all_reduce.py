# SPDX-License-Identifier: Apache-2.0
"""What `why` and `whatif` state of the all-reduce of a job."""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.cli.whatif_report import places_of
from dovetail.core.devices.products import assumed_layout
from dovetail.core.events import GangChanged, PodChanged
from dovetail.core.model import Gang, Node, Pod
from dovetail.views.whatif import submit, whatif
from dovetail.views.why import why
from tests.views.queued import H100, NOW, node, pod, state_of

RACK = "dovetail.dev/rack"
TEXT = "all-reduce at 486.2 GB/s at most (nvls-tree)"
GANG = Gang("g", "ns", "train", min_count=2, created_ms=NOW)


def dgx(name: str, machine: str = "DGXH100") -> Node:
    plain = node(name, layout=assumed_layout(H100, 8, machine))
    return replace(plain, labels=(*plain.labels, (RACK, "r1")))


def workers(*on: str, devices: tuple[int, ...] | None = None) -> list[Pod]:
    return [pod(f"w{i}", 8, one, gang="g", devices=devices) for i, one in enumerate(on)]


def test_a_gang_that_goes_to_two_nodes() -> None:
    answer = why(state_of(dgx("a"), dgx("b"), GANG, *workers("", "")), "ns/train", NOW)
    assert answer.all_reduce is not None
    assert (answer.all_reduce.algorithm, answer.all_reduce.level) == ("nvls-tree", RACK)
    assert str(answer.all_reduce) == TEXT


def test_a_gang_that_runs_where_its_gpus_are_written_down() -> None:
    every = tuple(range(8))
    known = state_of(dgx("a"), dgx("b"), GANG, *workers("a", "b", devices=every))
    assert str(why(known, "ns/w0", NOW).all_reduce) == TEXT
    unknown = state_of(dgx("a"), dgx("b"), GANG, *workers("a", "b"))
    assert why(unknown, "ns/w0", NOW).all_reduce is None


def test_without_nics_nothing_is_stated() -> None:
    state = state_of(dgx("a", machine=""), dgx("b", machine=""), GANG, *workers("", ""))
    assert why(state, "ns/train", NOW).all_reduce is None


def test_whatif_has_it_of_jobs_on_several_nodes() -> None:
    state = state_of(dgx("a"), dgx("b"))
    gang = [GangChanged(GANG), *map(PodChanged, workers("", ""))]
    (job,) = whatif(state, submit(state, gang, NOW), NOW).jobs
    assert places_of(job).endswith(f"; {TEXT}")
    assert job.all_reduce is not None
    assert job.all_reduce.level == RACK
