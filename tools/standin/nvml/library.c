// SPDX-License-Identifier: Apache-2.0
// Opening the library: what handles stand for, versions, and finding GPUs.

#include "nvml.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int opened;
// Whether the GPUs were found since the library was opened: the first of several that open it at once may be slow.
static int listed;
// The load of the driver in which the library was opened.
static unsigned loads;
unsigned order[MOST_GPUS], order_count;

void leave(struct entered *in) {
    (void)in;
    unlock();
}

void *handle(unsigned kind, unsigned g, unsigned gi, unsigned ci) {
    return (void *)((uintptr_t)0x5D << 40 | (uintptr_t)kind << 32 | g << 16 | gi << 8 | ci);
}

// A call for GPU g, or for none: what faults do to it, and whether the library is open.
int fault(const char *call, unsigned g, int all) {
    int code = injected(call, g, all);
    if (code || !opened)
        return code ? code : UNINITIALIZED;
    // The files of a driver that is no longer loaded are closed, also for a process that had them open.
    return loads == host->loads ? SUCCESS : UNKNOWN;
}

int decode(void *handle, unsigned kinds, struct entered *in) {
    uintptr_t value = (uintptr_t)handle;
    in->kind = value >> 32 & 0xFF;
    in->g = value >> 16 & 0xFFFF;
    in->gi = value >> 8 & 0xFF;
    in->ci = value & 0xFF;
    if (value >> 40 != 0x5D || !(in->kind & kinds) || in->g >= host->gpu_count)
        return INVALID_ARGUMENT;
    in->gpu = &host->gpu[in->g];
    if (in->gpu->lost || in->gpu->gone)
        return GPU_IS_LOST;
    if (in->kind != GPU) {
        if (in->gi >= MOST_INSTANCES || in->ci >= MOST_COMPUTE)
            return INVALID_ARGUMENT;
        in->instance = &in->gpu->instance[in->gi];
        in->compute = &in->instance->compute[in->ci];
        if (!in->instance->used || (in->kind != GI && !in->compute->used))
            return INVALID_ARGUMENT;
        in->profile = &in->gpu->profile[in->instance->profile];
    }
    return SUCCESS;
}

// Takes the lock, which leave() gives back, whatever comes out.
struct entered enter(const char *call, void *handle, unsigned kinds) {
    struct entered in = {0};
    lock();
    in.code = UNINITIALIZED;
    if (!opened)
        return in;
    uintptr_t value = (uintptr_t)handle;
    in.code = fault(call, kinds && value >> 40 == 0x5D ? value >> 16 & 0xFFFF : NONE, 1);
    if (!in.code && kinds)
        in.code = decode(handle, kinds, &in);
    if (!in.code && !permitted(call, in.kind == GPU && in.gpu->mig_mode))
        in.code = NO_PERMISSION;
    return in;
}

int text(char *out, unsigned size, const char *value) {
    NEED(out);
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

// The driver lists the GPUs whose device nodes the process can open: a container sees those that it has. The nodes are
// in $DOVETAIL_STANDIN_DEV; without it the process sees all.
static int node_opens(const struct gpu *gpu) {
    const char *folder = getenv("DOVETAIL_STANDIN_DEV");
    if (!folder || !*folder)
        return 1;
    char path[600];
    snprintf(path, sizeof path, "%s/nvidia%u", folder, gpu->minor);
    int node = open(path, O_RDWR | O_CLOEXEC);
    if (node >= 0)
        close(node);
    return node >= 0;
}

API nvmlInitWithFlags(unsigned flags) {
    if (flags & ~3u)
        return INVALID_ARGUMENT;
    int code = map(&opened);
    if (code)
        return code;
    lock();
    opened++;
    if (opened == 1)
        loads = host->loads;
    code = fault("nvmlInitWithFlags", NONE, 1);
    if (!code && host->mismatch)
        code = MISMATCH;
    if (code)
        opened--;
    else if (!listed) {
        listed = 1;
        order_count = 0;
        for (unsigned g = 0; g < host->gpu_count; g++) {
            if (!host->gpu[g].gone && node_opens(&host->gpu[g]))
                order[order_count++] = g;
            sync_access(&host->gpu[g]);
        }
    }
    unlock();
    return code;
}

API nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

API nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

API nvmlShutdown(void) {
    lock();
    int code = opened ? fault(__func__, NONE, 1) : UNINITIALIZED;
    // It closes also what is of no use any more.
    if (code == UNKNOWN && loads != host->loads)
        code = SUCCESS;
    if (!code && !--opened) {
        listed = 0;
        forget_event_sets();
        wake(&host->changes);
    }
    unlock();
    return code;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "The requested vgpu operation is not available on target device, because ECC is enabled",
        "Insufficient Resources", "Frequency Not Supported", "Argument version mismatch", "Deprecated",
        "Not Ready", "GPU Not Found", "Invalid State", "Reset Type Not Supported"};
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "Unknown Error";
}

