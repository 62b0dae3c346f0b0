# SPDX-License-Identifier: Apache-2.0
"""Migration of manifests for other schedulers, or for old versions of Kubernetes."""
