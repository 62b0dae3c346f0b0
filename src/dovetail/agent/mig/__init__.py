# SPDX-License-Identifier: Apache-2.0
"""MIG on this node: a named layout or a decision of the scheduler becomes GPU instances, one step at a time."""
