# SPDX-License-Identifier: Apache-2.0
"""`dovetail doctor`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import click
from msgspec import field
from rich.console import Console
from rich.markup import escape

from dovetail.advice.doctor import CHECKS, Finding, Node, Pending, Plugin, Seen, examine, left_out
from dovetail.cli.cluster import run
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import count, output_option, write_json
from dovetail.cli.scheduling import scheduler_name_option
from dovetail.core.quantities import QuantityError, units
from dovetail.kube.client import Client
from dovetail.kube.config import ClusterConfig
from dovetail.kube.decoding import T
from dovetail.kube.errors import Forbidden, NotFound
from dovetail.kube.listing import list_all
from dovetail.kube.objects import Node as WireNode
from dovetail.kube.objects import ObjectMeta, Quantities, Wire
from dovetail.kube.resources import NODES, PODS, RESOURCE_SLICES, Resource

_GPUS = ("nvidia.com/gpu", "nvidia.com/mig-")
_AGENT = "dovetail-agent"


class _Needs(Wire, frozen=True):
    limits: Quantities = field(default_factory=dict)


class _Container(Wire, frozen=True):
    name: str = ""
    args: tuple[str, ...] = ()
    resources: _Needs = _Needs()


class _PodSpec(Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    containers: tuple[_Container, ...] = ()


class _Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _PodStatus(Wire, frozen=True):
    phase: str = ""
    conditions: tuple[_Condition, ...] = ()


class _Pod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class _SliceSpec(Wire, frozen=True):
    driver: str = ""
    node_name: str = ""


class _Slice(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _SliceSpec = _SliceSpec()


@dataclass(frozen=True, slots=True)
class Answer:
    """`left_out` are ids of checks for which something could not be read, `unread` why."""

    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]
    unread: tuple[str, ...]


@click.command(name="doctor")
@kubeconfig_options
@scheduler_name_option
@output_option
def command(kubeconfig: str | None, context: str | None, scheduler_name: str, output: str) -> None:
    """Look for what is wrong with the GPUs of a cluster, and say how to mend it.

    Only lists, writes nothing. Exit code 1 if something of level error was found.
    """
    config = config_of(kubeconfig, context)
    answer = run(_look(config, scheduler_name), config.server)
    if output == "json":
        write_json(answer)
    else:
        _show(answer, Console())
    if any(one.level == "error" for one in answer.findings):
        sys.exit(1)


async def _look(config: ClusterConfig, scheduler_name: str) -> Answer:
    unread: list[str] = []
    async with Client(config, user_agent="dovetail") as client:
        nodes = await _list(client, NODES, WireNode, unread)
        pods = await _list(client, PODS, _Pod, unread)
        slices = await _list(client, RESOURCE_SLICES, _Slice, unread)
    drivers: dict[str, set[str]] = {}
    for one in slices or ():
        drivers.setdefault(one.spec.driver, set()).add(one.spec.node_name)
    seen = Seen(
        None if nodes is None else tuple(Node(n.metadata.name, n.metadata.labels or {}, _gpus(n)) for n in nodes),
        None if pods is None else tuple(Plugin(_name(p), p.spec.node_name) for p in pods if _is_plugin(p)),
        None if pods is None else tuple(_pending(p, scheduler_name) for p in pods if _waits(p)),
        None if slices is None else drivers,
    )
    return Answer(examine(seen), tuple(one.id for one in CHECKS if left_out(one, seen)), tuple(unread))


async def _list(client: Client, resource: Resource, kind: type[T], unread: list[str]) -> list[T] | None:
    """None where it is forbidden; a kind that the server does not have has no objects."""
    try:
        listing = await list_all(client, resource, kind)
    except NotFound:
        return []
    except Forbidden as error:
        unread.append(str(error))
        return None
    unread.extend(f"{resource}: {bad}" for bad in listing.bad)
    return list(listing.objects.values())


def _gpus(node: WireNode) -> Mapping[str, int]:
    return {name: _units(value) for name, value in node.status.allocatable.items() if name.startswith(_GPUS)}


def _units(value: str | float) -> int:
    try:
        return units(str(value))
    except QuantityError:
        return 0


def _name(pod: _Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _is_plugin(pod: _Pod) -> bool:
    """NVIDIA's by the name of its container, as chart and operator call it; our agent by its label and arguments."""
    if pod.status.phase != "Running":
        return False
    if (pod.metadata.labels or {}).get("app.kubernetes.io/name") == _AGENT:
        return not any({"--claims", "--no-device-plugin"} & set(one.args) for one in pod.spec.containers)
    return any(one.name.startswith("nvidia-device-plugin") for one in pod.spec.containers)


def _waits(pod: _Pod) -> bool:
    asks = any(name.startswith(_GPUS) for one in pod.spec.containers for name in one.resources.limits)
    return asks and not pod.spec.node_name and pod.status.phase in ("", "Pending")


def _pending(pod: _Pod, scheduler_name: str) -> Pending:
    said = next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), _Condition())
    scheduler = pod.spec.scheduler_name
    return Pending(_name(pod), scheduler, scheduler == scheduler_name, said.reason, said.message)


def _show(answer: Answer, console: Console) -> None:
    """For people."""
    for one in answer.findings:
        console.print(f"{one.level} {escape(one.id)} {escape(one.object)}: {escape(one.wrong)}", soft_wrap=True)
        console.print(f"  because: {escape(one.evidence)}", highlight=False, soft_wrap=True)
        console.print(f"  to mend: {escape(one.fix)}", highlight=False, soft_wrap=True)
    for line in answer.unread:
        console.print(f"not read: {escape(line)}", highlight=False, soft_wrap=True)
    if answer.left_out:
        console.print(f"left out: {', '.join(answer.left_out)}", highlight=False, soft_wrap=True)
    done = len(CHECKS) - len(answer.left_out)
    console.print(f"{count(len(answer.findings), 'finding')} of {count(done, 'check')}.", highlight=False)
