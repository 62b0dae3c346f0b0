# SPDX-License-Identifier: Apache-2.0
"""How long tests wait for what is to come."""

PATIENCE_S = 180.0
"""When it comes says more about the machine and what else runs on it than about the project: only never is a fault."""
