# SPDX-License-Identifier: Apache-2.0
"""The namespaces that the manifests in deploy/ use."""

SYSTEM_NAMESPACE = "dovetail-system"
"""Of the scheduler, the operator and their leases: elections in two namespaces would have two leaders."""
AGENT_NAMESPACE = "dovetail-agent"
