# SPDX-License-Identifier: Apache-2.0
"""On a namespaced path no name of another namespace appears, in whatever view; own names are never replaced."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dovetail.aggregated.question import Question, Reply
from dovetail.core.model import Pod
from dovetail.core.reasons import Sure
from dovetail.core.state import State
from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.views import (
    CAPACITIES,
    DEFRAG_PLANS,
    DRAIN_PLANS,
    EXPLANATIONS,
    GPU_HOLDERS,
    JOB_LISTS,
    JOB_RANKS,
    LEASE_EXPLANATIONS,
    LEASE_LISTS,
    NODE_HOLDERS,
    NODE_LISTS,
    NODE_TOPOLOGIES,
    QUEUE_DRAIN_PLANS,
    QUEUE_SHARES,
    WAITING_JOBS,
    WHAT_IFS,
    ViewDocument,
)
from dovetail.views.defrag_types import Defrag, MoveStepView, PodMove
from dovetail.views.drain_types import DrainedNode, DrainedPod, DrainPlan
from dovetail.views.forecast_types import ForecastVictim
from dovetail.views.held_types import DeviceHolder, HeldPart, NodeHolder
from dovetail.views.job_types import JobList
from dovetail.views.node_types import NodeHealthView
from dovetail.views.outlook import Outlook
from dovetail.views.queue_positions import positions
from dovetail.views.queue_types import QueuePosition
from dovetail.views.whatif_types import WhatIf, WhatifOutcome
from dovetail.viewserver.answers import ViewAnswers
from dovetail.viewserver.redaction import ELSEWHERE, Redaction
from tests.breadth import seeds
from tests.patience import PATIENCE_S
from tests.views.queued import NOW, node, pod, state_of
from tests.viewserver.worlds import MARKER, OTHERS, OWN, OWN_PODS, objects, state

WORLDS = 15


def _submitted(name: str, gpus: int, namespace: str = "", priority: int = 0) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"containers": [container], "priority": priority}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


CHANGES: tuple[dict[str, Any], ...] = (
    {"type": "submit", "objects": [_submitted("new", 8), _submitted("urgent", 8, OWN, 1000)]},
    {"type": "submit", "objects": [_submitted("mine-a", 1)]},
    {"type": "submit", "objects": [_submitted("new", 1, OTHERS[0])]},
    {"type": "drain", "nodes": ["n0"]},
    {"type": "drain", "nodes": [MARKER]},
    {"type": "addNodesLike", "node": "n0", "count": 2},
    {"type": "addNodesLike", "gpus": 8, "model": "no-such"},
    {"type": "quota", "queue": "a", "limit": ["gpu=1"]},
    {"type": "quota", "queue": "b", "guarantee": ["gpu=16"]},
    {"type": "stop", "queue": "a", "evict": True},
    {"type": "resume", "queue": "closed"},
)
"""What an asker can ask about: own jobs, and nodes and queues, which all see."""


PREDICTED: tuple[tuple[Resource, dict[str, Any]], ...] = (
    *((DRAIN_PLANS, {"nodes": ["n0"], "mode": mode}) for mode in ("WaitForJobs", "Evict")),
    *(
        (QUEUE_DRAIN_PLANS, {"queue": name, "stop": stop})
        for name in ("a", "closed", "nothing")
        for stop in ("Hold", "HoldAndDrain")
    ),
    (DRAIN_PLANS, {"nodes": [MARKER]}),
    (DRAIN_PLANS, {"nodes": ["n0"], "startMs": 1}),
    *((DEFRAG_PLANS, {"job": f"{OWN}/{name}"}) for name in (*OWN_PODS, "nothing")),
    *((DEFRAG_PLANS, {"shape": shape}) for shape in ("4", "8", "2x8", "no shape")),
    (DEFRAG_PLANS, {"job": f"{OTHERS[0]}/waits-0"}),
    *((LEASE_EXPLANATIONS, {"key": f"{OWN}/{name}"}) for name in ("asks", "holds", OWN_PODS[0], MARKER)),
    (LEASE_EXPLANATIONS, {"key": f"{OWN}/asks", "kind": "leaserequest/"}),
    (LEASE_EXPLANATIONS, {"key": f"{OTHERS[0]}/{MARKER}-asks", "kind": "leaserequest/"}),
)


def questions(seed: int) -> list[Question]:
    """All that an asker of OWN can ask, by the names of own and of other things."""
    world = state(seed)
    pods = list(world.workloads.pods.values())
    names = {one.name for one in pods} | {f"{one.name}-job" for one in pods} | {"nothing", MARKER, "mine"}
    found = [Question(kind.plural, OWN, name) for name in sorted(names) for kind in (EXPLANATIONS, JOB_RANKS)]
    found += [
        Question(kind.plural, OWN, query=(("queue", name),))
        for kind in (WAITING_JOBS, QUEUE_SHARES)
        for name in ("", "a", "closed", MARKER)
    ]
    found += [Question(EXPLANATIONS.plural, OWN, name, (("queue", name),)) for name in ("a", "closed", f"{MARKER}-b")]
    filters = [{}, {"states": ["Waiting"]}, {"queue": "a"}, {"users": ["nobody"]}, {"node": "*"}]
    filters += [{"names": [name]} for name in ("*", *sorted(names))]
    filters += [
        {"words": [word], "sort": sort, "first": 5} for word in (MARKER, "", OTHERS[0]) for sort in ("job", "start")
    ]
    filters += [{"states": ["Completed", "Failed"]}, {"states": ["Failed", "Waiting"], "users": [f"{MARKER}-user"]}]
    found += [Question(JOB_LISTS.plural, OWN, "", (("filter", json.dumps(one)), ("mostAhead", "9"))) for one in filters]
    found += [Question(NODE_LISTS.plural, OWN, query=query) for query in ((), (("unhealthy", "true"),))]
    found.append(Question(GPU_HOLDERS.plural, OWN))
    found += [Question(NODE_HOLDERS.plural, OWN, query=(("node", f"n{i}"),)) for i in range(3)]
    found += [Question(NODE_TOPOLOGIES.plural, OWN, query=(("node", f"n{i}"),)) for i in range(4)]
    nccl = ("nccl", "true"), ("node", "n0")
    found += [Question(NODE_TOPOLOGIES.plural, OWN, query=nccl)]
    pods_asked = (f"{OWN}/{OWN_PODS[1]}", f"{OTHERS[0]}/{MARKER}-runs-n0-0", MARKER)
    found += [Question(NODE_TOPOLOGIES.plural, OWN, query=(*nccl, ("pod", name))) for name in pods_asked]
    found += [Question(LEASE_LISTS.plural, OWN, query=query) for query in ((), (("of", OWN),), (("of", OTHERS[0]),))]
    found += [Question(LEASE_LISTS.plural, OWN, query=(("of", f"{MARKER}-agent"),))]
    found += [Question(WHAT_IFS.plural, OWN, body=json.dumps({"change": one})) for one in CHANGES]
    found += [Question(kind.plural, OWN, body=json.dumps(one)) for kind, one in PREDICTED]
    return [*found, Question(CAPACITIES.plural, OWN), Question(CAPACITIES.plural, OWN, query=(("shape", "2x8"),))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(WORLDS))
def test_no_name_of_others_appears_in_any_answer(seed: int) -> None:
    answers = ViewAnswers(state(seed), NOW, "dovetail", objects(seed), look_ahead_s=PATIENCE_S)
    found = [(question, answers.answer(question)) for question in questions(seed)]
    for question, reply in found:
        asked = re.escape(question.name).encode()
        # What the asker wrote comes back in the metadata, and in what is not found.
        body = re.sub(rb'"name":"' + asked + rb'"', b"", reply.body) if reply.status == 200 else b""
        assert MARKER.encode() not in body, question
        if reply.status != 200:
            assert MARKER not in _without(reply, question), question
    assert {reply.status for _, reply in found} == {200, 400, 403, 404}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_what_was_worked_out_for_one_is_the_answer_to_another_as_if_it_was_worked_out_for_him(seed: int) -> None:
    """Askers of all namespaces, and of each, in turn: the answers of one that keeps what it has worked out, and of one
    that works out each question alone."""
    dice, kept = random.Random(seed), ViewAnswers(state(seed), NOW, "dovetail", objects(seed), look_ahead_s=PATIENCE_S)
    own = [one for one in questions(seed) if one.resource not in (EXPLANATIONS.plural, JOB_RANKS.plural)]
    asked = [replace(one, namespace=namespace) for one in own for namespace in (OWN, OTHERS[0], "", OWN)]
    dice.shuffle(asked)
    for question in asked[:40]:
        alone = ViewAnswers(state(seed), NOW, "dovetail", objects(seed), look_ahead_s=PATIENCE_S)
        assert kept.answer(question) == alone.answer(question), question


def _without(reply: Reply, question: Question) -> str:
    """A message without what the asker wrote."""
    words = {question.name, *(value for _, value in question.query)} - {""}
    if question.body:
        body = json.loads(question.body)
        change = body.get("change", body)
        words |= set(body.get("key", body.get("job", "")).split("/")) - {"", OWN}
        words |= {*change.get("nodes", ()), *(one["metadata"].get("namespace") for one in change.get("objects", ()))}
        words -= {None}
    text = reply.body.decode()
    for name in json.loads(dict(question.query).get("filter", "{}")).get("names", ()):
        text = text.replace(f"there is no job {name}", "")
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(f"{OWN}/{word}", "").replace(f"queue {word} ", "").replace(f"node {word} ", "")
        text = text.replace(f"is called {word}", "").replace(f"not pod {word}/", "")
    return text


@pytest.mark.parametrize("seed", seeds(WORLDS // 3))
@pytest.mark.slow
def test_with_all_rights_the_names_appear(seed: int) -> None:
    """The worlds have names to hide: without a namespace they are shown."""
    answers = ViewAnswers(state(seed), NOW, "dovetail", objects(seed))
    shown = [answers.answer(Question(kind.plural)).body for kind in (WAITING_JOBS, QUEUE_SHARES, CAPACITIES)]
    assert any(MARKER.encode() in body for body in shown)
    drained = Question(WHAT_IFS.plural, body=json.dumps({"change": {"type": "drain", "nodes": ["n0", "n0"]}}))
    done = Question(JOB_LISTS.plural, query=(("filter", '{"states":["Completed","Failed"]}'),))
    for question in (Question(NODE_LISTS.plural), Question(LEASE_LISTS.plural), done, drained):
        reply = answers.answer(question)
        assert reply.status == 200 and (MARKER.encode() in reply.body or question is drained), question


@pytest.mark.parametrize("seed", seeds(WORLDS // 3))
def test_own_names_are_not_replaced(seed: int) -> None:
    world = state(seed)
    redaction = Redaction(world, OWN)
    answer = positions(Outlook(world, NOW))
    shown, own = redaction.of(answer).jobs, [one for one in answer.jobs if one.job.startswith(f"{OWN}/")]
    assert [(one.position, one.job, one.user, one.message) for one in shown] == [
        (one.position, one.job, one.user, one.message) for one in own
    ]
    assert [re.findall(f"{OWN}/[\\w-]+", one.expected.basis) for one in shown] == [
        re.findall(f"{OWN}/[\\w-]+", one.expected.basis) for one in own
    ]
    for one in world.workloads.pods.values():
        if one.namespace == OWN:
            for text in (
                one.key,
                f"{one.gang or one.key}: waits",
                f"queue a, gpulease/{one.key} and {one.user} hold 1/8",
            ):
                assert redaction.text(text) == text
    explained = ViewAnswers(world, NOW, "dovetail").answer(Question(EXPLANATIONS.plural, OWN, OWN_PODS[0])).body
    assert f'"pod":"{OWN}/{OWN_PODS[0]}"'.encode() in explained


def test_rows_of_others_are_totals() -> None:
    world = state_of(
        node("n0"), node("n1"),
        pod("a", 3, "n0", namespace="x"), pod("b", 2, "n0", namespace="y"), pod("c", 4, "n1", namespace="x"),
        pod("mine", 2, "n0", namespace="own"), pod("w1", 8, namespace="x"), pod("w2", 8, namespace="own"),
    )  # fmt: skip
    redaction = Redaction(world, "own")
    held = tuple(
        DeviceHolder(name, on, "nvidia.com/gpu", amount)
        for name, on, amount in (("x/a", "n0", "3"), ("own/mine", "n0", "2"), ("y/b", "n0", "2"), ("x/c", "n1", "4"))
    )
    assert [(one.pod, one.node, one.amount) for one in redaction.of(held)] == [
        ("own/mine", "n0", "2"), (ELSEWHERE, "n0", "5"), (ELSEWHERE, "n1", "4")
    ]  # fmt: skip
    memory = tuple(DeviceHolder(name, "n0", "memory", amount) for name, amount in (("x/a", "1.5Gi"), ("y/b", "512Mi")))
    assert [one.amount for one in redaction.of(memory)] == ["2Gi"]
    parts = tuple(DeviceHolder(name, "n0", "share of a GPU", "250/1000") for name in ("x/a", "y/b"))
    assert [one.amount for one in redaction.of(parts)] == ["500/1000"]
    seen = redaction.of(positions(Outlook(world, NOW)))
    assert ([one.job for one in seen.jobs], seen.elsewhere) == (["own/w2"], 1)


def test_rows_of_others_in_a_what_if_and_on_a_node_are_totals() -> None:
    world = state_of(
        node("n0"), pod("a", 3, "n0", namespace="x"), pod("b", 2, "n0", namespace="y"), pod("mine", 2, namespace="own")
    )
    redaction = Redaction(world, "own")
    evicted = tuple(
        ForecastVictim(name, "n0", gpus, for_job, cause, at_ms, 5, "in favour of x/a")
        for name, gpus, for_job, cause, at_ms in (
            ("x/a", 3000, "own/mine", "preempt", NOW), ("own/mine", 2000, "y/c", "preempt", NOW),
            ("y/b", 2000, "own/mine", "preempt", NOW), ("y/d", 1000, "x/e", "reclaim", NOW),
            ("x/f", 1000, "y/e", "reclaim", NOW),
        )
    )  # fmt: skip
    jobs = tuple(WhatifOutcome(name, "q", 1, 1000, "later", None, None) for name in ("x/a", "own/mine", "y/b"))
    notes = ("x/a stays on n0", "y/b stays on n0", "own/mine stays on n0")
    seen = redaction.of(WhatIf(NOW, jobs, evicted, (), (), 0, notes, whole=True))
    assert ([one.job for one in seen.jobs], seen.elsewhere) == (["own/mine"], 2)
    assert [(one.pod, one.for_job, one.gpus_milli, one.lost_milli_ms) for one in seen.evicted] == [
        ("own/mine", ELSEWHERE, 2000, 5), (ELSEWHERE, "own/mine", 5000, 10), (ELSEWHERE, ELSEWHERE, 2000, 10)
    ]  # fmt: skip
    assert seen.notes == (f"{ELSEWHERE} stays on n0", "own/mine stays on n0")
    holders = (
        NodeHolder("x/a", "x/job", "xu", "q", 2, (4, 5), ()), NodeHolder("own/mine", "own/mine", "u", "q", 1, (0,), ()),
        NodeHolder("gpulease/y/b", "", "", "", 2, (1, 2), (HeldPart("share", "3", 250),)),
    )  # fmt: skip
    assert redaction.of(holders) == (
        holders[1], NodeHolder(ELSEWHERE, "", "", "", 4, (1, 2, 4, 5), (HeldPart("share", "3", 250),))
    )  # fmt: skip


def test_rows_of_others_in_a_drain_and_in_moves_are_totals() -> None:
    world = state_of(node("n0"), pod("a", 3, "n0", namespace="x"), pod("mine", 2, "n0", namespace="own"))
    redaction = Redaction(world, "own")
    pods = tuple(
        DrainedPod(f"{space}/{name}", f"{space}/job", "q", "n0", 1000, what, left_ms, sure, f"when {space}/z ends", 3)
        for space, name, what, left_ms, sure in (
            ("x", "a", "ends", NOW + 5, Sure.KNOWN), ("own", "mine", "ends", NOW + 1, Sure.KNOWN),
            ("x", "b", "ends", NOW + 9, Sure.LEARNED), ("x", "c", "moves", 0, Sure.UNKNOWN),
            ("x", "d", "moves", NOW + 2, Sure.KNOWN),
        )
    )  # fmt: skip
    seen = redaction.of(
        DrainPlan((DrainedNode("n0", 8, 0, Sure.UNKNOWN, "x/c", pods, 1),), (), ("own/job", "x/job", "x/k"), ("q",), 15)
    )
    assert [
        (one.pod, one.count, one.what, one.gpus_milli, one.left_ms, one.sure, one.basis, one.lost_gpu_minutes)
        for one in seen.nodes[0].pods
    ] == [
        ("own/mine", 1, "ends", 1000, NOW + 1, Sure.KNOWN, "when own/z ends", 3),
        (ELSEWHERE, 2, "ends", 2000, NOW + 9, Sure.LEARNED, "", 6),
        (ELSEWHERE, 2, "moves", 2000, 0, Sure.UNKNOWN, "", 6),
    ]
    assert (seen.nodes[0].basis, seen.jobs, seen.other_jobs) == (ELSEWHERE, ("own/job",), 2)
    moves = (
        PodMove("x/a", "n0", "n1", (3,)),
        PodMove("own/mine", "n0", "n1", (4,)),
        PodMove("x/b", "n0", "n1", (1, 2)),
        PodMove("x/c", "n0", "n2", ()),
    )
    notes = ("x/a has no controller", "x/b has no controller", "own/mine has no controller")
    moved = redaction.of(
        Defrag("own/w", None, True, (MoveStepView("x/job", "q", moves, 2.0),), 2.0, (), "", False, notes)
    )
    assert moved.steps[0].moves == (
        moves[1], PodMove(ELSEWHERE, "n0", "n1", (1, 2, 3), 2), PodMove(ELSEWHERE, "n0", "n2", ())
    )  # fmt: skip
    assert (moved.steps[0].job, moved.notes) == (ELSEWHERE, (f"{ELSEWHERE} has no controller", notes[2]))


@pytest.mark.parametrize("resource", [DEFRAG_PLANS, LEASE_EXPLANATIONS])
def test_names_of_others_are_not_answered(resource: Resource) -> None:
    answers = ViewAnswers(state(0), NOW, "dovetail", objects(0))
    field = "job" if resource is DEFRAG_PLANS else "key"
    for name in (f"{OTHERS[0]}/x", "x", f"/{OWN}", f"{OTHERS[0]}/{OWN}/x"):
        reply = answers.answer(Question(resource.plural, OWN, body=json.dumps({field: name})))
        assert reply.status == 403 and MARKER.encode() not in reply.body, name


@pytest.mark.parametrize(
    ("maintenance", "shown"),
    [
        ("user/ada: a new fan", "a user: a new fan"),
        ("user/oidc:ada", "a user"),
        ("rollout/cluster: driver 570", "rollout/cluster: driver 570"),
        ("", ""),
    ],
)
def test_of_a_maintenance_the_reason_is_shown_and_the_user_is_not(maintenance: str, shown: str) -> None:
    row = NodeHealthView("n0", "healthy", 8, {}, 0, "", "", "", (), maintenance=maintenance)
    assert Redaction(state_of(node("n0")), "own").of(row).maintenance == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("held by x/a (250/1000), own/mine", f"held by {ELSEWHERE} (250/1000), own/mine"),
        ("gpulease/x/a is revoked", f"{ELSEWHERE} is revoked"),
        ("there is no pod own/z; did you mean x/a, x/b?", "there is no pod own/z"),
        ("there is no pod own/z; did you mean x/a, own/mine?", "there is no pod own/z; did you mean own/mine?"),
        ("there is no pod own/z; did you mean own/mine?", "there is no pod own/z; did you mean own/mine?"),
        ("0/3 nodes: nvidia.com/gpu", "0/3 nodes: nvidia.com/gpu"),
        ("x waits", "x waits"),
    ],
)
def test_a_sentence(text: str, shown: str) -> None:
    world = state_of(node("n0"), pod("a", 3, "n0", namespace="x"), pod("mine", 1, namespace="own"))
    assert Redaction(world, "own").text(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("n" * 20_000, "n" * 20_000),
        ("n" * 20_000 + "/", "n" * 20_000 + "/"),
        ("/" * 20_000, "/" * 20_000),
        ("n/" * 10_000, "n/" * 10_000),
        ("x/" * 10_000 + "a", ELSEWHERE),
        ("; did you mean " * 5_000, "; did you mean " * 5_000),
    ],
    ids=["a word", "a word and a slash", "slashes", "words", "names", "hints"],
)
def test_a_long_text_takes_no_longer_than_many_short_ones(text: str, shown: str) -> None:
    """An asker may write it, as a name that nothing has. If each part of it was searched from its start to the end of
    all, it would take seconds, and of a text of megabytes hours."""
    world = state_of(node("n0"), pod("a", 3, "n0", namespace="x"), pod("mine", 1, namespace="own"))
    redaction, began_s = Redaction(world, "own"), time.process_time()
    assert redaction.text(text) == shown
    assert time.process_time() - began_s < 0.5


def test_a_row_more_in_a_view_is_redacted_without_a_rule_for_it() -> None:
    class Later(msgspec.Struct, frozen=True):
        inside: QueuePosition | None
        names: tuple[tuple[str, ...], ...]

    world = state_of(node("n0"), pod("a", 3, "n0", namespace="x"), pod("mine", 1, namespace="own"))
    assert Redaction(world, "own").of(Later(None, (("x/a", "x/b", "own/mine"),))) == Later(
        None, ((ELSEWHERE, "own/mine"),)
    )


@pytest.mark.parametrize("seed", seeds(WORLDS // 3))
def test_jobs_of_others_are_counted_and_not_found_by_name(seed: int) -> None:
    """A name of others is answered as one that does not exist."""
    world = state(seed)
    answers = ViewAnswers(world, NOW, "dovetail")

    def asked(namespace: str, **wanted: object) -> tuple[int, JobList | None]:
        reply = answers.answer(Question(JOB_LISTS.plural, namespace, "", (("filter", json.dumps(wanted)),)))
        document = msgspec.json.decode(reply.body, type=ViewDocument) if reply.status == 200 else None
        return reply.status, msgspec.json.decode(document.answer, type=JobList) if document is not None else None

    _, every = asked("")
    _, own = asked(OWN)
    assert every is not None and own is not None
    assert {row.job for row in own.jobs} == {row.job for row in every.jobs if row.job.startswith(f"{OWN}/")}
    assert own.elsewhere == len(every.jobs) - len(own.jobs)
    for row in every.jobs:
        if not row.job.startswith(f"{OWN}/") and row.job.partition("/")[2] not in {one.name for one in _own(world)}:
            assert asked(OWN, names=[row.job])[0] == asked(OWN, names=["no-such-name"])[0] == 404
    _, filtered = asked(OWN, users=["nobody"])
    assert filtered is not None and (filtered.jobs, filtered.elsewhere) == ((), 0)


def _own(world: State) -> list[Pod]:
    return [pod for pod in world.workloads.pods.values() if pod.namespace == OWN]
