# SPDX-License-Identifier: Apache-2.0
"""What the idle policy of a cluster will do, in the list of `dovetail idle`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from dovetail.cli.cluster import now_ms, run

if TYPE_CHECKING:
    from dovetail.cost.idle_pods import IdleList, IdleRow
    from dovetail.idlepolicy.foresight import Foreseen
    from dovetail.kube.api.config import ClusterConfig


def with_policy(config: ClusterConfig, answer: IdleList) -> tuple[IdleList, str]:
    """The list with what the policy will do, and why that is not known, "" if it is."""
    from dovetail.idlepolicy.foresight import AskedPod, foresee

    named = [(row.uid, *row.pod.partition("/")) for row in answer.pods]
    asked = [AskedPod(namespace, name, uid) for uid, namespace, _, name in named]
    try:
        found = run(foresee(config, asked, now_ms()), config.server)
    except click.ClickException as error:
        return answer, error.message
    rows = tuple(_row(row, found.pods.get(row.uid)) for row in answer.pods)
    return replace(answer, pods=rows, policy=found.policy), found.note


def _row(row: IdleRow, foreseen: Foreseen | None) -> IdleRow:
    if foreseen is None:
        return row
    at = datetime.fromtimestamp(foreseen.at_ms // 1000, UTC) if foreseen.at_ms else None
    return replace(row, policy=foreseen.step, policy_at=at, policy_note=foreseen.note)
