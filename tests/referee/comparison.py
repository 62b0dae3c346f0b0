# SPDX-License-Identifier: Apache-2.0
"""Our answer to a case against the referee's: node by node, rule by rule."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.core.reasons import Reason
from tests.referee import ours
from tests.referee.differences import unsettled
from tests.referee.handmade import Case
from tools.controlplane.referee import Answer

RULES: dict[frozenset[str], frozenset[Reason]] = {
    frozenset({"NodeUnschedulable", "TaintToleration"}): frozenset({Reason.TAINT, Reason.UNSCHEDULABLE}),
    frozenset({"NodeName", "NodeAffinity"}): frozenset({Reason.NODE_AFFINITY}),
    frozenset({"NodePorts"}): frozenset({Reason.HOST_PORT}),
    frozenset({"NodeResourcesFit"}): frozenset({Reason.INSUFFICIENT, Reason.TOO_MANY_PODS}),
    frozenset({"NodeVolumeLimits"}): frozenset({Reason.VOLUME_LIMIT}),
    frozenset({"VolumeBinding", "VolumeZone"}): frozenset({Reason.VOLUME_NODE}),
    frozenset({"PodTopologySpread"}): frozenset({Reason.SPREAD, Reason.SPREAD_LABEL}),
    frozenset({"InterPodAffinity"}): frozenset({Reason.AFFINITY, Reason.ANTI_AFFINITY, Reason.EXISTING_ANTI_AFFINITY}),
}
"""The plugins that together are one rule of ours, and the reasons that this rule gives."""

CLAIM_RULES = {
    Reason.CLAIM_MISSING: {"NodeVolumeLimits", "VolumeBinding", "VolumeRestrictions", "VolumeZone"},
    Reason.CLAIM_UNBOUND: {"VolumeBinding", "VolumeZone"},
    Reason.CLAIM_IN_USE: {"VolumeRestrictions"},
    Reason.CLAIM_TAKEN: {"VolumeBinding"},
}
_VOLUMES = CLAIM_RULES[Reason.CLAIM_MISSING]
_NO_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


def disagreements(case: Case, answer: Answer) -> Iterator[str]:
    """How the two differ; nothing where they agree in everything."""
    mine, nodes = ours.ask(case), answer["nodes"]
    left_out = unsettled(case, answer)

    def differ(what: str, theirs: object, we: object) -> Iterator[str]:
        if theirs != we:
            yield f"case {case['id']}: {what}: kube-scheduler {theirs}, Dovetail {we}"

    accepted = {name for name, node in nodes.items() if node["accepted"]}
    yield from differ("accepted", accepted - left_out, mine.accepted - left_out)
    yield from differ("gated", any(v["plugin"] == "SchedulingGates" for v in answer["preEnqueue"]), mine.gated)

    against = {name: {v["plugin"] for v in node["refusals"]} for name, node in nodes.items()}
    against_claims = _against_claims(answer)
    yield from differ("blocked by its claims", bool(against_claims), mine.blocked is not None)
    if mine.blocked is not None:
        yield from differ(
            f"why it is blocked ({mine.blocked.code})", True, bool(against_claims & CLAIM_RULES[mine.blocked])
        )
    for plugins, reasons in RULES.items():
        if plugins & _VOLUMES and mine.blocked is not None:
            continue
        theirs = {name for name, found in against.items() if found & plugins}
        refused = set().union(*(mine.refused.get(reason, set()) for reason in reasons))
        yield from differ(f"refused by {' and '.join(sorted(plugins))}", theirs, refused)
    if mine.blocked is None and not answer["preFilter"]:
        held = {name for name, node in nodes.items() if "nominated" in node}
        first = {name for name, reason in mine.first.items() if reason is Reason.NOMINATED}
        # Our first reason may be a later one than the nomination, so a node can be held and refused at once.
        alone = {name for name in first if not against[name]}
        yield from differ("held for nominated pods", held - left_out, alone - left_out)
    for name, reason in mine.first.items():
        for plugins, reasons in RULES.items():
            if reason in reasons:
                yield from differ(f"{name} is refused by {reason.code}", True, bool(against[name] & plugins))


def _against_claims(answer: Answer) -> set[str]:
    """The plugins that refuse the pod for its claims, wherever it would go."""
    found = {verdict["plugin"] for verdict in answer["preFilter"]} & _VOLUMES
    for node in answer["nodes"].values():
        for verdict in node["refusals"]:
            if verdict["plugin"] == "VolumeRestrictions" or _NO_VOLUME in verdict["reasons"]:
                found.add(verdict["plugin"])
    return found
