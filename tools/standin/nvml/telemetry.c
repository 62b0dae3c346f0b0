// SPDX-License-Identifier: Apache-2.0
// What a GPU does right now: clocks, temperatures, power, utilization, PCIe, fans.

#include "nvml.h"

#include <string.h>
#include <time.h>

enum { PERIOD_US = 167000 };

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

static unsigned percent(const struct gpu *gpu, enum rate rate) {
    return (unsigned)(gpu->load.rate[rate] * 100 + 0.5);
}

// A divided GPU has no utilization of its engines, and V100 no engine for optical flow.
#define ENGINE(name, rate, oldest)                                  \
    API name(void *device, unsigned *out, unsigned *period_us) {    \
        ENTER(device, GPU);                                         \
        NEED(out && period_us);                                     \
        if (gpu->mig_mode || (int)gpu->cc_major < (oldest))              \
            return NOT_SUPPORTED;                                   \
        *out = percent(gpu, rate);                                  \
        *period_us = PERIOD_US;                                     \
        return SUCCESS;                                             \
    }
ENGINE(nvmlDeviceGetEncoderUtilization, RATE_ENCODER, 0)
ENGINE(nvmlDeviceGetDecoderUtilization, RATE_DECODER, 0)
ENGINE(nvmlDeviceGetJpgUtilization, RATE_JPEG, 8)
ENGINE(nvmlDeviceGetOfaUtilization, RATE_OFA, 8)

API nvmlDeviceGetEncoderStats(void *device, unsigned *sessions, unsigned *fps, unsigned *latency_us) {
    ENTER(device, GPU);
    NEED(sessions && fps && latency_us);
    if (gpu->mig_mode)
        return NOT_SUPPORTED;
    *sessions = gpu->encoder_sessions;
    *fps = gpu->encoder_fps;
    *latency_us = gpu->encoder_latency_us;
    return SUCCESS;
}

struct capture_stats {
    unsigned sessions, fps, latency_us;
};

API nvmlDeviceGetFBCStats(void *device, struct capture_stats *out) {
    ENTER(device, GPU);
    NEED(out);
    if (gpu->mig_mode)
        return NOT_SUPPORTED;
    *out = (struct capture_stats){gpu->capture_sessions, 0, 0};
    return SUCCESS;
}

struct sample {
    unsigned long long timestamp_us;
    union {
        double real;
        unsigned natural;
    } value;
};

API nvmlDeviceGetSamples(void *device, unsigned type, unsigned long long last_seen_us, unsigned *value_type,
                         unsigned *count, struct sample *out) {
    enum { POWER, UTILIZATION, MEMORY, ENCODER, DECODER, CLOCK, MEMORY_CLOCK, MODULE_POWER, JPEG, OFA, TYPES };
    ENTER(device, GPU);
    NEED(value_type && count && type < TYPES);
    if (gpu->mig_mode && type != POWER && type != CLOCK && type != MEMORY_CLOCK)
        return NOT_SUPPORTED;
    if (type == MODULE_POWER && !gpu->module_power_mw)
        return NOT_SUPPORTED;
    // The driver samples six times a second; here only the last sample is kept.
    uint64_t at = real_us();
    at -= at % PERIOD_US;
    if (at <= last_seen_us)
        return NOT_FOUND;
    if (out && !*count)
        return INSUFFICIENT_SIZE;
    *count = 1;
    *value_type = UNSIGNED_INT;
    if (!out)
        return SUCCESS;
    unsigned value[] = {gpu->power_mw, gpu->utilization, gpu->memory_utilization, percent(gpu, RATE_ENCODER),
                        percent(gpu, RATE_DECODER), gpu->clock_mhz, gpu->current_memory_clock_mhz,
                        gpu->module_power_mw, percent(gpu, RATE_JPEG), percent(gpu, RATE_OFA)};
    *out = (struct sample){.timestamp_us = at, .value.natural = value[type]};
    return SUCCESS;
}

// ---- Clocks

enum { GRAPHICS_CLOCK, SM_CLOCK, MEMORY_CLOCK, VIDEO_CLOCK, CLOCKS };

