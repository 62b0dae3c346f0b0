# SPDX-License-Identifier: Apache-2.0
"""The machine: its GPUs, their wiring, its NICs, and the files of the driver."""
