# SPDX-License-Identifier: Apache-2.0
"""Everything that can happen to a cluster, in any order, with the books audited after every step."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import apply_events, step
from dovetail.core.decisions import Bind
from dovetail.core.devices.layout import BOARD, NODE, SYS, Layout
from dovetail.core.event_handlers import apply
from dovetail.core.model import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    Gang,
    HostPort,
    LabelSelector,
    Namespace,
    Node,
    PeerTerm,
    Pod,
    Problem,
    Request,
    Requirement,
    Taint,
)
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.placing.scores import INFEASIBLE
from dovetail.core.policy import Policy
from dovetail.core.state import State
from tests.breadth import BREADTH
from tests.core.oracle import World, allows

HOST, ZONE, RACK = "kubernetes.io/hostname", "zone", "rack"
FABRIC = (ZONE, RACK)
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
TEAM_X = LabelSelector((Requirement("team", "In", ("x",)),))
REQUESTS = [
    Request(),
    Request(((CPU, 500),)),
    Request(((CPU, 1000), (MEMORY, 4))),
    Request(((GPU, 1),)),
    Request(((CPU, 500), (GPU, 2))),
    Request(((GPU, 4),)),
    Request(gpu_milli=300),
    Request(gpu_milli=700),
    Request(((CPU, 500),), gpu_milli=500),
    Request((("example.com/nic", 1),)),
    *(Request(((f"example.com/{name}", 1),)) for name in "uvwxyz"),
    Request(((GPU, 1),), node_selector=((ZONE, "a"),)),
    Request(((CPU, 500),), ports=(HostPort("", "TCP", 80),)),
    Request(((CPU, 500),), anti_affinity=(PeerTerm(WEB, frozenset(("ns",)), HOST),)),
    Request(((CPU, 500),), anti_affinity=(PeerTerm(WEB, frozenset(), RACK, TEAM_X),)),
]
LONGEST_MS = 100_000
LAYOUTS = {
    2: Layout((0, 1), ((BOARD, SYS), (SYS, BOARD)), ((0, 2), (2, 0))),
    # Two pairs with a bridge each: GPUs 0 and 2, and 1 and 3.
    4: Layout(
        (0, 0, 1, 1),
        tuple(tuple(BOARD if i == j else NODE if i // 2 == j // 2 else SYS for j in range(4)) for i in range(4)),
        tuple(tuple(4 * (abs(i - j) == 2) for j in range(4)) for i in range(4)),
    ),
}

nodes = st.builds(
    lambda name, cpu, gpus, pods, zone, rack, nic, taint, state, wired, out: Node(
        name,
        tuple(
            sorted(
                {
                    CPU: cpu,
                    MEMORY: 16,
                    GPU: gpus - (wired and gpus in LAYOUTS and out > 0),
                    PODS: pods,
                    **({"example.com/nic": 1} if nic else {}),
                }.items()
            )
        ),
        tuple(sorted({HOST: name, **({ZONE: zone} if zone else {}), **({RACK: rack} if rack else {})}.items())),
        (Taint("t", "", "NoSchedule"),) if taint else (),
        unschedulable=state == "cordoned",
        problem=Problem("status", "", "is bad") if state == "bad" else None,
        layout=LAYOUTS.get(gpus) if wired else None,
        gpus_out=out,
    ),
    st.sampled_from(["n0", "n1", "n2", "n3", "n4"]),
    st.sampled_from([2000, 4000]),
    st.sampled_from([0, 1, 2, 4, 4, 9]),
    st.sampled_from([2, 5, 9]),
    st.sampled_from(["", "a", "a", "b"]),
    st.sampled_from(["", "r", "s", "s"]),
    st.booleans(),
    st.integers(0, 9).map(lambda n: n == 0),
    st.sampled_from(["", "", "", "", "", "", "cordoned", "bad"]),
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, 2]),
)
requests = st.sampled_from(REQUESTS)
labels = st.sampled_from([(), (("app", "web"),), (("app", "db"),)])


class Machine(RuleBasedStateMachine):
    """`nodes`, `pods` and `gangs` are what the API server would show; `decided` are binds that it does not show yet,
    `known_binds` all binds whose GPUs must still be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State(Policy(fabric=FABRIC, start_deadline_ms=LONGEST_MS))
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.gangs: dict[str, Gang] = {}
        self.decided: dict[str, Bind] = {}
        self.known_binds: dict[str, Bind] = {}
        self.namespace = Namespace("ns")
        self.now_ms = 0
        self.count = 0

    def apply_events(self, *events: ev.Event) -> None:
        apply_events(self.state, events, self.now_ms)

    def put(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self.apply_events(ev.PodChanged(pod))

    def one_of(self, uids: list[str], data: st.DataObject) -> Pod:
        return self.pods[data.draw(st.sampled_from(sorted(uids)))]

    def bound(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if pod.node]

    def forget_binds(self, node: str) -> None:
        self.known_binds = {uid: bind for uid, bind in self.known_binds.items() if bind.node != node}

    @initialize(first=st.lists(nodes, min_size=1, max_size=4))
    def start(self, first: list[Node]) -> None:
        for node in first:
            self.put_node(node)

    @rule(node=nodes)
    def put_node(self, node: Node) -> None:
        old = self.nodes.get(node.name, node)
        if (dict(node.allocatable)[GPU], node.layout, node.gpus_out) != (
            dict(old.allocatable)[GPU], old.layout, old.gpus_out,
        ):  # fmt: skip
            self.forget_binds(node.name)
        self.nodes[node.name] = node
        self.apply_events(ev.NodeChanged(node))

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), gpus=st.sampled_from([0, 1, 2, 4, 9]))
    def change_gpus(self, data: st.DataObject, gpus: int) -> None:
        node = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        self.put_node(replace(node, allocatable=tuple(sorted({**dict(node.allocatable), GPU: gpus}.items()))))

    @precondition(lambda self: len(self.nodes) > 1)
    @rule(data=st.data())
    def remove_node(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[name]
        self.forget_binds(name)
        self.apply_events(ev.NodeRemoved(name))

    @rule(request=requests, labels=labels, priority=st.sampled_from([0, 0, 9]))
    def create_pod(self, request: Request, labels: tuple[tuple[str, str], ...], priority: int) -> None:
        self.new_pod(request, labels=labels, priority=priority)

    def new_pod(self, request: Request, **more: object) -> None:
        self.count += 1
        uid = f"p{self.count}"
        self.put(replace(Pod(uid, "ns", uid, request, created_ms=self.now_ms), **more))

    @rule(request=requests, labels=labels, node=st.sampled_from(["n0", "n1", "n2", "ghost"]))
    def foreign_pod(self, request: Request, labels: tuple[tuple[str, str], ...], node: str) -> None:
        self.new_pod(request, labels=labels, node=node, managed=False)

    @rule(
        wanted=st.lists(requests, min_size=1, max_size=4),
        enough=st.integers(1, 4),
        required=st.sampled_from([(), (), (RACK,), (ZONE,)]),
        preferred=st.sampled_from([(), (RACK,)]),
    )
    def create_gang(
        self, wanted: list[Request], enough: int, required: tuple[str, ...], preferred: tuple[str, ...]
    ) -> None:
        gang_id = f"g{len(self.gangs)}"
        gang = Gang(gang_id, "ns", gang_id, min(enough, len(wanted)), required=required, preferred=preferred)
        self.gangs[gang_id] = gang
        self.apply_events(ev.GangChanged(gang))
        for request in wanted:
            self.new_pod(request, gang=gang_id)

    @rule(
        sizes=st.lists(st.integers(1, 2), min_size=1, max_size=3),
        enough=st.integers(0, 2),
        required=st.sampled_from([(), (RACK,)]),
    )
    def create_tree(self, sizes: list[int], enough: int, required: tuple[str, ...]) -> None:
        root = f"g{len(self.gangs)}"
        subs = [Gang(f"{root}-{i}", "ns", root, size, parent=root, required=required) for i, size in enumerate(sizes)]
        for gang in (Gang(root, "ns", root, min_groups=min(enough, len(sizes))), *subs):
            self.gangs[gang.id] = gang
            self.apply_events(ev.GangChanged(gang))
        for gang in subs:
            for _ in range(gang.min_count):
                self.new_pod(Request(((GPU, 1),)), gang=gang.id)

    @rule(request=requests, node=st.sampled_from(["n0", "n1"]))
    def nominate(self, request: Request, node: str) -> None:
        """Another scheduler's pod that somebody was preempted for."""
        self.new_pod(request, nominated_node=node, managed=False, priority=99)

    @rule(data=st.data())
    def go_on_from_a_checkpoint(self, data: st.DataObject) -> None:
        """Nothing that was decided or reported is lost, and a second state of the same checkpoint decides equally."""
        before, checkpoint = self.state, take(self.state)
        self.state, twin = restore(before.policy, checkpoint), restore(before.policy, checkpoint)
        held = {uid: (p.slot, p.devices, p.picks) for uid, p in before.cluster.placements.items()}
        names = before.cluster.nodes.names
        assert {h.uid: (h.node, h.devices, h.picks) for h in take(self.state).held} == {
            uid: (names[slot], devices, picks) for uid, (slot, devices, picks) in held.items()
        }
        again = take(self.state)
        # What pods are charged follows the nodes at the next step, and at once where a state is made anew.
        again, known = (replace(one, held=(), histories=()) for one in (again, checkpoint))
        assert replace(again, reported=()) == replace(known, reported=())
        assert set(again.reported) == set(checkpoint.reported)
        assert twin.cluster.check() == []
        step(before, (), self.now_ms)
        self.step(data, 0)
        step(twin, (), self.now_ms)
        assert take(twin) == take(self.state)

    @rule(data=st.data(), passed_ms=st.sampled_from([0, 1, 1000, 2 * LONGEST_MS]))
    def step(self, data: st.DataObject, passed_ms: int) -> None:
        self.now_ms += passed_ms
        whole = self.gangs.keys() - {self.pods[uid].gang for uid in [*self.bound(), *self.decided]}
        binds = [d for d in step(self.state, (), self.now_ms) if isinstance(d, Bind)]
        for bind in binds:
            assert not self.pods[bind.uid].node
            assert bind.uid not in self.decided
            self.decided[bind.uid] = self.known_binds[bind.uid] = bind
        self.audit(binds)
        for gang_id in whole & {self.pods[bind.uid].gang for bind in binds}:
            self.audit_start(self.gangs[gang_id], [bind for bind in binds if self.pods[bind.uid].gang == gang_id])

    def world(self) -> World:
        """What is on the nodes, with what is decided."""
        held = [replace(pod, node=self.decided[uid].node) for uid, pod in self.pods.items() if uid in self.decided]
        nominated = [pod for pod in self.pods.values() if pod.nominated_node]
        return World(
            list(self.nodes.values()), [*held, *(p for p in self.pods.values() if p.node)], nominated, [self.namespace]
        )

    def audit(self, binds: list[Bind]) -> None:
        """No node got more than it has, and each pod is where the rules let it be beside all the others."""
        world = self.world()
        for bind in binds:
            pod, node = self.pods[bind.uid], self.nodes[bind.node]
            request, others = pod.request, replace(world, pods=[p for p in world.pods if p.uid != bind.uid])
            assert len(bind.devices) == (1 if request.gpu_milli else dict(request.resources).get(GPU, 0))
            if not any(other.request.gpu_milli for other in world.on(node)):
                assert allows(others, pod, node), bind

    def audit_start(self, gang: Gang, binds: list[Bind]) -> None:
        """The first members of a gang are at least its minimum, and inside one domain of each required level."""
        assert len(binds) >= gang.min_count
        for key in gang.required:
            paths = [
                tuple(dict(self.nodes[bind.node].labels).get(level) for level in FABRIC[: FABRIC.index(key) + 1])
                for bind in binds
            ]
            assert len(set(paths)) == 1
            assert paths[0][-1] is not None

    @precondition(lambda self: self.decided)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        pod = self.one_of(list(self.decided), data)
        bind = self.decided.pop(pod.uid)
        devices = bind.devices or None
        if not pod.request.gpu_milli and self.nodes_layout(bind.node) is None:
            # They were only counted off: nothing is written down.
            devices = None
            self.known_binds.pop(pod.uid, None)
        self.put(replace(pod, node=bind.node, bound_ms=max(1, self.now_ms), devices=devices))

    def nodes_layout(self, name: str) -> Layout | None:
        nodes = self.state.cluster.nodes
        return nodes.layout(nodes.slots[name]) if name in nodes.slots else None

    @precondition(lambda self: self.decided)
    @rule(data=st.data(), wait_ms=st.sampled_from([0, 500, 5000]), everywhere=st.booleans())
    def fail(self, data: st.DataObject, wait_ms: int, everywhere: bool) -> None:
        pod = self.one_of(list(self.decided), data)
        node = self.decided.pop(pod.uid).node
        self.known_binds.pop(pod.uid, None)
        self.apply_events(ev.BindFailed(pod.uid, "" if everywhere else node, "conflict", self.now_ms + wait_ms))

    @precondition(lambda self: self.bound())
    @rule(data=st.data())
    def begin_to_delete(self, data: st.DataObject) -> None:
        self.put(replace(self.one_of(self.bound(), data), deleting=True))

    @precondition(lambda self: self.bound())
    @rule(data=st.data(), labels=labels)
    def label(self, data: st.DataObject, labels: tuple[tuple[str, str], ...]) -> None:
        self.put(replace(self.one_of(self.bound(), data), labels=labels))

    @precondition(lambda self: self.bound())
    @rule(data=st.data(), cpu=st.sampled_from([250, 750]))
    def resize(self, data: st.DataObject, cpu: int) -> None:
        pod = self.one_of(self.bound(), data)
        self.known_binds.pop(pod.uid, None)
        amounts = tuple(sorted({**dict(pod.request.resources), CPU: cpu}.items()))
        self.put(replace(pod, request=replace(pod.request, resources=amounts)))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        pod = self.one_of(list(self.pods), data)
        del self.pods[pod.uid]
        self.decided.pop(pod.uid, None)
        self.known_binds.pop(pod.uid, None)
        self.apply_events(ev.PodRemoved(pod.uid))

    @precondition(lambda self: self.state.cluster.placements)
    @rule(data=st.data(), wanted=st.lists(requests, max_size=3))
    def evict_and_undo(self, data: st.DataObject, wanted: list[Request]) -> None:
        """A pod that is evicted in a dry run has afterwards what it had before."""
        cluster = self.state.cluster
        before, announced = self.held(), cluster.changes.count
        uids = data.draw(st.lists(st.sampled_from(sorted(cluster.placements)), unique=True, min_size=1, max_size=4))
        slots = [cluster.placements[uid].slot for uid in uids]
        with cluster.trial():
            for i, uid in enumerate(uids):
                cluster.evict(uid)
                if i < len(wanted):
                    cluster.place(Pod(f"try{i}", "ns", f"try{i}", wanted[i]), slots[i])
            self.books_are_right()
        assert self.held() == before
        assert cluster.changes.count == announced

    def held(self) -> dict[str, object]:
        nodes = self.state.cluster.nodes
        placed: dict[str, object] = {
            uid: (p.slot, p.gpu_bits, p.share_bits, p.share, p.picks)
            for uid, p in self.state.cluster.placements.items()
        }
        # A resource that nobody had asked for before adds a row of nothing.
        free = [row.tolist() for row in nodes.free if row.any()]
        arrays = (nodes.gpu_free_bits, nodes.gpu_parts, nodes.gpu_seats, nodes.book_numbers)
        on_slots = {slot: tuple(uids) for slot, uids in self.state.cluster.on_slot.items()}
        return placed | {"free": free, "arrays": [array.tolist() for array in arrays], "on": on_slots}

    @precondition(lambda self: self.state.cluster.nodes.slots)
    @rule(wanted=st.lists(st.tuples(requests, st.integers(0, 4)), max_size=6), back_to=st.integers(0, 6))
    def try_and_undo(self, wanted: list[tuple[Request, int]], back_to: int) -> None:
        cluster = self.state.cluster
        slots = list(cluster.nodes.slots.values())
        announced = cluster.changes.count
        with cluster.trial():
            mark = cluster.mark()
            for i, (request, slot) in enumerate(wanted):
                if i == back_to:
                    mark = cluster.mark()
                cluster.place(Pod(f"try{i}", "ns", f"try{i}", request), slots[slot % len(slots)])
            self.books_are_right()
            cluster.rewind(mark)
            self.books_are_right()
        assert cluster.changes.count == announced

    @precondition(lambda self: self.nodes)
    @rule(request=requests, data=st.data())
    def fill_one_by_one(self, request: Request, data: st.DataObject) -> None:
        """A row has how many pods of a shape a node takes: place them until it takes no more."""
        cluster, rows = self.state.cluster, self.state.score_cache
        slot, shape = cluster.nodes.slots[data.draw(st.sampled_from(sorted(self.nodes)))], cluster.shapes.of(request)
        expected, count = int(rows.of(shape).copies()[slot]), 0
        with cluster.trial():
            while rows.of(shape).score[slot] != INFEASIBLE:
                cluster.place(Pod(f"try{count}", "ns", f"try{count}", request), slot)
                count += 1
        assert count == expected

    @rule(team=st.sampled_from(["x", "y"]))
    def relabel_namespace(self, team: str) -> None:
        self.namespace = Namespace("ns", (("team", team),))
        self.apply_events(ev.NamespaceChanged(self.namespace))

    @precondition(lambda self: self.gangs)
    @rule(data=st.data(), enough=st.integers(1, 3))
    def change_gang(self, data: st.DataObject, enough: int) -> None:
        gang = replace(self.gangs[data.draw(st.sampled_from(sorted(self.gangs)))], min_count=enough)
        self.gangs[gang.id] = gang
        self.apply_events(ev.GangChanged(gang))

    @rule()
    def restart(self) -> None:
        """What another scheduler would count from the API server's objects, once all binds are there to be seen."""
        after = State(self.state.policy)
        for node in self.nodes.values():
            apply(after, ev.NodeChanged(node))
        world = self.world()
        for pod in world.pods:
            apply(after, ev.PodChanged(pod))
        for node in world.nodes:
            if any(pod.request.gpu_milli for pod in world.on(node)):
                continue
            assert free(after, node.name) == free(self.state, node.name)

    @invariant()
    def books_are_right(self) -> None:
        assert self.state.cluster.check() == []

    @invariant()
    def rows_are_what_they_were_if_made_anew(self) -> None:
        cluster, fresh = self.state.cluster, ScoreCache(self.state.cluster, self.state.policy.scoring)
        for request in REQUESTS[::4]:
            kept, new = self.state.score_cache.of(cluster.shapes.of(request)), fresh.of(cluster.shapes.of(request))
            assert np.array_equal(kept.score, new.score)
            assert np.array_equal(kept.copies(), new.copies())
            assert kept.best() == new.best()
            for key in (ZONE, RACK, HOST):
                assert np.array_equal(kept.tally(key), new.tally(key))

    @invariant()
    def fabric_shows_the_labels(self) -> None:
        fabric = self.state.cluster.fabric
        for name, node in self.nodes.items():
            slot, labels = self.state.cluster.nodes.slots[name], dict(node.labels)
            for key in fabric.levels:
                domain = int(fabric.domains(key)[slot])
                path = [labels[k] for k in fabric.levels[: fabric.levels.index(key) + 1] if k in labels]
                assert (domain >= 0) == (key in labels)
                assert domain < 0 or fabric.name(key, domain) == "/".join(path)

    @invariant()
    def what_was_reported_is_kept(self) -> None:
        """A pod stays on the node and on the GPUs that its bind named."""
        cluster = self.state.cluster
        for uid, bind in self.known_binds.items():
            placement = cluster.placements[uid]
            assert (cluster.nodes.names[placement.slot], placement.devices) == (bind.node, bind.devices)


def free(state: State, node: str) -> dict[str, int]:
    nodes = state.cluster.nodes
    amounts = {name: int(nodes.free[column, nodes.slots[node]]) for name, column in nodes.resources.items()}
    return {name: amount for name, amount in amounts.items() if amount}


Machine.TestCase.settings = settings(max_examples=30 * BREADTH, stateful_step_count=50, deadline=None, derandomize=True)
TestClusterMachine = pytest.mark.slow(Machine.TestCase)


@pytest.mark.slow
def test_books_and_rows_survive_more_nodes_resources_and_gpus_than_there_was_room_for() -> None:
    state = State(Policy(fabric=FABRIC))
    shape = Request(((GPU, 2),))
    for i in range(300):
        labels = ((HOST, f"n{i}"), (RACK, f"r{i % 7}"))
        amounts = ((GPU, 4 if i % 9 else 16), (PODS, 9), (f"example.com/{i % 30}", 1))
        apply(state, ev.NodeChanged(Node(f"n{i}", amounts, labels)))
        apply(state, ev.PodChanged(Pod(f"p{i}", "ns", f"p{i}", replace(shape, resources=((GPU, 1 + i % 3),)))))
        assert len([d for d in step(state, (), i) if isinstance(d, Bind)]) == 1
        kept = state.score_cache.of(state.cluster.shapes.of(shape))
        fresh = ScoreCache(state.cluster, state.policy.scoring).of(state.cluster.shapes.of(shape))
        assert np.array_equal(kept.score, fresh.score)
        assert np.array_equal(kept.tally(RACK), fresh.tally(RACK))
        assert kept.best() == fresh.best()
    assert state.cluster.check() == []


def test_a_row_that_was_not_asked_for_long_is_still_right() -> None:
    state = State(Policy(fabric=FABRIC))
    for name in "abc":
        apply(state, ev.NodeChanged(Node(name, ((GPU, 4), (PODS, 9)), ((RACK, name),))))
    cluster, shape = state.cluster, state.cluster.shapes.of(Request(((GPU, 1),)))
    assert state.score_cache.of(shape).tally(RACK)[cluster.fabric.domains(RACK)[:3]].tolist() == [4, 4, 4]
    for i in range(9000):
        cluster.place(Pod(f"p{i}", "ns", f"p{i}", shape.request), i % 3)
        cluster.unplace(f"p{i}")
    cluster.place(Pod("last", "ns", "last", shape.request), 1)
    assert state.score_cache.of(shape).tally(RACK)[cluster.fabric.domains(RACK)[:3]].tolist() == [4, 3, 4]


def test_a_restart_leaves_gpus_where_they_were_written_down() -> None:
    """Of two GPUs z went to that of y, so half of the other is free, in whatever order they are reported again."""
    node = Node("a", ((GPU, 2), (PODS, 9)))
    written = {"x": (500, 0), "y": (600, 1), "z": (400, 1)}
    x, y, z = (
        Pod(name, "ns", name, Request(gpu_milli=milli), node="a", devices=(gpu,))
        for name, (milli, gpu) in written.items()
    )
    for order in ((x, y, z), (z, x, y)):
        state = State()
        for event in (ev.NodeChanged(node), *(ev.PodChanged(pod) for pod in order)):
            apply(state, event)
        assert state.cluster.nodes.gpu_parts[:2, 0].tolist() == [500, 0]
        assert state.cluster.check() == []
