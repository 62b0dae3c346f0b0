# SPDX-License-Identifier: Apache-2.0
"""The rules that CEL can express, as ValidatingAdmissionPolicies: the API server then applies them to pods and to
objects that create pods, without a webhook.

Source: https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import yaml

from dovetail.advice.lint.rule import Rule

_MATCHED = {"": ["pods"], "apps": ["deployments", "statefulsets"], "batch": ["jobs", "cronjobs"]}
"""Resources of version v1 by group. They include objects that users create, so that the user of a Job gets the warning,
not the controller."""
_POD = (
    "has(dyn(object).spec.template) ? dyn(object).spec.template : "
    "has(dyn(object).spec.jobTemplate) ? dyn(object).spec.jobTemplate.spec.template : dyn(object)"
)
_RESOURCES = [
    {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": resources,
        "scope": "Namespaced",
    }
    for group, resources in _MATCHED.items()
]


def policies(rules: Iterable[Rule], deny: Collection[str]) -> str:
    """YAML of a policy and its binding for each rule with a CEL expression. Rules in `deny` reject the object; all
    others warn the client and are written to the audit log."""
    documents: list[dict[str, Any]] = []
    for rule in rules:
        if not rule.cel:
            continue
        name = f"dovetail-lint-{rule.id.lower()}"
        message = f"{rule.id}: {rule.title}"
        documents.append(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "dovetail"}},
                "spec": {
                    # Objects on which the expression fails are admitted.
                    "failurePolicy": "Ignore",
                    "matchConstraints": {"resourceRules": _RESOURCES},
                    "variables": [{"name": "pod", "expression": _POD}],
                    "validations": [{"expression": " ".join(rule.cel.split()), "message": message}],
                },
            }
        )
        actions = ["Deny"] if rule.id in deny else ["Warn", "Audit"]
        documents.append(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "dovetail"}},
                "spec": {"policyName": name, "validationActions": actions},
            }
        )
    return yaml.safe_dump_all(documents, sort_keys=False, width=2**31)
