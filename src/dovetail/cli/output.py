# SPDX-License-Identifier: Apache-2.0
"""How commands answer: for people, or as JSON on stdout."""

from __future__ import annotations

import sys

import click
import msgspec

output_option = click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)


def write_json(answer: object) -> None:
    """All of the answer, indented."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n")


def count(number: int, one: str, many: str = "") -> str:
    """`1 pod`, `2 pods`. `many` where an s does not do."""
    return f"{number} {one if number == 1 else many or one + 's'}"
