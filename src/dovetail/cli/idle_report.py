# SPDX-License-Identifier: Apache-2.0
"""What `dovetail idle` prints below its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.cli.output import count, foreign
from dovetail.cost.idle_notes import cents
from dovetail.views.names import some

if TYPE_CHECKING:
    from dovetail.cli.console import Console
    from dovetail.cost.idle_pods import IdleList

_HOUR_S = 3600


def notes(answer: IdleList, not_known: str, console: Console) -> None:
    """Print the sums, where the prices are from, and of which pods nothing is known. `not_known`: why it is not
    known what the idle policy will do."""
    at = f"As of {answer.now:%Y-%m-%d %H:%M} UTC"
    if not answer.pods:
        console.print(f"{at} no pod that is measured holds GPUs without using them.")
    else:
        cost = ""
        if answer.price_date:
            # The sum of what the rows show, to the cent.
            money = sum(map(cents, answer.pods)) / 100
            cost = f", {money:,.2f} {answer.currency} at prices of {answer.price_date}"
        unpriced = sum(row.cost_micro is None for row in answer.pods)
        if unpriced:
            cost += f"; without {count(unpriced, 'pod')} of which no price is known (dovetail cost names the GPUs)"
        console.print(f"{at}: {answer.gpu_s / _HOUR_S:,.1f} GPU-hours held and not used{cost}.")
    if answer.elsewhere:
        hours = f"{answer.elsewhere_gpu_s / _HOUR_S:,.1f}"
        console.print(f"Other namespaces have {count(answer.elsewhere, 'idle pod')}, with {hours} GPU-hours.")
    if answer.not_measured:
        names = foreign(some(answer.not_measured))
        pods = count(len(answer.not_measured), "more pod" if answer.pods else "pod")
        console.print(f"The use of {pods} is not measured: {names}.")
    if not_known and answer.pods:
        console.print(f"What the idle policy will do is not known: {not_known}")
    elif answer.policy == "off" and answer.pods:
        console.print(
            "No idle policy is installed: nothing becomes of these pods by itself (spec.idle of the GPUStack)."
        )
