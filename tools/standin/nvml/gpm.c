// SPDX-License-Identifier: Apache-2.0
// GPU performance monitoring: means of what ran between two samples, on Hopper and later.

#include "nvml.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { METRICS = 477, METRICS_VERSION = 1, SUPPORT_VERSION = 1, SAMPLES = 4096 };

struct gpm_sample {
    unsigned taken, g, gi, loads;
    int64_t at_ns;
    double sum[RATES];
    double link_tx[MOST_LINKS], link_rx[MOST_LINKS];
};

// Allocated samples, so that a pointer to anything else is an invalid argument and not a crash.
static struct gpm_sample *samples[SAMPLES];

static int is_sample(const struct gpm_sample *sample) {
    for (unsigned i = 0; sample && i < SAMPLES; i++)
        if (samples[i] == sample)
            return 1;
    return 0;
}

struct gpm_support {
    unsigned version, supported;
};

API nvmlGpmQueryDeviceSupport(void *device, struct gpm_support *out) {
    ENTER(device, GPU);
    NEED(out);
    if (out->version != SUPPORT_VERSION)
        return VERSION_MISMATCH;
    out->supported = gpu->cc_major >= 9;
    return SUCCESS;
}

API nvmlGpmSampleAlloc(struct gpm_sample **out) {
    ENTER(NULL, 0);
    NEED(out);
    for (unsigned i = 0; i < SAMPLES; i++)
        if (!samples[i]) {
            samples[i] = *out = calloc(1, sizeof **out);
            return *out ? SUCCESS : INSUFFICIENT_RESOURCES;
        }
    return INSUFFICIENT_RESOURCES;
}

API nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER(NULL, 0);
    NEED(is_sample(sample));
    for (unsigned i = 0; i < SAMPLES; i++)
        if (samples[i] == sample)
            samples[i] = NULL;
    free(sample);
    return SUCCESS;
}

static int take(const struct entered *in, unsigned gi, const struct load *load, struct gpm_sample *sample) {
    struct gpu *gpu = in->gpu;
    *sample = (struct gpm_sample){.taken = 1, .g = in->g, .gi = gi, .loads = host->loads, .at_ns = now_ns()};
    for (enum rate rate = 0; rate < RATES; rate++)
        sample->sum[rate] = integral(gpu, load, rate, sample->at_ns);
    for (unsigned i = 0; i < gpu->link_count; i++) {
        sample->link_tx[i] = link_mib(gpu, i, 1, sample->at_ns);
        sample->link_rx[i] = link_mib(gpu, i, 0, sample->at_ns);
    }
    return SUCCESS;
}

API nvmlGpmSampleGet(void *device, struct gpm_sample *sample) {
    ENTER(device, GPU);
    NEED(is_sample(sample));
    return gpu->cc_major < 9 ? NOT_SUPPORTED : take(&in, NONE, &gpu->load, sample);
}

API nvmlGpmMigSampleGet(void *device, unsigned gi, struct gpm_sample *sample) {
    ENTER(device, GPU);
    NEED(is_sample(sample));
    if (gpu->cc_major < 9 || !gpu->mig_mode)
        return NOT_SUPPORTED;
    NEED(gi < MOST_INSTANCES && gpu->instance[gi].used);
    return take(&in, gi, &gpu->instance[gi].load, sample);
}

struct metric {
    unsigned id;
    int code;
    double value;
    const char *name, *long_name, *unit;
};
struct metrics {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct metric metric[METRICS];
};

static const struct known {
    unsigned id;
    enum rate rate;
    const char *name, *unit;
} table[] = {
    {1, RATE_GRAPHICS, "Graphics Engine", "%"}, {2, RATE_SM, "SM Activity", "%"},
    {3, RATE_OCCUPANCY, "SM Occupancy", "%"}, {4, RATE_INTEGER, "Integer Activity", "%"},
    {5, RATE_TENSOR, "Tensor Activity", "%"}, {6, RATE_DFMA, "DFMA Tensor Activity", "%"},
    {7, RATE_HMMA, "HMMA Tensor Activity", "%"}, {9, RATE_IMMA, "IMMA Tensor Activity", "%"},
    {10, RATE_DRAM, "DRAM Activity", "%"}, {11, RATE_FP64, "FP64 Activity", "%"},
    {12, RATE_FP32, "FP32 Activity", "%"}, {13, RATE_FP16, "FP16 Activity", "%"},
    {20, RATE_PCIE_TX, "PCIe TX", "MiB/s"}, {21, RATE_PCIE_RX, "PCIe RX", "MiB/s"},
    {60, RATE_NVLINK_RX, "NVLink RX", "MiB/s"}, {61, RATE_NVLINK_TX, "NVLink TX", "MiB/s"},
    {100, RATE_C2C_TX, "C2C TX", "MiB/s"}, {101, RATE_C2C_RX, "C2C RX", "MiB/s"},
    {102, RATE_C2C_TX, "C2C Data TX", "MiB/s"}, {103, RATE_C2C_RX, "C2C Data RX", "MiB/s"}};

