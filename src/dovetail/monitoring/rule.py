# SPDX-License-Identifier: Apache-2.0
"""What a rule is: a recording rule, an alert, and a group of both that is evaluated together, in order.

Also the expressions that all of them share: which labels identify a device, a job and a team, whichever exporter and
whichever spelling of `hostname` the series come from.
"""

from __future__ import annotations

from msgspec import Struct

DEVICE = (
    "hostname, gpu, UUID, pci_bus_id, modelName, GPU_I_PROFILE, GPU_I_ID, "
    "namespace, pod, container, pod_uid, vgpu, queue, job, owner"
)
"""The labels of a device and its owner. Those of a scrape (`instance`, `endpoint` ...) are not among them."""
POD = "hostname, namespace, pod, queue, job, owner"
"""The labels of a pod with GPUs."""
JOB = "namespace, queue, job, owner"
"""The labels of a job. Without the exporter's job labels `job` is the name of the pod."""


class Recording(Struct, frozen=True):
    """A recording rule: its name (`level:metric:operation`), the expression, its unit and meaning."""

    name: str
    expr: str
    meaning: str


class Alert(Struct, frozen=True):
    """An alert and its page.

    severity: `critical` (a page), `warning` (a ticket) or `info` (a message). audience: `owner` (of the job)
    or `operator`. lasts: how long the expression must hold, "" for at once. summary and description are annotations.
    meaning, check, action, clears: its page. inhibits: alerts that are noise while this one fires, for the same labels
    `equal`.
    """

    name: str
    expr: str
    severity: str
    audience: str
    summary: str
    description: str
    meaning: str
    check: str
    action: str
    clears: str
    lasts: str = ""
    inhibits: tuple[str, ...] = ()
    equal: tuple[str, ...] = ()


class RuleGroup(Struct, frozen=True):
    """Rules that are evaluated one after the other at the same time; a rule may use those before it.

    interval: how often, "" for the threshold `interval`."""

    name: str
    rules: tuple[Recording | Alert, ...]
    interval: str = ""


def device(expr: str, extra: str = "") -> str:
    """The expression with the labels of a device and its owner only, and `extra` ones.

    `hostname` has the value of `Hostname` where an exporter uses that spelling. The scrape's own `job` is replaced by
    the name of the pod where the exporter does not set queue and job.
    """
    labels = f"{DEVICE}, {extra}" if extra else DEVICE
    named = f'label_join({_hostname(expr)}, "names", ";", "queue", "job", "pod")'
    return f"""max by ({labels}) (
  label_replace(
    {named},
    "job", "$1$2", "names", "[^;]+;([^;]*);.*|;[^;]*;(.*)"
  )
)"""


def node(expr: str) -> str:
    """The maximum of the expression by node."""
    return f"max by (hostname) ({_hostname(expr)})"


def team(expr: str) -> str:
    """The sum of an expression over devices by team: the queue where it is known, else the namespace."""
    return f"""sum by (team) (
  label_replace(
    label_join({expr}, "names", ";", "queue", "namespace"),
    "team", "$1$2", "names", "([^;]+);.*|;(.*)"
  )
)"""


def _hostname(expr: str) -> str:
    return f'label_replace({expr}, "hostname", "$1", "Hostname", "(.+)")'
