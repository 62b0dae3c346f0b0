# SPDX-License-Identifier: Apache-2.0
"""The affinity of a pool's DaemonSets selects the nodes that are in the pool, and no others."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.labels import matches
from dovetail.core.model import LabelSelector, Requirement
from dovetail.kube.objects import base
from dovetail.kube.objects.stack import AgentSpec, NodePool
from dovetail.kube.translate.selectors import node_terms as read_terms
from dovetail.operator.pools import pool_of, pools_of
from dovetail.operator.rendering.pool_affinity import MOST_TERMS, TooManyTerms, node_terms, required

KEYS, VALUES = ("a", "b", "nvidia.com/gpu.present", "dovetail.dev/agent"), ("true", "false", "x")
values = st.lists(st.sampled_from(VALUES), min_size=1, max_size=3, unique=True).map(tuple)
requirements = st.one_of(
    st.builds(base.SelectorRequirement, st.sampled_from(KEYS), st.sampled_from(("In", "NotIn")), values),
    st.builds(base.SelectorRequirement, st.sampled_from(KEYS), st.sampled_from(("Exists", "DoesNotExist"))),
)
selectors = st.builds(
    base.LabelSelector,
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=2),
    st.lists(requirements, min_size=1, max_size=2).map(tuple),
)
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(selectors, max_size=3, unique_by=str), st.booleans(), st.lists(labels, min_size=1, max_size=8))
def test_it_selects_what_is_in_the_pool(
    chosen: list[base.LabelSelector], rest: bool, nodes: list[dict[str, str]]
) -> None:
    listed = [NodePool(f"p{i}", one) for i, one in enumerate(chosen)] + ([NodePool("rest")] if rest else [])
    pools = pools_of(AgentSpec(pools=tuple(listed)))
    for pool in pools:
        try:
            affinity = required(node_terms(pools, pool))["requiredDuringSchedulingIgnoredDuringExecution"]
        except TooManyTerms:
            continue
        terms = read_terms(msgspec.convert(affinity, base.NodeSelector), "", [])
        assert terms is not None
        for node in nodes:
            selected = any(matches(LabelSelector(term.expressions), node) for term in terms)
            assert selected == (pool_of(pools, node) == pool)


def test_pools_by_one_label_need_no_more_terms_than_all_gpu_nodes() -> None:
    many = tuple(NodePool(f"p{i}", base.LabelSelector({"model": f"m{i}"})) for i in range(15))
    pools = pools_of(AgentSpec(pools=(*many, NodePool("rest"))))
    assert [len(node_terms(pools, pool)) for pool in pools] == [3] * 16
    (*_, last) = node_terms(pools, pools[-1])
    assert Requirement("model", "NotIn", tuple(sorted(f"m{i}" for i in range(15)))) in last


def test_more_of_a_pool_s_nodes_can_be_required() -> None:
    pools = pools_of(AgentSpec())
    ours = Requirement("dovetail.dev/allocation", "In", ("dovetail",))
    assert all(ours in term for term in node_terms(pools, pools[0], (ours,)))


def test_pools_by_many_labels_each_are_too_many() -> None:
    def pool(i: int) -> NodePool:
        return NodePool(f"p{i}", base.LabelSelector({f"{name}{i}": "x" for name in "abcd"}))

    pools = pools_of(AgentSpec(pools=(*map(pool, range(8)), NodePool("rest"))))
    assert MOST_TERMS < 3 * 4**8
    with pytest.raises(TooManyTerms):
        node_terms(pools, pools[-1])
