// SPDX-License-Identifier: Apache-2.0
// MIG, changing: what fits beside what is there, the mode, instances, and the files by which containers are let in.

#include "nvml.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void uuid_of(const struct gpu *gpu, unsigned gi, unsigned ci, char out[96]) {
    char name[128];
    uint64_t high = 0xcbf29ce484222325ull, low = 0x84222325cbf29ce4ull;
    snprintf(name, sizeof name, "%s/%u/%u", gpu->uuid, gi, ci);
    for (char *c = name; *c; c++) {
        high = (high ^ (unsigned char)*c) * 0x100000001b3ull;
        low = (low ^ high ^ (unsigned char)*c) * 0x100000001b3ull;
    }
    snprintf(out, 96, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(high >> 32), (unsigned)(high >> 16 & 0xFFFF),
             (unsigned)(high & 0xFFF), (unsigned)(low >> 48 & 0x3FFF) | 0x8000,
             (unsigned long long)(low & 0xFFFFFFFFFFFF));
}

static void access_file(unsigned minor, int wanted, const char *format, unsigned a, unsigned b, unsigned c) {
    char relative[96], path[640], device[640];
    snprintf(relative, sizeof relative, format, a, b, c);
    snprintf(path, sizeof path, "%s/driver/nvidia/capabilities/%s", host->proc, relative);
    snprintf(device, sizeof device, "%s/nvidia-caps/nvidia-cap%u", host->dev, minor);
    char access_file[656], partial[656];
    snprintf(access_file, sizeof access_file, "%s/access", path);
    snprintf(partial, sizeof partial, "%s/partial", path);
    if ((access(access_file, F_OK) == 0) == wanted)
        return;
    if (!wanted) {
        unlink(device);
        unlink(partial);
        unlink(access_file);
        rmdir(path);
        return;
    }
    mkdir(path, 0755);
    int made = open(device, O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
    if (made >= 0)
        close(made);
    made = open(partial, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0444);
    if (made >= 0) {
        dprintf(made, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
        close(made);
        rename(partial, access_file);
    }
}

static int has_folder(const struct gpu *gpu, unsigned gi) {
    char path[640];
    snprintf(path, sizeof path, "%s/driver/nvidia/capabilities/gpu%u/mig/gi%u", host->proc, gpu->minor, gi);
    return access(path, F_OK) == 0;
}

// Makes the files agree with the instances, also after a process was killed between the two.
void sync_access(const struct gpu *gpu) {
    if (!host->proc[0] || !gpu->mig_capable)
        return;
    for (unsigned gi = 0; gi < MOST_INSTANCES; gi++) {
        const struct instance *instance = &gpu->instance[gi];
        // The folder of an instance goes last: most have none, and looking at each of its files costs most of a call.
        if (!instance->used && !has_folder(gpu, gi))
            continue;
        unsigned minor = 3 + gpu->minor * MOST_INSTANCES * (1 + MOST_COMPUTE) + gi * (1 + MOST_COMPUTE);
        if (instance->used)
            access_file(minor, 1, "gpu%u/mig/gi%u", gpu->minor, gi, 0);
        for (unsigned ci = 0; ci < MOST_COMPUTE; ci++)
            access_file(minor + 1 + ci, instance->used && instance->compute[ci].used, "gpu%u/mig/gi%u/ci%u", gpu->minor,
                        gi, ci);
        if (!instance->used)
            access_file(minor, 0, "gpu%u/mig/gi%u", gpu->minor, gi, 0);
    }
}

struct profile *profile_by_id(struct gpu *gpu, unsigned id) {
    for (unsigned i = 0; i < gpu->profile_count; i++)
        if (gpu->profile[i].id == id)
            return &gpu->profile[i];
    return NULL;
}

// Ranges do not overlap, compute slices and engines suffice, and no profile has more instances than its most.
int fits(struct gpu *gpu, const struct profile *profile, unsigned start) {
    unsigned compute = profile->compute, same = 1, engines[5];
    memcpy(engines, profile->engines, sizeof engines);
    for (struct instance *other = gpu->instance; other < gpu->instance + MOST_INSTANCES; other++) {
        if (!other->used)
            continue;
        struct profile *theirs = &gpu->profile[other->profile];
        if (start < other->start + theirs->size && other->start < start + profile->size)
            return 0;
        compute += theirs->compute;
        same += theirs == profile;
        for (int i = 0; i < 5; i++)
            engines[i] += theirs->engines[i];
    }
    for (int i = 0; i < 5; i++)
        if (engines[i] > gpu->engines[i])
            return 0;
    return compute <= gpu->compute_slices && same <= profile->most;
}

static void reset(struct gpu *gpu) {
    instances_change(gpu);
    for (unsigned gi = 0; gi < MOST_INSTANCES; gi++)
        gpu->instance[gi].used = 0;
    gpu->mig_mode = gpu->mig_pending;
    instances_changed(gpu);
    sync_access(gpu);
}

// Slices of the compute profiles, by NVML's index, which is their id too; 0: not known here.
static const unsigned compute_sizes[COMPUTE_PROFILES] = {1, 2, 3, 4, 7, 0, 0, 1, 0};

unsigned compute_size(unsigned index) {
    return compute_sizes[index];
}

// Whether a GPU instance can have compute instances of a profile.
int compute_fits(const struct profile *p, unsigned index) {
    unsigned size = compute_sizes[index];
    return index == p->ci_index || (size && size < p->compute && (index < 2 || (p->compute == 7 && index < 4)));
}

unsigned compute_step(unsigned size) {
    return size < 3 ? size : 4;
}

int compute_free(const struct instance *i, unsigned start, unsigned size) {
    for (const struct compute *c = i->compute; c < i->compute + MOST_COMPUTE; c++)
        if (c->used && start < c->start + c->size && c->start < start + size)
            return 0;
    return 1;
}

API nvmlDeviceSetMigMode(void *device, unsigned mode, unsigned *status) {
    ENTER(device, GPU);
    NEED(status && mode < 2);
    if (!gpu->mig_capable)
        return NOT_SUPPORTED;
    // The driver takes the mode down at once, and changes to it if no process has the GPU open. Where that needs a reset
    // instances do not survive it; elsewhere they stand in the way.
    int busy = held(gpu, NONE, NONE);
    for (unsigned gi = 0; gi < MOST_INSTANCES && !gpu->mode_change_resets; gi++)
        busy |= gpu->instance[gi].used;
    gpu->mig_pending = mode;
    *status = mode != gpu->mig_mode && busy ? IN_USE : SUCCESS;
    if (mode != gpu->mig_mode && !busy)
        reset(gpu);
    return SUCCESS;
}

// The ids of GPU instances number the halves, quarters and eighths of a card: 0; 1, 2; 3 to 6; 7 to 14.
static int create(const struct entered *in, struct profile *p, unsigned start, void **out) {
    struct gpu *gpu = in->gpu;
    if (start >= 64 || !(p->starts >> start & 1))
        return INVALID_ARGUMENT;
    if (!fits(gpu, p, start))
        return INSUFFICIENT_RESOURCES;
    unsigned gi = gpu->memory_slices / p->size - 1 + start / p->size;
    struct instance *instance = &gpu->instance[gi];
    instances_change(gpu);
    *instance = (struct instance){.profile = p - gpu->profile, .start = start};
    __atomic_store_n(&instance->used, 1, __ATOMIC_RELEASE);
    sync_access(gpu);
    *out = handle(GI, in->g, gi, 0);
    return SUCCESS;
}

API nvmlDeviceCreateGpuInstance(void *device, unsigned id, void **out) {
    ENTER(device, GPU);
    NEED(out);
    struct profile *p = profile_by_id(gpu, id);
    if (!p || !gpu->mig_mode)
        return NOT_SUPPORTED;
    for (int start = 63; start >= 0; start--)
        if (p->starts >> start & 1 && fits(gpu, p, start))
            return create(&in, p, start, out);
    return INSUFFICIENT_RESOURCES;
}

API nvmlDeviceCreateGpuInstanceWithPlacement(void *device, unsigned id, const struct placement *at, void **out) {
    ENTER(device, GPU);
    NEED(at && out);
    struct profile *p = profile_by_id(gpu, id);
    if (!p || !gpu->mig_mode)
        return NOT_SUPPORTED;
    NEED(at->size == p->size);
    return create(&in, p, at->start, out);
}

API nvmlGpuInstanceDestroy(void *instance) {
    ENTER(instance, GI);
    for (unsigned ci = 0; ci < MOST_COMPUTE; ci++)
        if (in.instance->compute[ci].used)
            return IN_USE;
    if (held(gpu, in.gi, NONE))
        return IN_USE;
    instances_change(gpu);
    in.instance->used = 0;
    instances_changed(gpu);
    sync_access(gpu);
    return SUCCESS;
}

static int create_compute(const struct entered *in, unsigned index, unsigned from, unsigned to, void **out) {
    NEED(out && index < COMPUTE_PROFILES);
    if (!compute_fits(in->profile, index))
        return NOT_SUPPORTED;
    unsigned size = compute_size(index);
    for (unsigned start = from; start <= to && start + size <= in->profile->compute; start += compute_step(size))
        for (unsigned ci = 0; ci < MOST_COMPUTE && compute_free(in->instance, start, size); ci++)
            if (!in->instance->compute[ci].used) {
                struct compute *c = &in->instance->compute[ci];
                *c = (struct compute){.index = index, .start = start, .size = size};
                __atomic_store_n(&c->used, 1, __ATOMIC_RELEASE);
                sync_access(in->gpu);
                *out = handle(CI, in->g, in->gi, ci);
                return SUCCESS;
            }
    return INSUFFICIENT_RESOURCES;
}

API nvmlGpuInstanceCreateComputeInstance(void *instance, unsigned id, void **out) {
    ENTER(instance, GI);
    return create_compute(&in, id, 0, in.profile->compute, out);
}

API nvmlGpuInstanceCreateComputeInstanceWithPlacement(void *instance, unsigned id, const struct placement *at,
                                                      void **out) {
    ENTER(instance, GI);
    NEED(at);
    return create_compute(&in, id, at->start, at->start, out);
}

API nvmlComputeInstanceDestroy(void *compute) {
    ENTER(compute, CI);
    if (held(gpu, in.gi, in.ci))
        return IN_USE;
    in.compute->used = 0;
    sync_access(gpu);
    return SUCCESS;
}
