# SPDX-License-Identifier: Apache-2.0
"""The scheduling pipeline: the queue of workloads, and the phases that each one goes through."""
