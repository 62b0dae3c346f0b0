# SPDX-License-Identifier: Apache-2.0
"""`dovetail why`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console
from dovetail.cli.names import complete_jobs_and_queues
from dovetail.cli.output import key_of, looking_ahead, namespace_option, output_option, versioned, write_json
from dovetail.views.leased import LEASE, REQUEST

if TYPE_CHECKING:
    from typing import TypeAlias

    from dovetail.kube.reading.live_cluster import LiveCluster
    from dovetail.views.explanation import Explanation
    from dovetail.views.forecast_types import Watch
    from dovetail.views.why import Why
    from dovetail.views.why_lease import WhyLease, WhyRequest
    from dovetail.views.why_queue import WhyQueue

    Answer: TypeAlias = Why | WhyQueue | WhyRequest | WhyLease

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
@cluster_options
@output_option
def command(source: ClusterSource, name: str, namespace: str | None, output: str) -> None:
    """Explain why a pod or job runs where it does, or why it is still pending; or show the status of a queue.

    POD or JOB is [NAMESPACE/]NAME: a pod, a gang, the object that pods were made for, a LeaseRequest or a GPULease.
    All that have the name are explained; pod/, job/, leaserequest/ or gpulease/ before it chooses one. Any other name
    is that of a QUEUE; queue/NAME is one too. The running scheduler answers, if there is one; else the cluster is
    read, and the scheduler's own core is asked. Writes nothing.
    """
    kind, key = _kind_and_key(name, namespace, source.namespace)
    found = ask_why(source, name, kind, key)
    if found is not None:
        _print([one for one in (found.job, found.queue) if one is not None], source.now_ms, output)
        return
    cluster = source.read()
    queue = "" if kind else name.removeprefix(_QUEUE)
    with looking_ahead() as watch:
        answers = explained(source, cluster, WhyQuestion(key, kind, queue), watch)
    # That of a snapshot is known now.
    _print(answers, source.now_ms, output)


class WhyQuestion(Struct, frozen=True):
    """What is to be explained: NAMESPACE/NAME, of a kind ("" for any), or the queue, if nothing else has the name."""

    key: str
    kind: str = ""
    queue: str = ""


def explained(source: ClusterSource, cluster: LiveCluster, asked: WhyQuestion, watch: Watch) -> list[Answer]:
    """All that has the name, explained from a reading of the cluster. Raises ClickException."""
    from dovetail.views.jobs import JobNotFound
    from dovetail.views.why import why
    from dovetail.views.why_lease import WhyLeases, why_lease
    from dovetail.views.why_queue import why_queue

    kind, key, now_ms = asked.kind, asked.key, source.now_ms
    state, objects = cluster.state, cluster.feed.leases.objects
    answers: list[Answer] = []
    leased = why_lease(state, objects, key, now_ms, watch) if kind not in (_POD, _JOB) else WhyLeases(None, None)
    if kind in ("", _POD, _JOB):
        try:
            answers.append(why(state, key, now_ms, watch, source.schedulers, source.scheduler_name))
        except JobNotFound as error:
            if asked.queue and asked.queue in state.shares.tree.queues:
                answers.append(why_queue(state, asked.queue, now_ms, watch))
            elif leased.request is None and leased.lease is None:
                raise click.ClickException(f"{error}; there is no queue of that name either") from error
    answers += [leased.request] if leased.request is not None and kind in ("", REQUEST) else []
    answers += [leased.lease] if leased.lease is not None and kind in ("", LEASE) else []
    if not answers:
        raise click.ClickException(f"there is no {kind.rstrip('/')} {key}")
    return answers


def ask_why(source: ClusterSource, name: str, kind: str, key: str) -> Explanation | None:
    """The answer of the running scheduler. Requests and leases are explained from their objects, which it does not
    answer."""
    from dovetail.kube.objects.views import EXPLANATIONS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.explanation import Explanation

    if kind not in ("", _POD, _JOB):
        return None
    if name.startswith(_QUEUE) and not kind:
        queue = name.removeprefix(_QUEUE)
        # No pod has such a name.
        return source.ask(ViewRequest(EXPLANATIONS, source.namespace, f"queue:{queue}", {"queue": queue}), Explanation)
    named, _, short = key.partition("/")
    return source.ask(ViewRequest(EXPLANATIONS, named, short, {} if kind else {"queue": name}), Explanation)


def _print(answers: Sequence[Answer], now_ms: int, output: str) -> None:
    if output == "json":
        found = [versioned(_EXPLANATIONS[type(one).__name__], one) for one in answers]
        write_json(found if len(found) > 1 else found[0])
    else:
        show_answers(answers, now_ms, Console())


def show_answers(answers: Sequence[Answer], now_ms: int, console: Console) -> None:
    """Print the answers as text."""
    from dovetail.cli.why_lease import show_lease, show_request
    from dovetail.cli.why_report import show, show_queue
    from dovetail.views.forecast_types import PLACED
    from dovetail.views.why_lease import WhyLease, WhyRequest
    from dovetail.views.why_queue import WhyQueue

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


def _kind_and_key(name: str, namespace: str | None, default: str) -> tuple[str, str]:
    """The kind that is named ("" for any), and NAMESPACE/NAME. A kind wins over a namespace of its name. Raises
    UsageError."""
    first, slash, rest = name.partition("/")
    kind = _KINDS.get(first, "") if slash else ""
    return kind, key_of("POD|JOB|QUEUE", rest if kind else name, namespace, default)
