// SPDX-License-Identifier: Apache-2.0
// What a GPU is and how it is wired: identity, memory, topology, NVLink, fabric.

#include "nvml.h"

#include <stdio.h>
#include <string.h>

API nvmlDeviceGetUUID(void *device, char *out, unsigned size) {
    ENTER(device, GPU | MIG);
    char uuid[96];
    if (in.kind == MIG)
        uuid_of(gpu, in.gi, in.ci, uuid);
    return text(out, size, in.kind == MIG ? uuid : gpu->uuid);
}

API nvmlDeviceGetSerial(void *device, char *out, unsigned size) {
    ENTER(device, GPU);
    return text(out, size, gpu->serial);
}

API nvmlDeviceGetName(void *device, char *out, unsigned size) {
    ENTER(device, GPU | MIG);
    if (in.kind == GPU)
        return text(out, size, gpu->name);
    char mig[96], name[200];
    mig_name(in.profile, in.compute->size, mig);
    snprintf(name, sizeof name, "%s %s", gpu->name, mig);
    return text(out, size, name);
}

API nvmlDeviceGetVbiosVersion(void *device, char *out, unsigned size) {
    ENTER(device, GPU);
    return text(out, size, gpu->vbios);
}

API nvmlDeviceGetInforomImageVersion(void *device, char *out, unsigned size) {
    ENTER(device, GPU);
    return text(out, size, gpu->inforom);
}

API nvmlDeviceGetBoardPartNumber(void *device, char *out, unsigned size) {
    ENTER(device, GPU);
    return text(out, size, gpu->board_part);
}

API nvmlDeviceGetInforomVersion(void *device, unsigned object, char *out, unsigned size) {
    enum { OEM, ECC, OBJECTS = 4 };
    ENTER(device, GPU);
    NEED(object < OBJECTS);
    if (object > ECC)
        return NOT_SUPPORTED;
    return text(out, size, object == OEM ? (gpu->cc_major < 8 ? "1.1" : "2.1") : gpu->cc_major < 9 ? "6.16" : "7.16");
}

NUMBER(nvmlDeviceGetBrand, gpu->brand)
NUMBER(nvmlDeviceGetMemoryBusWidth, gpu->memory_bits)
NUMBER(nvmlDeviceGetArchitecture, gpu->architecture)
NUMBER(nvmlDeviceGetModuleId, gpu->module)
NUMBER(nvmlDeviceGetC2cModeInfoV, gpu->has_c2c)

API nvmlDeviceGetMinorNumber(void *device, unsigned *out) {
    ENTER(device, GPU | MIG);
    NEED(out);
    *out = gpu->minor;
    return SUCCESS;
}

API nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    ENTER(device, GPU | MIG);
    NEED(major && minor);
    *major = gpu->cc_major;
    *minor = gpu->cc_minor;
    return SUCCESS;
}

void pci(struct pci_info *out, unsigned domain, unsigned bus, unsigned device, unsigned id, unsigned subsystem) {
    *out = (struct pci_info){.domain = domain, .bus = bus, .device = device, .device_id = id,
                             .subsystem_id = subsystem};
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", domain & 0xFFFF, bus & 0xFF, device & 0xFF);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", domain, bus & 0xFF, device & 0xFF);
}

API nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *out) {
    ENTER(device, GPU);
    NEED(out);
    pci(out, gpu->domain, gpu->bus, gpu->device, gpu->device_id, gpu->subsystem_id);
    return SUCCESS;
}

struct versioned_number {
    unsigned version, value;
};

API nvmlDeviceGetAddressingMode(void *device, struct versioned_number *out) {
    ENTER(device, GPU);
    NEED(out);
    if (out->version != VERSION(*out, 1))
        return VERSION_MISMATCH;
    out->value = gpu->addressing;
    return SUCCESS;
}

struct platform_info {
    unsigned version;
    unsigned char ib_guid[16], chassis[16], slot, tray, host_id, peer_type, module;
};

API nvmlDeviceGetPlatformInfo(void *device, struct platform_info *out) {
    ENTER(device, GPU);
    NEED(out);
    if (out->version != VERSION(*out, 1) && out->version != VERSION(*out, 2))
        return VERSION_MISMATCH;
    if (!gpu->chassis[0])
        return NOT_SUPPORTED;
    memset(out->ib_guid, 0, sizeof out->ib_guid);
    memcpy(out->chassis, gpu->chassis, sizeof out->chassis);
    out->slot = gpu->slot;
    out->tray = gpu->tray;
    out->host_id = gpu->host_id;
    out->peer_type = 1;
    out->module = gpu->module;
    return SUCCESS;
}

// ---- Memory

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static struct memory_v2 memory_of(const struct entered *in) {
    int whole = in->kind == GPU;
    struct memory_v2 memory = {VERSION(struct memory_v2, 2), whole ? in->gpu->memory_mib : in->profile->memory_mib,
                               whole ? in->gpu->reserved_mib : 0, 0, used_mib(in->gpu, whole ? NONE : in->gi)};
    if (memory.used > memory.total - memory.reserved)
        memory.used = memory.total - memory.reserved;
    memory.free = (memory.total - memory.reserved - memory.used) * MIB;
    memory.total *= MIB;
    memory.reserved *= MIB;
    memory.used *= MIB;
    return memory;
}

