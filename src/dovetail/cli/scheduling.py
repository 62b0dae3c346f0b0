# SPDX-License-Identifier: Apache-2.0
"""Options of how is scheduled, which the scheduler and what looks at it or simulates it share.

It imports little, as the scheduler should start fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.placing.scores import Scoring, Tightest
from dovetail.core.policy import Policy

_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
F = TypeVar("F", bound=Callable[..., Any])


SCORINGS: dict[str, Scoring] = {"expected-fill": ExpectedFill(), "tightest": Tightest(), "dovetail": ExpectedFill()}
"""Policies of a live cluster: those that learn, if at all, from the pods that came. `dovetail` is the default."""


def scheduler_name_option(command: F) -> F:
    return click.option(
        "--scheduler-name", default="dovetail", show_default=True, help="The spec.schedulerName that is ours."
    )(command)


def fabric_option(command: F) -> F:
    return click.option(
        "--fabric",
        metavar="KEY,KEY...",
        help="Node label keys of the fabric from the widest to the narrowest. Default: zone, block, rack, clique keys.",
        callback=lambda _ctx, _param, value: _fabric(value),
    )(command)


def policy_option(command: F) -> F:
    return click.option(
        "--policy",
        "scoring",
        type=click.Choice(list(SCORINGS)),
        default="expected-fill",
        show_default=True,
        help="How a node is chosen among those that fit, as in `dovetail simulate`.",
        callback=lambda _ctx, _param, value: SCORINGS[value],
    )(command)


def _fabric(value: str | None) -> tuple[str, ...]:
    if value is None:
        return Policy().fabric
    keys = tuple(key.strip() for key in value.split(","))
    if not all(map(_LABEL_KEY.fullmatch, keys)) or len(set(keys)) != len(keys):
        raise click.BadParameter("needs different label keys such as example.com/rack, separated by commas")
    return keys
