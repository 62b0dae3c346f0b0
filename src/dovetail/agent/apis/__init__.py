# SPDX-License-Identifier: Apache-2.0
"""The kubelet's gRPC interfaces: messages of the .proto files here (`make protos` generates their Python; names and
field numbers are those of k8s.io/kubelet/pkg/apis v0.37), and functions that serve and call them."""
