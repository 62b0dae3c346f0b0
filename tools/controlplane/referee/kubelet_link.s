// SPDX-License-Identifier: Apache-2.0

// Empty: a package with an assembly file may declare functions without a body, which kubelet_node.go links to.
