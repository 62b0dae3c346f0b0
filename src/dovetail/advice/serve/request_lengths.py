# SPDX-License-Identifier: Apache-2.0
"""The lengths of requests: fixed, or those of a trace.

Rules
- A trace is CSV with a line of column names, or one JSON object a line. The numbers of tokens are in the columns or
  fields of NAMES (Azure's LLM traces, Mooncake's, BurstGPT's, or `input` and `output`); all others are passed over.
- A line that lacks a number, or has none above 0, is an error with its number: a trace with holes would give means of
  other requests.
- Means decide throughput, the 95th percentile of prompts the time to the first token, the longest request the context.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.translate.problems import shown

NAMES = (
    ("ContextTokens", "GeneratedTokens"),
    ("input_length", "output_length"),
    ("input", "output"),
    ("Request tokens", "Response tokens"),
)
TraceRow = tuple[Mapping[str, Any], int, int, str]
"""A request: all of its columns, the tokens of its prompt and output, and its `FILE:LINE`."""
MOST_TOKENS = 1 << 24
_MOST_DIGITS = 20


class LengthsError(ValueError):
    """A problem of a trace: `FILE:LINE: what`."""


class RequestLengths(Struct, frozen=True):
    """Numbers of tokens of requests: means of prompt and output, the prompt that 95 % do not exceed, and the longest
    prompt with its output. `requests` is the number that they are of, 0 for fixed lengths."""

    input: float
    output: float
    input_p95: int
    longest: int
    requests: int = 0


def fixed(prompt: int, output: int) -> RequestLengths:
    return RequestLengths(prompt, output, prompt, prompt + output)


def read_lengths(text: str, file: str) -> RequestLengths:
    """The lengths in a trace. Raises LengthsError."""
    return lengths_of([(prompt, output) for _, prompt, output, _ in rows_of(text, file)], file)


def rows_of(text: str, file: str) -> Iterator[TraceRow]:
    """The requests of a trace. Raises LengthsError."""
    return _of_json(text, file) if text.lstrip().startswith("{") else _of_csv(text, file)


def lengths_of(pairs: Sequence[tuple[int, int]], file: str) -> RequestLengths:
    """The lengths of these requests, each of prompt and output. Raises LengthsError if there is none."""
    if not pairs:
        raise LengthsError(f"{file}: no request in it")
    prompts = sorted(prompt for prompt, _ in pairs)
    p95 = prompts[min(len(prompts) - 1, len(prompts) * 95 // 100)]
    return RequestLengths(
        sum(prompts) / len(pairs), sum(output for _, output in pairs) / len(pairs), p95,
        max(prompt + output for prompt, output in pairs), len(pairs),
    )  # fmt: skip


def _of_csv(text: str, file: str) -> Iterator[TraceRow]:
    rows = csv.DictReader(text.splitlines())
    try:
        names = _names(rows.fieldnames or (), file)
        for row in rows:
            where = f"{file}:{rows.line_num}"
            yield row, *_pair(row, names, where), where
    except csv.Error as error:
        raise LengthsError(f"{file}:{rows.line_num + 1}: {error}") from error


def _of_json(text: str, file: str) -> Iterator[TraceRow]:
    names: tuple[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = decode_json(line.encode(), dict[str, Any])
        except JsonError as error:
            raise LengthsError(f"{file}:{number}: {error}") from error
        names = names or _names(tuple(row), f"{file}:{number}")
        yield row, *_pair(row, names, f"{file}:{number}"), f"{file}:{number}"


def _names(columns: Any, where: str) -> tuple[str, str]:
    for prompt, output in NAMES:
        if prompt in columns and output in columns:
            return prompt, output
    known = "; ".join(f"{prompt} and {output}" for prompt, output in NAMES)
    raise LengthsError(f"{where}: none of the pairs of columns that are known: {known}")


def _pair(row: Mapping[str, Any], names: tuple[str, str], where: str) -> tuple[int, int]:
    prompt, output = (_tokens(row.get(name), name, where) for name in names)
    return prompt, output


def _tokens(value: object, name: str, where: str) -> int:
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS
    number = int(str(value)) if digits else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MOST_TOKENS:
        what = "is missing" if value in (None, "") else f"is {shown(repr(value))}"
        raise LengthsError(f"{where}: {name} {what}; each request needs a number from 1 to {MOST_TOKENS}")
    return number
