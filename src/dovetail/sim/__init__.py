# SPDX-License-Identifier: Apache-2.0
"""The simulator: the same core, driven by traces under a virtual clock."""
