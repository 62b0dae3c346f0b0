# SPDX-License-Identifier: Apache-2.0
"""Scheduling options that the scheduler shares with the commands that explain or simulate it.

The core is imported when a value is read, not when an option is declared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from dovetail.core.fabric import DEFAULT_FABRIC

if TYPE_CHECKING:
    from dovetail.core.placing.scores import Scoring
    from dovetail.core.policy import Policy

_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
F = TypeVar("F", bound=Callable[..., Any])
SCHEDULER_NAME = "dovetail"
"""The default of --scheduler-name."""


EXPECTED_FILL, TIGHTEST = "expected-fill", "tightest"
SCORINGS = {EXPECTED_FILL: EXPECTED_FILL, TIGHTEST: TIGHTEST, "dovetail": EXPECTED_FILL}
"""The policies for a live cluster: they need no list of pods in advance. `dovetail` is the default."""


class PolicyChoice(Struct, frozen=True):
    """What --fabric and --policy choose. A command that the scheduler answers compares choices, and needs no core."""

    fabric: tuple[str, ...] = DEFAULT_FABRIC
    scoring: str = EXPECTED_FILL

    def for_queries(self) -> Policy:
        """The policy of a state that answers queries."""
        from dovetail.core.policy import Policy, unhurried

        return unhurried(Policy(fabric=self.fabric, scoring=scoring_of(self.scoring)))


def scheduler_name_option(command: F) -> F:
    return click.option(
        "--scheduler-name", default=SCHEDULER_NAME, show_default=True, help="The spec.schedulerName of Dovetail's pods."
    )(command)


def fabric_option(command: F) -> F:
    return click.option(
        "--fabric",
        metavar="KEY,KEY...",
        help="Node label keys of the fabric, widest first. Default: the keys of zone, block, rack and clique.",
        callback=lambda _ctx, _param, value: _fabric(value),
    )(command)


def policy_option(command: F) -> F:
    return click.option(
        "--policy",
        "scoring",
        type=click.Choice(tuple(SCORINGS)),
        default=EXPECTED_FILL,
        show_default=True,
        help="Scoring policy: which of the nodes that fit is chosen, as in `dovetail simulate`.",
        callback=lambda _ctx, _param, value: SCORINGS[value],
    )(command)


def quarantine_budget_option(text: str, default: str | None = None) -> Callable[[F], F]:
    """The option `--quarantine-budget`, checked; its value is the text, "" without option and default."""
    return click.option(
        "--quarantine-budget",
        "budget",
        metavar="N|N%",
        default=default,
        show_default=default is not None,
        callback=lambda _ctx, _param, value: _budget(value),
        help=text,
    )


def scoring_of(name: str) -> Scoring:
    """The scoring of a policy of SCORINGS."""
    from dovetail.core.placing.expected_fill import ExpectedFill
    from dovetail.core.placing.scores import Tightest

    return Tightest() if name == TIGHTEST else ExpectedFill()


def _budget(text: str | None) -> str:
    if text is None:
        return ""
    from dovetail.core.policy import Policy
    from dovetail.kube.translate.quarantine_budget import with_budget

    try:
        with_budget(Policy(), text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return text


def _fabric(value: str | None) -> tuple[str, ...]:
    if value is None:
        return DEFAULT_FABRIC
    keys = tuple(key.strip() for key in value.split(","))
    if not all(map(_LABEL_KEY.fullmatch, keys)) or len(set(keys)) != len(keys):
        raise click.BadParameter("must be different label keys such as example.com/rack, separated by commas")
    return keys
