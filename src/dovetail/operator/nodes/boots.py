# SPDX-License-Identifier: Apache-2.0
"""Whether a node reboots in a loop, by its last boots. Pure.

The boots are part of the readiness in the GPUNode, so that the next leader counts on. They change with a boot, and with
nothing else.
"""

from __future__ import annotations

from datetime import datetime

from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.topology import NodeBoots

_REBOOTS, _REBOOT_WINDOW_MS, _CALM_MS = 3, 3_600_000, 1_800_000


def boots_now(before: NodeBoots | None, boot: str, now: datetime) -> NodeBoots | None:
    """The boots of a node whose present one is `boot`, "" where its kubelet reports none."""
    if not boot or (before is not None and before.id == boot):
        return before
    if before is None or not before.id:
        return NodeBoots(boot)
    return NodeBoots(boot, (*before.seen, now.replace(microsecond=0))[-_REBOOTS:])


def reboots_in_a_loop(boots: NodeBoots | None, now_ms: int) -> bool:
    """Whether it has booted three times within an hour, and not been calm for half an hour since."""
    if boots is None or len(boots.seen) < _REBOOTS:
        return False
    first_ms, last_ms = epoch_ms(boots.seen[-_REBOOTS]), epoch_ms(boots.seen[-1])
    return now_ms - last_ms < _CALM_MS and last_ms - first_ms <= _REBOOT_WINDOW_MS
