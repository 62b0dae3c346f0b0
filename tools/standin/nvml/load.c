// SPDX-License-Identifier: Apache-2.0
// The clock of the file, and what grows on it: energy, integrals of the load, bytes over NVLink, times of clock event
// reasons. A counter is stored as of `since_ns`; what was added since follows from the power, rates and reasons.

#include "nvml.h"

#include <math.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))

static int64_t clock_of(const struct host *at) {
    struct timespec now;
    if (at->clock_stopped)
        return at->clock_ns;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return at->clock_ns + now.tv_sec * 1000000000ll + now.tv_nsec;
}

int64_t now_ns(void) {
    return clock_of(host);
}

uint64_t real_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

static double elapsed_s(const struct gpu *gpu, int64_t now) {
    return now > gpu->since_ns ? (now - gpu->since_ns) / 1e9 : 0;
}

double integral(const struct gpu *gpu, const struct load *load, enum rate rate, int64_t now) {
    return load->sum[rate] + load->rate[rate] * elapsed_s(gpu, now);
}

uint64_t energy_mj(const struct gpu *gpu, int64_t now) {
    return gpu->energy_mj + (uint64_t)llround(gpu->power_mw * elapsed_s(gpu, now));
}

uint64_t reason_ns(const struct gpu *gpu, unsigned reason, int64_t now) {
    uint64_t since = now > gpu->since_ns ? now - gpu->since_ns : 0;
    return gpu->reason_ns[reason] + (gpu->clock_reasons >> reason & 1 ? since : 0);
}

static unsigned links_up(const struct gpu *gpu) {
    unsigned up = 0;
    for (unsigned i = 0; i < gpu->link_count; i++)
        up += gpu->link[i].wired && gpu->link[i].up;
    return up;
}

// MiB over one link, which carries its part of the whole.
double link_mib(const struct gpu *gpu, unsigned number, int sent, int64_t now) {
    double before = sent ? gpu->link_tx[number] : gpu->link_rx[number];
    const struct link *link = &gpu->link[number];
    if (!link->wired || !link->up)
        return before;
    return before + gpu->load.rate[sent ? RATE_NVLINK_TX : RATE_NVLINK_RX] / links_up(gpu) * elapsed_s(gpu, now);
}

// Stores all counters as of now. Before a rate, the power, a reason or a link changes.
static void settle(struct host *at, struct gpu *gpu) {
    int64_t now = clock_of(at);
    for (unsigned i = 0; i < gpu->link_count; i++) {
        double sent = link_mib(gpu, i, 1, now), received = link_mib(gpu, i, 0, now);
        gpu->link_tx[i] = sent;
        gpu->link_rx[i] = received;
    }
    gpu->energy_mj = energy_mj(gpu, now);
    for (unsigned reason = 0; reason < REASONS; reason++)
        gpu->reason_ns[reason] = reason_ns(gpu, reason, now);
    for (enum rate rate = 0; rate < RATES; rate++) {
        gpu->load.sum[rate] = integral(gpu, &gpu->load, rate, now);
        for (struct instance *i = gpu->instance; i < gpu->instance + MOST_INSTANCES; i++)
            i->load.sum[rate] = integral(gpu, &i->load, rate, now);
    }
    gpu->since_ns = now;
}

// The load of a divided GPU is that of its instances: bytes add up, ratios count by SMs and memory slices.
static void aggregate(struct gpu *gpu) {
    for (enum rate rate = 0; gpu->mig_mode && rate < RATES; rate++) {
        double whole = 0;
        for (struct instance *i = gpu->instance; i < gpu->instance + MOST_INSTANCES; i++) {
            const struct profile *p = &gpu->profile[i->profile];
            double part = rate > RATE_OFA ? 1 : rate == RATE_DRAM ? (double)p->size / gpu->memory_slices : (double)p->sm / gpu->sm;
            whole += i->used ? i->load.rate[rate] * part : 0;
        }
        gpu->load.rate[rate] = whole > 1 && rate <= RATE_OFA ? 1 : whole;
    }
}

void instances_change(struct gpu *gpu) {
    settle(host, gpu);
}

void instances_changed(struct gpu *gpu) {
    for (struct instance *i = gpu->instance; i < gpu->instance + MOST_INSTANCES; i++)
        if (!i->used)
            i->load = (struct load){0};
    aggregate(gpu);
}

// No calls of NVML: for a test that changes the file, with its lock held.
EXPORTED void standin_settle(struct host *at, unsigned g) {
    settle(at, &at->gpu[g]);
}

EXPORTED void standin_aggregate(struct host *at, unsigned g) {
    aggregate(&at->gpu[g]);
}

EXPORTED int64_t standin_clock(const struct host *at) {
    return clock_of(at);
}