static int current_clock(const struct gpu *gpu, unsigned type, unsigned *out) {
    NEED(out && type < CLOCKS);
    *out = type == MEMORY_CLOCK  ? gpu->current_memory_clock_mhz
           : type == VIDEO_CLOCK ? gpu->video_clock_mhz
                                 : gpu->clock_mhz;
    return SUCCESS;
}

static int highest_clock(const struct gpu *gpu, unsigned type, unsigned *out) {
    NEED(out && type < CLOCKS);
    *out = type == MEMORY_CLOCK  ? gpu->memory_clock_mhz
           : type == VIDEO_CLOCK ? gpu->video_clock_mhz * 2
                                 : gpu->sm_clock_mhz;
    return SUCCESS;
}

static int application_clock(const struct gpu *gpu, unsigned type, unsigned *out) {
    NEED(out && type < CLOCKS);
    if (type == VIDEO_CLOCK)
        return NOT_SUPPORTED;
    *out = type == MEMORY_CLOCK ? gpu->memory_clock_mhz : gpu->application_clock_mhz;
    return SUCCESS;
}

#define CLOCK(name, answer)                                     \
    API name(void *device, unsigned type, unsigned *out) {      \
        ENTER(device, GPU);                                     \
        return answer(gpu, type, out);                          \
    }
CLOCK(nvmlDeviceGetClockInfo, current_clock)
CLOCK(nvmlDeviceGetMaxClockInfo, highest_clock)
CLOCK(nvmlDeviceGetApplicationsClock, application_clock)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, application_clock)
CLOCK(nvmlDeviceGetMaxCustomerBoostClock, highest_clock)

API nvmlDeviceGetClock(void *device, unsigned type, unsigned id, unsigned *out) {
    enum { CURRENT, APPLICATION, APPLICATION_DEFAULT, BOOST_MAXIMUM, IDS };
    ENTER(device, GPU);
    NEED(id < IDS);
    return id == CURRENT         ? current_clock(gpu, type, out)
           : id == BOOST_MAXIMUM ? highest_clock(gpu, type, out)
                                 : application_clock(gpu, type, out);
}

API nvmlDeviceGetSupportedMemoryClocks(void *device, unsigned *count, unsigned *out) {
    ENTER(device, GPU);
    NEED(count);
    unsigned both = gpu->idle_memory_clock_mhz != gpu->memory_clock_mhz, room = *count;
    *count = 1 + both;
    if (!out || room < *count)
        return INSUFFICIENT_SIZE;
    out[0] = gpu->memory_clock_mhz;
    if (both)
        out[1] = gpu->idle_memory_clock_mhz;
    return SUCCESS;
}

enum { KNOWN_REASONS = 0x1FF };
#define REASON(name, expression)                            \
    API name(void *device, unsigned long long *out) {       \
        ENTER(device, GPU);                                 \
        NEED(out);                                          \
        *out = (expression);                                \
        return SUCCESS;                                     \
    }
REASON(nvmlDeviceGetCurrentClocksEventReasons, gpu->clock_reasons)
REASON(nvmlDeviceGetCurrentClocksThrottleReasons, gpu->clock_reasons)
REASON(nvmlDeviceGetSupportedClocksEventReasons, KNOWN_REASONS)
REASON(nvmlDeviceGetSupportedClocksThrottleReasons, KNOWN_REASONS)
REASON(nvmlDeviceGetTotalEnergyConsumption, energy_mj(gpu, now_ns()))

// Not since Pascal.
UNSUPPORTED(nvmlDeviceGetAutoBoostedClocksEnabled)

NUMBER(nvmlDeviceGetPerformanceState, gpu->performance_state)
NUMBER(nvmlDeviceGetPowerState, gpu->performance_state)

// ---- Power and temperatures

unsigned least_power_mw(const struct gpu *gpu) {
    return gpu->power_limit_mw / 7 * 2;
}

// From Ada on the driver has distances to the limits.
int has_margins(const struct gpu *gpu) {
    return gpu->cc_major > 8 || (gpu->cc_major == 8 && gpu->cc_minor == 9);
}

NUMBER(nvmlDeviceGetPowerUsage, gpu->power_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementMode, 1)

API nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *least, unsigned *most) {
    ENTER(device, GPU);
    NEED(least && most);
    *least = least_power_mw(gpu);
    *most = gpu->power_limit_mw;
    return SUCCESS;
}

API nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out) {
    ENTER(device, GPU);
    NEED(out && !sensor);
    *out = gpu->temperature_c;
    return SUCCESS;
}

struct temperature {
    unsigned version, sensor;
    int celsius;
};

API nvmlDeviceGetTemperatureV(void *device, struct temperature *out) {
    ENTER(device, GPU);
    NEED(out);
    if (out->version != VERSION(*out, 1))
        return VERSION_MISMATCH;
    NEED(!out->sensor);
    out->celsius = (int)gpu->temperature_c;
    return SUCCESS;
}

API nvmlDeviceGetTemperatureThreshold(void *device, unsigned threshold, unsigned *out) {
    enum { SHUTDOWN, SLOWDOWN, MEMORY_MAXIMUM, GPU_MAXIMUM, ACOUSTIC, THRESHOLDS = 8 };
    ENTER(device, GPU);
    NEED(out && threshold < THRESHOLDS);
    if (threshold >= ACOUSTIC || (threshold == MEMORY_MAXIMUM && !gpu->memory_maximum_c))
        return NOT_SUPPORTED;
    *out = threshold == SHUTDOWN         ? gpu->shutdown_c
           : threshold == SLOWDOWN       ? gpu->slowdown_c
           : threshold == MEMORY_MAXIMUM ? gpu->memory_maximum_c
                                         : gpu->maximum_c;
    return SUCCESS;
}

struct margin {
    unsigned version;
    int celsius;
};

API nvmlDeviceGetMarginTemperature(void *device, struct margin *out) {
    ENTER(device, GPU);
    NEED(out);
    if (out->version != VERSION(*out, 1))
        return VERSION_MISMATCH;
    if (!has_margins(gpu))
        return NOT_SUPPORTED;
    out->celsius = (int)gpu->maximum_c - (int)gpu->temperature_c;
    return SUCCESS;
}

// ---- Fans: cards for servers have none

NUMBER(nvmlDeviceGetNumFans, gpu->fans)

static int fan_speed(const struct gpu *gpu, unsigned fan, unsigned *out) {
    NEED(out);
    if (!gpu->fans)
        return NOT_SUPPORTED;
    NEED(fan < gpu->fans);
    *out = gpu->fan_percent;
    return SUCCESS;
}

API nvmlDeviceGetFanSpeed(void *device, unsigned *out) {
    ENTER(device, GPU);
    return fan_speed(gpu, 0, out);
}

API nvmlDeviceGetFanSpeed_v2(void *device, unsigned fan, unsigned *out) {
    ENTER(device, GPU);
    return fan_speed(gpu, fan, out);
}

struct fan_info {
    unsigned version, fan, rpm;
};

API nvmlDeviceGetFanSpeedRPM(void *device, struct fan_info *out) {
    ENTER(device, GPU);
    NEED(out);
    if (out->version != VERSION(*out, 1))
        return VERSION_MISMATCH;
    if (!gpu->fans)
        return NOT_SUPPORTED;
    NEED(out->fan < gpu->fans);
    out->rpm = gpu->fan_rpm;
    return SUCCESS;
}

// ---- PCIe

NUMBER(nvmlDeviceGetPcieReplayCounter, gpu->pcie_replays)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, gpu->pcie_gen_now)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, gpu->pcie_gen)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, gpu->pcie_gen)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, gpu->pcie_width_now)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, gpu->pcie_width)

API nvmlDeviceGetPcieThroughput(void *device, unsigned counter, unsigned *out) {
    ENTER(device, GPU);
    NEED(out && counter < 2);
    if (gpu->mig_mode)
        return NOT_SUPPORTED;
    // The driver measures for 20 ms. Nothing else waits for it.
    struct timespec wait = {0, 20000000};
    unlock();
    nanosleep(&wait, NULL);
    lock();
    *out = (unsigned)(gpu->load.rate[counter ? RATE_PCIE_RX : RATE_PCIE_TX] * 1024);
    return SUCCESS;
}

// ---- Modes

NUMBER(nvmlDeviceGetComputeMode, gpu->compute_mode)
NUMBER(nvmlDeviceGetPersistenceMode, gpu->persistence)

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
