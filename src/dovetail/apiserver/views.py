# SPDX-License-Identifier: Apache-2.0
"""How objects are shown to a client: whole, as rows of a table (kubectl), or metadata alone.

The Accept header decides; JSON is the only encoding.
Source: k8s.io/apiserver/pkg/endpoints/handlers/response.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from dovetail.apiserver.failures import Failure, bad_request
from dovetail.apiserver.objects import Object, object_at
from dovetail.apiserver.resources import ServedResource
from dovetail.apiserver.tables import metadata_only, table

Form = Literal["object", "table", "metadata"]
_INCLUDED = ("None", "Metadata", "Object")
_FORMS: dict[str, Form] = {
    "": "object", "Table": "table", "PartialObjectMetadata": "metadata", "PartialObjectMetadataList": "metadata",
}  # fmt: skip


class ObjectView(Struct, frozen=True):
    """One resource in one form."""

    resource: ServedResource
    form: Form = "object"
    include: str = "Metadata"
    """What the rows of a table carry besides their cells."""

    def of(self, obj: Object) -> Object:
        """A stored object in this view."""
        match self.form:
            case "object":
                return self.resource.served(obj)
            case "metadata":
                return metadata_only(obj)
            case "table":
                version = {"resourceVersion": object_at(obj, "metadata").get("resourceVersion", "")}
                return table(self.resource, [obj], version, self.include)

    def of_list(self, objects: list[Object], metadata: Object) -> Object:
        """Stored objects as a list in this view."""
        if self.form == "table":
            return table(self.resource, objects, metadata, self.include)
        kind, api_version = (
            (f"{self.resource.kind}List", self.resource.api_version)
            if self.form == "object"
            else ("PartialObjectMetadataList", "meta.k8s.io/v1")
        )
        items = [self.of(obj) for obj in objects]
        return {"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items}


def negotiate(resource: ServedResource, accept: str, query: Mapping[str, str]) -> ObjectView:
    """The first form of the Accept header that is known.

    Raises a 406 Failure if none is, a 400 for an option that is not.
    """
    for media in accept.split(","):
        kind, *parameters = (part.strip() for part in media.split(";"))
        wanted = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        form = _FORMS.get(wanted.get("as", ""))
        if kind in ("", "*/*", "application/*", "application/json") and form:
            include = query.get("includeObject") or "Metadata"
            if include not in _INCLUDED:
                raise bad_request(f"includeObject: {include!r} is not one of {', '.join(_INCLUDED)}")
            return ObjectView(resource, form, include)
    known = "application/json, application/json;as=Table;v=v1;g=meta.k8s.io"
    raise Failure(406, "NotAcceptable", f"only the following media types are accepted: {known}")
