# SPDX-License-Identifier: Apache-2.0
"""CUDA MPS: what is shared, the keeper with its control daemons, and what containers get that share."""
