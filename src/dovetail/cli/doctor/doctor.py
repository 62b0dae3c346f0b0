# SPDX-License-Identifier: Apache-2.0
"""`dovetail doctor`."""

from __future__ import annotations

import sys

import click
from msgspec import Struct
from msgspec.structs import replace
from rich.markup import escape

from dovetail.advice.doctor.examination import CHECKS, Present, examine, left_out, present
from dovetail.advice.doctor.records import ClusterFacts, DoctorFinding, some
from dovetail.cli.cluster import now_ms, run, told_by
from dovetail.cli.console import Console
from dovetail.cli.doctor.reading import UnreadKind, read
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import INCOMPLETE, count, output_option, write_json
from dovetail.cli.scheduling import fabric_option, scheduler_name_option
from dovetail.core.policy import Policy, unhurried
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import Forbidden
from dovetail.kube.translate.translator import Translator
from dovetail.views.why import refused_pods

_UNKNOWN = "unknown"


class DoctorAnswer(Struct, frozen=True):
    """`left_out` are ids of checks for which something could not be read; `findings` of the level unknown say why."""

    findings: tuple[DoctorFinding, ...]
    present: tuple[Present, ...]
    left_out: tuple[str, ...]


@click.command(name="doctor")
@kubeconfig_options
@scheduler_name_option
@fabric_option
@output_option
def command(
    kubeconfig: str | None, context: str | None, scheduler_name: str, fabric: tuple[str, ...], output: str
) -> None:
    """Look for what is wrong with the GPUs of a cluster, and say how to mend it.

    Only lists, writes nothing. Exit code 1 if something of level error was found; else 3 if something could not be
    read, so that checks were left out; else 0.
    """
    config = config_of(kubeconfig, context)
    answer = run(_look(config, scheduler_name, fabric), config.server)
    if output == "json":
        write_json(answer)
    else:
        _show(answer, Console())
    levels = {one.level for one in answer.findings}
    if "error" in levels:
        sys.exit(1)
    if _UNKNOWN in levels:
        sys.exit(INCOMPLETE)


async def _look(config: ClusterConfig, scheduler_name: str, fabric: tuple[str, ...]) -> DoctorAnswer:
    async with Client(config, user_agent="dovetail") as client:
        seen, unread = await read(client, scheduler_name, fabric)
    try:
        seen = await _asked(config, scheduler_name, seen)
    except Forbidden as error:
        unread = (*unread, UnreadKind("command/dovetail-why", str(error)))
    findings = (*examine(seen), *(_unknown(one) for one in unread))
    return DoctorAnswer(findings, present(seen), tuple(one.id for one in CHECKS if left_out(one, seen)))


def _unknown(one: UnreadKind) -> DoctorFinding:
    what, to_do = "it could not be read, and nobody knows what it hides", "grant the right that is named"
    return DoctorFinding(
        "doctor/not-read", _UNKNOWN, one.object, what, one.why, f"{to_do}, or run it as somebody who has it"
    )


async def _asked(config: ClusterConfig, scheduler_name: str, seen: ClusterFacts) -> ClusterFacts:
    """With the reasons that the scheduler's own core gives to pods of ours that were told to wait. Raises Forbidden."""
    if seen.pods is None or not any(one.ours and one.reason for one in seen.pods.pending):
        return seen
    state = await told_by(config, unhurried(Policy(fabric=seen.fabric)), Translator(scheduler_name))
    refusals = refused_pods(state, now_ms())
    pending = tuple(
        replace(one, reason=f"{said.reason.code} ({said.when})", message=str(said), source="dovetail why says")
        if one.ours and one.reason and (said := refusals.get(one.pod)) is not None
        else one
        for one in seen.pods.pending
    )
    return replace(seen, pods=replace(seen.pods, pending=pending))


def _show(answer: DoctorAnswer, console: Console) -> None:
    """For people. What rests on the same is told once, with the fix of the first."""
    for there in answer.present:
        where = count(len(there.nodes), "node") if there.nodes else ", ".join(there.pods)
        console.print(f"there is: {there.kind} {escape(there.name)}, {escape(where)}")
    alike: dict[tuple[str, str], list[DoctorFinding]] = {}
    for one in answer.findings:
        alike.setdefault((one.id, one.evidence), []).append(one)
    for one, *others in alike.values():
        objects = some([one.object, *(other.object for other in others)])
        console.print(f"{one.level} {escape(one.id)} {escape(objects)}: {escape(one.wrong)}")
        console.print(f"  because: {escape(one.evidence)}")
        console.print(f"  to mend: {escape(one.fix)}")
    if answer.left_out:
        console.print(f"left out: {', '.join(answer.left_out)}")
    done = len(CHECKS) - len(answer.left_out)
    known = sum(one.level != _UNKNOWN for one in answer.findings)
    console.print(f"{count(known, 'finding')} of {count(done, 'check')}{_unmade(len(answer.left_out))}.")


def _unmade(number: int) -> str:
    if not number:
        return ""
    return f"; {count(number, 'check was', 'checks were')} not made, and what they look for may be there"
