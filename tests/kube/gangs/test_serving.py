# SPDX-License-Identifier: Apache-2.0
"""Gangs of serving stacks: from labels and objects to the gangs that the core gets, also where the input is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Hold
from dovetail.core.model import Gang
from dovetail.core.model import Pod as CorePod
from dovetail.core.state import State
from dovetail.kube.gangs.dialects import GROVE
from dovetail.kube.gangs.owners import owned_by, read
from dovetail.kube.gangs.serving import MOST_INSTANCES
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.limits import MOST_SUBGANGS
from dovetail.kube.translate.translator import Translator
from tests.core.gang_oracle import gpu_node
from tests.kube.yaml_objects import Change, added, deleted, pod, wire

CLIQUE, RACK, HOST = "nvidia.com/gpu.clique", "dovetail.dev/rack", "kubernetes.io/hostname"
LWS = "leaderworkerset.leaderworkerset.x-k8s.io/ml"
SLICE = "disaggregatedset.disaggregatedset.x-k8s.io/ml/pd/0"
SUB_GROUP_SIZE = "spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize"
ROLE_SET = "roleset.orchestration.aibrix.ai/ml/rs"


WHOLE_NODE = "spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: '8'}}}]}"


def of_lws(name: str, group: int, i: int, **labels: str) -> Pod:
    """A pod of a LeaderWorkerSet, as its controller labels it."""
    own = f"{name}-{group}-{i}"
    keys = {"name": name, "group-index": str(group), "worker-index": str(i)}
    marks = {f"leaderworkerset.sigs.k8s.io/{key}": value for key, value in keys.items()}
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"{name}-{group}", "controller": True}
    more = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return pod(WHOLE_NODE, uid=own, name=own, ownerReferences=[owner], labels=marks | more)


def of_slice(role: str, group: int, **more: str) -> Pod:
    marks = {"name": "pd", "role": role, "slice": "0", "revision": "r1"}
    labels = {f"disaggregatedset.x-k8s.io__{key}": value for key, value in marks.items()}
    return of_lws(f"pd-0-r1-{role}", group, 0, **labels, **more)


class Known:
    """The gangs and pods that a translator has reported."""

    def __init__(self) -> None:
        self.feed = Translator()
        self.gangs: dict[str, Gang] = {}
        self.gang_of: dict[str, str] = {}
        self.reported: dict[str, CorePod] = {}
        self.events: list[ev.Event] = []

    def apply(self, events: list[ev.Event]) -> None:
        self.events += events
        for event in events:
            match event:
                case ev.GangChanged(gang):
                    self.gangs[gang.id] = gang
                case ev.GangRemoved(gone):
                    del self.gangs[gone]
                case ev.PodChanged(one):
                    self.gang_of[one.uid], self.reported[one.uid] = one.gang, one

    def pods(self, *found: Pod) -> None:
        self.apply(self.feed.pods(added(*found)))

    def owners(self, **documents: str) -> None:
        """Answer every owner that is asked for, by the name of the object with `_` for `-`; else it does not exist."""
        for ref in self.feed.gangs.wanted_owners():
            text = documents.get(ref.name.replace("-", "_"))
            self.apply(self.feed.gangs.owner(ref, yaml.safe_load(text) if text is not None else None))

    def taken(self) -> list[ev.Event]:
        """The events since the last call."""
        found, self.events = self.events, []
        return found

    def tree(self) -> dict[str, tuple[str, int, int]]:
        """(parent, minimum of pods, minimum of groups) of each gang."""
        return {gang.id: (gang.parent, gang.min_count, gang.min_groups) for gang in self.gangs.values()}


def lws(spec: str, **marks: str) -> str:
    keys = {f"leaderworkerset.sigs.k8s.io/{key.replace('_', '-')}": value for key, value in marks.items()}
    return yaml.safe_dump({"metadata": {"annotations": keys}, "spec": yaml.safe_load(spec)})


def sub_groups(size: int, each: int, **more: str) -> str:
    policy = {"subGroupSize": each, **more}
    return yaml.safe_dump({"leaderWorkerTemplate": {"size": size, "subGroupPolicy": policy}})


def gangs_of_group(document: str, *pods: Pod) -> dict[str, Gang]:
    """The gangs of the group 3 of `serve`, by what is left of their ids."""
    known = Known()
    known.pods(*(pods or (of_lws("serve", 3, 0),)))
    known.owners(serve=document)
    return {key.removeprefix(f"{LWS}/serve/3"): gang for key, gang in known.gangs.items()}


@pytest.mark.parametrize(
    ("size", "each", "more", "counts"),
    [
        # The leader comes on top of the first sub-group.
        (9, 4, {}, {"leader": 1, "0": 4, "1": 4}),
        # It is one of the first sub-group.
        (8, 4, {}, {"leader": 1, "0": 3, "1": 4}),
        (9, 4, {"subGroupPolicyType": "LeaderExcluded"}, {"leader": 1, "0": 4, "1": 4}),
        (4, 4, {}, {"leader": 1, "0": 3}),
    ],
)
def test_sub_groups_of_a_leader_worker_set(size: int, each: int, more: dict[str, str], counts: dict[str, int]) -> None:
    found = gangs_of_group(lws(sub_groups(size, each, **more), subgroup_exclusive_topology=RACK))
    first = "" if more else "/subgroup-0"
    assert {key: gang.min_count for key, gang in found.items() if gang.min_count} == {
        f"/{name}": count for name, count in counts.items()
    }
    root = f"{LWS}/serve/3"
    assert all(gang.problem is None for gang in found.values())
    assert {key: gang.parent for key, gang in found.items() if key} == {
        **{f"/{name}": root for name in counts},
        **({"/leader": root + first, "/0": root + first, first: root} if first else {}),
    }
    inside = {key for key, gang in found.items() if gang.required == (RACK,)}
    assert inside == {f"/{name}" for name in counts if name.isdigit() and (name != "0" or not first)} | (
        {first} if first else set()
    )


def test_the_pods_of_sub_groups_are_in_their_parts() -> None:
    known = Known()
    index = "leaderworkerset.sigs.k8s.io__subgroup_index"
    pods = [of_lws("serve", 3, i, **{index: str(max(i - 1, 0) // 2)}) for i in range(5)]
    known.pods(*pods)
    known.owners(serve=lws(sub_groups(5, 2)))
    assert [known.gang_of[one.metadata.uid].rpartition("/")[2] for one in pods] == ["leader", "0", "0", "1", "1"]


def test_with_an_exclusive_topology_the_leader_is_first() -> None:
    """LeaderWorkerSet makes the workers when the leader is bound: together they would wait for each other for ever."""
    found = gangs_of_group(lws("leaderWorkerTemplate: {size: 4}", exclusive_topology=CLIQUE))
    assert {key: (gang.parent, gang.min_count) for key, gang in found.items()} == {
        "": ("", 0), "/leader": ("", 1), "/workers": ("", 3),
    }  # fmt: skip
    assert found["/leader"].required == found["/workers"].required == (CLIQUE,)


@pytest.mark.parametrize(
    ("size", "first", "spread"),
    [
        ("{size: 2}", "LeaderCreated", {"": RACK}),
        ("{size: 2}", "LeaderReady", {"": RACK, "/leader": RACK, "/workers": ""}),
        ("{size: 4, subGroupPolicy: {subGroupSize: 2}}", "LeaderCreated",
         {"": RACK, "/subgroup-0": "", "/leader": "", "/0": "", "/1": ""}),
    ],
)  # fmt: skip
def test_a_replica_is_spread_by_what_starts_first_of_it(size: str, first: str, spread: dict[str, str]) -> None:
    """What follows must not keep away from the domain of its own leader."""
    spec = f"spec: {{startupPolicy: {first}, leaderWorkerTemplate: {size}}}"
    document = f"metadata: {{annotations: {{dovetail.dev/topology-spread: rack}}}}\n{spec}"
    assert {key: gang.spread for key, gang in gangs_of_group(document).items()} == spread


def test_a_leader_that_comes_first_with_sub_groups_keeps_all_levels() -> None:
    found = gangs_of_group(
        lws(sub_groups(5, 2), exclusive_topology=RACK, subgroup_exclusive_topology=CLIQUE)
    )  # fmt: skip
    assert {key: gang.required for key, gang in found.items() if gang.min_count} == {
        "/leader": (RACK, CLIQUE), "/0": (RACK, CLIQUE), "/1": (RACK, CLIQUE),
    }  # fmt: skip
    assert {gang.parent for gang in found.values()} == {""}


@pytest.mark.parametrize(
    ("document", "field", "rule"),
    [
        (lws(sub_groups(6, 4)), SUB_GROUP_SIZE,
         "must divide size or size - 1, and size is 6; nearest valid value: 3"),
        (lws(sub_groups(1001, 6)), SUB_GROUP_SIZE, "nearest valid value: 20"),
        (lws(sub_groups(10**20, 10**30)), SUB_GROUP_SIZE, f"nearest valid value: {10**20}"),
        (lws(sub_groups(8, 4, subGroupPolicyType="LeaderExcluded")),
         SUB_GROUP_SIZE, "must divide size - 1"),
        (lws(sub_groups(8, 0)), SUB_GROUP_SIZE, "must divide"),
        (lws(sub_groups(2_000_000_000, 1)), SUB_GROUP_SIZE,
         f"are too many; the limit is {MOST_SUBGANGS}"),
        (lws("leaderWorkerTemplate: {size: 4}", exclusive_topology="a b"),
         "metadata.annotations[leaderworkerset.sigs.k8s.io/exclusive-topology]", "must be the key of a node label"),
        # Contradictory: two sub-groups cannot each have a rack for themselves inside one rack, or inside one host.
        (lws(sub_groups(8, 4), exclusive_topology=RACK, subgroup_exclusive_topology=RACK),
         "metadata.annotations[leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology]", "name a narrower level"),
        (lws(sub_groups(8, 4), exclusive_topology=HOST, subgroup_exclusive_topology=RACK),
         "metadata.annotations[leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology]", "name a narrower level"),
    ],
)  # fmt: skip
def test_a_leader_worker_set_that_cannot_be(document: str, field: str, rule: str) -> None:
    for gang in gangs_of_group(document).values():
        assert gang.problem is not None
        assert gang.problem.field == f"LeaderWorkerSet ml/serve {field}"
        assert rule in gang.problem.rule


def test_a_group_size_that_changes_while_the_group_starts() -> None:
    """More pods come of a larger group: the object is read again, and the group waits for all of them."""
    known = Known()
    known.pods(of_lws("serve", 0, 0), of_lws("serve", 0, 1))
    known.owners(serve=lws("leaderWorkerTemplate: {size: 2}"))
    assert known.gangs[f"{LWS}/serve/0"].min_count == 2
    known.pods(of_lws("serve", 0, 2))
    known.owners(serve=lws("leaderWorkerTemplate: {size: 3}"))
    assert known.gangs[f"{LWS}/serve/0"].min_count == 3


def test_workers_whose_leader_never_comes_hold_nothing_and_name_it() -> None:
    known = Known()
    index = "leaderworkerset.sigs.k8s.io__subgroup_index"
    known.pods(*[of_lws("serve", 3, i, **{index: "0"}) for i in (1, 2)])
    known.owners(serve=lws(sub_groups(3, 2)))
    decisions = step(State(), [ev.NodeChanged(gpu_node("a", 8)), *known.events], 1)
    held = {uid: one.refusal for one in decisions if isinstance(one, Hold) for uid in one.uids}
    assert not any(isinstance(one, Bind) for one in decisions)
    assert {one.detail for one in held.values()} == {"needs 3 pods, 2 can start; serve/3/leader needs 1, 0 can start"}


DISAGGREGATED = """
spec:
  placementPolicy: {type: ExclusiveSlice, topology: nvidia.com/gpu.clique}
  roles:
    - {name: prefill, spec: {replicas: 2, leaderWorkerTemplate: {size: 1}}}
    - {name: decode, spec: {replicas: 4, leaderWorkerTemplate: {size: 1}}}
