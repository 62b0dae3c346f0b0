# SPDX-License-Identifier: Apache-2.0
"""`dovetail idle --notify` and `--webhook`: the idle pods, for their owners."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from dovetail.cli.cluster import run
from dovetail.cli.output import count

if TYPE_CHECKING:
    from dovetail.cost.idle_pods import IdleList
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
    from dovetail.cost.idle_notes import idle_note
    from dovetail.jobs.notices import Notice, write

    notices = [Notice(row.pod, row.uid, row.since, idle_note(row, answer)) for row in answer.pods]
    done = run(write(config, notices, datetime.now(UTC)), config.server)
    had = f"; {count(len(done.there), 'pod')} had {'it' if len(done.there) == 1 else 'theirs'}" if done.there else ""
    click.echo(f"{count(len(done.written), 'event')} written{had}.", err=True)
    if done.refused:
        pod, why = done.refused[0]
        more = f"; {len(done.refused) - 1} more are refused" if len(done.refused) > 1 else ""
        raise click.ClickException(f"no event on {pod}: {why}{more}")


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
