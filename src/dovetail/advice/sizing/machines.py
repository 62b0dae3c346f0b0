# SPDX-License-Identifier: Apache-2.0
"""Other machines for the same GPUs: another instance type, and spot nodes."""

from __future__ import annotations

from dovetail.advice.sizing import fit, spot
from dovetail.advice.sizing import thresholds as limits
from dovetail.advice.sizing.rule import SizeChange, SizeProposal
from dovetail.advice.sizing.seen import JobSeen, gib, percent

_INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def instance(seen: JobSeen) -> SizeProposal | None:
    found = fit.machines(seen)
    better = found.cheaper if found is not None else None
    if found is None or better is None:
        return None
    own, latest, gpus = found.own, seen.use.latest, seen.use.most_per_pod
    cpu_milli, memory_mib = seen.host_needs
    needs = [f"{cpu_milli / 1000:g} CPUs"] if cpu_milli else []
    needs += [gib(memory_mib)] if memory_mib else []
    verb = (
        "requests"
        if (cpu_milli, memory_mib) == (latest.cpu_milli, latest.memory_mib)
        else "uses, with a margin, or requests"
    )
    requests = f"{verb} {' and '.join(needs)}" if needs else "requests neither CPUs nor memory"
    return SizeProposal(
        f"a pod with {gpus} {'GPU' if gpus == 1 else 'GPUs'} {requests}; {own.name} has {own.cpus_per_gpu} CPUs and "
        f"{gib(own.memory_mib // own.gpus)} for each GPU, {better.name} has {better.cpus_per_gpu} and "
        f"{gib(better.memory_mib // better.gpus)} with the same GPUs",
        f"run it on {better.name}, {better.price.text} for each GPU and hour in place of {own.price.text}: "
        f"select nodes by {_INSTANCE_TYPE}={better.name}",
        now=own.price,
        then=better.price,
        change=SizeChange("select", key=_INSTANCE_TYPE, value=better.name),
    )


def on_spot(seen: JobSeen) -> SizeProposal | None:
    why, cost = spot.safe_to_interrupt(seen), spot.spot_cost(seen)
    if not why or not _cheaper_on_spot(seen, cost):
        return None
    if cost is None:
        return SizeProposal(
            why, "run it on spot nodes; `dovetail spot` computes how often to save, and whether that pays",
            gain="the discount of spot nodes, less the work that is lost at interruptions",
        )  # fmt: skip
    return SizeProposal(
        f"{why}; an hour of a GPU costs {cost.now.text}, an hour of useful work on spot {cost.spot.text}",
        f"run it on spot nodes; a run takes {percent(cost.slowdown_milli)} of its time if a node is interrupted every "
        f"{spot.in_hours(limits.SPOT_MTBI_S)} (assumed); saving at the best "
        f"times (`dovetail spot`) it pays down to every {spot.in_hours(cost.least_mtbi_s)}",
        now=cost.now,
        then=cost.spot,
    )


def checkpoints(seen: JobSeen) -> SizeProposal | None:
    cost = spot.spot_cost(seen)
    if spot.safe_to_interrupt(seen) or not _cheaper_on_spot(seen, cost):
        return None
    less = ""
    if cost is not None:
        date = min(cost.now.date, cost.spot.date)
        less = f": an hour of useful work {cost.spot.text} in place of {cost.now.text} (prices of {date})"
    return SizeProposal(
        f"nothing shows that it saves its work, so that an interruption may cost a whole run; on spot nodes it could "
        f"cost less{less}",
        "save checkpoints, and declare how often with the annotation dovetail.dev/checkpoint-interval: without them "
        "it is no job for spot nodes",
        gain="the discount of spot nodes, and the work that a failure of a node destroys",
    )


def _cheaper_on_spot(seen: JobSeen, cost: spot.SpotCost | None) -> bool:
    """Whether a training job would be cheaper on spot nodes, or the cluster has such with its GPUs."""
    if seen.workload != "training" or seen.use.spot or not seen.whole:
        return False
    return cost.pays if cost is not None else {one.model for one in seen.use.devices} <= seen.spot_models
