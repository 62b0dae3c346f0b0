# SPDX-License-Identifier: Apache-2.0
"""The answers of a state that many ask are those that a command works out for itself, and a command reads them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dovetail.aggregated.question import Question
from dovetail.core.checkpoint import restore, take
from dovetail.core.state import State
from dovetail.kube.objects.views import (
    CAPACITIES,
    DEFRAG_PLANS,
    DRAIN_PLANS,
    EXPLANATIONS,
    JOB_LISTS,
    JOB_RANKS,
    LEASE_EXPLANATIONS,
    LEASE_LISTS,
    NODE_LISTS,
    NODE_TOPOLOGIES,
    QUEUE_DRAIN_PLANS,
    QUEUE_SHARES,
    VIEWS,
    WAITING_JOBS,
    WHAT_IFS,
    ViewDocument,
)
from dovetail.recording.format import CHECKPOINT
from dovetail.views.defrag import defrag
from dovetail.views.defrag_types import Defrag, DefragQuestion
from dovetail.views.drain import drain_plan
from dovetail.views.drain_types import DrainPlan, DrainQuestion
from dovetail.views.free import free
from dovetail.views.free_types import Beside, Free
from dovetail.views.job_list import job_list
from dovetail.views.job_types import JobFilter, JobList
from dovetail.views.queue_drain import queue_drain_plan
from dovetail.views.queue_drain_types import QueueDrainPlan, QueueDrainQuestion
from dovetail.views.queue_positions import queue_positions
from dovetail.views.queue_shares import share
from dovetail.views.queue_types import QueuePosition, QueueShare
from dovetail.views.rank import rank
from dovetail.views.rank_types import RankView
from dovetail.views.shape import largest
from dovetail.views.shape_types import ShapeAnswer, parse
from dovetail.views.why import why
from dovetail.views.why_queue import why_queue
from dovetail.views.why_types import Explanation
from dovetail.viewserver.answers import _OF, QUERIES, ViewAnswers
from tests.breadth import seeds
from tests.views.queued import NOW
from tests.viewserver.worlds import state


def _copy(world: State) -> State:
    return restore(world.policy, take(world))


def asked(answers: ViewAnswers, question: Question, kind: Any) -> Any:
    reply = answers.answer(question)
    assert reply.status == 200, reply.body
    document = msgspec.json.decode(reply.body, type=ViewDocument)
    return msgspec.json.decode(document.answer, type=kind)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(6))
def test_a_shared_outlook_answers_as_each_command_does(seed: int) -> None:
    world = state(seed)
    before = CHECKPOINT.encode(take(world))
    answers = ViewAnswers(world, NOW, "dovetail")
    answers.prepare()
    jobs = queue_positions(_copy(world), NOW)
    for _ in range(2):
        for one in world.workloads.pods.values():
            if not one.node:
                name = one.key.replace("/", ":")
                found = asked(answers, Question(EXPLANATIONS.plural, "", name), Explanation)
                assert found == Explanation(job=why(_copy(world), one.key, NOW, ours="dovetail"))
        for job in jobs.jobs:
            name = job.job.replace("/", ":")
            assert asked(answers, Question(JOB_RANKS.plural, "", name), RankView) == rank(_copy(world), job.job, NOW)
        assert asked(answers, Question(WAITING_JOBS.plural), QueuePosition) == jobs
        assert asked(answers, Question(QUEUE_SHARES.plural), tuple[QueueShare, ...]) == share(_copy(world), NOW)
        for most in (0, 10):
            found = asked(answers, Question(JOB_LISTS.plural, "", "", (("mostAhead", str(most)),)), JobList)
            assert found == job_list(_copy(world), NOW, JobFilter(), most_ahead=most)
        queue = Question(EXPLANATIONS.plural, "", "none:a", (("queue", "a"),))
        assert asked(answers, queue, Explanation) == Explanation(queue=why_queue(_copy(world), "a", NOW))
        for mode in ("WaitForJobs", "Evict"):
            drain = DrainQuestion(("n0",), mode)
            found = asked(answers, Question(DRAIN_PLANS.plural, body=msgspec.json.encode(drain).decode()), DrainPlan)
            assert found == drain_plan(_copy(world), ("n0",), drain.maintenance(NOW), NOW)
        for name, stop in (("a", "Hold"), ("closed", "HoldAndDrain")):
            body = msgspec.json.encode(QueueDrainQuestion(name, stop)).decode()
            found = asked(answers, Question(QUEUE_DRAIN_PLANS.plural, body=body), QueueDrainPlan)
            assert found == queue_drain_plan(_copy(world), name, stop, NOW)
        for wanted in (DefragQuestion(shape="8"), *(DefragQuestion(one.job) for one in jobs.jobs[:2])):
            found = asked(answers, Question(DEFRAG_PLANS.plural, body=msgspec.json.encode(wanted).decode()), Defrag)
            assert found == defrag(_copy(world), wanted)
        assert asked(answers, Question(CAPACITIES.plural), Free) == free(_copy(world))
        shape = Question(CAPACITIES.plural, "", query=(("shape", "2x8"),))
        assert asked(answers, shape, ShapeAnswer) == largest(_copy(world), parse("2x8"), Beside())
    assert CHECKPOINT.encode(take(world)) == before


@pytest.mark.parametrize(
    ("question", "status", "message"),
    [
        (Question(EXPLANATIONS.plural, "own-team", "no-such"), 404, "there is no unfinished pod, gang or job"),
        (Question(EXPLANATIONS.plural, "", "no-such"), 400, "named NAMESPACE:NAME"),
        (Question(WAITING_JOBS.plural, query=(("queue", "none"),)), 404, "queue none does not exist"),
        (Question(CAPACITIES.plural, query=(("shape", "x"),)), 400, "shape"),
        (Question(JOB_LISTS.plural, query=(("filter", "{"),)), 400, "filter: "),
        (Question(JOB_LISTS.plural, query=(("filter", '{"users":3}'),)), 400, "filter: Expected `array`"),
        (Question(JOB_LISTS.plural, query=(("filter", '{"first":-1}'),)), 400, "filter: words are at most 50"),
        (Question(JOB_LISTS.plural, query=(("filter", '{"sort":"labels"}'),)), 400, "sort is one of job, state"),
        (Question(JOB_LISTS.plural, query=(("filter", json.dumps({"words": ["a"] * 51})),)), 400, "filter: words are"),
        (Question(JOB_LISTS.plural, query=(("filter", '{"states":["Lost"]}'),)), 400, "Lost is no state: there are"),
        (Question(NODE_LISTS.plural, query=(("name", "no-such"),)), 404, "no GPU node is called no-such"),
        (Question(NODE_TOPOLOGIES.plural, query=(("node", "n"),)), 404, "no node is called n; did you mean n0"),
        (Question(NODE_TOPOLOGIES.plural), 404, "no node is called "),
        (Question(NODE_TOPOLOGIES.plural, query=(("nccl", "yes"), ("node", "n0"))), 400, "nccl must be true or false"),
        (Question(NODE_TOPOLOGIES.plural, query=(("nccl", "true"), ("node", "n0"))), 400, "no GPUNode reports the"),
        (Question(NODE_TOPOLOGIES.plural, "own-team", query=(("pod", "x/y"),)), 403, "only NAMESPACE/NAME of"),
        (Question(NODE_LISTS.plural, query=(("unhealthy", "1"),)), 400, "unhealthy must be true or false"),
        (Question(LEASE_LISTS.plural, query=(("of", "x"),)), 404, "no namespace and no control plane is called x"),
        (Question(WHAT_IFS.plural, body='{"change":{"type":"drain","nodes":["x"]}}'), 404, "node x does not exist"),
        (Question(WHAT_IFS.plural, body='{"change":{"type":"stop","queue":"x"}}'), 404, "queue x does not exist"),
        (
            Question(WHAT_IFS.plural, body='{"change":{"type":"addNodesLike","node":"n0","count":99999}}'),
            400,
            "count must be 1 to",
        ),
        (
            Question(WHAT_IFS.plural, body='{"change":{"type":"quota","queue":"a","weight":0}}'),
            400,
            "weight must be 1 to",
        ),
        (
            Question(WHAT_IFS.plural, body='{"change":{"type":"quota","queue":"a","limit":["gpu"]}}'),
            400,
            "must be CLASS=AMOUNT",
        ),
        (Question(JOB_LISTS.plural, query=(("filter", '{"names":["no-such"]}'),)), 404, "there is no job no-such"),
        (
            Question(JOB_LISTS.plural, "own-team", query=(("filter", '{"namespace":"x"}'),)),
            403,
            "only jobs of namespace",
        ),
        (Question(DRAIN_PLANS.plural, body='{"nodes":["x"]}'), 404, "no node is called x"),
        (Question(DRAIN_PLANS.plural, body='{"nodes":["n0"],"mode":"Reboot"}'), 400, "Invalid enum value 'Reboot'"),
        (Question(DRAIN_PLANS.plural, body='{"nodes":["n0"],"startMs":1}'), 400, "startMs must be 0 or later than now"),
        (Question(DRAIN_PLANS.plural, body=f'{{"nodes":["n0"],"startMs":{10**20}}}'), 400, "$.startMs"),
        (Question(DEFRAG_PLANS.plural, body="{}"), 400, "is not a shape"),
        (Question(DEFRAG_PLANS.plural, body='{"shape":"8","cpuMilli":-1}'), 400, "$.cpuMilli"),
        (Question(DEFRAG_PLANS.plural, body='{"job":"x"}'), 403, "only NAMESPACE/NAME"),
        (Question(DEFRAG_PLANS.plural, body='{"job":"x/y"}'), 404, "there is no unfinished pod, gang or job x/y"),
        (Question(LEASE_EXPLANATIONS.plural, body='{"key":"x/y","kind":"pods"}'), 400, "kind must be one of pod, job"),
        (Question(LEASE_EXPLANATIONS.plural, body="{"), 400, "truncated"),
        (Question(EXPLANATIONS.plural, "", "x:y", (("kind", "gl"),)), 400, "kind must be pod or job"),
        (Question(CAPACITIES.plural, query=(("cpuMilli", "-1"),)), 400, "cpuMilli must be a number"),
        (Question(CAPACITIES.plural, query=(("memoryBytes", "9" * 400),)), 400, "memoryBytes must be a number"),
    ],
)
@pytest.mark.slow
def test_a_question_without_an_answer(question: Question, status: int, message: str) -> None:
    reply = ViewAnswers(state(1), NOW, "dovetail").answer(question)
    assert (reply.status, message in reply.body.decode()) == (status, True), reply.body


def test_a_look_ahead_that_takes_too_long_is_ended_and_the_others_answer() -> None:
    answers = ViewAnswers(state(1), NOW, "dovetail", look_ahead_s=-1.0)
    answers.prepare()
    reply = answers.answer(Question(WAITING_JOBS.plural))
    assert (reply.status, b"look-ahead takes longer" in reply.body) == (503, True)
    assert answers.answer(Question(QUEUE_SHARES.plural)).status == 200
    ahead = ("mostAhead", "100")
    assert answers.answer(Question(JOB_LISTS.plural, query=(ahead,))).status == 503
    for wanted, status in (
        ('{"first":5,"states":["Running"]}', 200),
        ('{"first":5,"sort":"start"}', 503),
        ('{"first":5,"words":["nodefits"]}', 503),
        ('{"first":5,"words":["nofit"]}', 200),
    ):
        assert answers.answer(Question(JOB_LISTS.plural, query=(("filter", wanted), ahead))).status == status, wanted


def test_each_resource_has_an_answer_and_its_queries() -> None:
    assert {one.plural for one in VIEWS} == set(_OF) == set(QUERIES)
