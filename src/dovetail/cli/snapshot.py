# SPDX-License-Identifier: Apache-2.0
"""`dovetail snapshot`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec
import yaml
from msgspec import Raw

from dovetail import __version__
from dovetail.cli.cluster import now_ms, run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.markup import escape
from dovetail.cli.output import INCOMPLETE, count
from dovetail.cli.scheduling import SCHEDULER_NAME
from dovetail.kube.api.errors import Forbidden, KubeError

if TYPE_CHECKING:
    from dovetail.kube.api.config import ClusterConfig
    from dovetail.kube.reading.lists import ListReply, ListRequest


@click.command(name="snapshot")
@click.argument("file", required=False, default="-", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), default="json", show_default=True)
@click.option("--redact", is_flag=True, help="Replace names by pseudonyms. Every decision stays the same.")
@click.option("--names", type=click.Path(dir_okay=False), metavar="PATH",
              help="With --redact: write what each pseudonym stands for to this file. Keep it.")  # fmt: skip
@kubeconfig_options
def command(
    file: str, output: str, redact: bool, names: str | None, kubeconfig: str | None, context: str | None
) -> None:
    """Save what the scheduler reads of a cluster to FILE or standard output.

    The result is a List that `dovetail simulate`, and all commands with --file, read in place of a cluster, at the time
    when it was taken: nodes, pods and their owners, queues, PodGroups, volumes, claims, and the facts that `doctor`,
    `status` and `top` show. It has only what they read: no environment variables, no commands, no Secrets. Needs only
    the verbs list and get; writes nothing to the cluster. Exit code 3 if something could not be read: it is named on
    standard error, and the rest is saved.
    """
    from dovetail.kube.manifests.record import SnapshotRecord
    from dovetail.kube.reading.redaction import redacted
    from dovetail.kube.reading.snapshot import read_snapshot

    if names is not None and not redact:
        raise click.UsageError("--names needs --redact")
    config, taken_ms = config_of(kubeconfig, context), now_ms()
    # Facts are texts with names in them.
    of_doctor, of_status = ((), ()) if redact else _requests()
    found = run(read_snapshot(config, (*of_doctor, *of_status)), config.server)
    objects, unread, facts = found.objects, [*found.unread], dict[str, Raw]()
    if found.lists:
        facts, missing = _facts(config, found.lists[: len(of_doctor)], found.lists[len(of_doctor) :])
        unread += missing
    if redact:
        redaction = redacted(objects)
        objects = redaction.objects
        if names is not None:
            _write(names, msgspec.json.format(msgspec.json.encode(redaction.names)) + b"\n")
    record = SnapshotRecord(
        taken_at=datetime.fromtimestamp(taken_ms // 1000, UTC),
        dovetail=__version__, redacted=redact, unread=() if redact else tuple(unread), facts=facts,
    )  # fmt: skip
    document = {"apiVersion": "v1", "kind": "List", "items": [record, *objects]}
    if output == "json":
        text = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    else:
        from dovetail.core.json_text import decode_json

        builtins = decode_json(msgspec.json.encode(document), object)
        text = yaml.dump(builtins, Dumper=_Dumper, encoding="utf-8", sort_keys=False)
    _write(file, text)
    console = Console(stderr=True)
    if file != "-":
        console.print(escape(f"{file}: {count(len(objects), 'object')}"))
    for line in unread:
        console.print(f"[yellow]not read:[/yellow] {escape(line)}")
    if unread:
        sys.exit(INCOMPLETE)


def _write(file: str, text: bytes) -> None:
    """Raises ClickException."""
    try:
        with click.open_file(file, "wb") as stream:
            stream.write(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error


def _requests() -> tuple[tuple[ListRequest, ...], tuple[ListRequest, ...]]:
    """What `doctor` and `status` read."""
    from dovetail.advice.doctor.lists import requests as of_doctor
    from dovetail.views.installation import requests as of_status

    return of_doctor(), of_status()


def _facts(
    config: ClusterConfig, of_doctor: Sequence[ListReply], of_status: Sequence[ListReply]
) -> tuple[dict[str, Raw], list[str]]:
    """What the commands read that show no objects, by command, and what could not be read."""
    import asyncio

    from dovetail.cli.doctor.answer import facts_from
    from dovetail.cli.top.sources import ExporterSource
    from dovetail.cli.top.top import read_once
    from dovetail.core.policy import Policy
    from dovetail.kube.api.rights import missing_right
    from dovetail.views.installation import facts_of

    found: dict[str, object] = {
        "doctor": facts_from(of_doctor, SCHEDULER_NAME, Policy().fabric),
        "status": facts_of(of_status),
    }
    unread: list[str] = []
    try:
        found["top"] = asyncio.run(read_once(ExporterSource(config)))
    except KubeError as error:
        unread.append(f"top: {missing_right(error) if isinstance(error, Forbidden) else error}")
    return {name: Raw(msgspec.json.encode(one)) for name, one in found.items()}, unread


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes no anchors, so that each object can be read by itself."""

    def ignore_aliases(self, data: object) -> bool:
        return True
