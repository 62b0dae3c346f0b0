// SPDX-License-Identifier: Apache-2.0
// MIG, reading: the mode, profiles, placements, instances and the devices that they are.

#include "nvml.h"

#include <stdio.h>

// "MIG 3g.20gb" for a whole GPU instance, "MIG 1c.3g.20gb" for a part of it.
void mig_name(const struct profile *profile, unsigned slices, char out[96]) {
    if (slices == profile->compute)
        snprintf(out, 96, "MIG %s", profile->name);
    else
        snprintf(out, 96, "MIG %uc.%s", slices, profile->name);
}

static struct profile *profile_by_index(struct gpu *gpu, unsigned index) {
    for (unsigned i = 0; i < gpu->profile_count; i++)
        if (gpu->profile[i].index == index)
            return &gpu->profile[i];
    return NULL;
}

API nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    ENTER(device, GPU);
    NEED(current && pending);
    if (!gpu->mig_capable)
        return NOT_SUPPORTED;
    *current = gpu->mig_mode;
    *pending = gpu->mig_pending;
    return SUCCESS;
}

API nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out) {
    ENTER(device, GPU);
    NEED(out);
    *out = gpu->mig_mode ? gpu->compute_slices : 0;
    return SUCCESS;
}

API nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out) {
    ENTER(device, GPU);
    NEED(out);
    if (!gpu->mig_mode)
        return gpu->mig_capable ? NOT_FOUND : NOT_SUPPORTED;
    NEED(index < gpu->compute_slices);
    for (unsigned gi = 0; gi < MOST_INSTANCES; gi++)
        for (unsigned ci = 0; ci < MOST_COMPUTE && gpu->instance[gi].used; ci++)
            if (gpu->instance[gi].compute[ci].used && !index--) {
                *out = handle(MIG, in.g, gi, ci);
                return SUCCESS;
            }
    return NOT_FOUND;
}

