// SPDX-License-Identifier: Apache-2.0
// NVLink: where the links lead, what runs over them, what went wrong on them.

#include "nvml.h"


static int link_of(struct gpu *gpu, unsigned number, struct link **out) {
    if (!gpu->link_count)
        return NOT_SUPPORTED;
    NEED(number < gpu->link_count);
    *out = &gpu->link[number];
    return SUCCESS;
}

#define LINK(name, type, answer)                          \
    API name(void *device, unsigned number, type *out) {  \
        ENTER(device, GPU);                               \
        struct link *l;                                   \
        int code = link_of(gpu, number, &l);              \
        if (code)                                         \
            return code;                                  \
        NEED(out);                                        \
        answer;                                           \
        return SUCCESS;                                   \
    }
LINK(nvmlDeviceGetNvLinkState, unsigned, *out = l->wired && l->up)
LINK(nvmlDeviceGetNvLinkVersion, unsigned, *out = gpu->link_version)
LINK(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned, *out = l->wired ? l->kind : 0xFF)
LINK(nvmlDeviceGetNvLinkRemotePciInfo_v2, struct pci_info, {
    if (!l->wired)
        return NOT_SUPPORTED;
    pci(out, l->domain, l->bus, l->device, l->remote_id, 0);
})

API nvmlDeviceGetNvLinkCapability(void *device, unsigned number, unsigned capability, unsigned *out) {
    enum { P2P = 0, P2P_ATOMICS = 2, VALID = 5, CAPABILITIES = 6 };
    ENTER(device, GPU);
    struct link *l;
    int code = link_of(gpu, number, &l);
    if (code)
        return code;
    NEED(out && capability < CAPABILITIES);
    *out = capability == VALID ? 1 : (capability == P2P || capability == P2P_ATOMICS) && l->wired;
    return SUCCESS;
}

enum { REPLAY, RECOVERY, CRC_FLIT, CRC_DATA, ECC_DATA };

API nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned number, unsigned counter, unsigned long long *out) {
    ENTER(device, GPU);
    struct link *l;
    int code = link_of(gpu, number, &l);
    if (code)
        return code;
    NEED(out && counter < LINK_COUNTERS);
    *out = gpu->link_error[number * LINK_COUNTERS + counter];
    return SUCCESS;
}

API nvmlDeviceResetNvLinkErrorCounters(void *device, unsigned number) {
    ENTER(device, GPU);
    struct link *l;
    int code = link_of(gpu, number, &l);
    for (unsigned counter = 0; !code && counter < LINK_COUNTERS; counter++)
        gpu->link_error[number * LINK_COUNTERS + counter] = 0;
    return code;
}

// ---- Field values of links: of the first twelve by their own ids, of any by scope

static uint64_t errors(const struct gpu *gpu, unsigned counter, unsigned link) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < gpu->link_count; i++)
        sum += link == NONE || link == i ? gpu->link_error[i * LINK_COUNTERS + counter] : 0;
    return sum;
}

// MB/s of one link, by NVML's number for its version: 2.0, 2.2, 3.0, 3.1, 4.0, 5.0.
static unsigned speed(const struct gpu *gpu) {
    static const unsigned known[] = {0, 20000, 25781, 25781, 25781, 25781, 26562, 53125};
    return known[gpu->link_version < 8 ? gpu->link_version : 7];
}

static int up(const struct gpu *gpu, unsigned link) {
    return gpu->link[link].wired && gpu->link[link].up;
}

static const struct run {
    unsigned first, links, of, counter;
} runs[] = {{32, 6, 0, CRC_FLIT},  {39, 6, 0, CRC_DATA},  {46, 6, 0, REPLAY},  {53, 6, 0, RECOVERY},
            {96, 6, 6, CRC_FLIT},  {102, 6, 6, CRC_DATA}, {108, 6, 6, REPLAY}, {114, 6, 6, RECOVERY},
            {148, 12, 0, ECC_DATA}};

