// SPDX-License-Identifier: Apache-2.0
// The processes on a GPU, their memory and utilization.

#include "nvml.h"

enum { COMPUTE, GRAPHICS, MPS, ALL, MODES };
enum { SAMPLE_US = 166667 };

int held(const struct gpu *gpu, unsigned gi, unsigned ci) {
    for (const struct process *p = gpu->process; p < gpu->process + MOST_PROCESSES; p++)
        if (p->used && (gi == NONE || p->gi == gi) && (ci == NONE || p->ci == ci || p->ci == NONE))
            return 1;
    return 0;
}

uint64_t used_mib(const struct gpu *gpu, unsigned gi) {
    uint64_t sum = gi == NONE ? gpu->used_mib : 0;
    for (const struct process *p = gpu->process; p < gpu->process + MOST_PROCESSES; p++)
        if (p->used && (gi == NONE || p->gi == gi) && p->memory_mib != NOT_AVAILABLE)
            sum += p->memory_mib;
    return sum;
}

static uint64_t memory_of(const struct process *p) {
    return p->memory_mib == NOT_AVAILABLE ? NOT_AVAILABLE : p->memory_mib * MIB;
}

static int listed(const struct entered *in, const struct process *p, unsigned mode) {
    if (!p->used || (mode != ALL && p->mode != mode))
        return 0;
    return in->kind != MIG || (p->gi == in->gi && (p->ci == in->ci || p->ci == NONE));
}

struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned gi, ci;
};

static int processes(const struct entered *in, unsigned mode, unsigned *count, struct process_info *out) {
    NEED(count);
    unsigned room = *count;
    *count = 0;
    for (struct process *p = in->gpu->process; p < in->gpu->process + MOST_PROCESSES; p++) {
        if (!listed(in, p, mode))
            continue;
        if (out && *count < room)
            out[*count] = (struct process_info){p->pid, memory_of(p), p->gi, p->ci};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(name, mode)                                              \
    API name(void *device, unsigned *count, struct process_info *out) {    \
        ENTER(device, GPU | MIG);                                          \
        return processes(&in, mode, count, out);                           \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS)

struct process_detail {
    unsigned pid;
    unsigned long long memory;
    unsigned gi, ci;
    unsigned long long protected_memory;
};
struct process_details {
    unsigned version, mode, count;
    struct process_detail *out;
};

API nvmlDeviceGetRunningProcessDetailList(void *device, struct process_details *list) {
    ENTER(device, GPU | MIG);
    NEED(list);
    if (list->version != VERSION(*list, 1))
        return VERSION_MISMATCH;
    NEED(list->mode < MODES);
    unsigned room = list->out ? list->count : 0;
    list->count = 0;
    for (struct process *p = gpu->process; p < gpu->process + MOST_PROCESSES; p++)
        if (listed(&in, p, list->mode)) {
            if (list->count < room)
                list->out[list->count] = (struct process_detail){p->pid, memory_of(p), p->gi, p->ci, NOT_AVAILABLE};
            list->count++;
        }
    return list->count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

// ---- Utilization by process. The driver has samples of processes that did something, and none of a divided GPU.

struct process_sample {
    unsigned pid;
    unsigned long long timestamp_us;
    unsigned sm, memory, encoder, decoder;
};
struct process_sample_v1 {
    unsigned long long timestamp_us;
    unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
};

static int did_something(const struct process *p) {
    return p->used && (p->sm || p->memory || p->encoder || p->decoder);
}

static unsigned active(const struct gpu *gpu) {
    unsigned count = 0;
    for (const struct process *p = gpu->process; p < gpu->process + MOST_PROCESSES; p++)
        count += did_something(p);
    return count;
}

static uint64_t sampled_us(void) {
    uint64_t now = real_us();
    return now - now % SAMPLE_US;
}

API nvmlDeviceGetProcessUtilization(void *device, struct process_sample *out, unsigned *count,
                                    unsigned long long last_seen_us) {
    ENTER(device, GPU);
    NEED(count);
    if (gpu->mig_mode)
        return NOT_SUPPORTED;
    uint64_t at = sampled_us();
    unsigned room = out ? *count : 0;
    *count = at > last_seen_us ? active(gpu) : 0;
    if (!*count)
        return NOT_FOUND;
    if (room < *count)
        return INSUFFICIENT_SIZE;
    for (const struct process *p = gpu->process; p < gpu->process + MOST_PROCESSES; p++)
        if (did_something(p))
            *out++ = (struct process_sample){p->pid, at, p->sm, p->memory, p->encoder, p->decoder};
    return SUCCESS;
}

struct process_samples {
    unsigned version, count;
    unsigned long long last_seen_us;
    struct process_sample_v1 *out;
};

API nvmlDeviceGetProcessesUtilizationInfo(void *device, struct process_samples *list) {
    ENTER(device, GPU);
    NEED(list);
    if (list->version != VERSION(*list, 1))
        return VERSION_MISMATCH;
    if (gpu->mig_mode)
        return NOT_SUPPORTED;
    uint64_t at = sampled_us();
    unsigned room = list->out ? list->count : 0;
    list->count = at > list->last_seen_us ? active(gpu) : 0;
    if (!list->count)
        return NOT_FOUND;
    if (room < list->count)
        return INSUFFICIENT_SIZE;
    struct process_sample_v1 *out = list->out;
    for (const struct process *p = gpu->process; p < gpu->process + MOST_PROCESSES; p++)
        if (did_something(p))
            *out++ = (struct process_sample_v1){at, p->pid, p->sm, p->memory, p->encoder, p->decoder, 0, 0};
    return SUCCESS;
}

UNSUPPORTED(nvmlDeviceGetAccountingMode)
UNSUPPORTED(nvmlDeviceSetAccountingMode)
UNSUPPORTED(nvmlDeviceGetAccountingBufferSize)
UNSUPPORTED(nvmlDeviceGetAccountingPids)
UNSUPPORTED(nvmlDeviceGetAccountingStats)