"""


def test_a_slice_starts_with_an_instance_of_each_role() -> None:
    known = Known()
    known.pods(of_slice("decode", 0), of_slice("decode", 1))
    # Until the object is read nothing is known that the group could lie in: it waits.
    known.owners(pd_0_r1_decode=lws("leaderWorkerTemplate: {size: 1}"), pd=DISAGGREGATED)
    known.pods(of_slice("prefill", 0))
    known.owners(pd_0_r1_prefill=lws("leaderWorkerTemplate: {size: 1}"), pd=DISAGGREGATED)
    decode, prefill = f"{SLICE}/decode", f"{SLICE}/prefill"
    assert known.tree() == {
        SLICE: ("", 0, 0), decode: (SLICE, 0, 1), prefill: (SLICE, 0, 1),
        f"{LWS}/pd-0-r1-decode/0": (decode, 1, 0), f"{LWS}/pd-0-r1-decode/1": (decode, 1, 0),
        f"{LWS}/pd-0-r1-prefill/0": (prefill, 1, 0),
    }  # fmt: skip
    assert known.gangs[SLICE].required == (CLIQUE,)
    assert all(gang.required == () for key, gang in known.gangs.items() if key != SLICE)


def test_a_group_waits_until_the_object_that_made_it_is_read() -> None:
    known = Known()
    known.pods(of_slice("decode", 0))
    refs = {ref.resource.kind: ref for ref in known.feed.gangs.wanted_owners()}
    known.apply(known.feed.gangs.owner(refs["LeaderWorkerSet"], yaml.safe_load("{spec: {}}")))
    group = f"{LWS}/pd-0-r1-decode/0"
    assert known.gangs[group].parent == SLICE and SLICE not in known.gangs
    known.apply(known.feed.gangs.owner(refs["DisaggregatedSet"], yaml.safe_load(DISAGGREGATED)))
    assert known.gangs[group].parent == f"{SLICE}/decode"


def test_an_instance_of_an_update_comes_whole_into_the_clique_of_its_slice() -> None:
    """Clique `a` has three nodes. One instance of each role takes two; a new one of two pods needs two more there,
    however much room is elsewhere."""
    known, state = Known(), State()
    nodes = [replace(gpu_node(name, 8), labels=((CLIQUE, name[0]),)) for name in ("a0", "a1", "a2", "b0")]
    step(state, [ev.NodeChanged(one) for one in nodes], 1)
    known.pods(of_slice("decode", 0), of_slice("prefill", 0))
    known.owners(pd_0_r1_decode="{spec: {}}", pd_0_r1_prefill="{spec: {}}", pd=DISAGGREGATED)
    assert {node[0] for node in bound(step(state, known.taken(), 2)).values()} == {"a"}
    marks = {f"disaggregatedset.x-k8s.io__{key}": value for key, value in
             {"name": "pd", "role": "decode", "slice": "0", "revision": "r2"}.items()}  # fmt: skip
    known.pods(*[of_lws("pd-0-r2-decode", 0, i, **marks) for i in range(2)])
    known.owners(pd_0_r2_decode="{spec: {leaderWorkerTemplate: {size: 2}}}", pd=DISAGGREGATED)
    more = [ev.NodeChanged(replace(gpu_node("b1", 8), labels=((CLIQUE, "b"),)))]
    assert bound(step(state, [*known.taken(), *more], 3)) == {}
    room = [ev.NodeChanged(replace(gpu_node("a3", 8), labels=((CLIQUE, "a"),)))]
    assert sorted(bound(step(state, room, 4)).values()) == ["a2", "a3"]


def bound(decisions: Sequence[Decision]) -> dict[str, str]:
    return {one.uid: one.node for one in decisions if isinstance(one, Bind)}


def test_a_label_that_names_no_object_changes_nothing() -> None:
    known = Known()
    known.pods(of_slice("decode", 0))
    known.owners(pd_0_r1_decode="{spec: {}}")
    assert known.tree() == {f"{LWS}/pd-0-r1-decode/0": ("", 1, 0)}


def test_a_slice_without_pods_is_forgotten() -> None:
    known = Known()
    pods = of_slice("decode", 0), of_slice("prefill", 0)
    known.pods(*pods)
    known.owners(pd_0_r1_decode="{spec: {}}", pd_0_r1_prefill="{spec: {}}", pd=DISAGGREGATED)
    known.apply(known.feed.pods(deleted(*pods)))
    assert known.gangs == {} and known.feed.gangs.wanted_owners() == []


@pytest.mark.parametrize(
    ("spec", "field", "rule"),
    [
        ("{roles: []}", "spec.roles", "none has replicas"),
        ("{roles: [{name: a, spec: {replicas: 0}}]}", "spec.roles", "none has replicas"),
        ("{placementPolicy: {type: ExclusiveSlice}, roles: [{name: decode}]}", "spec.placementPolicy.topology",
         "must be the key of a node label"),
    ],
)  # fmt: skip
def test_a_disaggregated_set_that_cannot_be(spec: str, field: str, rule: str) -> None:
    known = Known()
    known.pods(of_slice("decode", 0))
    known.owners(pd_0_r1_decode="{spec: {}}", pd=f"{{spec: {spec}}}")
    problem = known.gangs[SLICE].problem
    assert problem is not None and problem.field == f"DisaggregatedSet ml/pd {field}" and rule in problem.rule


def of_aibrix(kind: str, name: str, role: str, i: int) -> Pod:
    own = f"{name}-{role}-{i}"
    labels = {"storm-service-name": "storm", "roleset-name": "rs", "role-name": role}
    owner = {"apiVersion": "orchestration.aibrix.ai/v1alpha1", "kind": kind, "name": name, "controller": True}
    return pod(uid=own, name=own, labels=labels, ownerReferences=[owner])


def test_a_role_set_starts_with_an_instance_of_each_role() -> None:
    """AIBrix: prefill of single pods, decode of PodSets with two pods each."""
    known = Known()
    decode = [of_aibrix("PodSet", "rs-decode-0", "decode", i) for i in range(2)]
    known.pods(of_aibrix("RoleSet", "rs", "prefill", 0), *decode)
    known.owners(
        rs="{spec: {roles: [{name: prefill, replicas: 2}, {name: decode, replicas: 4, podGroupSize: 2}]}}",
        rs_decode_0="{spec: {podGroupSize: 2}}",
    )
    assert known.tree() == {
        ROLE_SET: ("", 0, 0), f"{ROLE_SET}/prefill": (ROLE_SET, 1, 0), f"{ROLE_SET}/decode": (ROLE_SET, 0, 1),
        "podset.orchestration.aibrix.ai/ml/rs-decode-0": (f"{ROLE_SET}/decode", 2, 0),
    }  # fmt: skip
    assert known.gang_of["rs-prefill-0"] == f"{ROLE_SET}/prefill"


def test_a_role_without_a_count_is_named() -> None:
    known = Known()
    known.pods(of_aibrix("RoleSet", "rs", "prefill", 0))
    known.owners(rs="{spec: {roles: [{name: prefill}, {name: decode, replicas: 1}]}}")
    problem = known.gangs[ROLE_SET].problem
    assert problem is not None
    assert str(problem) == (
        "RoleSet ml/rs spec.roles[0].replicas: '': must be set: how many prefill there are; nearest valid value: 1"
    )


POD_GANG = """
metadata: {name: pd-0, namespace: ml}
spec:
  topologyConstraint: {packConstraint: {required: topology.kubernetes.io/zone}}
  topologyConstraintGroupConfigs:
    - name: pd-0-decode-0
      podGroupNames: [pd-0-decode-0-leader, pd-0-decode-0-worker]
      topologyConstraint: {packConstraint: {required: nvidia.com/gpu.clique, preferred: null}}
  podgroups:
    - {name: pd-0-router, minReplicas: 1, podReferences: []}
    - {name: pd-0-decode-0-leader, minReplicas: 1}
    - name: pd-0-decode-0-worker
      minReplicas: 3
      topologyConstraint: {packConstraint: {required: null, preferred: kubernetes.io/hostname}}
    - {name: pd-0-idle, minReplicas: 0}
