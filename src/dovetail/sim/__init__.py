# SPDX-License-Identifier: Apache-2.0
"""The simulator: it runs the scheduler's own core on traces, under a virtual clock."""