#define SYSTEM_TEXT(name, value)          \
    API name(char *out, unsigned size) {  \
        ENTER(NULL, 0);                   \
        return text(out, size, value);    \
    }
SYSTEM_TEXT(nvmlSystemGetDriverVersion, host->driver)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, host->nvml)

API nvmlSystemGetCudaDriverVersion(int *out) {
    ENTER(NULL, 0);
    NEED(out);
    *out = host->cuda;
    return SUCCESS;
}

API nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER(NULL, 0);
    NEED(out);
    *out = host->cuda;
    return SUCCESS;
}

API nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER(NULL, 0);
    NEED(out);
    *out = order_count;
    return SUCCESS;
}

static int found(const char *call, unsigned g, void **out) {
    int code = fault(call, g, 0);
    if (code)
        return code;
    if (host->gpu[g].lost || host->gpu[g].gone)
        return GPU_IS_LOST;
    *out = handle(GPU, g, 0, 0);
    return SUCCESS;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    ENTER(NULL, 0);
    NEED(out);
    return index < order_count ? found(__func__, order[index], out) : INVALID_ARGUMENT;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    ENTER(NULL, 0);
    NEED(uuid && out);
    for (unsigned i = 0; i < order_count; i++) {
        struct gpu *each = &host->gpu[order[i]];
        if (!strcmp(uuid, each->uuid))
            return found(__func__, order[i], out);
        for (unsigned gi = 0; gi < MOST_INSTANCES && each->mig_mode; gi++)
            for (unsigned ci = 0; ci < MOST_COMPUTE; ci++) {
                char theirs[96];
                if (!each->instance[gi].used || !each->instance[gi].compute[ci].used)
                    continue;
                uuid_of(each, gi, ci, theirs);
                if (!strcmp(uuid, theirs)) {
                    *out = handle(MIG, order[i], gi, ci);
                    return SUCCESS;
                }
            }
    }
    return NOT_FOUND;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out) {
    ENTER(NULL, 0);
    unsigned domain, bus, device;
    NEED(bus_id && out);
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) != 3)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < order_count; i++) {
        struct gpu *each = &host->gpu[order[i]];
        if (each->domain == domain && each->bus == bus && each->device == device)
            return found(__func__, order[i], out);
    }
    return NOT_FOUND;
}

API nvmlDeviceGetHandleBySerial(const char *serial, void **out) {
    ENTER(NULL, 0);
    NEED(serial && out);
    for (unsigned i = 0; i < order_count; i++)
        if (!strcmp(serial, host->gpu[order[i]].serial))
            return found(__func__, order[i], out);
    return NOT_FOUND;
}

API nvmlDeviceGetIndex(void *device, unsigned *out) {
    ENTER(device, GPU | MIG);
    NEED(out);
    *out = 0;
    if (in.kind == GPU) {
        while (*out < order_count && order[*out] != in.g)
            ++*out;
        return SUCCESS;
    }
    for (unsigned gi = 0; gi <= in.gi; gi++)
        for (unsigned ci = 0; ci < (gi == in.gi ? in.ci : MOST_COMPUTE); ci++)
            *out += gpu->instance[gi].used && gpu->instance[gi].compute[ci].used;
    return SUCCESS;
}
