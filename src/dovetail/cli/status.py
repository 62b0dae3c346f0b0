# SPDX-License-Identifier: Apache-2.0
"""`dovetail status`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import now_ms, run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import INCOMPLETE
from dovetail.cli.snapshots import facts_in, snapshot_option
from dovetail.operator.skew import Part, skew

if TYPE_CHECKING:
    from dovetail.kube.api.config import ClusterConfig
    from dovetail.views.installation import InstallationFacts
    from dovetail.views.status import SkewProblem, StatusView


@click.command(name="status")
@snapshot_option
@kubeconfig_options
@answer_option
def command(kubeconfig: str | None, context: str | None, files: tuple[str, ...], form: AnswerForm) -> None:
    """Show the installation on one screen: what runs, versions, leaders, rollout, what is broken, and the next step.

    Only lists objects. Exit code 0: healthy. 1: something is broken. 3: nothing is known to be broken, but some objects
    could not be read.
    """
    from dovetail.cli.status_report import show

    if files:
        from dovetail.views.installation import InstallationFacts
        from dovetail.views.status import status

        record, facts = facts_in(files, "status", InstallationFacts, kubeconfig=kubeconfig, context=context)
        now = record.taken_ms
        view = status(facts, now, skews)
    else:
        config = config_of(kubeconfig, context)
        now = now_ms()
        view = run(read_status(config, now), config.server)
    if form.whole:
        write_answer(form, "Status", view)
    else:
        show(view, now, Console())
    if view.problems:
        sys.exit(1)
    if view.unread:
        sys.exit(INCOMPLETE)


async def read_status(config: ClusterConfig, now: int) -> StatusView:
    """The status of the installation in a cluster. Raises KubeError."""
    from dovetail.views.status import status

    return status(await read_installation(config), now, skews)


async def read_installation(config: ClusterConfig) -> InstallationFacts:
    """The objects of the installation in a cluster. Raises KubeError."""
    from dovetail.kube.reading.lists import read_lists
    from dovetail.views.installation import facts_of, requests

    return facts_of(await read_lists(config, requests()))


def skews(versions: Mapping[str, Iterable[str]]) -> Iterator[SkewProblem]:
    """The versions that do not work together."""
    from dovetail.views.status import SkewProblem

    for one in skew({Part(part): found for part, found in versions.items()}):
        yield SkewProblem(str(one), one.remedy)
