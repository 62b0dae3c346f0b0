# SPDX-License-Identifier: Apache-2.0
"""GPUs with their holders, as the scheduler knows them, for users that may not read the exporters."""

from __future__ import annotations

from dovetail.views.held_types import HeldGpus, HeldPart, NodeGpus, NodeHolder
from dovetail.views.node_holders import gpu_holders, node_holders
from dovetail.views.top import Top, TopQuery, top
from dovetail.views.top_holders import NOT_MEASURED, reading_of
from dovetail.viewserver.redaction import ELSEWHERE, Redaction
from tests.views.queued import NOW, node, pod, state_of


def answer(*nodes: NodeGpus) -> Top:
    return top(reading_of(HeldGpus(NOW, nodes), "test"), TopQuery())


def lines(found: Top) -> list[tuple[str, int, str, list[tuple[str, float]]]]:
    return [(row.node, row.gpu, row.profile, [(one.pod, one.share) for one in row.holders]) for row in found.gpus]


def holder(name: str, count: int = 0, gpus: tuple[int, ...] | None = (), *parts: HeldPart) -> NodeHolder:
    return NodeHolder(name, name, "ada", "q", count, gpus, parts)


def test_each_gpu_is_a_row_with_its_holder() -> None:
    found = answer(NodeGpus("n1", "H100", 4, (holder("a/x", 2, (1, 3)),)), NodeGpus("n2", "", 1, ()))
    assert lines(found) == [
        ("n1", 0, "", []), ("n1", 1, "", [("a/x", 1.0)]), ("n1", 2, "", []), ("n1", 3, "", [("a/x", 1.0)]),
        ("n2", 0, "", []),
    ]  # fmt: skip
    assert found.notes == (NOT_MEASURED,)
    summary = found.summary
    assert (summary.nodes, summary.gpus, summary.allocated, summary.unread_nodes) == (2, 5, 2, 0)
    # What is not known is neither.
    assert (summary.computing, summary.idle_allocated) == (0, 0)


def test_parts_are_shown_on_their_gpus() -> None:
    shares = (holder("a/x", 0, (), HeldPart("share", "1", 250)), holder("b/y", 0, (), HeldPart("share", "1", 500)))
    claimed = holder("c/z", 0, (), HeldPart("claimed", "gpu.nvidia.com/n1/gpu-0"))
    assert lines(answer(NodeGpus("n1", "", 2, (*shares, claimed)))) == [
        ("n1", 0, "", [("c/z", 1.0)]), ("n1", 1, "", [("a/x", 0.25), ("b/y", 0.5)])
    ]  # fmt: skip
    instances = tuple(HeldPart("instance", f"0/1g.10gb@{start}") for start in (0, 4))
    assert lines(answer(NodeGpus("n1", "", 0, (holder("a/x", 0, (), *instances),)))) == [
        ("n1", 0, "1g.10gb", [("a/x", 1.0)]), ("n1", 0, "1g.10gb", [("a/x", 1.0)])
    ]  # fmt: skip


def test_where_indices_are_not_known_the_first_free_ones_are_assumed_and_named() -> None:
    unknown = (holder("a/x", 2, None), holder("b/y", 1, (0,)), holder("c/z", 0, (), HeldPart("share", "", 500)))
    found = answer(NodeGpus("n1", "", 4, unknown))
    assert lines(found) == [
        ("n1", 0, "", [("b/y", 1.0)]), ("n1", 1, "", [("a/x", 1.0)]), ("n1", 2, "", [("a/x", 1.0)]),
        ("n1", 3, "", [("c/z", 0.5)]),
    ]  # fmt: skip
    assert found.notes[1] == "it is assumed which GPUs of their nodes these pods hold: a/x, c/z"


def test_the_answer_has_the_holders_of_every_node_and_of_others_only_how_many() -> None:
    state = state_of(
        node("n0"), node("n1"), pod("mine", 3, "n0", namespace="own"), pod("a", 2, "n0", namespace="x"),
        pod("b", 1, "n0", namespace="y"),
    )  # fmt: skip
    found = gpu_holders(state, NOW)
    assert [(one.node, one.holders) for one in found.nodes] == [
        (name, node_holders(state, name)) for name in ("n0", "n1")
    ]
    seen = top(reading_of(Redaction(state, "own").of(found), "test"), TopQuery(by="job"))
    assert {group.name: group.gpus for group in seen.groups} == {"own/mine": 3.0, ELSEWHERE: 3.0}
