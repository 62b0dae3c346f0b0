# SPDX-License-Identifier: Apache-2.0
"""DeviceClasses and ResourceClaims: from wire structs to core records.

Rules
- A capacity in a request keeps its name as written; a consumed capacity in an allocation gets its qualified name.
- A field that cannot be honoured as written becomes a Problem, which keeps the pods of the claim pending.
- The spec of a claim is immutable, so it is translated once; equal specs share one record.
- CEL expressions are not compiled here.
Not supported, as their feature gates are off: derived attributes, claims of PodGroups.
Sources: k8s.io/api resource/v1 (1.37), pkg/apis/resource/{v1,validation}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dovetail.core.bounded_cache import Remembered, same
from dovetail.core.dra import types
from dovetail.core.dra.types import (
    SHARED,
    Allocation,
    AllocationMode,
    Claim,
    ClaimSpec,
    Constraint,
    DeviceRequest,
    Grant,
)
from dovetail.core.model import Effect, NodeTerm, Problem, Requirement, Toleration
from dovetail.kube.objects import claims as wire
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate.limits import MOST_EXPRESSIONS
from dovetail.kube.translate.problems import first_of, nearest, one_of
from dovetail.kube.translate.selectors import node_terms
from dovetail.kube.translate.slices import NOT_IN_USE, Problems, milli, qualified

MOST_RESULTS = 32
"""The limit of devices, requests, constraints and configurations of one claim, and of selectors of one request."""
MOST_ALTERNATIVES = 8
LONGEST_EXPRESSION = 10 * 1024
_LONGEST_MESSAGE = 256
_shared = Remembered[ClaimSpec](4096, same)

_MODES: dict[str, AllocationMode] = {"": "ExactCount", "ExactCount": "ExactCount", "All": "All"}
_OPERATORS: dict[str, Literal["Exists", "Equal"]] = {"": "Equal", "Equal": "Equal", "Exists": "Exists"}
_TOLERATED: dict[str, Effect] = {"NoSchedule": "NoSchedule", "NoExecute": "NoExecute"}


def device_class(obj: wire.DeviceClass) -> types.DeviceClass:
    """The record of a DeviceClass. A selector in another language than CEL becomes an empty expression, which no device
    matches."""
    meta, spec = obj.metadata, obj.spec
    return types.DeviceClass(
        meta.name,
        tuple(selector.cel.expression if selector.cel is not None else "" for selector in spec.selectors),
        spec.extended_resource_name,
        epoch_ms(meta.creation_timestamp),
    )


def claim(obj: wire.ResourceClaim, before: Claim | None = None) -> Claim:
    """The record of a claim. `before` is the previous record: its spec is reused if the uid is the same."""
    meta, status = obj.metadata, obj.status
    if before is not None and before.uid == meta.uid and before.problem is None:
        spec, problem = before.spec, None
    else:
        spec, problem = claim_spec(obj.spec.devices)
    problems = [problem] if problem is not None else []
    failed, unready_ms = _readiness(status)
    return Claim(
        meta.uid,
        meta.namespace,
        meta.name,
        spec,
        next((r.uid for r in meta.owner_references if r.controller and r.kind == "Pod"), ""),
        _allocation(status.allocation, problems) if status.allocation is not None else None,
        tuple([consumer.uid for consumer in status.reserved_for]),
        meta.deletion_timestamp is not None,
        first_of(problems),
        failed,
        unready_ms,
    )


def _readiness(status: wire.ResourceClaimStatus) -> tuple[str, int]:
    """Why the devices will never be ready ("" if they may be), and since when they are awaited (0 if they are not, or
    if there is no timestamp). Source: isClaimReadyForBinding of the plugin dynamicresources."""
    if status.allocation is None or not any(one.binding_conditions for one in status.allocation.devices.results):
        return "", 0
    reported = {(one.driver, one.pool, one.device, one.share_id): one.conditions or () for one in status.devices}
    ready = True
    for one in status.allocation.devices.results:
        conditions = {each.type: each for each in reported.get((one.driver, one.pool, one.device, one.share_id), ())}
        true = {name for name, each in conditions.items() if each.status == "True"}
        for name in one.binding_failure_conditions if one.binding_conditions else ():
            if name in true:
                message = conditions[name].message
                return f"device {one.device}: {name}{f': {message[:_LONGEST_MESSAGE]}' if message else ''}", 0
        ready = ready and true.issuperset(one.binding_conditions)
    stamp = status.allocation.allocation_timestamp
    return "", 0 if ready or stamp is None else epoch_ms(stamp)


def claim_spec(obj: wire.DeviceClaim, path: str = "spec.devices") -> tuple[ClaimSpec, Problem | None]:
    """The record of a claim's spec, and a Problem if a part cannot be honoured."""
    problems: Problems = []
    wired = obj.requests or ()
    requests = tuple(_request(request, f"{path}.requests[{i}]", problems) for i, request in enumerate(wired))
    _at_most(len(wired), MOST_RESULTS, f"{path}.requests", problems)
    _at_most(len(obj.config), MOST_RESULTS, f"{path}.config", problems)
    _at_most(len(obj.constraints), MOST_RESULTS, f"{path}.constraints", problems)
    devices = sum(
        min((r.count for r in alternatives if r.mode == "ExactCount"), default=0)
        for alternatives in requests
        if all(r.mode == "ExactCount" for r in alternatives)
    )
    if devices > MOST_RESULTS and not problems:
        rule = f"a claim can have {MOST_RESULTS} devices at most: ask for the others in another claim"
        problems.append(Problem(f"{path}.requests", str(devices), rule))
    names = {request.name for request in wired}
    names |= {alternative.name for alternatives in requests for alternative in alternatives}
    referring = [
        *((f"{path}.constraints[{i}]", one.requests) for i, one in enumerate(obj.constraints)),
        *((f"{path}.config[{i}]", one.requests) for i, one in enumerate(obj.config)),
    ]
    for at, referred in referring:
        for i, name in enumerate(referred):
            if name not in names:
                rule = f"is no request of this claim; nearest valid value: {nearest(name, names)}"
                problems.append(Problem(f"{at}.requests[{i}]", name, rule))
    characters = sum(map(len, {text for alternatives in requests for one in alternatives for text in one.selectors}))
    if characters > MOST_EXPRESSIONS:
        rule = f"are too many characters of expressions; the limit is {MOST_EXPRESSIONS} for one claim"
        problems.append(Problem(f"{path}.requests", str(characters), rule))
        requests = ()
    constraints = tuple(_constraint(one, f"{path}.constraints[{i}]", problems) for i, one in enumerate(obj.constraints))
    spec = ClaimSpec(requests, constraints)
    return _shared(spec) if not problems else spec, first_of(problems)


