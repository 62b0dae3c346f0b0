# SPDX-License-Identifier: Apache-2.0
"""Multi-Instance GPU: how GPUs are partitioned into instances, where these can start, and which of them a pod gets."""
