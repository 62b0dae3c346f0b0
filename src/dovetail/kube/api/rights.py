# SPDX-License-Identifier: Apache-2.0
"""The right that a refused request lacked, in the words of RBAC: verb, resource and namespace."""

from __future__ import annotations

import re

from dovetail.kube.api.errors import Forbidden

_USER = re.compile(r'User "([^"]{1,253})" cannot')
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def missing_right(error: Forbidden) -> str:
    """`user ada has no right to create jobs.batch in namespace team-a`. A refusal that is not about a right, as that of
    a quota or a policy, is returned as the server put it."""
    user = _USER.search(error.message)
    if user is None:
        return str(error)
    method, _, path = error.path.partition(" ")
    steps = path.strip("/").split("/")
    group, steps = ("", steps[2:]) if steps[0] == "api" else (steps[1], steps[3:])
    namespace = ""
    if len(steps) > 2 and steps[0] == "namespaces":
        namespace, steps = steps[1], steps[2:]
    plural, name, below = (*steps, "", "")[:3]
    resource = "/".join(part for part in (plural, below) if part) + (f".{group}" if group else "")
    verb = _VERBS.get(method, "get" if name else "list")
    where = f" in namespace {namespace}" if namespace else ""
    return f"user {user[1]} has no right to {verb} {resource}{where}: an admin can grant it"
