# SPDX-License-Identifier: Apache-2.0
"""The policies that are compared, by name."""

from __future__ import annotations

from dovetail.sim.agents.divided import MaxMin
from dovetail.sim.agents.karma import KarmaQuanta
from dovetail.sim.agents.leased import Leased
from dovetail.sim.agents.queued import first_come_first_served, static_shares
from dovetail.sim.agents.world import MakePolicy

SHARING: dict[str, MakePolicy] = {
    "static": static_shares,
    "fifo": first_come_first_served,
    "max-min": MaxMin,
    "karma": KarmaQuanta,
    "leases": Leased,
}
"""The maker of each policy."""
