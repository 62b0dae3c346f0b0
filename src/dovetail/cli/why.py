# SPDX-License-Identifier: Apache-2.0
"""`dovetail why`."""

from __future__ import annotations

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dovetail.cli.cluster import (
    fabric_option,
    now_ms,
    run,
    scheduler_name_option,
    snapshot,
)
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import count, output_option, write_json
from dovetail.core.policy import Policy
from dovetail.core.reasons import When
from dovetail.views.holders import Part
from dovetail.views.why import PodNotFound, Why, unhurried, why

_MEANING = {
    "Bound": "is on node {node}{gpus}",
    "Placed": "fits: the next step of the scheduler puts it on node {node}{gpus}",
    When.NOT_YET: "waits: it can start when others leave or what it waits for appears",
    When.NEVER: "will never start as things are: change the pod or the cluster",
}
_NODES_SHOWN = 3
_DEVICES_SHOWN = 8


@click.command(name="why")
@click.argument("pod")
@click.option("-n", "--namespace", help="Namespace of the pod. Default: the context's.")
@kubeconfig_options
@scheduler_name_option
@fabric_option
@output_option
def command(
    pod: str,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    scheduler_name: str,
    fabric: tuple[str, ...],
    output: str,
) -> None:
    """Say why POD ([NAMESPACE/]NAME) is where it is, or why it is still pending.

    Reads the cluster and asks the scheduler's own core; writes nothing and needs no running scheduler.
    """
    config = config_of(kubeconfig, context)
    key = _key(pod, namespace, config.namespace)
    state = run(snapshot(config, unhurried(Policy(fabric=fabric)), scheduler_name), config.server)
    try:
        answer = why(state, key, now_ms())
    except PodNotFound as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        write_json(answer)
    else:
        show(answer, Console())


def _key(pod: str, namespace: str | None, default: str) -> str:
    named, _, name = pod.rpartition("/")
    if named and namespace and named != namespace:
        raise click.UsageError(f"POD names the namespace {named!r}, --namespace names {namespace!r}")
    if "/" in named or not name:
        raise click.UsageError(f"{pod!r} is not [NAMESPACE/]NAME")
    return f"{named or namespace or default}/{name}"


def show(answer: Why, console: Console) -> None:
    """Print the answer for a person."""
    meaning = _MEANING[answer.state].format(node=answer.node, gpus=parts(answer) or _gpus(answer))
    console.print(f"[bold]{answer.pod}[/bold] {meaning}.")
    if answer.gang is not None:
        gang = answer.gang
        needs = "an unknown number of pods" if gang.needs is None else count(gang.needs, "pod")
        levels = "".join(
            f"; {word} {', '.join(keys)}"
            for word, keys in (("inside one", gang.required), ("prefers", gang.preferred))
            if keys
        )
        console.print(f"Gang {gang.id}: needs {needs}, {gang.exist} exist, {gang.bound} are bound{levels}.")
    if answer.ahead:
        console.print(f"{count(answer.ahead, 'gang or lone pod', 'gangs and lone pods')} ahead of it in the line.")
    if answer.code:
        console.print(f"[bold]{answer.code}[/bold] ({answer.state}): {escape(answer.head)}", highlight=False)
    if answer.rules:
        table = Table("nodes", "can it change", "rule", "nearest", "for example", box=None, pad_edge=False)
        for rule in answer.rules:
            table.add_row(str(len(rule.nodes)), rule.when, escape(rule.text), escape(rule.nearest), _some(rule.nodes))
        console.print(table)
    if answer.devices:
        console.print("Cards and devices that come nearest:")
        table = Table("node", "device", "rule", "held by", box=None, pad_edge=False)
        for one in answer.devices[:_DEVICES_SHOWN]:
            table.add_row(one.node, escape(_some(one.devices)), escape(one.rule), _some(one.holders))
        console.print(table)
    if answer.repartition is not None:
        console.print(f"It would fit with idle cards divided anew: {answer.repartition}", highlight=False)
    if answer.holders:
        console.print("What is missing is held by:")
        which = ("which",) if any(holder.devices for holder in answer.holders) else ()
        table = Table("pod", "node", "resource", "amount", *which, box=None, pad_edge=False)
        for holder in answer.holders:
            devices = (_some(holder.devices),) if which else ()
            table.add_row(holder.pod, holder.node, holder.resource, holder.amount, *devices)
        console.print(table)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_NODES_SHOWN]) + (" ..." if len(names) > _NODES_SHOWN else "")


def parts(answer: Why) -> str:
    """ " with " its MIG instances, shares and claimed devices; "" for none."""
    return f" with {', '.join(map(_part, answer.parts))}" if answer.parts else ""


def _part(part: Part) -> str:
    if part.kind == "instance":
        return f"MIG instance {part.device}"
    if part.kind == "share":
        return f"{part.milli}/1000 of {f'GPU {part.device}' if part.device else 'a GPU'}"
    return f"device {part.device}"


def _gpus(answer: Why) -> str:
    if not answer.gpus:
        return ""
    text = f" with GPU{'s' if len(answer.gpus) > 1 else ''} {','.join(map(str, answer.gpus))}"
    if answer.mbps is not None and answer.ideal_mbps is not None:
        text += f": {answer.mbps / 1000:.1f} of {answer.ideal_mbps / 1000:.1f} GB/s between them"
    return text