static int by_id(const struct gpu *gpu, unsigned id, uint64_t *out) {
    for (const struct run *r = runs; r < runs + sizeof runs / sizeof *runs; r++) {
        if (id >= r->first && id < r->first + r->links) {
            unsigned link = id - r->first + r->of;
            *out = errors(gpu, r->counter, link);
            return link < gpu->link_count ? SUCCESS : INVALID_ARGUMENT;
        }
        if (id == r->first + r->links && !r->of) {
            *out = errors(gpu, r->counter, NONE);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

static uint64_t carried_kib(const struct gpu *gpu, unsigned scope, int sent, double overhead, int64_t now) {
    double sum = 0;
    for (unsigned i = 0; i < gpu->link_count; i++)
        sum += scope == NONE || scope == i ? link_mib(gpu, i, sent, now) : 0;
    return (uint64_t)(sum * 1024 * overhead);
}

// The value of a field about links. NOT_FOUND: the field is about something else.
int link_field(const struct gpu *gpu, unsigned id, unsigned scope, int64_t now, unsigned *type, uint64_t *out) {
    enum { SPEED = 84, SPEED_COMMON = 90, COUNT = 91, SPEED_6 = 132, DATA_TX = 138, RAW_RX = 141, REMOTE = 146,
           SWITCHED = 147, DL_REPLAY = 161, DL_RECOVERY = 162, DL_CRC = 163, GET_SPEED = 164, STATE = 165,
           LINK_VERSION = 166, POWER_STATE = 167, XMIT_BYTES = 202, RCV_BYTES = 204, COUNTS = 201, COUNTS_END = 222 };
    if (!((id >= 32 && id <= 73) || (id >= SPEED && id <= COUNT) || (id >= 96 && id <= RAW_RX) ||
          (id >= REMOTE && id <= POWER_STATE) || (id >= COUNTS && id <= COUNTS_END)))
        return NOT_FOUND;
    *type = UNSIGNED_LONG_LONG;
    if (!gpu->link_count) {
        *type = UNSIGNED_INT;
        *out = 0;
        return id == COUNT ? SUCCESS : NOT_SUPPORTED;
    }
    int code = by_id(gpu, id, out);
    if (code != NOT_FOUND)
        return code;
    if (id >= DATA_TX && id <= RAW_RX) {
        if (scope != NONE && scope >= gpu->link_count)
            return INVALID_ARGUMENT;
        // Headers and flow control take a part of what is sent.
        *out = carried_kib(gpu, scope, (id - DATA_TX) % 2 == 0, id < 140 ? 1 : 1.125, now);
        return SUCCESS;
    }
    *type = UNSIGNED_INT;
    *out = 0;
    if ((id >= SPEED && id <= SPEED_COMMON) || (id >= SPEED_6 && id < DATA_TX)) {
        unsigned link = id == SPEED_COMMON ? 0 : id < COUNT ? id - SPEED : id - SPEED_6 + 6;
        *out = id == SPEED_COMMON || (link < gpu->link_count && up(gpu, link)) ? speed(gpu) : 0;
        return link < gpu->link_count ? SUCCESS : INVALID_ARGUMENT;
    }
    if (id == COUNT || id == SWITCHED) {
        for (unsigned i = 0; i < gpu->link_count; i++)
            *out += id == COUNT || (gpu->link[i].wired && gpu->link[i].kind == 2);
        return SUCCESS;
    }
    if (id < REMOTE)
        return NOT_SUPPORTED;
    if (scope >= gpu->link_count)
        return INVALID_ARGUMENT;
    if (id >= COUNTS) {
        // From NVLink 5 on.
        if (gpu->link_version < 7)
            return NOT_SUPPORTED;
        *type = UNSIGNED_LONG_LONG;
        if (id == XMIT_BYTES || id == RCV_BYTES)
            *out = carried_kib(gpu, scope, id == XMIT_BYTES, 1, now) * 1024;
        else if (id == XMIT_BYTES - 1 || id == RCV_BYTES - 1)
            *out = carried_kib(gpu, scope, id == XMIT_BYTES - 1, 1, now) * 8;
        return SUCCESS;
    }
    *type = id >= DL_REPLAY && id <= DL_CRC ? UNSIGNED_LONG_LONG : UNSIGNED_INT;
    *out = id == DL_REPLAY      ? errors(gpu, REPLAY, scope)
           : id == DL_RECOVERY  ? errors(gpu, RECOVERY, scope)
           : id == DL_CRC       ? errors(gpu, CRC_FLIT, scope)
           : id == GET_SPEED    ? (up(gpu, scope) ? speed(gpu) : 0)
           : id == STATE        ? (unsigned)up(gpu, scope)
           : id == LINK_VERSION ? gpu->link_version
           : id == REMOTE       ? scope
                                : 0;
    return SUCCESS;
}
