# SPDX-License-Identifier: Apache-2.0
"""The file in which `dovetail advise` keeps what it advised."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from dovetail.advice.sizing.follow_up import FORMAT, AdviceRecord, earlier, recorded
from dovetail.advice.sizing.market import Market
from dovetail.advice.sizing.rule import EarlierAdvice
from dovetail.advice.sizing.seen import JobSeen, seen_of
from dovetail.cli.files import text_of
from dovetail.cli.manifest_files import replace_file
from dovetail.core.json_text import JsonError, decode_json
from dovetail.history.job_use import JobKey, JobsUse, job_uses
from dovetail.history.records import Period
from dovetail.history.store import HistoryReader
from dovetail.kube.manifests.documents import STDIN


def followed(file: str, uses: JobsUse, reader: HistoryReader, prices: Market, now_ms: int) -> tuple[EarlierAdvice, ...]:
    """What became of the advice in the file for these jobs, and for those that are not there any more; what is advised
    now is added to the file. Raises ClickException."""
    record = _read(file)

    def seen_since(advised_ms: int, jobs: Iterable[JobKey]) -> list[JobSeen]:
        return seen_of(job_uses(reader, Period(advised_ms, now_ms), frozenset(jobs)), prices)

    found = earlier(record, now_ms, seen_since)
    _write(file, recorded(record, seen_of(uses, prices), now_ms))
    return found


def _read(file: str) -> AdviceRecord:
    if file != STDIN and not Path(file).exists():
        return AdviceRecord()
    if file == STDIN or not Path(file).is_file():
        raise click.ClickException(f"{file}: is no regular file: what is advised is kept in one")
    try:
        record = decode_json(text_of(file), AdviceRecord)
    except JsonError as error:
        raise click.ClickException(f"{file}: not a record of advice: {error}; name another file") from error
    if record.format != FORMAT:
        raise click.ClickException(
            f"{file}: its format is {record.format}, this program has {FORMAT}; name another file, or use that program"
        )
    return record


def _write(file: str, record: AdviceRecord) -> None:
    replace_file(Path(file), msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
