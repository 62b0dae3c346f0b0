# SPDX-License-Identifier: Apache-2.0
"""The answer of `dovetail doctor`, and how it is printed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.doctor.examination import CHECKS, Present, examine, left_out, present
from dovetail.advice.doctor.lists import UnreadKind, View, facts_of, requests
from dovetail.advice.doctor.records import ClusterFacts, DoctorFinding, some
from dovetail.cli.cluster import now_ms
from dovetail.cli.console import Console
from dovetail.cli.markup import escape
from dovetail.cli.output import count
from dovetail.core.policy import Policy, unhurried
from dovetail.core.state import State
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import Forbidden
from dovetail.kube.reading.lists import ListReply, read_lists
from dovetail.kube.reading.state import read_cluster
from dovetail.views.why import refused_pods

UNKNOWN = "unknown"
"""The level of a finding about an object that could not be read."""


class DoctorAnswer(Struct, frozen=True):
    """`left_out` are the ids of checks that were skipped, as something could not be read; for each object that could
    not be read there is a finding of level unknown."""

    findings: tuple[DoctorFinding, ...]
    present: tuple[Present, ...]
    left_out: tuple[str, ...]


class DoctorFacts(Struct, frozen=True):
    """What was read of a cluster, and what could not be read."""

    seen: ClusterFacts
    unread: tuple[UnreadKind, ...] = ()


async def look(config: ClusterConfig, scheduler_name: str, fabric: tuple[str, ...]) -> DoctorAnswer:
    """The answer for a live cluster. Raises KubeError."""
    facts, policy = await read_facts(config, scheduler_name, fabric), unhurried(Policy(fabric=fabric))
    if waits_for_us(facts):
        try:
            live = await read_cluster(config, policy, scheduler_name)
        except Forbidden as error:
            unread = UnreadKind("command/dovetail-why", str(error))
            facts = replace(facts, unread=(*facts.unread, unread))
        else:
            facts = with_reasons(facts, live.state, now_ms())
    return answer_of(facts)


async def read_facts(config: ClusterConfig, scheduler_name: str, fabric: tuple[str, ...]) -> DoctorFacts:
    """The facts of a live cluster. Raises KubeError."""
    return facts_from(await read_lists(config, requests()), scheduler_name, fabric)


def facts_from(replies: Sequence[ListReply], scheduler_name: str, fabric: tuple[str, ...]) -> DoctorFacts:
    """The facts that these replies to `requests` have."""
    return DoctorFacts(*facts_of(replies, View(scheduler_name, now_ms()), fabric))


def answer_of(facts: DoctorFacts) -> DoctorAnswer:
    """The findings about these facts."""
    findings = (*examine(facts.seen), *(_unknown(one) for one in facts.unread))
    return DoctorAnswer(findings, present(facts.seen), tuple(one.id for one in CHECKS if left_out(one, facts.seen)))


def waits_for_us(facts: DoctorFacts) -> bool:
    """Whether a pending pod of ours has a reason, which the scheduler's own core explains better."""
    return facts.seen.pods is not None and any(one.ours and one.reason for one in facts.seen.pods.pending)


def with_reasons(facts: DoctorFacts, state: State, now_ms: int) -> DoctorFacts:
    """The facts with the reasons of the scheduler's own core for our pending pods."""
    if facts.seen.pods is None:
        return facts
    refusals = refused_pods(state, now_ms)
    pending = tuple(
        replace(one, reason=f"{refusal.reason.code} ({refusal.when})", message=str(refusal), source="dovetail why")
        if one.ours and one.reason and (refusal := refusals.get(one.pod)) is not None
        else one
        for one in facts.seen.pods.pending
    )
    return replace(facts, seen=replace(facts.seen, pods=replace(facts.seen.pods, pending=pending)))


def _unknown(one: UnreadKind) -> DoctorFinding:
    what, fix = "it could not be read, so its faults are unknown", "grant the permission that the error names"
    return DoctorFinding("doctor/not-read", UNKNOWN, one.object, what, one.why, f"{fix} to your user")


def show(answer: DoctorAnswer, console: Console) -> None:
    """Print the findings. Findings with the same evidence are printed once, with the fix of the first."""
    for found in answer.present:
        where = count(len(found.nodes), "node") if found.nodes else ", ".join(found.pods)
        console.print(f"found: {found.kind} {escape(found.name)}, {escape(where)}")
    by_evidence: dict[tuple[str, str], list[DoctorFinding]] = {}
    for one in answer.findings:
        by_evidence.setdefault((one.id, one.evidence), []).append(one)
    for one, *others in by_evidence.values():
        objects = some([one.object, *(other.object for other in others)])
        console.print(f"{one.level} {escape(one.id)} {escape(objects)}: {escape(one.wrong)}")
        console.print(f"  evidence: {escape(one.evidence)}")
        console.print(f"  fix: {escape(one.fix)}")
    if answer.left_out:
        console.print(f"left out: {', '.join(answer.left_out)}")
    done = len(CHECKS) - len(answer.left_out)
    known = sum(one.level != UNKNOWN for one in answer.findings)
    console.print(f"{count(known, 'finding')} of {count(done, 'check')}{_left_out(len(answer.left_out))}.")


def _left_out(number: int) -> str:
    if not number:
        return ""
    return f"; {count(number, 'check was', 'checks were')} left out, and the faults they look for are not known"
