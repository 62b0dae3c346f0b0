# SPDX-License-Identifier: Apache-2.0
"""Schemas for `kubectl explain`."""

from typing import Any

from dovetail.apiserver.planes.plane import CATALOGUE
from dovetail.apiserver.resources import BUILT_IN
from dovetail.apiserver.schemas import schemas_of


def references(document: Any) -> set[str]:
    """All schemas that the document refers to."""
    if isinstance(document, dict):
        own = {document["$ref"].rpartition("/")[2]} if "$ref" in document else set()
        return own.union(*(references(value) for value in document.values()))
    return set().union(*map(references, document)) if isinstance(document, list) else set()


def test_every_reference_leads_to_a_schema_and_every_schema_is_referred_to() -> None:
    schemas = schemas_of(BUILT_IN)
    kinds = {name for name, schema in schemas.items() if "x-kubernetes-group-version-kind" in schema}
    assert len(kinds) == len(BUILT_IN)
    assert references(schemas) == schemas.keys() - kinds


def test_every_kind_of_a_plane_has_a_meaning_and_fields_beyond_its_head() -> None:
    for resource in CATALOGUE.resources:
        (schema,) = [
            schema for schema in schemas_of([resource]).values() if "x-kubernetes-group-version-kind" in schema
        ]
        assert schema["description"], resource.kind
        assert schema["properties"].keys() > {"apiVersion", "kind", "metadata"}, resource.kind
