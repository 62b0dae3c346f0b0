# SPDX-License-Identifier: Apache-2.0
"""Dynamic resource allocation: the devices that claims can have on this node, and the preparation of claims."""
