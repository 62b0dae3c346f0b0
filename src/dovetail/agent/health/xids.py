# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's XID errors: the name and the remedy of each, and which ones count.

Rules: the table is NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors, sheet "Catalog", as of October 2025),
with its resolutions reduced to four remedies. A workflow of the catalogue maps to its last step, for the case that
nothing milder helps. An XID that is not in the table belongs to a newer driver or is unused, and counts as RESET.

The ignored XIDs are those of NVIDIA's device plugin, with its two environment variables. DP_DISABLE_HEALTHCHECKS lists
XIDs to ignore, besides 13, 31, 43, 45, 68 and 109; `xids` ignores all XIDs and ECC errors, `all` disables every check.
DP_ENABLE_HEALTHCHECKS lists XIDs that count anyway, or `all`; it takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from msgspec import Struct

DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE = "DP_ENABLE_HEALTHCHECKS"
IGNORED = frozenset({13, 31, 43, 45, 68, 109})
"""The errors that applications cause, as in NVIDIA's device plugin."""

BY_DRIVER = 154
"""Not an error, but the notice that the driver's recommended recovery action has changed: the driver is queried."""


class Remedy(IntEnum):
    """The action that is needed before the GPU can be allocated again, mildest first."""

    NONE = 0
    APPLICATION = 1
    RESET = 2
    REBOOT = 3

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Remedy.NONE: "nothing has to be done",
    Remedy.APPLICATION: "restart the application; the GPU is offered again when no pod holds it",
    Remedy.RESET: "reset the GPU (nvidia-smi --gpu-reset, with nothing using it), load the driver anew, or reboot",
    Remedy.REBOOT: "reboot the node; if it comes back, have the hardware checked",
}

_TABLE: tuple[tuple[Remedy, str, Iterable[int]], ...] = (
    (Remedy.NONE, "driver firmware error", (37,)),
    (Remedy.NONE, "firmware watchdog", (38,)),
    (Remedy.NONE, "an application's channel was stopped", (43,)),
    (Remedy.NONE, "fault while contexts were switched", (44,)),
    (Remedy.NONE, "clean-up after another error", (45,)),
    (Remedy.NONE, "a memory row was remapped, or a page retired", (63,)),
    (Remedy.NONE, "illegal access by the driver", (66, 67)),
    (Remedy.NONE, "many single-bit ECC errors, all corrected", (92,)),
    (Remedy.NONE, "InfoROM is worn", (93,)),
    (Remedy.NONE, "test message", (14, 106, 107)),
    (Remedy.NONE, "NVLink address translation or privilege error", (108, 137)),
    (Remedy.NONE, "C2C link error", (121,)),
    (Remedy.NONE, "CUDA fast path error", (141,)),
    (Remedy.NONE, "DLA error", (152, 153)),
    (Remedy.NONE, "resources or channels could not be retired", (157, 160, 161)),
    (Remedy.NONE, "power smoothing changed", (162, 163, 164, 165)),
    (Remedy.NONE, "a vGPU could not be started", (78,)),
    (Remedy.APPLICATION, "GPU stopped processing", (8,)),
    (Remedy.APPLICATION, "corrupted or illegal commands were submitted", (11, 25, 32, 80)),
    (Remedy.APPLICATION, "graphics engine exception", (13, 69)),
    (Remedy.APPLICATION, "GPU memory page fault", (31,)),
    (Remedy.APPLICATION, "copy engine exception", (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))),
    (Remedy.APPLICATION, "video, image or optical flow engine exception", (60, 68, 82, 83, 84, 86, 88, 89)),
    (Remedy.APPLICATION, "video, image or optical flow engine exception", (*range(96, 106), 139, 142)),
    (Remedy.APPLICATION, "contained memory error", (94,)),
    (Remedy.APPLICATION, "error on the CPU's side of the link (CHI)", (159,)),
    (Remedy.RESET, "GPU timeout", (46,)),
    (Remedy.RESET, "double-bit ECC error", (48,)),
    (Remedy.RESET, "micro-controller halt", (62, 169)),
    (Remedy.RESET, "a memory row could not be remapped, or a page not retired", (64,)),
    (Remedy.RESET, "NVLink error", (74, 136, *range(144, 151), 155, 166, 170)),
    (Remedy.RESET, "uncontained memory error", (95,)),
    (Remedy.RESET, "context switch timeout", (109,)),
    (Remedy.RESET, "security fault", (110,)),
    (Remedy.RESET, "the GPU's own processor (GSP) does not answer or failed", (119, 120)),
    (Remedy.RESET, "ECC error that was not recovered", (140, 171, 172)),
    (Remedy.RESET, "GPU could not be initialised", (143,)),
    (Remedy.RESET, "a resource of the GPU was retired", (156,)),
    (Remedy.RESET, "GPU fatal timeout", (158,)),
    (Remedy.RESET, "PCIe fatal timeout", (167,)),
    (Remedy.RESET, "errors in protected memory", (168,)),
    (Remedy.REBOOT, "auxiliary power is not connected", (54,)),
    (Remedy.REBOOT, "fallen off the bus", (79,)),
    (Remedy.REBOOT, "key rotation failed", (151,)),
)
XIDS = {xid: (remedy, name) for remedy, name, xids in _TABLE for xid in xids}


def meaning(xid: int) -> tuple[Remedy, str]:
    """The remedy of an XID, and its name."""
    return XIDS.get(xid, (Remedy.RESET, "an error that this release does not know"))


class WatchedError(ValueError):
    """One of the two variables is invalid; the text names it, its value, and the valid values."""


class Watched(Struct, frozen=True):
    """Which errors count. `none`: no health checks at all. `events`: ECC errors count, and XIDs that are not in
    `ignored`; without it only the XIDs in `enabled` count, and ECC errors do not."""

    none: bool = False
    events: bool = True
    ignored: frozenset[int] = IGNORED
    enabled: frozenset[int] = frozenset()

    def counts(self, xid: int) -> bool:
        return xid in self.enabled or (self.events and xid not in self.ignored)

    def makes_unhealthy(self, xid: int | None) -> bool:
        """Whether this XID, or a double-bit ECC error (None), makes a GPU unhealthy."""
        if self.none:
            return False
        if xid is None:
            return self.events
        return xid in self.enabled or (self.counts(xid) and meaning(xid)[0] != Remedy.NONE)


def watched(variables: Mapping[str, str]) -> Watched:
    """The errors that count according to the two variables (see above). Raises WatchedError."""
    disabled, off = _listed(DISABLE, variables)
    enabled, on = _listed(ENABLE, variables)
    return Watched(
        none="all" in off and not enabled and not on,
        events=bool(on) or not off,
        ignored=frozenset() if on else IGNORED | disabled,
        enabled=enabled,
    )


def _listed(variable: str, variables: Mapping[str, str]) -> tuple[frozenset[int], set[str]]:
    """The XIDs and the keywords in a variable."""
    items = [item.strip().lower() for item in variables.get(variable, "").split(",") if item.strip()]
    words = {item for item in items if item in ("all", "xids")}
    for item in items:
        if item not in words and not (item.isdecimal() and item.isascii()):
            raise WatchedError(f"{variable}: {item!r} is neither the number of an XID nor `all` or `xids`")
    return frozenset(int(item) for item in items if item not in words), words
