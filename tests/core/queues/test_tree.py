# SPDX-License-Identifier: Apache-2.0
"""Queues above and below each other, the namespaces that may use them, and trees that cannot be used as they are
written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.model import LabelSelector, Problem, Requirement
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import CPU, DEFAULT_QUEUE, GPU, GPU_MEMORY, GPU_SLICES, MEMORY, Queue


def tree(*queues: Queue) -> Tree:
    built = Tree()
    for queue in queues:
        built.put(queue)
    return built


def gpus(name: str, milli: int | None = None, parent: str = "", limit: int | None = None, age: int = 0) -> Queue:
    return Queue(
        name,
        parent,
        () if milli is None else ((GPU, milli),),
        () if limit is None else ((GPU, limit),),
        created_ms=age,
    )


def reported(built: Tree, name: str) -> str:
    problem = built.problem(name)
    return str(problem) if problem is not None else ""


def test_the_way_up_and_the_way_down() -> None:
    built = tree(Queue("nlp", "research"), Queue("research"), Queue("prod"), Queue("vision", "research"))
    assert built.path("nlp") == ("nlp", "research")
    assert built.path("prod") == ("prod",)
    assert built.children("") == ("default", "research", "prod")
    assert built.children("research") == ("nlp", "vision")
    assert built.in_order() == ["default", "research", "nlp", "vision", "prod"]
    assert built.leaf("nlp") and built.leaf("prod") and not built.leaf("research")
    assert [name for name in built.queues if built.problem(name)] == []


def test_the_default_queue_exists_until_somebody_writes_it_and_afterwards() -> None:
    built = Tree()
    assert built.queues[DEFAULT_QUEUE] == Queue(DEFAULT_QUEUE)
    assert built.admits(DEFAULT_QUEUE, "anywhere", {})
    built.put(Queue(DEFAULT_QUEUE, weight=7, namespaces=("a",)))
    assert built.queues[DEFAULT_QUEUE].weight == 7
    assert not built.admits(DEFAULT_QUEUE, "b", {})
    built.remove(DEFAULT_QUEUE)
    assert built.queues[DEFAULT_QUEUE] == Queue(DEFAULT_QUEUE)


def test_a_change_is_seen_at_once() -> None:
    built = tree(Queue("a"), Queue("b", "a"))
    assert not built.leaf("a")
    built.put(Queue("b"))
    assert built.leaf("a") and built.children("") == ("default", "a", "b")
    built.put(Queue("b", "a"))
    built.remove("a")
    assert reported(built, "b") == "spec.parent: 'a': no queue of that name exists"
    assert built.in_order() == ["default", "b"]
    built.put(Queue("a"))
    assert built.problem("b") is None
    built.remove("never told")


def test_a_queue_that_does_not_exist_has_no_way_up() -> None:
    with pytest.raises(KeyError, match="ghost"):
        Tree().path("ghost")
    with pytest.raises(KeyError, match="ghost"):
        Tree().admits("ghost", "a", {})
    assert Tree().problem("ghost") is None


@pytest.mark.parametrize(
    ("namespaces", "selector", "admitted"),
    [
        (None, None, {"ml", "web", "dev"}),
        (("ml",), None, {"ml"}),
        ((), None, set()),
        (None, LabelSelector((Requirement("team", "In", ("x",)),)), {"web"}),
        (("ml",), LabelSelector((Requirement("team", "Exists"),)), {"ml", "web"}),
        (None, LabelSelector(), {"ml", "web", "dev"}),
    ],
)
def test_a_name_or_a_label_of_the_namespace_admits(
    namespaces: tuple[str, ...] | None, selector: LabelSelector | None, admitted: set[str]
) -> None:
    built = tree(Queue("q", namespaces=namespaces, namespace_selector=selector))
    labels = {"ml": {}, "web": {"team": "x"}, "dev": {"stage": "dev"}}
    assert {name for name in labels if built.admits("q", name, labels[name])} == admitted


def test_a_cycle_names_all_of_its_members_and_nobody_else_is_in_it() -> None:
    built = tree(Queue("c", "a"), Queue("a", "b"), Queue("b", "c"), Queue("below", "b"), Queue("self", "self"))
    for name in "abc":
        assert reported(built, name).endswith("the queues are above each other in a cycle: a -> b -> c -> a")
    assert reported(built, "self") == "spec.parent: 'self': the queues are above each other in a cycle: self -> self"
    assert reported(built, "below").startswith(
        "spec.parent: 'b': the queue b above it cannot be used: spec.parent: 'c': "
    )
    assert built.problem(DEFAULT_QUEUE) is None
    assert built.path("below") == ("below", "b", "c", "a")
    assert sorted(built.in_order()) == sorted(built.queues)
    built.put(Queue("c"))
    assert [name for name in built.queues if built.problem(name)] == ["self"]


def test_a_queue_below_an_unusable_one_is_unusable_with_the_first_cause() -> None:
    problem = Problem("spec.weight", "0", "must be 1 or more")
    built = tree(Queue("top"), Queue("mid", "top", problem=problem), Queue("low", "mid"), Queue("leaf", "low"))
    assert built.problem("top") is None
    assert built.problem("mid") == problem
    for name, parent in (("low", "mid"), ("leaf", "low")):
        assert reported(built, name) == f"spec.parent: {parent!r}: the queue mid above it cannot be used: {problem}"


def test_weights_and_half_lives_of_nothing_cannot_be_used() -> None:
    built = tree(Queue("a", weight=0), Queue("b", weight=-2), Queue("c", half_life_ms=0))
    assert reported(built, "a") == "spec.weight: '0': must be 1 or more"
    assert reported(built, "b") == "spec.weight: '-2': must be 1 or more"
    assert reported(built, "c") == "spec.halfLife: '0ms': must be above 0"


@pytest.mark.parametrize(
    ("resource", "guarantee", "limit", "words"),
    [
        (GPU, 8000, 4000, "spec.guarantee.gpu: '8': more than the limit of the queue itself, 4"),
        (CPU, 2500, 2000, "spec.guarantee.cpu: '2500m': more than the limit of the queue itself, 2"),
        (MEMORY, 2**31, 2**30, "spec.guarantee.memory: '2Gi': more than the limit of the queue itself, 1Gi"),
        (GPU_SLICES, 14, 7, "spec.guarantee.gpuSlices: '14': more than the limit of the queue itself, 7"),
        (GPU_MEMORY, 2048, 1024, "spec.guarantee.gpuMemory: '2Gi': more than the limit of the queue itself, 1Gi"),
        ("gpu/H100", 2000, 500, "spec.guarantee.models.H100: '2': more than the limit of the queue itself, 500m"),
    ],
)
def test_a_guarantee_above_the_limit_cannot_be_used(resource: str, guarantee: int, limit: int, words: str) -> None:
    assert reported(tree(Queue("q", guarantee=((resource, guarantee),), limit=((resource, limit),))), "q") == words
    assert reported(tree(Queue("q", guarantee=((resource, limit),), limit=((resource, limit),))), "q") == ""
    assert reported(tree(Queue("q", guarantee=((resource, guarantee),), limit=(("other", 1),))), "q") == ""


def counts(built: Tree, resource: str = GPU) -> dict[str, int]:
    """What counts of the guarantees that are written."""
    return {name: dict(q.guarantee)[resource] for name, q in built.queues.items() if resource in dict(q.guarantee)}


def test_of_children_with_more_than_their_parent_each_gets_its_part() -> None:
    built = tree(
        gpus("top", 7000),
        gpus("young", 4000, "top", age=3),
        gpus("old", 8000, "top", age=1),
        gpus("small", 2000, "top", age=4),
    )
    assert counts(built) == {"top": 7000, "young": 2000, "old": 4000, "small": 1000}
    assert [name for name in built.queues if built.problem(name)] == []
    about = "the queues below top are guaranteed 14 of gpu in all, of which 7 (what counts of its own guarantee) count"
    assert built.scaled_down("top") == f"{about}: each of them gets its part"
    assert built.scaled_down("young") == f"of its guarantee of 4 gpu only 2 count: {about}"
    built.put(gpus("top", 14_000))
    assert counts(built) == {"top": 14_000, "young": 4000, "old": 8000, "small": 2000}
    assert {built.scaled_down(name) for name in built.queues} == {""}


def test_whole_gpus_are_divided_and_the_largest_loss_then_the_oldest_gets_the_odd_one() -> None:
    built = tree(gpus("top", 8000), *(gpus(name, 4000, "top", age=age) for name, age in (("a", 3), ("b", 1), ("c", 2))))
    assert counts(built) == {"top": 8000, "a": 2000, "b": 3000, "c": 3000}
    built = tree(gpus("top", 2500), gpus("a", 2000, "top"), gpus("b", 2000, "top"))
    assert counts(built) == {"top": 2500, "a": 1500, "b": 1000}


def test_children_cannot_hold_more_than_the_limit_of_a_parent_without_a_guarantee() -> None:
    built = tree(gpus("top", limit=6000), gpus("a", 4000, "top"), gpus("b", 8000, "top"))
    assert counts(built) == {"a": 2000, "b": 4000}
    assert built.scaled_down("b") == (
        "of its guarantee of 8 gpu only 4 count: "
        "the queues below top are guaranteed 12 of gpu in all, of which 6 (its limit) count"
    )
    assert counts(tree(gpus("top"), gpus("a", 4000, "top"), gpus("b", 4000, "top"))) == {"a": 4000, "b": 4000}


def test_what_a_queue_holds_for_its_own_counts_where_it_names_no_guarantee() -> None:
    queues = gpus("top", 6000), gpus("mid", None, "top", age=2), gpus("a", 8000, "mid"), gpus("b", 4000, "top", age=1)
    built = tree(*queues)
    assert counts(built) == {"top": 6000, "b": 2000, "a": 4000}
    assert built.scaled_down("mid").startswith("the queues below mid are guaranteed 8 of gpu in all, of which 4")
    assert built.scaled_down("a").startswith("of its guarantee of 8 gpu only 4 count")


def test_a_class_is_scaled_down_by_itself() -> None:
    mixed = [Queue(n, "top", ((CPU, 3000), (GPU, 4000), ("gpu/H100", 4000))) for n in "ab"]
    built = tree(Queue("top", guarantee=((CPU, 9000), (GPU, 4000), ("gpu/H100", 3000))), *mixed)
    assert counts(built, CPU) == {"top": 9000, "a": 3000, "b": 3000}
    assert counts(built) == {"top": 4000, "a": 2000, "b": 2000}
    assert counts(built, "gpu/H100") == {"top": 3000, "a": 2000, "b": 1000}


def test_a_queue_that_cannot_be_used_takes_nothing_from_its_siblings() -> None:
    bad = gpus("bad", 9000, "top", limit=1000, age=1)
    built = tree(gpus("top", 9000), bad, gpus("good", 9000, "top", age=2))
    assert [name for name in built.queues if built.problem(name)] == ["bad"]


def test_more_guaranteed_at_the_top_than_there_is_is_reported_and_no_problem() -> None:
    built = tree(gpus("a", 6000), gpus("b", 4000), gpus("below", 2000, "b"), Queue("c", guarantee=((CPU, 500),)))
    words = "more is guaranteed than the cluster has: 10 of gpu, of which there are 8"
    assert built.capacity_problem("a", {GPU: 8000, CPU: 1000}) == words
    assert built.capacity_problem("b", {GPU: 8000, CPU: 1000}) == words
    assert built.capacity_problem("a", {GPU: 10_000}) == ""
    for name in ("below", "c", DEFAULT_QUEUE, "ghost"):
        assert built.capacity_problem(name, {GPU: 8000, CPU: 1000}) == ""
    assert built.capacity_problem("c", {}).endswith("500m of cpu, of which there are 0")
    assert built.problem("a") is None


NAMES = "abcdef"
queues = st.builds(
    gpus,
    st.sampled_from(NAMES),
    st.none() | st.integers(0, 5),
    st.sampled_from(["", *NAMES, "ghost"]),
    st.none() | st.integers(0, 9),
    st.integers(0, 3),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(queues | st.sampled_from(NAMES), max_size=12))
def test_each_queue_comes_once_and_usable_ones_fit_into_each_other(
    changes: list[Queue | str],
) -> None:
    built = Tree()
    for change in changes:
        if isinstance(change, Queue):
            built.put(change)
        else:
            built.remove(change)
        built.in_order()
    order = built.in_order()
    assert sorted(order) == sorted(built.queues)
    usable = {name for name in order if built.problem(name) is None}
    for name, queue in built.queues.items():
        assert name in built.children(queue.parent)
        assert built.weight_below(name) == sum(max(0, built.queues[child].weight) for child in built.children(name))
        if name in usable:
            assert queue.parent == "" or queue.parent in usable
            assert built.queues[built.path(name)[-1]].parent == ""
            assert order.index(name) > order.index(queue.parent) if queue.parent else True
        guaranteed = sum(dict(built.queues[c].guarantee).get(GPU, 0) for c in built.children(name) if c in usable)
        bounds = [dict(amounts)[GPU] for amounts in (queue.guarantee, queue.limit) if amounts]
        assert name not in usable or guaranteed <= min(bounds, default=guaranteed)
        written = dict(built.written[name].guarantee)
        assert all(amount <= written[resource] for resource, amount in queue.guarantee)
        assert (queue == built.written[name]) or built.scaled_down(name)
    # The same queues reported otherwise, from the start, have the same problems and guarantees.
    again = tree(*(built.written[name] for name in sorted(built.queues, reverse=True)))
    assert [reported(again, name) for name in order] == [reported(built, name) for name in order]
    assert dict(again.queues) == dict(built.queues)


def test_an_unusable_queue_beside_those_that_are_scaled_down_has_no_warning() -> None:
    broken = Queue("z", "above", guarantee=((GPU, 1000),), problem=Problem("spec.weight", "-1", "must be from 1"))
    built = tree(gpus("above", 4000), gpus("x", 3000, "above"), gpus("y", 3000, "above"), broken)
    assert "only 2" in built.scaled_down("x")
    assert built.scaled_down("z") == ""
