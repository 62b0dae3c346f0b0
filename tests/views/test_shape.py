# SPDX-License-Identifier: Apache-2.0
"""The largest gang of a shape that can start now, by model and fabric level, and what blocks one pod more."""

from __future__ import annotations

import pytest

from dovetail.core.model import CPU, GPU, Taint
from dovetail.core.state import State
from dovetail.views.free_types import Beside
from dovetail.views.shape import largest
from dovetail.views.shape_types import ShapeAnswer, ShapeError, ShapeLevel, ShapeView, parse
from tests.views.divided import cluster, node, pod

NOTHING = Beside()
RACK = "dovetail.dev/rack"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("8", ShapeView(8)),
        ("8xH100", ShapeView(8, model="H100")),
        ("4x8", ShapeView(8, pods=4)),
        ("4x8xNVIDIA-H100-80GB-HBM3", ShapeView(8, 4, "NVIDIA-H100-80GB-HBM3")),
    ],
)
def test_shapes_are_read(text: str, shape: ShapeView) -> None:
    assert parse(text) == shape


@pytest.mark.parametrize("text", ["", "0", "x8", "8x", "H100", "8xH100x4", "63", "4x0xH100", "-8"])
def test_what_is_no_shape_is_reported_with_examples(text: str) -> None:
    if text == "8xH100x4":
        # A model may hold an x.
        assert parse(text) == ShapeView(8, model="H100x4")
        return
    with pytest.raises(ShapeError, match="4x8xH100"):
        parse(text)


def _racks() -> State:
    return cluster(
        node("a", 8, rack="r1"), node("b", 8, rack="r1"), node("c", 8, rack="r2"), node("d", 8, "A100", rack="r2"),
        pod("x", (GPU, 5), on="c"),
    )  # fmt: skip


def _level(answer: ShapeAnswer, level: str, model: int = 0) -> ShapeLevel:
    return next(one for one in answer.models[model].levels if one.level == level)


def test_the_largest_gang_anywhere_and_in_one_rack() -> None:
    answer = largest(_racks(), ShapeView(4, model="h100"), NOTHING)
    assert [one.model for one in answer.models] == ["H100"]
    anywhere, rack = _level(answer, ""), _level(answer, RACK)
    assert (anywhere.pods, anywhere.nodes) == (4, ("a", "b"))
    assert (rack.pods, rack.name, rack.nodes) == (4, "r1", ("a", "b"))


def test_one_pod_more_is_blocked_by_the_nearest_node_with_its_holders() -> None:
    blocked = _level(largest(_racks(), ShapeView(4, model="H100"), NOTHING), "").blocked
    assert blocked is not None
    assert (blocked.node, blocked.lacking, blocked.missing) == ("c", GPU, "1")
    assert [holder.pod for holder in blocked.holders] == ["ns/x"]


def test_without_a_model_all_gpus_count() -> None:
    answer = largest(_racks(), ShapeView(8), NOTHING)
    assert [one.model for one in answer.models] == [""]
    assert _level(answer, "").nodes == ("a", "b", "d")
    assert _level(answer, RACK).name == "r1"


def test_a_model_that_matches_several_labels_is_reported_for_each() -> None:
    answer = largest(_racks(), ShapeView(8, model="100"), NOTHING)
    assert [(one.model, one.levels[0].pods) for one in answer.models] == [("A100", 1), ("H100", 2)]


def test_whether_a_gang_of_so_many_pods_starts() -> None:
    assert largest(_racks(), ShapeView(8, 2, "H100"), NOTHING).starts
    assert not largest(_racks(), ShapeView(8, 3, "H100"), NOTHING).starts


def test_what_goes_with_each_gpu_counts() -> None:
    state = cluster(node("a", 8, cpu=16))
    assert _level(largest(state, ShapeView(1), Beside(cpu_milli=4000)), "").pods == 4
    blocked = _level(largest(state, ShapeView(4), Beside(cpu_milli=4000)), "").blocked
    assert blocked is not None and blocked.lacking == CPU


def test_closed_nodes_count_for_nothing() -> None:
    state = cluster(node("a", 8), node("b", 8, taints=(Taint("maintenance", "", "NoSchedule"),)))
    assert _level(largest(state, ShapeView(8), NOTHING), "").nodes == ("a",)


def test_nothing_fits_and_the_holders_are_named() -> None:
    state = cluster(node("a", 8, rack="r1"), pod("x", (GPU, 1), on="a"))
    level = _level(largest(state, ShapeView(8), NOTHING), RACK)
    assert (level.pods, level.name, level.nodes) == (0, "r1", ())
    assert level.blocked is not None and level.blocked.holders[0].pod == "ns/x"


def test_a_model_that_nobody_has_names_those_that_are_there() -> None:
    with pytest.raises(ShapeError, match=r"did you mean H100.*there are A100, H100"):
        largest(_racks(), ShapeView(8, model="H200"), NOTHING)


def test_the_state_is_not_changed() -> None:
    state = _racks()
    largest(state, ShapeView(4), NOTHING)
    assert list(state.cluster.placements) == ["ns-x"]
