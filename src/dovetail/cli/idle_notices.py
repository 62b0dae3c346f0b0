# SPDX-License-Identifier: Apache-2.0
"""`dovetail idle --notify` and `--webhook`: the idle pods, for their owners."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from dovetail.cli.cluster import run
from dovetail.cli.idle_columns import cents
from dovetail.cli.output import ago, count

if TYPE_CHECKING:
    from dovetail.cost.idle_pods import IdleList, IdleRow
    from dovetail.kube.api.config import ClusterConfig

_TIMEOUT_S = 10.0


def webhook_url(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Raises BadParameter."""
    if value is None or value.startswith(("https://", "http://")):
        return value
    raise click.BadParameter(f"{value!r} is no address of the web: it has to begin with https:// or http://")


def write_events(config: ClusterConfig, answer: IdleList) -> None:
    """Write an event on each pod of the list, and print on stderr what became of them. Raises ClickException where one
    cannot be written."""
    from dovetail.jobs.notices import Notice, write

    notices = [Notice(row.pod, row.uid, row.since, note(row, answer)) for row in answer.pods]
    done = run(write(config, notices, datetime.now(UTC)), config.server)
    had = f"; {count(len(done.there), 'pod')} had {'it' if len(done.there) == 1 else 'theirs'}" if done.there else ""
    click.echo(f"{count(len(done.written), 'event')} written{had}.", err=True)
    if done.refused:
        pod, why = done.refused[0]
        more = f"; {len(done.refused) - 1} more are refused" if len(done.refused) > 1 else ""
        raise click.ClickException(f"no event on {pod}: {why}{more}")


def note(row: IdleRow, answer: IdleList) -> str:
    """The sentence for the owner of a pod."""
    gpus = f"{'all' if row.idle else row.unused} of its {row.held} GPUs" if row.held > 1 else "its GPU"
    are = "is" if row.unused == 1 and not (row.idle and row.held > 1) else "are"
    since = f"{row.since:%Y-%m-%d %H:%M} UTC{' or before' if row.at_least else ''}"
    length = ago(round(row.since.timestamp() * 1000), round(answer.now.timestamp() * 1000))
    cost = f", which cost {cents(row) / 100:,.2f} {answer.currency}" if row.cost_micro is not None else ""
    return f"{gpus[0].upper()}{gpus[1:]} {are} idle since {since} ({length}{cost}): {row.action}."


def post(url: str, body: bytes) -> None:
    """Send the answer. Raises ClickException."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            pass
    except urllib.error.HTTPError as error:
        raise click.ClickException(f"{url} refuses the list: {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{url} cannot be reached: {error}") from error
