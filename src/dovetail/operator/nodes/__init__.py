# SPDX-License-Identifier: Apache-2.0
"""The walk of each GPU node to validated: driver, runtime, agent, devices, labels, validated.

The walk itself is pure (`walk`, `blockers`, `validation`, `startup_taint`, from `facts`); `walks.NodeWalks` follows the
objects and writes.
"""

from dovetail.operator.nodes.walks import NodeWalks

__all__ = ["NodeWalks"]
