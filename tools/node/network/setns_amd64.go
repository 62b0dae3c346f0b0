// SPDX-License-Identifier: Apache-2.0

package main

// The number of the system call, which the frozen package syscall lacks.
const sysSetns = 308
