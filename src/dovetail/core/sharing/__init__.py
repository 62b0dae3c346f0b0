# SPDX-License-Identifier: Apache-2.0
"""Who is due what: queues, their tree, usage over time, and shares."""