API nvmlDeviceGetMemoryInfo(void *device, struct memory *out) {
    ENTER(device, GPU | MIG);
    NEED(out);
    struct memory_v2 memory = memory_of(&in);
    *out = (struct memory){memory.total, memory.free, memory.used + memory.reserved};
    return SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *out) {
    ENTER(device, GPU | MIG);
    NEED(out);
    if (out->version != VERSION(*out, 2))
        return VERSION_MISMATCH;
    *out = memory_of(&in);
    return SUCCESS;
}

// An instance has a part of the BAR1 by its memory slices.
API nvmlDeviceGetBAR1MemoryInfo(void *device, struct memory *out) {
    ENTER(device, GPU | MIG);
    NEED(out);
    int whole = in.kind == GPU;
    uint64_t total = whole ? gpu->bar1_mib : gpu->bar1_mib * in.profile->size / gpu->memory_slices;
    uint64_t used = whole ? gpu->bar1_used_mib : 0;
    *out = (struct memory){total * MIB, (total - used) * MIB, used * MIB};
    return SUCCESS;
}

UNSUPPORTED(nvmlDeviceGetConfComputeProtectedMemoryUsage)

// ---- Topology

API nvmlDeviceGetTopologyCommonAncestor(void *device, void *other, unsigned *out) {
    ENTER(device, GPU);
    struct entered peer = {0};
    int code = decode(other, GPU, &peer);
    if (code)
        return code;
    NEED(out);
    *out = gpu->level[peer.g];
    return SUCCESS;
}

API nvmlDeviceGetTopologyNearestGpus(void *device, unsigned level, unsigned *count, void **out) {
    ENTER(device, GPU);
    NEED(count);
    unsigned room = *count, near = 0;
    for (unsigned i = 0; i < order_count; i++)
        if (order[i] != in.g && gpu->level[order[i]] == level) {
            if (out && near < room)
                out[near] = handle(GPU, order[i], 0, 0);
            near++;
        }
    *count = out && near > room ? room : near;
    return SUCCESS;
}

API nvmlDeviceGetP2PStatus(void *device, void *other, unsigned index, unsigned *out) {
    enum { OK = 0, NONE_SUPPORTED = 5, NVLINK = 2, UNKNOWN_INDEX = 5 };
    ENTER(device, GPU);
    struct entered peer = {0};
    int code = decode(other, GPU, &peer);
    if (code)
        return code;
    NEED(out && index < UNKNOWN_INDEX);
    int linked = 0;
    for (unsigned i = 0; i < gpu->link_count; i++) {
        struct link *l = &gpu->link[i];
        linked |= l->up && (l->kind == 2 || (l->domain == peer.gpu->domain && l->bus == peer.gpu->bus &&
                                             l->device == peer.gpu->device));
    }
    *out = gpu->mig_mode || peer.gpu->mig_mode || (index == NVLINK && !linked) ? NONE_SUPPORTED : OK;
    return SUCCESS;
}

API nvmlDeviceGetNumaNodeId(void *device, int *out) {
    ENTER(device, GPU);
    NEED(out);
    if (gpu->numa_node < 0)
        return NOT_SUPPORTED;
    *out = gpu->numa_node;
    return SUCCESS;
}

static int bits(const uint64_t *from, unsigned words, unsigned long *out) {
    NEED(out && words);
    for (unsigned i = 0; i < words; i++)
        out[i] = i < 16 ? from[i] : 0;
    return SUCCESS;
}

API nvmlDeviceGetCpuAffinityWithinScope(void *device, unsigned words, unsigned long *out, unsigned scope) {
    ENTER(device, GPU);
    NEED(scope < 2);
    return bits(scope ? gpu->cpus_socket : gpu->cpus_node, words, out);
}

API nvmlDeviceGetCpuAffinity(void *device, unsigned words, unsigned long *out) {
    ENTER(device, GPU);
    return bits(gpu->cpus_node, words, out);
}

API nvmlDeviceGetMemoryAffinity(void *device, unsigned words, unsigned long *out, unsigned scope) {
    ENTER(device, GPU);
    NEED(scope < 2);
    return bits(scope ? gpu->memory_socket : gpu->memory_node, words, out);
}

// ---- Fabric

struct fabric {
    unsigned char cluster[16];
    unsigned status, clique, state;
};
struct fabric_v {
    unsigned version;
    struct fabric fabric;
    unsigned health_mask;
    unsigned char health_summary;
};
enum { FABRIC_V2 = 0x02000024, FABRIC_V3 = 0x03000028 };
_Static_assert(sizeof(struct fabric_v) == 0x28, "fabric");

static int fabric_of(struct gpu *gpu, struct fabric *out) {
    // Asked of a GPU from before the fabrics, the driver refuses; later ones have a state even where there is none.
    if (gpu->cc_major < 9)
        return NOT_SUPPORTED;
    memcpy(out->cluster, gpu->cluster_uuid, sizeof out->cluster);
    out->status = gpu->fabric_error;
    out->clique = gpu->fabric_clique;
    out->state = gpu->fabric_state;
    return SUCCESS;
}

API nvmlDeviceGetGpuFabricInfo(void *device, struct fabric *out) {
    ENTER(device, GPU);
    NEED(out);
    return fabric_of(gpu, out);
}

API nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_v *out) {
    ENTER(device, GPU);
    NEED(out);
    if (out->version != FABRIC_V2 && out->version != FABRIC_V3)
        return VERSION_MISMATCH;
    int code = fabric_of(gpu, &out->fabric);
    if (code)
        return code;
    out->health_mask = gpu->fabric_health;
    if (out->version == FABRIC_V3)
        out->health_summary = gpu->fabric_state == 3;
    return SUCCESS;
}
