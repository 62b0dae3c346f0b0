# SPDX-License-Identifier: Apache-2.0
"""The source dialects, one module each, in the order in which they are applied to a manifest."""

from __future__ import annotations

from dovetail.advice.migrate.dialects.cluster_policy import CLUSTER_POLICY
from dovetail.advice.migrate.dialects.coscheduling import COSCHEDULING
from dovetail.advice.migrate.dialects.dra import DRA
from dovetail.advice.migrate.dialects.hami import HAMI
from dovetail.advice.migrate.dialects.kai import KAI
from dovetail.advice.migrate.dialects.kueue import KUEUE
from dovetail.advice.migrate.dialects.retired import RETIRED
from dovetail.advice.migrate.dialects.volcano import VOLCANO
from dovetail.advice.migrate.dialects.yunikorn import YUNIKORN
from dovetail.advice.migrate.step import SourceDialect

DIALECTS: tuple[SourceDialect, ...] = (
    RETIRED,
    VOLCANO,
    COSCHEDULING,
    KUEUE,
    HAMI,
    KAI,
    YUNIKORN,
    DRA,
    CLUSTER_POLICY,
)
