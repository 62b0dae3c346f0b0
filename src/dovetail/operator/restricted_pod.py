# SPDX-License-Identifier: Apache-2.0
"""What the operator's own short pods have in common: they meet Pod Security `restricted`, have no token, and end by
themselves. Source: the Pod Security Standards, restricted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_USER = 65_532


def restricted_body(container: dict[str, Any], deadline_s: int, pull_secrets: Sequence[str]) -> dict[str, Any]:
    """The spec of a pod with this container, which ends after `deadline_s` at the latest."""
    body: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": deadline_s,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if pull_secrets:
        body["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    return body


def restricted_context(*, read_only: bool = True) -> dict[str, Any]:
    """The security context of its container. `read_only`: it cannot write its root filesystem."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": read_only,
        "capabilities": {"drop": ["ALL"]},
    }
