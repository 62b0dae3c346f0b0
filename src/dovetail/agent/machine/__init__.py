# SPDX-License-Identifier: Apache-2.0
"""What this machine has: its GPUs, their wiring, its NICs, and the files of the driver."""
