# SPDX-License-Identifier: Apache-2.0
"""The rules that CEL can express, as ValidatingAdmissionPolicies: the API server then applies them to pods and to
objects that create pods, without a webhook.

Rules
- The kinds are those whose templates the linter finds. A kind that the cluster does not have does no harm.
- A warning is for the user of an object: pods that its controller makes are not judged again. A rule that denies judges
  them, too, as the object may have been changed in between; owner references are no proof, as tenants write them. Only
  the pods that the controller of DaemonSets makes are left out, and rules about a whole object judge what users create.
- A warning also comes with a change of the spec. What denies judges only new objects, so that those that exist can be
  changed and removed.
- A warning never keeps an object out. What denies fails closed: an object on which an expression fails is refused.
- Namespaces of the cluster itself are left out.

Source: https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import yaml

from dovetail.advice.lint import cel
from dovetail.advice.lint.cel import Cel
from dovetail.advice.lint.policies import POLICIES
from dovetail.advice.lint.rule import Facts, Rule
from dovetail.advice.lint.selection import SYSTEM_NAMESPACES
from dovetail.kube.manifests.templates import HOLDERS

LABELS = {"app.kubernetes.io/part-of": "dovetail", "app.kubernetes.io/component": "lint-policy"}
_NOTHING_KNOWN = Facts()
_API_VERSION = "admissionregistration.k8s.io/v1"
_LEFT_OUT = sorted({*SYSTEM_NAMESPACES, "kube-node-lease", "kube-public", "dovetail-system"})
_OWNERS = "object.?metadata.?ownerReferences.orValue([])"
_BY_A_USER = {
    "name": "made-by-a-user",
    "expression": f"!{_OWNERS}.exists(o, o.?controller.orValue(false))",
}
_CHANGES_THE_SPEC = {
    "name": "changes-the-spec",
    "expression": "oldObject == null || object.?spec != oldObject.?spec || object.?template != oldObject.?template",
}
_NOT_OF_A_DAEMON_SET = {
    "name": "not-of-a-daemon-set",
    "expression": (
        "!(request.userInfo.username in ['system:serviceaccount:kube-system:daemon-set-controller', "
        f"'system:kube-controller-manager'] && {_OWNERS}.exists(o, o.kind == 'DaemonSet'))"
    ),
}


def policies(rules: Iterable[Rule], deny: Collection[str], facts: Facts = _NOTHING_KNOWN) -> str:
    """YAML of a policy and its binding for each rule that CEL can express, for a cluster of which these facts are
    known. Rules in `deny` reject the object; all others warn the client and are written to the audit log."""
    documents: list[dict[str, Any]] = []
    for rule in rules:
        policy = POLICIES.get(rule.id)
        if policy is None:
            continue
        denies = rule.id in deny
        name = f"dovetail-lint-{rule.id.lower()}"
        actions = ["Deny"] if denies else ["Warn", "Audit"]
        documents += (
            _object("ValidatingAdmissionPolicy", name, _spec(rule, policy, facts, denies)),
            _object("ValidatingAdmissionPolicyBinding", name, {"policyName": name, "validationActions": actions}),
        )
    return yaml.safe_dump_all(documents, sort_keys=False, width=2**31)


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _API_VERSION, "kind": kind, "metadata": {"name": name, "labels": dict(LABELS)}, "spec": spec}


def _spec(rule: Rule, policy: Cel, facts: Facts, denies: bool) -> dict[str, Any]:
    found = cel.found(policy, facts)
    variables = {**cel.variables(found), "found": found}
    judges_pods = denies and not policy.whole
    return {
        "failurePolicy": "Fail" if denies else "Ignore",
        "matchConstraints": {
            "namespaceSelector": {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(_LEFT_OUT)}
                ]
            },
            "resourceRules": _resource_rules(policy, ["CREATE"] if denies else ["CREATE", "UPDATE"]),
        },
        "matchConditions": [
            dict(_NOT_OF_A_DAEMON_SET if judges_pods else _BY_A_USER),
            *(() if denies else (dict(_CHANGES_THE_SPEC),)),
        ],
        "variables": [{"name": name, "expression": expression} for name, expression in variables.items()],
        "validations": [
            {
                "expression": "variables.found == ''",
                "message": f"{rule.id}: {rule.title}",
                "messageExpression": (
                    f"'{rule.id}: ' + variables.found.split('\\n')[0] + (variables.found.contains('\\n') ? "
                    "' (and ' + string(size(variables.found.split('\\n')) - 1) + ' more)' : '')"
                ),
            }
        ],
    }


def _resource_rules(policy: Cel, operations: Sequence[str]) -> list[dict[str, Any]]:
    """The kinds of a policy, by API group, in any version."""
    plurals: dict[str, list[str]] = {}
    for group, plural in (
        [policy.resource] if policy.resource else ((one.resource.group, one.resource.plural) for one in HOLDERS)
    ):
        plurals.setdefault(group, []).append(plural)
    return [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": list(operations), "resources": resources}
        for group, resources in plurals.items()
    ]
