# SPDX-License-Identifier: Apache-2.0
"""The rules that CEL can say, as ValidatingAdmissionPolicies: the API server then says of every pod what the linter
says of its manifest, without a webhook.

Source: https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import yaml

from dovetail.advice.lint.rule import Rule

_PODS = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
            "scope": "Namespaced",
        }
    ]
}


def policies(rules: Iterable[Rule], deny: Collection[str]) -> str:
    """YAML of a policy and its binding for each rule that has an expression. Those in `deny` refuse the pod, all others
    warn whoever creates it, and are written to the audit log."""
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
                    "matchConstraints": _PODS,
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
