# SPDX-License-Identifier: Apache-2.0
"""Names of carried pods on the host, and the keys by which they are known.

Rules
- The name on the host is a function of the plane and the uid of the endpoint's pod: a pod has one name there for all
  its life, and two pods never have the same. It has 63 characters at most, so that it can be a host name.
- The keys do not begin with `dovetail.dev/`: the scheduler reads none of them.
"""

from __future__ import annotations

import hashlib
import re

from dovetail.kube.translate import annotations as keys

PREFIX = "planes.dovetail.dev/"
PLANE_UID = PREFIX + "uid"
"""Label: the uid of the AgentControlPlane. Of two planes of one name, the later one finds nothing of the earlier."""
POD_UID = PREFIX + "pod-uid"
"""Label: the uid of the pod on the endpoint."""
GANG = PREFIX + "gang"
"""Label: the digest of the gang for which the lease was negotiated."""
POD = PREFIX + "pod"
"""Annotation: namespace and name of the pod on the endpoint."""
FILE = PREFIX + "file-"
"""Annotations, with a number: the texts of files that come from ConfigMaps."""
LEASE, FENCE = keys.PREFIX + keys.LEASE, keys.PREFIX + keys.FENCE
"""What the scheduler reads of a pod within a lease."""
LEASE_DURATION = keys.PREFIX + keys.LEASE_DURATION
LEASE_CLASS = keys.PREFIX + keys.LEASE_CLASS
"""What an agent writes on a pod of its endpoint."""

_LONGEST = 50
_DIGEST = 12
_OTHERS = re.compile(r"[^a-z0-9-]+")


def digest(*parts: str) -> str:
    """Twelve hexadecimal digits for a tuple of texts. No part may contain a line end."""
    return hashlib.sha256("\n".join(parts).encode(errors="replace")).hexdigest()[:_DIGEST]


def host_name(plane_uid: str, name: str, pod_uid: str) -> str:
    """What the pod is called on the host: the beginning of its own name, and a digest."""
    readable = _OTHERS.sub("-", name[:_LONGEST].lower()).strip("-") or "pod"
    return f"{readable}-{digest(plane_uid, pod_uid)}"