def _request(obj: wire.DeviceRequest, path: str, problems: Problems) -> tuple[DeviceRequest, ...]:
    """The alternatives of a request."""
    if (obj.exactly is None) == (not obj.first_available):
        problems.append(Problem(path, obj.name, "needs exactly one of exactly and firstAvailable"))
        return ()
    if obj.exactly is not None:
        return (_exact(obj.exactly, obj.name, f"{path}.exactly", problems),)
    _at_most(len(obj.first_available), MOST_ALTERNATIVES, f"{path}.firstAvailable", problems)
    return tuple(
        _exact(one, f"{obj.name}/{one.name}", f"{path}.firstAvailable[{i}]", problems)
        for i, one in enumerate(obj.first_available)
    )


def _exact(obj: wire.ExactRequest, name: str, path: str, problems: Problems) -> DeviceRequest:
    if not obj.device_class_name:
        problems.append(Problem(f"{path}.deviceClassName", "", "must name a DeviceClass"))
    if obj.derived_attributes:
        problems.append(Problem(f"{path}.derivedAttributes", obj.derived_attributes[0].name, NOT_IN_USE))
    mode = one_of(_MODES, obj.allocation_mode, f"{path}.allocationMode", problems) or "ExactCount"
    count = obj.count or 1
    if mode == "All":
        if obj.count:
            rule = "must be left out where allocationMode is All"
            problems.append(Problem(f"{path}.count", str(obj.count), rule))
        count = 1
    elif count < 0:
        problems.append(Problem(f"{path}.count", str(count), "must be more than zero; nearest valid value: 1"))
    asked = obj.capacity.requests if obj.capacity is not None else {}
    return DeviceRequest(
        name,
        obj.device_class_name,
        _selectors(obj.selectors, f"{path}.selectors", problems),
        mode,
        count,
        obj.admin_access,
        _tolerations(obj.tolerations, f"{path}.tolerations", problems),
        tuple(
            (key, milli(quantity, f"{path}.capacity.requests[{key}]", problems))
            for key, quantity in sorted(asked.items())
        ),
    )


