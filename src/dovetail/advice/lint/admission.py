# SPDX-License-Identifier: Apache-2.0
"""The rules that CEL can say, as ValidatingAdmissionPolicies: the API server then says of pods, and of what
makes pods, what the linter says of their manifests, without a webhook.

Source: https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import yaml

from dovetail.advice.lint.rule import Rule

_MATCHED = {"": ["pods"], "apps": ["deployments", "statefulsets"], "batch": ["jobs", "cronjobs"]}
"""Resources of version v1 by group: what users write, so that who creates a Job is told, not the controller."""
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
    """YAML of a policy and its binding for each rule that has an expression. Those in `deny` refuse the object, all
    others warn whoever creates it, and are written to the audit log."""
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
                    # What the rule cannot look at is let in.
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
