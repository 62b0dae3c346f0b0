# SPDX-License-Identifier: Apache-2.0
"""JSON answers of commands, checked against the schemas in the reference."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from tests.paths import ROOT

SCHEMAS = ROOT / "docs/reference/schemas"


def answer(text: str, *wanted: str) -> Any:
    """The answer, after each of its objects was found to follow the schema of its kind, and to have no other field.
    The objects are of the `wanted` kinds, in the order of their first ones."""
    found = json.loads(text)
    objects = found if isinstance(found, list) else [found]
    for one in objects:
        _validator(one["kind"]).validate(one)
    assert tuple(dict.fromkeys(one["kind"] for one in objects)) == wanted
    return found


@cache
def _validator(kind: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
    for one in (schema, *schema["$defs"].values()):
        if "properties" in one:
            one["additionalProperties"] = False
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
