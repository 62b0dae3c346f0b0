// SPDX-License-Identifier: Apache-2.0
// Which calls require a privileged user, and whether the process is one.
//
// NVML documents it call by call (nvml.h 12.2: "Requires privileged user", "Requires root user"). A process with
// CAP_SYS_ADMIN is privileged, and one that may open the node of the kernel's capability: mig/config to change MIG
// instances, mig/monitor to read them all (open-gpu-kernel-modules: rmclientIsCapableOrAdmin, NV_RM_CAP_SYS_SMC_CONFIG
// and _MONITOR). MIG mode and the compute mode require CAP_SYS_ADMIN. On a node the container decides the rights; here a variable does.

#include "nvml.h"

#include <stdlib.h>
#include <string.h>

enum { NONE_NEEDED, MONITOR, CONFIG, ADMIN };

static const struct {
    const char *call;
    int needs;
} table[] = {
    {"nvmlDeviceSetMigMode", ADMIN},
    {"nvmlDeviceSetComputeMode", ADMIN},
    {"nvmlDeviceSetPersistenceMode", ADMIN},
    {"nvmlDeviceCreateGpuInstance", CONFIG},
    {"nvmlDeviceCreateGpuInstanceWithPlacement", CONFIG},
    {"nvmlGpuInstanceDestroy", CONFIG},
    {"nvmlGpuInstanceCreateComputeInstance", CONFIG},
    {"nvmlGpuInstanceCreateComputeInstanceWithPlacement", CONFIG},
    {"nvmlComputeInstanceDestroy", CONFIG},
    {"nvmlDeviceGetGpuInstancePossiblePlacements_v2", MONITOR},
    {"nvmlDeviceGetGpuInstanceRemainingCapacity", MONITOR},
    {"nvmlDeviceGetGpuInstances", MONITOR},
    {"nvmlDeviceGetGpuInstanceById", MONITOR},
    {"nvmlGpuInstanceGetComputeInstanceRemainingCapacity", MONITOR},
    {"nvmlGpuInstanceGetComputeInstancePossiblePlacements", MONITOR},
    {"nvmlGpuInstanceGetComputeInstances", MONITOR},
    {"nvmlGpuInstanceGetComputeInstanceById", MONITOR},
};

// "In MIG mode, if device handle is provided, the API returns aggregate information, only if the caller has appropriate
// privileges" (nvml.h): what the instances of others have must not be seen in the sum.
static const char *const sums[] = {
    "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetRunningProcessDetailList",
};

// $DOVETAIL_STANDIN_RIGHTS: none, monitor, config or admin; without it the process is root on the host.
static int rights(void) {
    const char *value = getenv("DOVETAIL_STANDIN_RIGHTS");
    if (!value || !*value || !strcmp(value, "admin"))
        return ADMIN;
    return !strcmp(value, "config") ? CONFIG : !strcmp(value, "monitor") ? MONITOR : NONE_NEEDED;
}

int permitted(const char *call, int divided) {
    for (unsigned i = 0; divided && i < sizeof sums / sizeof *sums; i++)
        if (!strcmp(sums[i], call))
            return rights() >= MONITOR;
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].call, call))
            return rights() >= table[i].needs;
    return 1;
}
