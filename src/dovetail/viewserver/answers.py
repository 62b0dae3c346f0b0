# SPDX-License-Identifier: Apache-2.0
"""The answers about one state, by resource. Does not know the user that asks, only which namespace is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dovetail import __version__
from dovetail.aggregated.paths import ServedApi
from dovetail.aggregated.question import BadQuestion, Question, Reply
from dovetail.core.checkpoint import restore
from dovetail.core.json_text import JsonError, decode_json
from dovetail.core.state import State
from dovetail.kube.api.resources import Resource
from dovetail.kube.manifests.documents import ManifestError
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
    PREDICTIONS,
    QUEUE_DRAIN_PLANS,
    QUEUE_SHARES,
    RECORDED_DECISIONS,
    VIEWS,
    VIEWS_GROUP,
    VIEWS_VERSION,
    WAITING_JOBS,
    WHAT_IFS,
    ViewDocument,
    ViewMeta,
)
from dovetail.kube.translate.reported import ReportedObjects
from dovetail.views.amounts import AmountError
from dovetail.views.asked_types import MOST_ASKED
from dovetail.views.defrag import defrag
from dovetail.views.defrag_types import DefragQuestion
from dovetail.views.drain import UnknownNode, drain_plan
from dovetail.views.drain_types import DrainQuestion
from dovetail.views.explanation import explain_name
from dovetail.views.free import free
from dovetail.views.free_types import Beside
from dovetail.views.job_list import jobs_of
from dovetail.views.job_states import DONE, STATES
from dovetail.views.job_types import SORTS, JobFilter
from dovetail.views.known_jobs import UnfinishedJobs
from dovetail.views.leases import all_leases, leases_of_namespace
from dovetail.views.names import ANY, JOB, POD, JobNotFound
from dovetail.views.node import NotForNccl, ReadObjects, node_topology
from dovetail.views.node_holders import gpu_holders, node_holders
from dovetail.views.nodes import node_list
from dovetail.views.outlook import Outlook
from dovetail.views.queue_drain import queue_drain_plan
from dovetail.views.queue_drain_types import QueueDrainQuestion
from dovetail.views.queue_positions import positions
from dovetail.views.queue_shares import share
from dovetail.views.rank import rank
from dovetail.views.shape import largest
from dovetail.views.shape_types import ShapeError, parse
from dovetail.views.topology_types import NodeQuestion
from dovetail.views.whatif import ChangeError, whatif
from dovetail.views.whatif_changes import MOST_NODES, NotPermitted, hypothesis_of
from dovetail.views.whatif_types import WhatIfQuestion
from dovetail.views.why_types import KINDS, WhyQuestion
from dovetail.viewserver.recorded import DecisionQuestion, repeated
from dovetail.viewserver.redaction import Redaction

T = TypeVar("T")
LOOK_AHEAD_S = 30.0
"""The longest look-ahead, of a state or of a what-if. Beyond it no starts are known."""
_MOST_VIEWS = 32
MOST_WORDS = 50
"""Of a filter of jobs: each is looked for in every job."""
_STATES = ", ".join(STATES["all"])


class _TooLong(Exception):
    """The look-ahead takes too long."""


class _Limit:
    """Watches one look-ahead, which may take so long from its first step on."""

    def __init__(self, look_ahead_s: float) -> None:
        self._look_ahead_s = look_ahead_s
        self._ends_s: float | None = None

    def __call__(self, started: int, waiting: int) -> None:
        now_s = time.monotonic()
        self._ends_s = self._ends_s or now_s + self._look_ahead_s
        if now_s > self._ends_s:
            raise _TooLong


class ViewAnswers:
    """For one state, which stays as it is, and the objects that were reported with it. `ours` is the name of the
    scheduler, `recording` the folder of its recording, None where it is not known."""

    def __init__(
        self, state: State, now_ms: int, ours: str, objects: ReportedObjects | None = None,
        look_ahead_s: float = LOOK_AHEAD_S, recording: Path | None = None,
    ) -> None:  # fmt: skip
        self._state = state
        self._objects = objects or ReportedObjects(ours)
        self._now_ms = now_ms
        self._ours = ours
        self._look_ahead_s = look_ahead_s
        self._recording = recording
        self._outlook = Outlook(state, now_ms, _Limit(look_ahead_s), whole=True)
        self._redactions: dict[str, Redaction] = {}
        self._views: dict[tuple[str, tuple[tuple[str, str], ...]], object] = {}
        """Views of which each asker sees a part: worked out once, and redacted for each namespace."""

    @cached_property
    def _unfinished(self) -> UnfinishedJobs:
        return UnfinishedJobs(self._state)

    def prepare(self) -> None:
        """Work out what most answers need."""
        _ = self._outlook.next
        with suppress(BadQuestion):
            self._look_ahead()

    def answer(self, question: Question) -> Reply:
        """The answer, as its asker may see it. Raises no error for a question that has none."""
        namespace = question.namespace
        try:
            view = self._view(question)
        except BadQuestion as error:
            return Reply(error.status, str(error).encode())
        except JobNotFound as error:
            return Reply(404, self._shown(namespace, str(error)).encode())
        shown = self._redaction(namespace).of(view) if namespace else view
        document = ViewDocument(
            RESOURCES[question.resource].api_version, RESOURCES[question.resource].kind,
            ViewMeta(question.name, namespace), self._now_ms, self._state.steps, __version__,
            msgspec.Raw(msgspec.json.encode(shown)),
        )  # fmt: skip
        return Reply(200, msgspec.json.encode(document))

    def _view(self, question: Question) -> object:
        """With all names. Raises BadQuestion, JobNotFound."""
        work = _OF[question.resource]
        if question.resource not in _OF_ALL:
            return work(self, question, dict(question.query))
        key = question.resource, question.query
        if key not in self._views:
            if len(self._views) >= _MOST_VIEWS:
                del self._views[next(iter(self._views))]
            self._views[key] = work(self, question, dict(question.query))
        return self._views[key]

    def explanation(self, question: Question, query: Mapping[str, str]) -> object:
        key = _key(question)
        kind = query.get("kind", "")
        leased = key in self._state.requests.negotiations or key in self._state.leases.live
        if leased and kind == ANY:
            raise BadQuestion(422, f"{key} is a LeaseRequest or a GPULease, which are explained from their objects")
        if kind not in (ANY, POD, JOB):
            raise BadQuestion(400, f"kind must be {POD} or {JOB}")
        self._look_ahead()
        return explain_name(self._outlook, WhyQuestion(key, kind, query.get("queue", "")), self._ours)

    def rank(self, question: Question, query: Mapping[str, str]) -> object:
        return rank(self._state, _key(question), self._now_ms)

    def waiting(self, question: Question, query: Mapping[str, str]) -> object:
        self._look_ahead()
        return positions(self._outlook, query.get("queue", ""))

    def shares(self, question: Question, query: Mapping[str, str]) -> object:
        return share(self._state, self._now_ms, query.get("queue", ""))

    def capacity(self, question: Question, query: Mapping[str, str]) -> object:
        beside = Beside(_amount(query, "cpuMilli"), _amount(query, "memoryBytes"))
        if "shape" not in query:
            return free(self._state, beside)
        try:
            return largest(restore(self._state.policy, self._outlook.checkpoint), parse(query["shape"]), beside)
        except ShapeError as error:
            raise BadQuestion(400, str(error)) from error

    def jobs(self, question: Question, query: Mapping[str, str]) -> object:
        try:
            wanted = decode_json(query.get("filter", "{}"), JobFilter)
        except JsonError as error:
            raise BadQuestion(400, f"filter: {error}") from error
        if unknown := set(wanted.states) - set(STATES["all"]):
            raise BadQuestion(400, f"filter: {', '.join(sorted(unknown))} is no state: there are {_STATES}")
        words = max(len(wanted.words), len(wanted.name_words))
        if wanted.sort not in ("", *SORTS) or words > MOST_WORDS or not 0 <= wanted.first <= MOST_ASKED:
            bounds = f"words are at most {MOST_WORDS}, first is at most {MOST_ASKED}, sort is one of {', '.join(SORTS)}"
            raise BadQuestion(400, f"filter: {bounds}")
        if question.namespace and wanted.namespace not in ("", question.namespace):
            raise BadQuestion(403, f"filter: only jobs of namespace {question.namespace} are shown")
        most = _amount(query, "mostAhead")
        wanted = replace(wanted, namespace=wanted.namespace or question.namespace)
        done = not wanted.states or any(one in DONE for one in wanted.states)
        ended = self._objects.ended(wanted.namespace) if done else ()
        alone = bool(question.namespace)
        try:
            # Looks ahead where one of the rows waits, or all are searched or sorted by that.
            return jobs_of(self._outlook, wanted, ended, most_ahead=most, alone=alone, unfinished=self._unfinished)
        except _TooLong as error:
            raise self._too_long() from error

    def nodes(self, question: Question, query: Mapping[str, str]) -> object:
        unhealthy = _flag(query, "unhealthy")
        return node_list(self._state, self._objects.gpu_node, query.get("name", ""), unhealthy=unhealthy)

    def topology(self, question: Question, query: Mapping[str, str]) -> object:
        pod = query.get("pod", "")
        if pod:
            self._check_own(question, pod)
        try:
            objects = ReadObjects(self._objects.gpu_node, self._objects.notes)
            asked = NodeQuestion(query.get("node", ""), _flag(query, "nccl"), pod)
            return node_topology(self._state, objects, asked)
        except NotForNccl as error:
            raise BadQuestion(400, self._shown(question.namespace, str(error))) from error

    def holders(self, question: Question, query: Mapping[str, str]) -> object:
        return node_holders(self._state, query.get("node", ""))

    def gpu_holders(self, question: Question, query: Mapping[str, str]) -> object:
        return gpu_holders(self._state, self._now_ms)

    def leases(self, question: Question, query: Mapping[str, str]) -> object:
        objects, of = self._objects.leases, query.get("of", "")
        if question.namespace:
            return leases_of_namespace(self._state, objects, self._now_ms, question.namespace, of)
        return all_leases(self._state, objects, self._now_ms, of)

    def whatif(self, question: Question, query: Mapping[str, str]) -> object:
        change = self._asked(question, WhatIfQuestion).change
        try:
            hypothesis = hypothesis_of(self._state, change, self._now_ms, question.namespace)
        except (ChangeError, AmountError, ManifestError) as error:
            raise BadQuestion(400, self._shown(question.namespace, str(error))) from error
        except NotPermitted as error:
            raise BadQuestion(403, str(error)) from error
        try:
            return whatif(self._state, hypothesis, self._now_ms, _Limit(self._look_ahead_s))
        except _TooLong as error:
            raise BadQuestion(503, f"the look-ahead takes longer than {self._look_ahead_s:g} s") from error

    def drain(self, question: Question, query: Mapping[str, str]) -> object:
        asked = self._asked(question, DrainQuestion)
        if 0 < asked.start_ms <= self._now_ms or len(asked.nodes) > MOST_NODES:
            raise BadQuestion(400, f"startMs must be 0 or later than now, and nodes at most {MOST_NODES}")
        try:
            return drain_plan(self._state, asked.nodes, asked.maintenance(self._now_ms), self._now_ms)
        except UnknownNode as error:
            raise BadQuestion(404, str(error)) from error

    def queue_drain(self, question: Question, query: Mapping[str, str]) -> object:
        asked = self._asked(question, QueueDrainQuestion)
        return queue_drain_plan(self._state, asked.queue, asked.stop, self._now_ms)

    def defrag(self, question: Question, query: Mapping[str, str]) -> object:
        asked = self._asked(question, DefragQuestion)
        if asked.job:
            self._check_own(question, asked.job)
        try:
            return defrag(restore(self._state.policy, self._outlook.checkpoint), asked)
        except ShapeError as error:
            raise BadQuestion(400, str(error)) from error

    def leased(self, question: Question, query: Mapping[str, str]) -> object:
        asked = self._asked(question, WhyQuestion)
        if asked.kind not in KINDS:
            raise BadQuestion(400, f"kind must be one of {', '.join(filter(None, KINDS))}")
        self._check_own(question, asked.key)
        self._look_ahead()
        return explain_name(self._outlook, asked, self._ours, self._objects.leases)

    def decision(self, question: Question, query: Mapping[str, str]) -> object:
        if question.namespace:
            raise BadQuestion(403, "a decision has names of all namespaces: only users that may see all may open it")
        asked = self._asked(question, DecisionQuestion)
        if self._recording is None:
            raise BadQuestion(404, "the scheduler keeps no recording (--recording)")
        return repeated(self._recording, asked.decision)

    def _asked(self, question: Question, kind: type[T]) -> T:
        """The body of a question. Raises BadQuestion."""
        try:
            return decode_json(question.body, kind)
        except JsonError as error:
            raise BadQuestion(400, self._shown(question.namespace, str(error))) from error

    def _check_own(self, question: Question, key: str) -> None:
        """Raises BadQuestion for NAMESPACE/NAME of another namespace than that of the question."""
        namespace, _, name = key.partition("/")
        if not name or question.namespace not in ("", namespace):
            raise BadQuestion(403, f"only NAMESPACE/NAME of namespace {question.namespace or 'NAMESPACE'} is answered")

    def _shown(self, namespace: str, text: str) -> str:
        return self._redaction(namespace).text(text) if namespace else text

    def _look_ahead(self) -> None:
        try:
            _ = self._outlook.ahead
        except _TooLong as error:
            raise self._too_long() from error

    def _too_long(self) -> BadQuestion:
        why = f"the look-ahead takes longer than {self._look_ahead_s:g} s; without it no starts are known"
        return BadQuestion(503, why)

    def _redaction(self, namespace: str) -> Redaction:
        if namespace not in self._redactions:
            self._redactions[namespace] = Redaction(self._state, namespace, self._objects.namespaces)
        return self._redactions[namespace]


def _key(question: Question) -> str:
    """NAMESPACE/NAME. Without a namespace of the question, its name has it. Raises BadQuestion."""
    if question.namespace:
        return f"{question.namespace}/{question.name}"
    namespace, colon, name = question.name.partition(":")
    if not colon:
        raise BadQuestion(400, "an object of all namespaces is named NAMESPACE:NAME")
    return f"{namespace}/{name}"


def _amount(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MOST_ASKED):
        raise BadQuestion(400, f"{name} must be a number up to {MOST_ASKED}")
    return int(text)


def _flag(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise BadQuestion(400, f"{name} must be true or false")
    return text == "true"


RESOURCES: dict[str, Resource] = {one.plural: one for one in VIEWS}
NAMED = frozenset({EXPLANATIONS.plural, JOB_RANKS.plural})
"""Resources with one answer for each object."""
POSTED = frozenset(one.plural for one in PREDICTIONS)
"""Resources whose question is the body of a POST. Each is worked out by a process of its own."""
_OF_ALL = frozenset(
    one.plural for one in (WAITING_JOBS, QUEUE_SHARES, CAPACITIES, NODE_LISTS, NODE_HOLDERS, GPU_HOLDERS)
)
"""Resources whose view depends on the query alone, and not on the namespace."""
QUERIES: dict[str, frozenset[str]] = {
    EXPLANATIONS.plural: frozenset({"queue", "kind"}),
    JOB_RANKS.plural: frozenset(),
    WAITING_JOBS.plural: frozenset({"queue"}),
    QUEUE_SHARES.plural: frozenset({"queue"}),
    CAPACITIES.plural: frozenset({"shape", "cpuMilli", "memoryBytes"}),
    JOB_LISTS.plural: frozenset({"filter", "mostAhead"}),
    NODE_LISTS.plural: frozenset({"name", "unhealthy"}),
    NODE_HOLDERS.plural: frozenset({"node"}),
    GPU_HOLDERS.plural: frozenset(),
    NODE_TOPOLOGIES.plural: frozenset({"node", "nccl", "pod"}),
    LEASE_LISTS.plural: frozenset({"of"}),
    **{one.plural: frozenset() for one in PREDICTIONS},
}
"""By resource what a question can have."""
API = ServedApi(VIEWS_GROUP, VIEWS_VERSION, RESOURCES, QUERIES, NAMED, POSTED)
_OF: dict[str, Callable[[ViewAnswers, Question, Mapping[str, str]], object]] = {
    EXPLANATIONS.plural: ViewAnswers.explanation,
    JOB_RANKS.plural: ViewAnswers.rank,
    WAITING_JOBS.plural: ViewAnswers.waiting,
    QUEUE_SHARES.plural: ViewAnswers.shares,
    CAPACITIES.plural: ViewAnswers.capacity,
    JOB_LISTS.plural: ViewAnswers.jobs,
    NODE_LISTS.plural: ViewAnswers.nodes,
    NODE_HOLDERS.plural: ViewAnswers.holders,
    GPU_HOLDERS.plural: ViewAnswers.gpu_holders,
    NODE_TOPOLOGIES.plural: ViewAnswers.topology,
    LEASE_LISTS.plural: ViewAnswers.leases,
    WHAT_IFS.plural: ViewAnswers.whatif,
    DRAIN_PLANS.plural: ViewAnswers.drain,
    QUEUE_DRAIN_PLANS.plural: ViewAnswers.queue_drain,
    DEFRAG_PLANS.plural: ViewAnswers.defrag,
    LEASE_EXPLANATIONS.plural: ViewAnswers.leased,
    RECORDED_DECISIONS.plural: ViewAnswers.decision,
}
