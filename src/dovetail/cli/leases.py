# SPDX-License-Identifier: Apache-2.0
"""`dovetail leases`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.columns import LEASES
from dovetail.cli.console import Console
from dovetail.cli.listing import ListForm, list_options, write_rows
from dovetail.cli.names import complete_namespaces

if TYPE_CHECKING:
    from dovetail.views.lease_types import LeasesView


@click.command(name="leases")
@click.argument("of", metavar="[NAMESPACE|PLANE]", required=False, default="", shell_complete=complete_namespaces)
@cluster_options
@list_options(LEASES)
def command(source: ClusterSource, of: str, form: ListForm) -> None:
    """Show which software agent holds which GPUs until when, what the others negotiate for, and their credit.

    Of all control planes, or of those in NAMESPACE, or of PLANE, which is [NAMESPACE/]NAME. States, offers and reasons
    are those that the scheduler wrote last. The running scheduler answers, if there is one; else the cluster is read.
    Writes nothing.
    """
    from dovetail.cli.leases_report import show

    answer = _leases(source, of)
    if form.whole:
        write_answer(form, "LeaseList", answer)
    elif not form.plain:
        write_rows(form, LEASES, answer.leases, answer.now_ms, Console())
    else:
        show(answer, Console())


def _leases(source: ClusterSource, of: str) -> LeasesView:
    """Raises ClickException."""
    from dovetail.kube.objects.views import LEASE_LISTS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.lease_types import LeasesView

    asked = ViewRequest(LEASE_LISTS, source.namespace, query={"of": of} if of else {})
    if (answer := source.ask(asked, LeasesView)) is not None:
        return answer
    from dovetail.views.leases import all_leases
    from dovetail.views.names import JobNotFound

    cluster = source.read()
    try:
        return all_leases(cluster.state, cluster.feed.leases.objects, source.now_ms, of)
    except JobNotFound as error:
        raise click.ClickException(str(error)) from error
