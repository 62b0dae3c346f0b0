# SPDX-License-Identifier: Apache-2.0
"""Spare nodes: which are held back, which gangs they are open to, and that nothing changes to and fro by them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import apply_events
from dovetail.core.decisions import Bind, Decision, Evict
from dovetail.core.dra.types import Claim, DeviceClass
from dovetail.core.fabric import FABRIC_NAME, FabricSpeeds, SpareRule
from dovetail.core.model import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    SPARE_TOLERATION,
    Gang,
    Maintenance,
    Node,
    Pod,
    Problem,
    Request,
    Taint,
    Toleration,
    Work,
)
from dovetail.core.policy import Policy
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.dra.device_worlds import ask, claim, device, pool
from tests.core.driven import Driven

RACK, CLIQUE = "dovetail.dev/rack", "nvidia.com/gpu.clique"
FOR_DRIVEN = Policy(fabric=(RACK, CLIQUE), tell_again_ms=0)
OFFER = ((PODS, 50), (CPU, 144_000), (MEMORY, 2**40))


def tray(name: str, clique: str = "a", **more: Any) -> Node:
    return Node(name, ((GPU, 4), *OFFER), ((CLIQUE, clique),), **more)


def trays(count: int, clique: str = "a") -> list[Node]:
    return [tray(f"{clique}{i:02}", clique) for i in range(count)]


def rule(per_domain: int, key: str = CLIQUE) -> ev.Event:
    return ev.FabricChanged(FabricSpeeds(FABRIC_NAME, spares=(SpareRule(key, per_domain),)))


def pod(uid: str, gpus: int = 4, **more: Any) -> ev.Event:
    gpu = ((GPU, gpus),) if gpus else ()
    return ev.PodChanged(Pod(uid, "ns", uid, Request((*gpu, (CPU, 1000), (MEMORY, 2**30))), **more))


def gang(name: str, count: int, first: int = 0, least: int = 0, **more: Any) -> list[ev.Event]:
    """A gang that stays in one clique, and its pods from the first number on."""
    record = Gang(name, "ns", name, least or count, required=(CLIQUE,))
    return [ev.GangChanged(record), *(pod(f"{name}-{i}", gang=name, **more) for i in range(first, count))]


def spares(state: State) -> set[str]:
    return {state.cluster.nodes.names[slot] for slot in state.cluster.nodes.spare.nonzero()[0].tolist()}


def nvl72(*more: ev.Event) -> Driven:
    """A rack of 18 trays of 4 GPUs with a gang of 16 trays, as operators run it, and 2 spares."""
    driven = Driven(*trays(18), policy=FOR_DRIVEN)
    driven.apply_events(rule(2))
    assert len(driven.at(10, *gang("job", 16))) == 16
    assert driven.at(15, *more) == {}
    assert spares(driven.state) == {"a16", "a17"}
    return driven


def test_spares_are_refused_to_other_jobs_and_the_reason_counts_them() -> None:
    driven = nvl72()
    assert driven.at(20, pod("other", 1), pod("cpu", 0)).keys() == {"cpu"}
    refusal = driven.holds()["other"]
    assert [(one.reason, one.nodes, one.when) for one in refusal.nodes] == [
        (Reason.INSUFFICIENT, 16, When.NOT_YET),
        (Reason.SPARE, 2, When.NOT_YET),
    ]
    assert "2 node(s) that are spares of their domain (Fabric spec.spares)" in str(refusal)


def test_a_pod_that_tests_nodes_uses_a_spare() -> None:
    driven = nvl72()
    request = Request(((GPU, 1),), tolerations=(Toleration(SPARE_TOLERATION, "Exists"),))
    assert driven.at(20, ev.PodChanged(Pod("test", "dovetail-system", "test", request))).keys() == {"test"}


def test_a_gang_that_tests_nodes_waits_for_the_spares_too() -> None:
    driven = Driven(*trays(4), policy=FOR_DRIVEN)
    driven.at(10, rule(2))
    driven.at(20, pod("other"))
    request = Request(((GPU, 4),), tolerations=(Toleration(SPARE_TOLERATION, "Exists"),))
    pods = [ev.PodChanged(Pod(f"t{i}", "dovetail-system", f"t{i}", request, gang="t")) for i in range(4)]
    assert driven.at(30, ev.GangChanged(Gang("t", "dovetail-system", "t", 4, required=(CLIQUE,))), *pods) == {}
    assert driven.holds()["t0"].when is When.NOT_YET
    assert len(driven.at(40, ev.PodRemoved("other"))) == 4


def test_a_gang_that_would_need_the_spares_is_refused_for_good() -> None:
    driven = Driven(*trays(18), *trays(18, "b"), policy=FOR_DRIVEN)
    driven.apply_events(rule(2))
    assert driven.at(10, *gang("job", 17)) == {}
    refusal = driven.holds()["job-0"]
    assert refusal.reason is Reason.GANG_TOO_LARGE
    assert refusal.detail.endswith("the cluster has room for 16 even when empty beside its spares")


def test_the_replacement_of_a_pod_on_a_broken_node_takes_a_spare_and_others_do_not() -> None:
    driven = nvl72(pod("other", 4, priority=100))
    broken = next(name for name, uid in by_node(driven.state).items() if uid == "job-3")
    assert driven.at(20, ev.NodeChanged(tray(broken, unschedulable=True))) == {}
    assert driven.at(30, ev.PodRemoved("job-3"), *gang("job", 17, first=16, least=16)) == {"job-16": "a16"}
    assert spares(driven.state) == {"a16", "a17"}
    # Back in order, the node is one of the two spares: the job keeps what it has.
    assert driven.at(40, ev.NodeChanged(tray(broken))) == {}
    assert spares(driven.state) == {broken, "a17"}


def test_spares_are_open_to_all_sub_gangs_of_a_gang_in_the_domain() -> None:
    """Also to one whose only pod there was on the broken node."""
    driven = Driven(*trays(6), policy=FOR_DRIVEN)
    driven.at(10, rule(2))
    whole = Gang("job", "ns", "job", 0, required=(CLIQUE,))
    parts = [Gang(f"job/{name}", "ns", name, count, parent="job") for name, count in (("prefill", 1), ("decode", 3))]
    pods = [pod("p0", gang="job/prefill"), *(pod(f"d{i}", gang="job/decode") for i in range(3))]
    assert len(driven.at(20, *map(ev.GangChanged, (whole, *parts)), *pods)) == 4
    broken = next(name for name, uid in by_node(driven.state).items() if uid == "p0")
    gone = [ev.NodeChanged(tray(broken, unschedulable=True)), ev.PodRemoved("p0")]
    assert driven.at(30, *gone, pod("p1", gang="job/prefill")) == {"p1": "a04"}
    assert driven.at(40, pod("x", gang="x"), ev.GangChanged(Gang("x", "ns", "x"))) == {}


def test_spares_stay_shut_for_the_gangs_of_a_domain_that_is_in_order() -> None:
    driven = nvl72()
    assert driven.at(20, *gang("job", 17, first=16, least=16)) == {}
    assert Reason.SPARE in {one.reason for one in driven.holds()["job-16"].nodes}


def test_a_gang_that_is_restarted_as_a_whole_starts_on_what_is_left_with_a_spare() -> None:
    driven = nvl72()
    broken = ev.NodeChanged(tray("a00", quarantine_ms=15))
    gone = [ev.PodRemoved(f"job-{i}") for i in range(16)]
    again = [pod(f"again-{i}", gang="job") for i in range(16)]
    binds = driven.at(20, broken, *gone, *again)
    assert len(binds) == 16
    assert "a00" not in binds.values()
    driven.at(30)
    assert spares(driven.state) == {"a17"}


def by_node(state: State) -> dict[str, str]:
    return {state.cluster.nodes.names[one.slot]: one.uid for one in state.cluster.placements.values()}


@pytest.mark.parametrize(
    "change",
    [
        {"unschedulable": True},
        {"quarantine_ms": 5},
        {"plugin_gone": True},
        {"maintenance": Maintenance()},
        {"problem": Problem("status", "x", "is bad")},
        {"taints": (Taint("node.kubernetes.io/not-ready", "", "NoExecute"),)},
    ],
)
def test_a_node_that_is_out_of_order_is_no_spare(change: dict[str, Any]) -> None:
    driven = Driven(*trays(4), policy=FOR_DRIVEN)
    driven.at(10, rule(2), ev.NodeChanged(tray("a03", **change)))
    assert spares(driven.state) == {"a02"}
    driven.at(20, pod("a", gang="g"), ev.GangChanged(Gang("g", "ns", "g")))
    driven.at(30)
    assert spares(driven.state) == {"a01", "a02"}
    driven.at(40, ev.NodeChanged(tray("a03")))
    assert spares(driven.state) == {"a02", "a03"}


def test_the_rule_is_changed_and_removed_with_the_fabric() -> None:
    driven = Driven(*trays(3), Node("cpu", OFFER, ((CLIQUE, "a"),)), tray("z", "b"), policy=FOR_DRIVEN)
    driven.at(10, rule(2))
    assert spares(driven.state) == {"a01", "a02", "z"}
    assert driven.at(20, pod("p1"), pod("p2")) == {"p1": "a00"}
    assert driven.at(30, rule(1)) == {"p2": "a01"}
    assert driven.at(40, pod("p3")) == {}
    assert set(driven.at(50, ev.FabricRemoved(FABRIC_NAME)).values()) <= {"a02", "z"}
    assert spares(driven.state) == set()
    assert driven.at(60, rule(1, "no.such/key"), pod("p4")).keys() == {"p4"}


def test_no_pod_is_evicted_for_a_node_that_then_becomes_a_spare() -> None:
    driven = Driven(*trays(3), policy=FOR_DRIVEN)
    driven.at(10, *(pod(f"low{i}") for i in range(3)))
    assert driven.at(20, rule(2), pod("high", priority=9)) == {}
    (evict,) = [one for one in driven.last if isinstance(one, Evict)]
    (victim,) = evict.uids
    assert driven.at(30, ev.PodRemoved(victim)).keys() == {"high"}
    assert not [one for one in driven.last if isinstance(one, Evict)]
    other = next(uid for uid in by_node(driven.state).values() if uid.startswith("low"))
    driven.at(40, ev.PodRemoved(other))
    assert len(spares(driven.state)) == 1


def test_a_restart_of_the_scheduler_marks_the_same_nodes() -> None:
    driven = nvl72()
    driven.at(20, ev.NodeChanged(tray("a05", unschedulable=True)))
    assert spares(restore(FOR_DRIVEN, take(driven.state))) == {"a16", "a17"}
    counted = list(restore(FOR_DRIVEN, take(driven.state)).cluster.spares.counts())
    assert counted == list(driven.state.cluster.spares.counts())
    assert [(one.domain, one.size, one.wanted, len(one.held), len(one.broken)) for one in counted] == [
        ("a", 18, 2, 2, 1)
    ]


def test_gpus_by_claim_count_as_others() -> None:
    """Nodes whose GPUs are in ResourceSlices alone, and pods that have them by ResourceClaims."""
    driven = Driven(*(Node(f"n{i}", OFFER, ((CLIQUE, "a"),)) for i in range(3)), policy=FOR_DRIVEN)
    slices = [ev.SliceChanged(pool(f"n{i}", device("gpu-0"), driver="gpu.nvidia.com")) for i in range(3)]
    driven.at(10, rule(1), ev.DeviceClassChanged(DeviceClass("gpu")))
    assert spares(driven.state) == set()
    driven.at(20, *slices)
    assert spares(driven.state) == {"n2"}
    claims = [ev.ClaimChanged(Claim(f"c{i}", "ns", f"c{i}", claim(ask(1)))) for i in range(3)]
    pods = [pod(f"p{i}", 0, device_claims=(f"ns/c{i}",)) for i in range(3)]
    assert set(driven.at(30, *claims, *pods).values()) == {"n0", "n1"}
    (refusal,) = driven.holds().values()
    assert Reason.SPARE in {one.reason for one in refusal.nodes}


Domains = dict[str, frozenset[int]]
"""By the name of a node the slots of its domain."""


def domains_of(state: State, one: SpareRule) -> Domains:
    keys, found = (RACK,) if one.key == RACK else (RACK, CLIQUE), dict[tuple[str | None, ...], set[int]]()
    nodes = [(slot, node) for slot, node in enumerate(state.cluster.nodes.records) if node is not None]
    for slot, node in nodes:
        found.setdefault(tuple(dict(node.labels).get(key) for key in keys), set()).add(slot)
    return {state.cluster.nodes.names[slot]: frozenset(slots) for slots in found.values() for slot in slots}


def out_of_order(state: State) -> set[int]:
    nodes = state.cluster.nodes
    return {
        slot
        for slot, node in enumerate(nodes.records)
        if node and (node.unschedulable or bool(nodes.quarantined[slot]))
    }


def expected_spares(state: State, one: SpareRule) -> set[str]:
    """Those of a rule, worked out from the records alone."""
    names, promised = state.cluster.nodes.names, state.promised_slots()
    used, ganged = set[int](), set[int]()
    for placement in state.cluster.placements.values():
        used.add(placement.slot)
        if placement.pod.gang:
            ganged.add(placement.slot)
    marked, broken = set[str](), out_of_order(state)
    for slots in set(domains_of(state, one).values()):
        wanted = one.per_domain if ganged & slots else max(0, one.per_domain - len(broken & slots))
        empty = sorted(names[slot] for slot in slots - used - broken - promised)
        marked.update(empty[len(empty) - min(wanted, len(empty)) :])
    return marked


class Fleet:
    """Two racks of two cliques whose nodes break and return while jobs come and go; victims end at the next step."""

    def __init__(self, seed: int, policy: Policy) -> None:
        self.random = random.Random(seed)
        self.driven = Driven(policy=policy)
        self.rules = [SpareRule(CLIQUE, self.random.randint(1, 2))]
        if self.random.random() < 0.4:
            self.rules.append(SpareRule(RACK, 1))
        self.nodes = {
            f"{rack}{clique}{i}": Node(f"{rack}{clique}{i}", ((GPU, 4), *OFFER), ((RACK, rack), (CLIQUE, f"{clique}")))
            for rack in "rs"
            for clique in "ab"
            for i in range(self.random.randint(2, 5))
        }
        self.now_ms = 0
        self.jobs = 0
        self.used = 0
        """How often a spare was used."""
        self.next: list[ev.Event] = [ev.NodeChanged(node) for node in self.nodes.values()]
        self.next.append(ev.FabricChanged(FabricSpeeds(FABRIC_NAME, spares=tuple(self.rules))))

    def events(self) -> list[ev.Event]:
        found, self.next = self.next, []
        state, dice = self.driven.state, self.random
        for _ in range(dice.randint(0, 3)):
            match dice.choice(["break", "mend", "job", "job", "end", "lose"]):
                case "break":
                    name = dice.choice(sorted(self.nodes))
                    how: dict[str, Any] = dice.choice([{"unschedulable": True}, {"quarantine_ms": 7}])
                    self.nodes[name] = replace(self.nodes[name], **how)
                    found.append(ev.NodeChanged(self.nodes[name]))
                case "mend":
                    name = dice.choice(sorted(self.nodes))
                    self.nodes[name] = replace(self.nodes[name], unschedulable=False, quarantine_ms=0)
                    found.append(ev.NodeChanged(self.nodes[name]))
                case "job":
                    found += self.job()
                case "end":
                    running = sorted({one.pod.gang or one.uid for one in state.cluster.placements.values()})
                    ended = dice.choice(running) if running else ""
                    pods = state.workloads.pods.values()
                    found += [ev.PodRemoved(one.uid) for one in pods if ended in (one.uid, one.gang)]
                case "lose":
                    # A pod fails and is made again, as a Job does it.
                    lost = sorted(one.uid for one in state.cluster.placements.values() if one.pod.gang)
                    if lost and (old := state.workloads.pods[dice.choice(lost)]):
                        fresh = replace(old, uid=self.name(), node="", bound_ms=0)
                        found += [ev.PodRemoved(old.uid), ev.PodChanged(fresh)]
        return found

    def name(self) -> str:
        self.jobs += 1
        return f"j{self.jobs}"

    def job(self) -> list[ev.Event]:
        name, dice = self.name(), self.random
        more: dict[str, Any] = {"priority": dice.choice([0, 0, 5]), "created_ms": self.now_ms or 1}
        more["work"] = Work(max_runtime_ms=dice.choice([0, 20_000]))
        gpus = dice.choice([1, 4, 4])
        if dice.random() < 0.4:
            return [pod(name, gpus, **more)]
        count = dice.randint(2, 4)
        required = (CLIQUE,) if dice.random() < 0.7 else ()
        return [
            ev.GangChanged(Gang(name, "ns", name, count, required=required)),
            *(pod(f"{name}-{i}", gpus, gang=name, **more) for i in range(count)),
        ]

    def step(self) -> list[Decision]:
        """One step, with all that must hold of it."""
        state, events = self.driven.state, self.events()
        self.now_ms += self.random.choice([1, 500, 5_000, 30_000])
        apply_events(state, events, self.now_ms)
        by_rule = [(one, expected_spares(state, one)) for one in self.rules]
        assert spares(state) == set().union(*(held for _, held in by_rule))
        before = [(one.pod.gang, one.slot) for one in state.cluster.placements.values()]
        for uid, name in self.driven.at(self.now_ms).items():
            for domains in [domains_of(state, one) for one, held in by_rule if name in held]:
                self.used += 1
                gang = state.workloads.pods[uid].gang
                assert gang
                assert gang in {other for other, slot in before if slot in domains[name]}
                assert out_of_order(state) & domains[name]
        for decision in self.driven.last:
            if isinstance(decision, Evict):
                self.next += [ev.PodRemoved(uid) for uid in decision.uids]
        return self.driven.last


@pytest.mark.slow
def test_over_time_spares_are_those_of_the_rule_and_only_gangs_of_their_domain_use_them() -> None:
    """And a refusal that is remembered is what a new search finds; a restart changes nothing."""
    used = 0
    for seed in seeds(12):
        fleet, plain = Fleet(seed, FOR_DRIVEN), Fleet(seed, replace(FOR_DRIVEN, remember_refusals=False))
        for _ in range(30):
            decided = [[one for one in each.step() if isinstance(one, Bind | Evict)] for each in (fleet, plain)]
            assert decided[0] == decided[1], seed
        again = restore(FOR_DRIVEN, take(fleet.driven.state))
        apply_events(fleet.driven.state, [], fleet.now_ms)
        assert spares(again) == spares(fleet.driven.state), seed
        used += fleet.used
    assert used > 3


@pytest.mark.slow
def test_where_nothing_happens_nothing_changes() -> None:
    """Once the victims are gone and all that can start has started, nothing is marked, placed or evicted any more."""
    for seed in seeds(12):
        fleet, quiet = Fleet(seed, FOR_DRIVEN), 0
        for _ in range(15):
            fleet.step()
        driven, nodes = fleet.driven, fleet.driven.state.cluster.nodes
        for _ in range(30):
            left, fleet.next = fleet.next, []
            end = nodes.records_journal.end
            fleet.now_ms += 120_000
            driven.at(fleet.now_ms, *left)
            moves = [one for one in driven.last if isinstance(one, Bind | Evict)]
            fleet.next = [ev.PodRemoved(uid) for one in moves if isinstance(one, Evict) for uid in one.uids]
            quiet = 0 if left or moves or nodes.records_journal.end > end else quiet + 1
        assert quiet >= 10, seed