API nvmlDeviceIsMigDeviceHandle(void *device, unsigned *out) {
    ENTER(device, GPU | MIG);
    NEED(out);
    *out = in.kind == MIG;
    return SUCCESS;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **out) {
    ENTER(device, MIG);
    NEED(out);
    *out = handle(GPU, in.g, 0, 0);
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceId(void *device, unsigned *out) {
    ENTER(device, MIG);
    NEED(out);
    *out = in.gi;
    return SUCCESS;
}

API nvmlDeviceGetComputeInstanceId(void *device, unsigned *out) {
    ENTER(device, MIG);
    NEED(out);
    *out = in.ci;
    return SUCCESS;
}

struct attributes {
    unsigned sm, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices;
    unsigned long long memory_mib;
};

API nvmlDeviceGetAttributes_v2(void *device, struct attributes *out) {
    ENTER(device, GPU | MIG);
    NEED(out);
    if (in.kind == GPU)
        return NOT_SUPPORTED;
    struct profile *p = in.profile;
    *out = (struct attributes){p->sm * in.compute->size / p->compute, p->engines[0], p->engines[1], p->engines[2],
                               p->engines[3], p->engines[4], p->compute, in.compute->size, p->memory_mib};
    return SUCCESS;
}

struct profile_info {
    unsigned id, p2p, slices, instances, sm, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib;
};
struct profile_info_v2 {
    unsigned version, id, p2p, slices, instances, sm, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib;
    char name[96];
};

static int profile_info(struct gpu *gpu, unsigned index, struct profile_info_v2 *out) {
    NEED(out && index < MOST_PROFILES);
    struct profile *p = profile_by_index(gpu, index);
    if (!p)
        return NOT_SUPPORTED;
    *out = (struct profile_info_v2){out->version, p->id, 0, p->compute, p->most, p->sm, p->engines[0], p->engines[1],
                                    p->engines[2], p->engines[3], p->engines[4], p->memory_mib, ""};
    mig_name(p, p->compute, out->name);
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceProfileInfo(void *device, unsigned index, struct profile_info *out) {
    ENTER(device, GPU);
    NEED(out);
    struct profile_info_v2 info = {0};
    int code = profile_info(gpu, index, &info);
    if (!code)
        *out = (struct profile_info){info.id, 0, info.slices, info.instances, info.sm, info.copy, info.decoders,
                                     info.encoders, info.jpeg, info.ofa, info.memory_mib};
    return code;
}

API nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned index, struct profile_info_v2 *out) {
    ENTER(device, GPU);
    NEED(out);
    return out->version == VERSION(*out, 2) ? profile_info(gpu, index, out) : VERSION_MISMATCH;
}

API nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id, struct placement *out, unsigned *count) {
    ENTER(device, GPU);
    NEED(count);
    struct profile *p = profile_by_id(gpu, id);
    if (!p || (gpu->placements_need_mode && !gpu->mig_mode))
        return NOT_SUPPORTED;
    unsigned room = *count;
    *count = __builtin_popcountll(p->starts);
    if (!out)
        return SUCCESS;
    if (room < *count)
        return INSUFFICIENT_SIZE;
    for (unsigned start = 0; start < 64; start++)
        if (p->starts >> start & 1)
            *out++ = (struct placement){start, p->size};
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceRemainingCapacity(void *device, unsigned id, unsigned *out) {
    ENTER(device, GPU);
    NEED(out);
    struct profile *p = profile_by_id(gpu, id);
    if (!p || !gpu->mig_mode)
        return NOT_SUPPORTED;
    // Put instances in wherever they fit and look how many went in: starts of one profile never half overlap.
    struct gpu trial = *gpu;
    *out = 0;
    for (unsigned start = 0; start < 64; start++)
        if (p->starts >> start & 1 && fits(&trial, &trial.profile[p - gpu->profile], start))
            for (struct instance *i = trial.instance; i < trial.instance + MOST_INSTANCES; i++)
                if (!i->used) {
                    *i = (struct instance){.used = 1, .profile = p - gpu->profile, .start = start};
                    ++*out;
                    break;
                }
    return SUCCESS;
}

API nvmlDeviceGetGpuInstances(void *device, unsigned id, void **out, unsigned *count) {
    ENTER(device, GPU);
    NEED(out && count);
    struct profile *p = profile_by_id(gpu, id);
    if (!p || !gpu->mig_mode)
        return NOT_SUPPORTED;
    *count = 0;
    for (unsigned gi = 0; gi < MOST_INSTANCES; gi++)
        if (gpu->instance[gi].used && &gpu->profile[gpu->instance[gi].profile] == p)
            out[(*count)++] = handle(GI, in.g, gi, 0);
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceById(void *device, unsigned id, void **out) {
    ENTER(device, GPU);
    NEED(out);
    if (!gpu->mig_mode)
        return NOT_SUPPORTED;
    if (id >= MOST_INSTANCES || !gpu->instance[id].used)
        return NOT_FOUND;
    *out = handle(GI, in.g, id, 0);
    return SUCCESS;
}

struct instance_info {
    void *device;
    unsigned id, profile;
    struct placement placement;
};

API nvmlGpuInstanceGetInfo(void *instance, struct instance_info *out) {
    ENTER(instance, GI);
    NEED(out);
    *out = (struct instance_info){handle(GPU, in.g, 0, 0), in.gi, in.profile->id,
                                  {in.instance->start, in.profile->size}};
    return SUCCESS;
}

struct compute_info {
    unsigned id, slices, instances, sm, copy, decoders, encoders, jpeg, ofa;
};
struct compute_info_v2 {
    unsigned version;
    struct compute_info info;
    char name[96];
};

static int compute_info(const struct entered *in, unsigned index, unsigned engines, struct compute_info *out,
                        char *name) {
    NEED(index < COMPUTE_PROFILES && !engines);
    const struct profile *p = in->profile;
    if (!compute_fits(p, index))
        return NOT_SUPPORTED;
    unsigned size = compute_size(index);
    unsigned most = (p->compute - size) / compute_step(size) + 1;
    *out = (struct compute_info){index, size, most, p->sm * size / p->compute, p->engines[0], p->engines[1],
                                 p->engines[2], p->engines[3], p->engines[4]};
    mig_name(p, size, name);
    return SUCCESS;
}

API nvmlGpuInstanceGetComputeInstanceProfileInfo(void *instance, unsigned index, unsigned engines,
                                                 struct compute_info *out) {
    ENTER(instance, GI);
    NEED(out);
    char name[96];
    return compute_info(&in, index, engines, out, name);
}

API nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *instance, unsigned index, unsigned engines,
                                                  struct compute_info_v2 *out) {
    ENTER(instance, GI);
    NEED(out);
    if (out->version != VERSION(*out, 2))
        return VERSION_MISMATCH;
    return compute_info(&in, index, engines, &out->info, out->name);
}

API nvmlGpuInstanceGetComputeInstancePossiblePlacements(void *instance, unsigned id, struct placement *out,
                                                        unsigned *count) {
    ENTER(instance, GI);
    NEED(count && id < COMPUTE_PROFILES);
    if (!compute_fits(in.profile, id))
        return NOT_SUPPORTED;
    unsigned size = compute_size(id), found = 0, room = *count;
    for (unsigned start = 0; start + size <= in.profile->compute; start += compute_step(size), found++)
        if (out && found < room)
            out[found] = (struct placement){start, size};
    *count = found;
    return out && room < found ? INSUFFICIENT_SIZE : SUCCESS;
}

API nvmlGpuInstanceGetComputeInstances(void *instance, unsigned id, void **out, unsigned *count) {
    ENTER(instance, GI);
    NEED(out && count && id < COMPUTE_PROFILES);
    if (!compute_fits(in.profile, id))
        return NOT_SUPPORTED;
    *count = 0;
    for (unsigned ci = 0; ci < MOST_COMPUTE; ci++)
        if (in.instance->compute[ci].used && in.instance->compute[ci].index == id)
            out[(*count)++] = handle(CI, in.g, in.gi, ci);
    return SUCCESS;
}

API nvmlGpuInstanceGetComputeInstanceRemainingCapacity(void *instance, unsigned id, unsigned *out) {
    ENTER(instance, GI);
    NEED(out && id < COMPUTE_PROFILES);
    if (!compute_fits(in.profile, id))
        return NOT_SUPPORTED;
    *out = 0;
    for (unsigned start = 0; start + compute_size(id) <= in.profile->compute; start += compute_step(compute_size(id)))
        *out += compute_free(in.instance, start, compute_size(id));
    return SUCCESS;
}

API nvmlGpuInstanceGetComputeInstanceById(void *instance, unsigned id, void **out) {
    ENTER(instance, GI);
    NEED(out);
    if (id >= MOST_COMPUTE || !in.instance->compute[id].used)
        return NOT_FOUND;
    *out = handle(CI, in.g, in.gi, id);
    return SUCCESS;
}

struct compute_instance_info {
    void *device, *instance;
    unsigned id, profile;
    struct placement placement;
};

API nvmlComputeInstanceGetInfo_v2(void *compute, struct compute_instance_info *out) {
    ENTER(compute, CI);
    NEED(out);
    struct compute *c = in.compute;
    *out = (struct compute_instance_info){handle(GPU, in.g, 0, 0), handle(GI, in.g, in.gi, 0), in.ci, c->index,
                                          {c->start, c->size}};
    return SUCCESS;
}
