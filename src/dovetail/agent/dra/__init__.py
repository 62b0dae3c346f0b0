# SPDX-License-Identifier: Apache-2.0
"""Dynamic resource allocation: what of this node is offered to claims, and what a claim's containers get."""
