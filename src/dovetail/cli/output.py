# SPDX-License-Identifier: Apache-2.0
"""Parts of the answers of commands: JSON, numbers and times as text, progress, and names in arguments."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from dovetail.cli.markup import escape
from dovetail.cli.names import complete_namespaces

if TYPE_CHECKING:
    from dovetail.core.reasons import Expected

namespace_option = click.option(
    "-n", "--namespace", help="Namespace of the pod or job. Default: the context's.", shell_complete=complete_namespaces
)

API_VERSION = "dovetail.dev/cli.v1"
"""The version of JSON answers. A field is added without another version; none is removed or changed."""
LOOK_AHEAD_ENDED = "The look-ahead ended at its bound: starts after that are not known."
INCOMPLETE = 3
"""The exit code if something that the answer needs could not be read."""
_AT_ONCE_S = 1.0
"""What takes no longer shows no progress."""
TIMED_OUT = 124
"""The exit code if the time of a wait is over, as that of timeout(1)."""


def versioned(kind: str, answer: object) -> object:
    """The answer with its version and kind in front; if it is a list each element has them."""
    plain = msgspec.to_builtins(answer, builtin_types=(datetime,), enc_hook=_read)
    head = {"apiVersion": API_VERSION, "kind": kind}
    return [head | one for one in plain] if isinstance(answer, list | tuple) else head | plain


def _read(raw: msgspec.Raw) -> object:
    from dovetail.core.json_text import decode_json

    return decode_json(raw, object)


def write_json(document: object) -> None:
    """Write a document that is no answer of ours, as indented JSON."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def count(number: int, one: str, many: str = "") -> str:
    """`1 pod`, `2 pods`. `many` is the plural if it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def gpus(milli: int) -> str:
    """A number of GPUs: `8`, `0.5`."""
    return f"{milli / 1000:g}"


def indices(numbers: Sequence[int]) -> str:
    """`0-3,6` for 0, 1, 2, 3 and 6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def span(ms: int) -> str:
    """A duration in its two largest units: `3 h 5 min`."""
    left_s = abs(ms) // 1000
    parts = []
    for unit, size_s in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left_s = divmod(left_s, size_s)
        parts.append(f"{number} {unit}" if number else "")
    first = next((i for i, part in enumerate(parts) if part), len(parts) - 1)
    return " ".join(part for part in parts[first : first + 2] if part) or "0 s"


def moment(at_ms: int) -> str:
    """A time as text, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def start(expected: Expected | None, now_ms: int) -> str:
    """An expected start: `now`, `any moment`, `in 2 h`, `in about 2 h` (run times are learned), `not known`."""
    if expected is None:
        return "-"
    from dovetail.core.reasons import Sure

    if expected.sure is Sure.UNKNOWN:
        return "not known"
    if expected.start_ms <= now_ms:
        return "now"
    if expected.start_ms - now_ms < 1000:
        return "any moment"
    about = "about " if expected.sure is Sure.LEARNED else ""
    return f"in {about}{span(expected.start_ms - now_ms)}"


def printable(text: str) -> str:
    """Text of another writer without control characters."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def foreign(text: str) -> str:
    """Text of another writer: without control characters, and never markup."""
    return escape(printable(text))


@contextmanager
def looking_ahead() -> Iterator[Callable[[int, int], None]]:
    """A progress bar of how many of the waiting jobs have started in the look-ahead."""
    with progressing("looking ahead") as watch:
        yield watch


@contextmanager
def progressing(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, if that is a terminal, of what takes longer than a second: how much of all is
    done."""
    from dovetail.cli.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, of: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn())
    progress, begins_s = Progress(*columns, console=console.rich, transient=True), time.monotonic() + _AT_ONCE_S
    bar = progress.add_task("", total=None)

    def show(done: int, of: int) -> None:
        progress.update(bar, completed=done, total=of)
        if time.monotonic() > begins_s:
            progress.start()

    try:
        yield show
    finally:
        progress.stop()


def ago(at_ms: int, now_ms: int) -> str:
    """The time since `at_ms`: `3 h 5 min`; `?` if `at_ms` is 0, not known."""
    return span(max(0, now_ms - at_ms)) if at_ms else "?"


def key_of(argument: str, name: str, namespace: str | None, default: str) -> str:
    """NAMESPACE/NAME of `name`, the value of the ARGUMENT. Raises UsageError."""
    named, slash, short = name.partition("/")
    if not slash:
        named, short = "", name
    if named and namespace and named != namespace:
        raise click.UsageError(f"{argument} has the namespace {named!r}, --namespace is {namespace!r}")
    if not short or (slash and not named):
        raise click.UsageError(f"{name!r} is not [NAMESPACE/]NAME")
    return f"{named or namespace or default}/{short}"
