# SPDX-License-Identifier: Apache-2.0
"""Why a pod is where it is, or is not: the core's own answer on the cluster as it stands.

The question is put to the scheduler's own step: everything that waits is decided in its order on a copy of the cluster,
without a write, and then the pod is looked at. So "placed" means that the next step of a scheduler places it.
Not known: what the running scheduler has in hand at this moment and is not written yet, and how long it keeps pods away
from a kubelet that rejected some: whoever failed there and still exists counts as if it had failed now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.model import Pod
from dovetail.core.placing import refusals
from dovetail.core.policy import Policy
from dovetail.core.reasons import Reason, Refusal, Repartition, When
from dovetail.core.roster import LONE
from dovetail.core.state import State
from dovetail.views.gpus import gpus_of
from dovetail.views.holders import Holder, Part, Refused, holders, parts_of
from dovetail.views.refused import refused

_NOT_OURS = "another scheduler is named in spec.schedulerName"


@dataclass(frozen=True, slots=True)
class Rule:
    """Nodes that one rule refuses. `code` is the reason's, `when` Never or NotYet."""

    code: str
    when: When
    text: str
    nearest: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GangView:
    """`needs` is None while it is not known: the object that says so does not exist or was not read."""

    id: str
    needs: int | None
    exist: int
    bound: int
    required: tuple[str, ...]
    preferred: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Why:
    """`state` is Bound (it is on `node`), Placed (it fits and goes to `node` next), Never or NotYet (refused: `code`,
    `message`, and `head`, the message without the count of nodes that `rules` tells better). `ahead` counts the gangs
    and lone pods that are tried before it. `gpus` are the indices of the GPUs that were written down for it, or will
    be; of several whose wiring is known, `mbps` is the bandwidth between them and `ideal_mbps` the most that as many
    GPUs of such a node can have, else None. `parts` are its MIG instances, shares and claimed devices. Of a refused one
    `devices` are the cards and devices that come nearest, and `repartition` how idle cards could be divided for it."""

    pod: str
    state: str
    node: str = ""
    code: str = ""
    message: str = ""
    head: str = ""
    rules: tuple[Rule, ...] = ()
    holders: tuple[Holder, ...] = ()
    gang: GangView | None = None
    ahead: int = 0
    gpus: tuple[int, ...] = ()
    mbps: int | None = None
    ideal_mbps: int | None = None
    parts: tuple[Part, ...] = ()
    devices: tuple[Refused, ...] = ()
    repartition: Repartition | None = None


class PodNotFound(Exception):
    """No such pod that is not finished; the message says what was looked for and names that come near."""


def find(state: State, key: str) -> Pod:
    """The pod "namespace/name". Raises PodNotFound."""
    for pod in state.roster.pods.values():
        if pod.key == key:
            return pod
    name = key.split("/", 1)[1]
    near = sorted(pod.key for pod in state.roster.pods.values() if name in pod.name or pod.name in name)[:5]
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    raise PodNotFound(f"pod {key} does not exist or is finished{hint}")


def unhurried(policy: Policy) -> Policy:
    """The policy for looking instead of running: no bound of work per step, every reason worked out anew."""
    return replace(policy, attempts_per_step=2**31, tell_again_ms=0)


def why(state: State, key: str, now_ms: int) -> Why:
    """Explain one pod. `state` holds the cluster's events and is used up: waiting pods are decided on it."""
    pod = find(state, key)
    gang = _gang(state, pod)
    if pod.node:
        return _with_gpus(state, pod, Why(key, "Bound", pod.node, gang=gang))
    if not pod.managed:
        return Why(key, When.NOT_YET, code="NotOurs", message=_NOT_OURS, head=_NOT_OURS, gang=gang)
    root = state.roster.root_of(pod)
    ahead = state.pending.before(root)
    binds = {d.uid: d.node for d in step(state, (), now_ms) if isinstance(d, Bind)}
    if pod.uid in binds:
        return _with_gpus(state, pod, Why(key, "Placed", binds[pod.uid], gang=gang, ahead=ahead))
    refusal = state.pending.refusal(root) or Refusal(Reason.NO_NODES, When.NOT_YET)
    found = refusals.verdicts(state.cluster, pod) if refusal.nodes else []
    rules = tuple(sorted(_rules(state, pod, found), key=lambda rule: -len(rule.nodes)))
    asked, devices = [name for name, _ in pod.request.resources], refused(state.cluster, pod, found)
    ahead = ahead if refusal.when is When.NOT_YET else 0
    return Why(
        key, refusal.when, code=refusal.reason.code, message=str(refusal), head=refusal.head, rules=rules,
        holders=holders(state.cluster, asked, found, devices), gang=gang, ahead=ahead, devices=devices,
        repartition=refusal.repartition,
    )  # fmt: skip


def _with_gpus(state: State, pod: Pod, answer: Why) -> Why:
    held = gpus_of(state, pod)
    parts = parts_of(state.cluster, state.cluster.placements[pod.uid])
    return replace(answer, gpus=held.gpus or (), mbps=held.mbps, ideal_mbps=held.ideal_mbps, parts=parts)


def _rules(state: State, pod: Pod, found: list[refusals.Verdict]) -> Iterator[Rule]:
    """What each rule refuses. Kubelets that rejected pods are told apart by their reason."""
    names, rejections = state.cluster.nodes.names, state.cluster.rejections.nodes(pod.owner, state.now_ms)
    for verdict in found:
        nodes: dict[str, list[str]] = {}
        for slot in verdict.slots:
            name = names[slot]
            detail = f"({rejections[name]})" if verdict.reason is Reason.REJECTED else verdict.detail
            nodes.setdefault(detail, []).append(name)
        for detail, refusing in nodes.items():
            text = f"{verdict.reason.text} {detail}".rstrip()
            yield Rule(verdict.reason.code, verdict.when, text, verdict.nearest, tuple(refusing))


def _gang(state: State, pod: Pod) -> GangView | None:
    root = state.roster.root_of(pod)
    gang = state.roster.gangs.get(root)
    if root.startswith(LONE):
        return None
    members = state.roster.members(root)
    bound = sum(1 for member in members if member.node)
    if gang is None:
        return GangView(root, None, len(members), bound, (), ())
    needs = sum(
        state.roster.gangs[gang_id].min_count
        for gang_id in state.roster.tree(root)
        if gang_id in state.roster.gangs and any(member.gang == gang_id for member in members)
    )
    return GangView(root, needs, len(members), bound, gang.required, gang.preferred)
