# SPDX-License-Identifier: Apache-2.0
"""Room that is held for workloads that do not fit yet, and backfill beside it."""