def _selectors(wired: Sequence[wire.DeviceSelector], path: str, problems: Problems) -> tuple[str, ...]:
    _at_most(len(wired), MOST_RESULTS, path, problems)
    found = []
    for i, selector in enumerate(wired):
        if selector.cel is None:
            problems.append(Problem(f"{path}[{i}]", "", "must have cel: other languages are not known"))
            continue
        expression = selector.cel.expression
        if len(expression.encode()) > LONGEST_EXPRESSION:
            rule = f"has {len(expression.encode())} bytes, the limit is {LONGEST_EXPRESSION}"
            problems.append(Problem(f"{path}[{i}].cel.expression", f"{expression[:40]}...", rule))
        found.append(expression)
    return tuple(found)


def _tolerations(wired: Sequence[wire.DeviceToleration], path: str, problems: Problems) -> tuple[Toleration, ...]:
    """The tolerations. Those for effect None are left out, as such a taint keeps no pod away."""
    found = []
    for i, one in enumerate(wired):
        operator = one_of(_OPERATORS, one.operator, f"{path}[{i}].operator", problems)
        effect: Effect | Literal[""] | None = ""
        if one.effect not in ("", "None"):
            effect = one_of(_TOLERATED, one.effect, f"{path}[{i}].effect", problems)
        if operator is not None and effect is not None and one.effect != "None":
            found.append(Toleration(one.key, operator, one.value, effect))
    return tuple(found)


def _constraint(obj: wire.DeviceConstraint, path: str, problems: Problems) -> Constraint:
    named = [
        (field, name)
        for field, name in (("matchAttribute", obj.match_attribute), ("distinctAttribute", obj.distinct_attribute))
        if name
    ]
    if len(named) != 1:
        problems.append(Problem(path, "", "needs exactly one of matchAttribute and distinctAttribute"))
    for field, name in named:
        if "/" not in name:
            rule = "must have a domain, as in resource.kubernetes.io/pcieRoot"
            problems.append(Problem(f"{path}.{field}", name, rule))
    return Constraint(obj.requests, obj.match_attribute, obj.distinct_attribute)


def _at_most(count: int, limit: int, path: str, problems: Problems) -> None:
    if count > limit:
        problems.append(Problem(path, str(count), f"are too many; the limit is {limit}"))


def _allocation(obj: wire.AllocationResult, problems: Problems) -> Allocation:
    path = "status.allocation"
    grants = tuple(
        [_grant(result, f"{path}.devices.results[{i}]", problems) for i, result in enumerate(obj.devices.results)]
    )
    terms = node_terms(obj.node_selector, f"{path}.nodeSelector", problems)
    match terms:
        case (NodeTerm(expressions=(), fields=(Requirement(key="metadata.name", operator="In", values=(node,)),)),):
            return Allocation(grants, node)
        case _:
            return Allocation(grants, SHARED, terms)


def _grant(obj: wire.DeviceResult, path: str, problems: Problems) -> Grant:
    consumed = tuple(
        (name, milli(quantity, f"{path}.consumedCapacity[{name}]", problems))
        for _, (name, quantity) in qualified({n: (n, q) for n, q in obj.consumed_capacity.items()}, obj.driver)
    )
    return Grant(
        obj.request,
        obj.driver,
        obj.pool,
        obj.device,
        obj.admin_access,
        obj.share_id,
        consumed,
        _tolerations(obj.tolerations, f"{path}.tolerations", problems),
        obj.binding_conditions,
        obj.binding_failure_conditions,
    )
