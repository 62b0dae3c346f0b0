# SPDX-License-Identifier: Apache-2.0
"""Read models: the answers that commands print, computed from a state of the core."""
