# SPDX-License-Identifier: Apache-2.0
"""`dovetail why`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

from dovetail.cli.answer_form import AnswerForm, answer_option, write_whole
from dovetail.cli.cluster import ClusterSource, cluster_options, run
from dovetail.cli.console import Console
from dovetail.cli.engine_loads import engine_loads
from dovetail.cli.names import complete_jobs_and_queues
from dovetail.cli.output import key_of, looking_ahead, namespace_option, versioned
from dovetail.cli.prometheus import access_of, authority_option, tenant_option, token_option
from dovetail.views.lease_types import LEASE, REQUEST

if TYPE_CHECKING:
    from dovetail.kube.reading.live_cluster import LiveCluster
    from dovetail.kube.reading.prometheus_api import PrometheusAccess
    from dovetail.views.forecast_types import Watch
    from dovetail.views.why_types import AnyWhy, Explanation, WhyQuestion

_QUEUE, _POD, _JOB = "queue/", "pod", "job"
_KINDS = {"pod": _POD, "job": _JOB, "leaserequest": REQUEST, "lreq": REQUEST, "gpulease": LEASE, "gl": LEASE}
"""What can stand before NAME or NAMESPACE/NAME, and what is explained then."""
_EXPLANATIONS = {
    "Why": "JobExplanation", "WhyQueue": "QueueExplanation", "WhyRequest": "LeaseRequestExplanation",
    "WhyLease": "LeaseExplanation",
}  # fmt: skip
"""By type of answer the kind of its JSON."""


@click.command(name="why")
@click.argument("name", metavar="POD|JOB|QUEUE", shell_complete=complete_jobs_and_queues)
@namespace_option
@click.option("--prometheus", "url", metavar="URL", envvar="DOVETAIL_PROMETHEUS", default="",
              help="Show also the load of its inference engines, from this Prometheus.")  # fmt: skip
@token_option
@authority_option
@tenant_option
@cluster_options
@answer_option
def command(
    source: ClusterSource, name: str, namespace: str | None, url: str, token: str | None, authority: str | None,
    tenant: str, form: AnswerForm,
) -> None:  # fmt: skip
    """Explain why a pod or job runs where it does, or why it is still pending; or show the status of a queue.

    POD or JOB is [NAMESPACE/]NAME: a pod, a gang, the object that pods were made for, a LeaseRequest or a GPULease.
    All that have the name are explained; pod/, job/, leaserequest/ or gpulease/ before it chooses one. Any other name
    is that of a QUEUE; queue/NAME is one too. The running scheduler answers, if there is one; else the cluster is
    read, and the scheduler's own core is asked. Writes nothing.
    """
    asked = _question(name, namespace, source.namespace)
    found = ask_why(source, asked)
    if found is None:
        cluster = source.read()
        with looking_ahead() as watch:
            found = explained(source, cluster, asked, watch)
    answers = _with_network(tuple(found.answers), source)
    if url:
        answers = _with_engines(answers, access_of(url, token, authority, tenant))
    # That of a snapshot is known now.
    _print(answers, source.now_ms, form)


def _with_network(answers: tuple[AnyWhy, ...], source: ClusterSource) -> tuple[AnyWhy, ...]:
    """With what the agents did for the network of the pods that are on nodes; without, where the Events cannot be
    read."""
    from dovetail.kube.reading.network_events import read_network_events
    from dovetail.views.why_types import NetworkNote, Why

    bound = sorted({pod for one in answers if isinstance(one, Why) for pod in one.bound})
    if source.config is None or not bound:
        return answers
    namespace, _, name = bound[0].partition("/")
    try:
        work = read_network_events(source.config, namespace, name if len(bound) == 1 else "")
        events = run(work, source.config.server, small=True)
    except click.ClickException:
        return answers

    def notes(why: Why) -> Iterator[NetworkNote]:
        """A pod may have the name of an earlier one; a scheduler of an earlier version does not return the uids."""
        uids = dict(zip_longest(why.bound, why.bound_uids))
        for event in events:
            pod = f"{namespace}/{event.regarding.name}"
            if pod in uids and uids[pod] in (None, event.regarding.uid):
                yield NetworkNote(pod, event.type == "Warning", event.note)

    return tuple(replace(one, network=tuple(notes(one))) if isinstance(one, Why) else one for one in answers)


def _with_engines(answers: Sequence[AnyWhy], access: PrometheusAccess) -> tuple[AnyWhy, ...]:
    """With the load of the engines in what is explained."""
    from dovetail.views.why_types import Why

    jobs = [one for one in answers if isinstance(one, Why) and one.pod]
    if not jobs:
        return tuple(answers)
    loads = engine_loads(access, jobs[0].pod.partition("/")[0])
    if loads is None:
        return tuple(answers)
    return tuple(
        replace(one, engines=tuple(load for load in loads if load.name in (*one.bound, one.pod)))
        if isinstance(one, Why)
        else one
        for one in answers
    )


def explained(source: ClusterSource, cluster: LiveCluster, asked: WhyQuestion, watch: Watch) -> Explanation:
    """All that has the name, explained from a reading of the cluster. Raises ClickException."""
    from dovetail.views.explanation import explain_name
    from dovetail.views.names import JobNotFound
    from dovetail.views.outlook import Outlook

    outlook, objects = Outlook(cluster.state, source.now_ms, watch), cluster.feed.leases.objects
    try:
        return explain_name(outlook, asked, source.scheduler_name, objects, source.schedulers)
    except JobNotFound as error:
        raise click.ClickException(str(error)) from error


def ask_why(source: ClusterSource, asked: WhyQuestion) -> Explanation | None:
    """The answer of the running scheduler."""
    from dovetail.kube.objects.views import EXPLANATIONS, LEASE_EXPLANATIONS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.why_types import Explanation

    named, _, name = asked.key.partition("/")
    leased = ViewRequest(LEASE_EXPLANATIONS, named, body=msgspec.json.encode(asked))
    if asked.kind in (REQUEST, LEASE):
        return source.ask(leased, Explanation)
    query = {"kind": asked.kind} if asked.kind else {"queue": asked.queue}
    return source.ask(ViewRequest(EXPLANATIONS, named, name, query, instead=leased), Explanation)


def _print(answers: Sequence[AnyWhy], now_ms: int, form: AnswerForm) -> None:
    if form.whole:
        found = [versioned(_EXPLANATIONS[type(one).__name__], one) for one in answers]
        write_whole(form, found if len(found) > 1 else found[0])
    else:
        show_answers(answers, now_ms, Console())


def show_answers(answers: Sequence[AnyWhy], now_ms: int, console: Console) -> None:
    """Print the answers as text."""
    from dovetail.cli.why_lease import show_lease, show_request
    from dovetail.cli.why_report import show, show_queue
    from dovetail.views.forecast_types import PLACED
    from dovetail.views.why_types import WhyLease, WhyQueue, WhyRequest

    for answer in answers:
        match answer:
            case WhyQueue():
                show_queue(answer, now_ms, console)
            case WhyRequest():
                show_request(answer, now_ms, console)
                if answer.answer is not None and answer.answer.state != PLACED:
                    show(answer.answer, console, now_ms)
            case WhyLease():
                show_lease(answer, now_ms, console)
            case _:
                show(answer, console, now_ms)


def _question(name: str, namespace: str | None, default: str) -> WhyQuestion:
    """What is asked. A kind wins over a namespace of its name. Raises UsageError."""
    from dovetail.views.why_types import OF_QUEUE, WhyQuestion

    if name.startswith(_QUEUE):
        queue = name.removeprefix(_QUEUE)
        return WhyQuestion(f"{namespace or default}/{OF_QUEUE}{queue}", "", queue)
    first, slash, rest = name.partition("/")
    kind = _KINDS.get(first, "") if slash else ""
    key = key_of("POD|JOB|QUEUE", rest if kind else name, namespace, default)
    return WhyQuestion(key, kind, "" if kind else name)
