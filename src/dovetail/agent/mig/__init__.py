# SPDX-License-Identifier: Apache-2.0
"""Dividing the node's GPUs: from a named layout or the scheduler's decision to GPU instances, one step at a time."""
