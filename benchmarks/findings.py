# SPDX-License-Identifier: Apache-2.0
"""What a benchmark without a table of its own found: one line for each value, or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping


def output_option(parser: argparse.ArgumentParser) -> None:
    """-o, --output: the form of the answer."""
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def show(found: Mapping[str, object], output: str) -> None:
    if output == "json":
        print(json.dumps(found, indent=2))
        return
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:{width}}  {value}")
