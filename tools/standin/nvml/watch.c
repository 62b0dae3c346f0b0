// SPDX-License-Identifier: Apache-2.0
// What happens to a GPU, and who uses it: events, health, telemetry, processes, modes.

#include "nvml.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SETS = 32 };

struct event_set {
    int used;
    unsigned next;
    uint64_t types[MOST_GPUS];
    unsigned since[MOST_GPUS];
};

static struct event_set sets[SETS];

void forget_event_sets(void) {
    memset(sets, 0, sizeof sets);
}

int held(const struct gpu *gpu, unsigned gi, unsigned ci) {
    for (const struct process *p = gpu->process; p < gpu->process + MOST_PROCESSES; p++)
        if (p->used && (gi == NONE || p->gi == gi) && (ci == NONE || p->ci == ci || p->ci == NONE))
            return 1;
    return 0;
}

uint64_t used_mib(const struct gpu *gpu, unsigned gi) {
    uint64_t sum = gi == NONE ? gpu->used_mib : 0;
    for (const struct process *p = gpu->process; p < gpu->process + MOST_PROCESSES; p++)
        if (p->used && (gi == NONE || p->gi == gi))
            sum += p->memory_mib;
    return sum;
}

API nvmlEventSetCreate(void **out) {
    ENTER(NULL, 0);
    NEED(out);
    for (struct event_set *set = sets; set < sets + SETS; set++)
        if (!set->used) {
            *set = (struct event_set){.used = 1, .next = host->events_told};
            *out = set;
            return SUCCESS;
        }
    return INSUFFICIENT_RESOURCES;
}

static int is_set(const struct event_set *set) {
    return set >= sets && set < sets + SETS && set->used;
}

enum { SUPPORTED_EVENTS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 };

API nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *out) {
    ENTER(device, GPU);
    NEED(out);
    *out = SUPPORTED_EVENTS;
    return SUCCESS;
}

API nvmlDeviceRegisterEvents(void *device, unsigned long long types, struct event_set *set) {
    ENTER(device, GPU);
    NEED(is_set(set) && types);
    if (types & ~(unsigned long long)SUPPORTED_EVENTS)
        return NOT_SUPPORTED;
    if (!set->types[in.g])
        set->since[in.g] = host->events_told;
    set->types[in.g] |= types;
    return SUCCESS;
}

struct event_data {
    void *device;
    unsigned long long type, data;
    unsigned gi, ci;
};

API nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned timeout_ms) {
    ENTER(NULL, 0);
    NEED(out);
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += timeout_ms % 1000 * 1000000l;
    for (;;) {
        if (!opened)
            return UNINITIALIZED;
        NEED(is_set(set));
        if (host->events_told - set->next > EVENTS)
            set->next = host->events_told - EVENTS;
        while (set->next != host->events_told) {
            unsigned number = set->next++;
            struct event *e = &host->event[number % EVENTS];
            if (!(set->types[e->gpu] & e->type) || (int)(number - set->since[e->gpu]) < 0)
                continue;
            *out = (struct event_data){handle(GPU, e->gpu, 0, 0), e->type, e->data, e->gi, e->ci};
            return SUCCESS;
        }
        for (unsigned g = 0; g < host->gpu_count; g++)
            if (set->types[g] && (host->gpu[g].lost || host->gpu[g].gone))
                return GPU_IS_LOST;
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long left_ns = (end.tv_sec - now.tv_sec) * 1000000000ll + end.tv_nsec - now.tv_nsec;
        if (left_ns <= 0)
            return TIMEOUT;
        struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
        struct host *mapped = host;
        unsigned changes = mapped->changes;
        unlock();
        syscall(SYS_futex, &mapped->changes, FUTEX_WAIT, changes, &left, NULL, 0);
        lock();
    }
}

API nvmlEventSetFree(struct event_set *set) {
    ENTER(NULL, 0);
    NEED(is_set(set));
    set->used = 0;
    wake(&host->changes);
    return SUCCESS;
}

API nvmlDeviceGetTotalEccErrors(void *device, unsigned error, unsigned counter, unsigned long long *out) {
    ENTER(device, GPU);
    NEED(out && error < 2 && counter < 2);
    *out = gpu->ecc[error * 2 + counter];
    return SUCCESS;
}

API nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending) {
    ENTER(device, GPU);
    NEED(current && pending);
    *current = *pending = 1;
    return SUCCESS;
}

API nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    ENTER(device, GPU);
    NEED(corrected && uncorrected && pending && failed);
    if (gpu->cc_major < 8)
        return NOT_SUPPORTED;
    *corrected = gpu->rows_corrected;
    *uncorrected = gpu->rows_uncorrected;
    *pending = gpu->rows_pending;
    *failed = gpu->rows_failed;
    return SUCCESS;
}