// Links 0 to 17 have the ids 62 to 97, links 18 to 35 the ids 212 to 247: received, then sent.
static int link_metric(const struct gpu *gpu, unsigned id, unsigned *link, int *sent) {
    if ((id < 62 || id > 97) && (id < 212 || id > 247))
        return 0;
    unsigned offset = id < 98 ? id - 62 : id - 212 + 36;
    *link = offset / 2;
    *sent = offset % 2;
    return *link < gpu->link_count;
}

// Engines have an id each: those of the GPU or of the instance are equally busy.
static int engine_metric(const struct gpu *gpu, const struct gpm_sample *sample, unsigned id, enum rate *rate) {
    static const struct {
        unsigned first, ids, engine;
        enum rate rate;
    } engines[] = {{30, 8, 1, RATE_DECODER}, {40, 8, 3, RATE_JPEG}, {50, 2, 4, RATE_OFA}, {166, 4, 2, RATE_ENCODER}};
    for (unsigned i = 0; i < sizeof engines / sizeof *engines; i++) {
        unsigned number = id - engines[i].first, engine = engines[i].engine;
        if (id < engines[i].first || number >= engines[i].ids)
            continue;
        *rate = engines[i].rate;
        return number < (sample->gi == NONE ? gpu->engines[engine]
                                            : gpu->profile[gpu->instance[sample->gi].profile].engines[engine]);
    }
    return 0;
}

static double mean(const struct gpm_sample *first, const struct gpm_sample *second, enum rate rate) {
    return (second->sum[rate] - first->sum[rate]) / ((second->at_ns - first->at_ns) / 1e9);
}

static void answer(const struct gpu *gpu, const struct metrics *get, struct metric *m) {
    const struct gpm_sample *first = get->first, *second = get->second;
    double seconds = (second->at_ns - first->at_ns) / 1e9;
    unsigned link;
    int sent;
    enum rate engine;
    const struct override *instead = override_of(METRIC_SPACE, first->g, m->id, first->gi);
    m->value = 0;
    m->name = m->long_name = m->unit = NULL;
    m->code = NOT_SUPPORTED;
    if (instead) {
        m->code = (int)instead->code;
        memcpy(&m->value, &instead->bits, sizeof m->value);
    } else if (!m->id || m->id >= host->metrics) {
        m->code = INVALID_ARGUMENT;
    } else if (link_metric(gpu, m->id, &link, &sent)) {
        const double *from = sent ? first->link_tx : first->link_rx, *to = sent ? second->link_tx : second->link_rx;
        m->name = m->long_name = sent ? "NVLink TX of a link" : "NVLink RX of a link";
        m->unit = "MiB/s";
        m->code = first->gi == NONE ? SUCCESS : NOT_SUPPORTED;
        m->value = m->code ? 0 : (to[link] - from[link]) / seconds;
    } else if (engine_metric(gpu, first, m->id, &engine)) {
        m->name = m->long_name = "Activity of an engine";
        m->unit = "%";
        m->code = SUCCESS;
        m->value = mean(first, second, engine) * 100;
    }
    for (const struct known *k = table; !instead && m->id < host->metrics && k < table + sizeof table / sizeof *table; k++) {
        if (k->id != m->id)
            continue;
        int bytes = k->rate > RATE_OFA;
        m->name = m->long_name = k->name;
        m->unit = k->unit;
        // Bytes are counted for the whole GPU only, and where there are such links.
        if ((bytes && first->gi != NONE) || (k->rate >= RATE_C2C_TX && !gpu->has_c2c) ||
            ((k->rate == RATE_NVLINK_TX || k->rate == RATE_NVLINK_RX) && !gpu->link_count))
            continue;
        m->code = SUCCESS;
        m->value = mean(first, second, k->rate) * (bytes ? 1 : 100);
    }
}

API nvmlGpmMetricsGet(struct metrics *get) {
    ENTER(NULL, 0);
    NEED(get);
    if (get->version != METRICS_VERSION)
        return VERSION_MISMATCH;
    NEED(get->count && get->count <= METRICS && is_sample(get->first) && is_sample(get->second));
    const struct gpm_sample *first = get->first, *second = get->second;
    NEED(first->taken && second->taken && first->g == second->g && first->gi == second->gi);
    NEED(second->loads == first->loads && second->at_ns > first->at_ns);
    for (unsigned i = 0; i < get->count; i++)
        answer(&host->gpu[first->g], get, &get->metric[i]);
    return SUCCESS;
}