"""
GANG = "podgang.scheduler.grove.io/ml/pd-0"


def of_grove(uid: str, podclique: str, **labels: str) -> Pod:
    marks = {"grove.io/podgang": "pd-0", "grove.io/podclique": podclique}
    owner = {"apiVersion": "grove.io/v1alpha1", "kind": "PodClique", "name": podclique, "controller": True}
    return pod(uid=uid, name=uid, labels={**marks, **labels}, ownerReferences=[owner])


def known_of(pod_gang: str, *pods: Pod) -> Known:
    known = Known()
    known.pods(*pods)
    known.apply(known.feed.gangs.pod_groups(GROVE, added(wire(GROVE.kind, pod_gang))))
    return known


def test_a_pod_gang_of_grove_has_three_levels() -> None:
    known = known_of(POD_GANG, of_grove("w", "pd-0-decode-0-worker"), of_grove("x", "unknown"))
    group = f"{GANG}/pd-0-decode-0"
    assert known.tree() == {
        GANG: ("", 0, 0), group: (GANG, 0, 0), f"{GANG}/pd-0-router": (GANG, 1, 0),
        f"{GANG}/pd-0-decode-0-leader": (group, 1, 0), f"{GANG}/pd-0-decode-0-worker": (group, 3, 0),
    }  # fmt: skip
    levels = {key: (gang.required, gang.preferred) for key, gang in known.gangs.items() if gang.required}
    assert levels == {GANG: (("topology.kubernetes.io/zone",), ()), group: ((CLIQUE,), ())}
    assert known.gangs[f"{GANG}/pd-0-decode-0-worker"].preferred == (HOST,)
    assert known.gang_of == {"w": f"{GANG}/pd-0-decode-0-worker", "x": GANG}
    assert all(gang.problem is None for gang in known.gangs.values())


def test_groups_of_a_topology_without_a_name_are_kept_apart() -> None:
    """As the first versions of the API have them."""
    spec = """{podgroups: [{name: a, minReplicas: 1}, {name: b, minReplicas: 2}], topologyConstraintGroupConfigs: [
      {podGroupNames: [a], topologyConstraint: {packConstraint: {required: nvidia.com/gpu.clique}}},
      {podGroupNames: [b], topologyConstraint: {packConstraint: {required: kubernetes.io/hostname}}}]}"""
    known = known_of(f"{{metadata: {{name: pd-0, namespace: ml}}, spec: {spec}}}", of_grove("w", "a"))
    assert [known.gangs[known.gangs[f"{GANG}/{one}"].parent].required for one in "ab"] == [(CLIQUE,), (HOST,)]
    assert known.gangs[GANG].problem is None


@pytest.mark.parametrize(
    ("spec", "field", "rule"),
    [
        ("{podgroups: []}", "spec.podgroups.minReplicas", "must be set, and at least 1"),
        ("{podgroups: [{name: a}]}", "spec.podgroups.minReplicas", "must be set, and at least 1"),
        ("{podgroups: [{name: a, minReplicas: -1}]}", "spec.podgroups.minReplicas", "must be set, and at least 1"),
        ("{podgroups: [{name: a, minReplicas: 1}], topologyConstraint: {packConstraint: {required: 'a b'}}}",
         "spec.topologyConstraint.packConstraint.required", "must be the key of a node label"),
        ("{podgroups: [{name: a, minReplicas: 1}], topologyConstraintGroupConfigs: ["
         "{name: g, podGroupNames: [a]}, {name: h, podGroupNames: [a]}]}",
         "spec.topologyConstraintGroupConfigs[1].podGroupNames", "that is in no other"),
        ("{podgroups: [{name: a, minReplicas: 1}], topologyConstraintGroupConfigs: [{name: a, podGroupNames: [a]}]}",
         "spec.topologyConstraintGroupConfigs[0].podGroupNames", "must have another name"),
        (f"{{podgroups: {[{'name': f'a{i}', 'minReplicas': 1} for i in range(MOST_SUBGANGS + 1)]}}}",
         "spec.podgroups", "are too many"),
    ],
)  # fmt: skip
def test_a_pod_gang_that_cannot_be(spec: str, field: str, rule: str) -> None:
    known = known_of(f"{{metadata: {{name: pd-0, namespace: ml}}, spec: {spec}}}", of_grove("w", "a"))
    problem = known.gangs[GANG].problem
    assert problem is not None and problem.field == field and rule in problem.rule


@pytest.mark.parametrize(
    "other",
    [
        # What Dynamo and KServe write beside the labels of the stack that places their pods.
        {"nvidia.com/dynamo-graph-deployment-name": "g", "nvidia.com/dynamo-component-type": "worker"},
        {"kserve.io/component": "workload", "llm-d.ai/role": "decode"},
        # Two stacks on one pod: Grove's label goes before other groups and before owners.
        {"scheduling.x-k8s.io/pod-group": "other"},
        {"leaderworkerset.sigs.k8s.io/name": "serve", "leaderworkerset.sigs.k8s.io/group-index": "0"},
        {"roleset-name": "rs", "role-name": "prefill"},
    ],
)
def test_the_label_of_a_pod_gang_goes_before_those_of_other_stacks(other: dict[str, str]) -> None:
    known = known_of(POD_GANG, of_grove("w", "pd-0-router", **other))
    assert known.gang_of["w"] == f"{GANG}/pd-0-router"
    assert {gang.rpartition("/")[0] for gang in known.gangs if gang != GANG} == {GANG}


@pytest.mark.parametrize(
    ("labels", "owner", "expected"),
    [
        # KServe's LLMInferenceService of several nodes makes LeaderWorkerSets, that of one node Deployments.
        ({"kserve.io/component": "workload", "llm-d.ai/role": "decode", "app.kubernetes.io/name": "llama"}, "lws",
         f"{LWS}/llama-kserve-mn/0"),
        ({"kserve.io/component": "workload", "llm-d.ai/role": "prefill"}, "ReplicaSet", ""),
        # vLLM's production stack: Deployments.
        ({"environment": "router", "model": "llama"}, "ReplicaSet", ""),
        # RayService makes a RayCluster.
        ({"ray.io/cluster": "svc-abc", "ray.io/group": "headgroup", "ray.io/originated-from-crd": "RayService"},
         "RayCluster", "raycluster.ray.io/ml/svc-abc/headgroup"),
    ],
)  # fmt: skip
def test_stacks_that_are_made_of_other_kinds(labels: dict[str, str], owner: str, expected: str) -> None:
    known = Known()
    if owner == "lws":
        own = of_lws("llama-kserve-mn", 0, 0, **{key.replace("/", "__"): one for key, one in labels.items()})
    else:
        versions = {"ReplicaSet": "apps/v1", "RayCluster": "ray.io/v1"}
        made = {"apiVersion": versions[owner], "kind": owner, "name": "svc-abc", "controller": True}
        own = pod(uid="p", labels=labels, ownerReferences=[made])
    known.pods(own)
    known.owners(llama_kserve_mn="{spec: {leaderWorkerTemplate: {size: 2}}}", svc_abc="{spec: {workerGroupSpecs: []}}")
    assert known.gang_of[own.metadata.uid] == expected


def of_llm_d(uid: str, role: str, **more: str) -> Pod:
    annotations = {"dovetail.dev/gang": "llama"} | {f"dovetail.dev/{key}": value for key, value in more.items()}
    return pod(uid=uid, name=uid, labels={"llm-d.ai/role": role}, annotations=annotations)


def test_prefill_and_decode_in_one_named_gang_start_together() -> None:
    known = Known()
    known.pods(of_llm_d("r", "encode"), of_llm_d("p", "prefill"))
    root = "gang.dovetail.dev/ml/llama"
    assert known.tree() == {root: ("", 0, 0), f"{root}/prefill": (root, 1, 0), f"{root}/decode": (root, 1, 0)}
    assert known.gang_of == {"r": root, "p": f"{root}/prefill"}


def test_a_named_gang_of_one_role_has_no_minimum_of_all() -> None:
    known = Known()
    known.pods(of_llm_d("p", "prefill", **{"gang-min": "2"}))
    problem = known.gangs["gang.dovetail.dev/ml/llama"].problem
    assert problem is not None and "cannot be divided between the sub-gangs decode, prefill" in problem.rule


def test_labels_reach_no_object_of_another_namespace() -> None:
    """Whatever a tenant writes, what is read and named is of the namespace of the pod."""
    labels = {
        "leaderworkerset.sigs.k8s.io/name": "serve", "disaggregatedset.x-k8s.io/name": "../../kube-system/x",
        "disaggregatedset.x-k8s.io/slice": "../0",
    }  # fmt: skip
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "serve", "controller": True}
    member: Any = owned_by(pod(labels=labels, ownerReferences=[owner]))
    assert member.above is None
    valid: Any = owned_by(
        pod(labels={**labels, "disaggregatedset.x-k8s.io/name": "pd"}, ownerReferences=[owner])
    )  # fmt: skip
    assert valid.above.owner.namespace == "ml" and valid.above.id.startswith("disaggregatedset.disaggregatedset")
    assert read(valid.above.owner, None).exists is False


def test_what_the_object_above_declares_counts_for_the_pods_where_theirs_has_nothing() -> None:
    known = Known()
    known.pods(of_slice("decode", 0))
    marks = "metadata: {labels: {dovetail.dev/queue: %s}, annotations: {dovetail.dev/hold: 'true'}}"
    above = yaml.safe_load(DISAGGREGATED) | yaml.safe_load(marks % "above")
    known.owners(pd_0_r1_decode="{spec: {}}", pd=yaml.safe_dump(above))
    (one,) = known.reported.values()
    assert (one.queue, one.held, one.made_for) == ("above", True, "DisaggregatedSet/pd")
    known = Known()
    known.pods(of_slice("decode", 0))
    known.owners(pd_0_r1_decode="{%s}" % (marks % "own"), pd=yaml.safe_dump(above))
    assert [one.queue for one in known.reported.values()] == ["own"]


def test_a_set_without_slices_is_its_first_slice() -> None:
    """LeaderWorkerSet 0.9.0 writes no label of the slice."""
    known = Known()
    own = of_slice("decode", 0)
    del own.metadata.labels["disaggregatedset.x-k8s.io/slice"]
    known.pods(own)
    known.owners(pd_0_r1_decode="{spec: {}}", pd=DISAGGREGATED)
    assert SLICE in known.gangs


def test_levels_that_a_pod_declares_are_of_its_group_and_not_of_the_slice() -> None:
    known = Known()
    own = of_slice("decode", 0)
    own.metadata.annotations["dovetail.dev/topology-required"] = "rack"
    known.pods(own)
    known.owners(pd_0_r1_decode="{spec: {}}", pd=DISAGGREGATED)
    assert known.gangs[f"{LWS}/pd-0-r1-decode/0"].required == (RACK,)
    assert known.gangs[SLICE].required == (CLIQUE,)


@pytest.mark.parametrize(("replicas", "parent"), [(MOST_INSTANCES - 1, f"{SLICE}/decode"), (MOST_INSTANCES, "")])
def test_instances_of_a_slice_that_is_too_large_start_each_by_itself(replicas: int, parent: str) -> None:
    known = Known()
    known.pods(of_slice("decode", 0))
    roles = [{"name": "decode", "spec": {"replicas": replicas}}, {"name": "prefill"}]
    known.owners(pd_0_r1_decode="{spec: {}}", pd=yaml.safe_dump({"spec": {"roles": roles}}))
    assert known.gangs[f"{LWS}/pd-0-r1-decode/0"].parent == parent


def test_a_slice_of_instances_with_many_sub_groups_is_too_large_sooner() -> None:
    known = Known()
    pods = [of_slice("decode", i) for i in range(30)]
    known.pods(*pods)
    spec = yaml.safe_load(sub_groups(16, 2))
    roles = [{"name": "decode", "metadata": {"creationTimestamp": None}, "spec": {"replicas": 30, **spec}}]
    group = yaml.safe_dump({"spec": spec})
    known.owners(pd_0_r1_decode=group, pd=yaml.safe_dump({"spec": {"roles": roles}}))
    decisions = step(State(), [ev.NodeChanged(gpu_node("a", 8)), *known.events], 1)
    details = {one.refusal.detail for one in decisions if isinstance(one, Hold)}
    assert not any("too many gangs" in detail for detail in details) and details


def test_two_roles_of_one_name_are_named_and_change_nothing_from_one_time_to_the_next() -> None:
    known = Known()
    known.pods(of_aibrix("RoleSet", "rs", "prefill", 0))
    roles = "{spec: {roles: [{name: prefill, replicas: 2}, {name: prefill, replicas: 1, podGroupSize: 2}]}}"
    known.owners(rs=roles)
    before = known.gangs.copy()
    known.pods(of_aibrix("RoleSet", "rs", "prefill", 1))
    known.owners(rs=roles)
    assert known.gangs == before
    assert "'prefill': is the name of two of them" in str(known.gangs[ROLE_SET].problem)


def made_by(obj: Pod, uid: str, name: str) -> Pod:
    labels = obj.metadata.labels | {"disaggregatedset.x-k8s.io/name": name}
    return replace(obj, metadata=replace(obj.metadata, uid=uid, name=uid, labels=labels))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pods_that_disagree_where_their_group_lies_decide_nothing_by_their_order(order: tuple[int, int]) -> None:
    pods = [made_by(of_slice("prefill", 0), uid=uid, name=name) for uid, name in (("a", "pd"), ("b", "other"))]
    known = Known()
    for i in order:
        known.pods(pods[i])
    group = f"{LWS}/pd-0-r1-prefill/0"
    roles = "spec: {roles: [{name: prefill}]}"
    documents = {"pd_0_r1_prefill": lws("leaderWorkerTemplate: {size: 2}"), "pd": roles, "other": roles}
    known.owners(**documents)
    assert known.tree()[group][0] == f"{SLICE.replace('/pd/', '/other/')}/prefill"
    # Where the pod leaves that named it, the gang waits for nothing that is gone.
    known.apply(known.feed.pods(deleted(pods[1])))
    known.owners(**documents)
    assert known.tree()[group][0] == f"{SLICE}/prefill"


def test_a_group_is_on_its_own_whichever_version_of_its_missing_role_set_was_read() -> None:
    marks = {"roleset-name": "rs", "role-name": "prefill"}
    found = []
    for kind, version, name in (("RoleSet", "v9", "rs"), ("PodSet", "v1alpha1", "ps")):
        owner = {"apiVersion": f"orchestration.aibrix.ai/{version}", "kind": kind, "name": name, "controller": True}
        found.append(pod("", uid=name, name=name, ownerReferences=[owner], labels=marks))
    known = Known()
    known.pods(*found)
    known.owners(ps="spec: {podGroupSize: 2}")
    assert known.tree()["podset.orchestration.aibrix.ai/ml/ps"] == ("", 2, 0)


@pytest.mark.parametrize("spec", ["{leaderWorkerTemplate: {size: 2}}", sub_groups(5, 2), sub_groups(4, 2)])
@pytest.mark.parametrize("policy", ["LeaderCreated", "LeaderReady"])
def test_the_gangs_of_running_pods_are_the_same_after_a_restart(spec: str, policy: str) -> None:
    """Whatever the order of the pods, and before and after the objects are read."""
    template = yaml.safe_load(spec) | {"startupPolicy": policy}
    size = template["leaderWorkerTemplate"]["size"]
    subgroup = "leaderworkerset.sigs.k8s.io__subgroup_index"
    pods = []
    for role in ("prefill", "decode"):
        marks = {f"disaggregatedset.x-k8s.io__{key}": value for key, value in
                 {"name": "pd", "role": role, "slice": "0"}.items()}  # fmt: skip
        group = [of_lws(f"pd-0-r1-{role}", 0, i, **marks, **{subgroup: str(max(i - 1, 0) // 2)}) for i in range(size)]
        pods += group
    documents = dict.fromkeys(("pd_0_r1_prefill", "pd_0_r1_decode"), yaml.safe_dump({"spec": template}))
    documents["pd"] = DISAGGREGATED
    known = Known()
    known.pods(*pods)
    known.owners(**documents)
    seen = []
    for one in pods:
        record = known.feed.decided(one.metadata.uid, "default", "n1", "")
        annotations = one.metadata.annotations | {"dovetail.dev/bound": record}
        spec_there = replace(one.spec, node_name="n1")
        seen.append(replace(one, metadata=replace(one.metadata, annotations=annotations), spec=spec_there))
    known.apply(known.feed.pods([Change("modified", one) for one in seen]))
    for order in (seen, seen[::-1]):
        again = Known()
        again.pods(*order)
        assert again.gang_of == known.gang_of
        again.owners(**documents)
        assert (again.gangs, again.gang_of) == (known.gangs, known.gang_of)
