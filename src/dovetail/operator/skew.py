# SPDX-License-Identifier: Apache-2.0
"""Which versions of operator, scheduler, agents and definitions work together: a table, and what breaks it.

Rules
- A release is MAJOR.MINOR.PATCH. Patches of one minor release always work together. Before 1.0 a minor release may
  change formats, so the distance is counted in minor releases; between two major releases it is endless.
- The order of an upgrade is definitions, operator, scheduler, agents: each works with what follows it being older.
- A version that is not a release (an image by digest, `latest`) is unknown, which breaks no rule and is reported.
- Definitions of an API version that a program does not know, or that do not serve the one that it needs, fit no rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

RELEASE_ANNOTATION = "dovetail.dev/release"
"""On a definition: the release that its schema is of."""
API_VERSION = "v1alpha1"
"""The version of the kinds of dovetail.dev that this release reads and writes."""
_RELEASE = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:[-+.a-z].{0,64})?")
ENDLESS = 1_000_000


class Part(StrEnum):
    """What has a version."""

    DEFINITIONS = "definitions"
    OPERATOR = "operator"
    SCHEDULER = "scheduler"
    AGENT = "agent"


class SkewRule(Struct, frozen=True):
    """`part` may be up to `older` minor releases older than `than`, and up to `newer` newer. `why` is what breaks
    beyond that, `remedy` what to do."""

    part: Part
    than: Part
    older: int
    newer: int
    why: str
    remedy: str


SKEW = (
    SkewRule(Part.DEFINITIONS, Part.OPERATOR, 0, 1, "fields that the operator writes would be dropped",
             "apply the definitions of the newer release: dovetail install"),
    SkewRule(Part.DEFINITIONS, Part.SCHEDULER, 0, 2, "what the scheduler writes into Queues would be dropped",
             "apply the definitions of the newer release: dovetail install"),
    SkewRule(Part.DEFINITIONS, Part.AGENT, 0, 3, "what agents report in GPUNodes would be dropped",
             "apply the definitions of the newer release: dovetail install"),
    SkewRule(Part.SCHEDULER, Part.OPERATOR, 1, 0, "the operator sets options that the scheduler does not have",
             "wait until the operator has replaced it, or take spec.image out of the GPUStack"),
    SkewRule(Part.AGENT, Part.OPERATOR, 2, 0, "the operator sets options that the agent does not have",
             "let the rollout finish: spec.upgrade.paused, and the blocked nodes of dovetail status"),
    SkewRule(Part.AGENT, Part.SCHEDULER, 2, 1, "the scheduler chooses devices in a form that the agent does not know",
             "let the rollout finish: spec.upgrade.paused, and the blocked nodes of dovetail status"),
)  # fmt: skip
"""The table; docs/how-to/upgrade.md has the same."""


class SkewFinding(Struct, frozen=True):
    """Two versions that do not work together. `other` and `other_version` are what `part` was compared with."""

    part: Part
    version: str
    other: Part
    other_version: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.part} {self.version} does not work with {self.other} {self.other_version}: {self.why}"


Release = tuple[int, int, int]


def release(version: str) -> Release | None:
    """The numbers of a version; None where it is none."""
    found = _RELEASE.fullmatch(version)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


def distance(version: str, other: str) -> int | None:
    """By how many minor releases `version` is newer than `other`, negative if it is older; None if one is unknown.
    Between major releases it is ENDLESS."""
    mine, theirs = release(version), release(other)
    if mine is None or theirs is None:
        return None
    if mine[0] != theirs[0]:
        return ENDLESS if mine[0] > theirs[0] else -ENDLESS
    return mine[1] - theirs[1]


def fits(rule: SkewRule, version: str, than: str) -> bool:
    """Whether two versions of the parts of a rule work together; those that are unknown may."""
    found = distance(version, than)
    return found is None or -rule.older <= found <= rule.newer


def skew(versions: Mapping[Part, Iterable[str]]) -> Iterator[SkewFinding]:
    """The pairs that break a rule of the table. A part may run in several versions at a time, and may be absent."""
    for rule in SKEW:
        for version in sorted(set(versions.get(rule.part, ()))):
            for than in sorted(set(versions.get(rule.than, ()))):
                if not fits(rule, version, than):
                    yield SkewFinding(rule.part, version, rule.than, than, rule.why, rule.remedy)


def newer(version: str, other: str) -> bool:
    """Whether a version is of a later release than the other, patches included; False if one is unknown."""
    mine, theirs = release(version), release(other)
    return mine is not None and theirs is not None and mine > theirs
