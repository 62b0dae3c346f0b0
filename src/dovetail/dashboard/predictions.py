# SPDX-License-Identifier: Apache-2.0
"""What a viewer asks about a change: the view of `dovetail whatif`.

Rules
- Nothing is created. The running scheduler is asked with the token of the viewer, so RBAC and the bounds of the
  scheduler (questions in a minute, time, memory) are those of that user.
- A question has MOST_BYTES at most. A manifest is read in a thread, within the bounds of `kube.yaml_text`.
- Only a page of this address may ask: a browser sends JSON elsewhere only after a question that nothing here answers
  (CORS), and names the page that asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from dovetail.aggregated.question import BadQuestion
from dovetail.core.json_text import JsonError, decode_json
from dovetail.dashboard.sources import PredictingSource
from dovetail.kube.manifests.documents import ManifestError, documents_in
from dovetail.kube.manifests.workloads import expanded
from dovetail.kube.objects.views import WHAT_IFS, ViewDocument
from dovetail.kube.reading.views import ViewRequest
from dovetail.views.whatif_changes import inside
from dovetail.views.whatif_types import (
    AddNodesLike,
    Change,
    ChangeQuota,
    DrainNodes,
    ResumeQueue,
    StopQueue,
    Submit,
    WhatIfQuestion,
)

MOST_BYTES = 256 << 10
_NAME = "the manifest"


class SubmitManifest(Struct, frozen=True, tag="submitManifest", rename="camel"):
    """Create the objects of this YAML or JSON; workloads are replaced by the pods that their controllers would make."""

    manifest: str


class AskedChange(Struct, frozen=True, rename="camel"):
    """The body of a request."""

    change: SubmitManifest | DrainNodes | AddNodesLike | ChangeQuota | StopQueue | ResumeQueue


async def predict(source: PredictingSource, body: bytes, namespace: str, authorization: str) -> ViewDocument:
    """The answer to a viewer with this Authorization header, that may see `namespace` ("": all). Raises BadQuestion."""
    try:
        asked = decode_json(body, AskedChange).change
    except JsonError as error:
        raise BadQuestion(400, str(error)) from error
    if isinstance(asked, SubmitManifest):
        change: Change = await asyncio.to_thread(_submitted, asked.manifest, namespace or "default")
    else:
        change = asked
    question = msgspec.json.encode(WhatIfQuestion(change))
    return await source.predict(
        ViewRequest(WHAT_IFS, namespace, body=question, alone=bool(namespace)), authorization
    )  # fmt: skip


def _submitted(manifest: str, namespace: str) -> Submit:
    """Raises BadQuestion."""
    try:
        found = expanded(inside(documents_in(_NAME, manifest.encode()), namespace))
    except ManifestError as error:
        raise BadQuestion(400, str(error)) from error
    for fault in found.faults:
        raise BadQuestion(400, str(fault))
    return Submit(tuple(one.value for one in found.documents if isinstance(one.value, dict)))


def foreign(headers: Mapping[str, str], host: str) -> str:
    """Why a request that asks or changes is refused as that of another page; "" for one of our own."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return "the request must have the Content-Type application/json"
    origin, site = headers.get("origin", ""), headers.get("sec-fetch-site", "")
    if site not in ("", "same-origin", "none") or (origin and origin.partition("://")[2] != host):
        return "the request comes from another page"
    return ""
