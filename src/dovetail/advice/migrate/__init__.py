# SPDX-License-Identifier: Apache-2.0
"""Manifests that were written for other schedulers, or for a Kubernetes that is gone, as they are written today."""