struct utilization {
    unsigned gpu, memory;
};

API nvmlDeviceGetUtilizationRates(void *device, struct utilization *out) {
    ENTER(device, GPU);
    NEED(out);
    if (gpu->mig_mode)
        return NOT_SUPPORTED;
    *out = (struct utilization){gpu->utilization, gpu->memory_utilization};
    return SUCCESS;
}

NUMBER(nvmlDeviceGetPowerUsage, gpu->power_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPcieReplayCounter, gpu->pcie_replays)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, gpu->pcie_gen)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, gpu->pcie_gen)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, gpu->pcie_width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, gpu->pcie_width)
NUMBER(nvmlDeviceGetComputeMode, gpu->compute_mode)
NUMBER(nvmlDeviceGetPersistenceMode, gpu->persistence)

API nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *out) {
    ENTER(device, GPU);
    NEED(out);
    *out = gpu->energy_mj;
    return SUCCESS;
}

API nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out) {
    ENTER(device, GPU);
    NEED(out && !sensor);
    *out = gpu->temperature_c;
    return SUCCESS;
}

static int clock_of(const struct gpu *gpu, unsigned type, unsigned *out) {
    enum { MEMORY_CLOCK = 2, CLOCKS = 4 };
    NEED(out && type < CLOCKS);
    *out = type == MEMORY_CLOCK ? gpu->memory_clock_mhz : gpu->sm_clock_mhz;
    return SUCCESS;
}

API nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *out) {
    ENTER(device, GPU);
    return clock_of(gpu, type, out);
}

API nvmlDeviceGetMaxClockInfo(void *device, unsigned type, unsigned *out) {
    ENTER(device, GPU);
    return clock_of(gpu, type, out);
}

API nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *out) {
    ENTER(device, GPU);
    NEED(out);
    *out = gpu->clock_reasons;
    return SUCCESS;
}

API nvmlDeviceSetComputeMode(void *device, unsigned mode) {
    enum { EXCLUSIVE_THREAD = 1, COMPUTE_MODES = 4 };
    ENTER(device, GPU);
    NEED(mode < COMPUTE_MODES);
    if (mode == EXCLUSIVE_THREAD || gpu->mig_mode)
        return NOT_SUPPORTED;
    gpu->compute_mode = mode;
    return SUCCESS;
}

API nvmlDeviceSetPersistenceMode(void *device, unsigned mode) {
    ENTER(device, GPU);
    NEED(mode < 2);
    gpu->persistence = mode;
    return SUCCESS;
}

struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned gi, ci;
};

static int processes(const struct entered *in, unsigned mps, unsigned *count, struct process_info *out) {
    NEED(count);
    unsigned room = *count;
    *count = 0;
    for (struct process *p = in->gpu->process; p < in->gpu->process + MOST_PROCESSES; p++) {
        if (!p->used || p->mps != mps)
            continue;
        if (in->kind == MIG && (p->gi != in->gi || (p->ci != in->ci && p->ci != NONE)))
            continue;
        if (out && *count < room)
            out[*count] = (struct process_info){p->pid, p->memory_mib * MIB, p->gi, p->ci};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(name, mps)                                               \
    API name(void *device, unsigned *count, struct process_info *out) {    \
        ENTER(device, GPU | MIG);                                          \
        return processes(&in, mps, count, out);                            \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 0)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 0)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 1)
// No process draws: kind 2 is nobody's.
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 2)

UNSUPPORTED(nvmlDeviceGetEncoderUtilization)
UNSUPPORTED(nvmlDeviceGetDecoderUtilization)
UNSUPPORTED(nvmlDeviceGetPcieThroughput)
UNSUPPORTED(nvmlDeviceGetSamples)
UNSUPPORTED(nvmlDeviceGetProcessUtilization)
UNSUPPORTED(nvmlDeviceGetProcessesUtilizationInfo)
UNSUPPORTED(nvmlDeviceGetAccountingMode)
UNSUPPORTED(nvmlDeviceSetAccountingMode)
UNSUPPORTED(nvmlDeviceGetAccountingBufferSize)
UNSUPPORTED(nvmlDeviceGetAccountingPids)
UNSUPPORTED(nvmlDeviceGetAccountingStats)
UNSUPPORTED(nvmlDeviceGetViolationStatus)
UNSUPPORTED(nvmlGpmQueryDeviceSupport)
UNSUPPORTED(nvmlGpmSampleGet)
UNSUPPORTED(nvmlGpmMigSampleGet)
UNSUPPORTED_ANYWHERE(nvmlGpmSampleAlloc)
UNSUPPORTED_ANYWHERE(nvmlGpmSampleFree)
UNSUPPORTED_ANYWHERE(nvmlGpmMetricsGet)
