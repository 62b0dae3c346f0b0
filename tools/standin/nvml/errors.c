// SPDX-License-Identifier: Apache-2.0
// What is broken, and what the driver did about it: ECC, retired pages, remapped rows, clock violations.

#include "nvml.h"

#include <string.h>

enum { L1, L2, DRAM, REGISTERS, TEXTURE, SHARED, CBU, SRAM };

// Whether a GPU in MIG mode has instances.
static int is_divided(const struct gpu *gpu) {
    unsigned instances = 0;
    for (const struct instance *i = gpu->instance; i < gpu->instance + MOST_INSTANCES; i++)
        instances += i->used != 0;
    return gpu->mig_mode && instances;
}

// Until Volta the errors of each cache are counted, then those of SRAM and DRAM.
static int has_location(const struct gpu *gpu, unsigned location) {
    return location == DRAM || (gpu->cc_major < 8 ? location != SRAM : location == SRAM);
}

uint64_t ecc_errors(const struct gpu *gpu, unsigned error, unsigned counter, unsigned location) {
    const uint64_t *counts = &gpu->ecc[(error * 2 + counter) * ECC_LOCATIONS];
    uint64_t sum = 0;
    for (unsigned i = 0; i < ECC_LOCATIONS; i++)
        sum += location == NONE || location == i ? counts[i] : 0;
    return sum;
}

// "Querying volatile errors using device handles is currently not supported" with MIG mode on (nvml.h).
int ecc_location(const struct gpu *gpu, unsigned counter, unsigned location) {
    return has_location(gpu, location) && (counter || !gpu->mig_mode) ? SUCCESS : NOT_SUPPORTED;
}

// "On MIG-enabled GPUs with active instances, querying the number of remapped rows is not supported" (nvml.h).
int has_rows(const struct gpu *gpu) {
    return gpu->cc_major >= 8 && !is_divided(gpu);
}

API nvmlDeviceGetTotalEccErrors(void *device, unsigned error, unsigned counter, unsigned long long *out) {
    ENTER(device, GPU);
    NEED(out && error < 2 && counter < 2);
    *out = ecc_errors(gpu, error, counter, NONE);
    return SUCCESS;
}

API nvmlDeviceGetMemoryErrorCounter(void *device, unsigned error, unsigned counter, unsigned location,
                                    unsigned long long *out) {
    ENTER(device, GPU | MIG);
    NEED(out && error < 2 && counter < 2 && location < ECC_LOCATIONS);
    // Of an instance the driver knows the uncorrected errors outside of DRAM since it was loaded.
    if (in.kind == MIG) {
        *out = in.instance->sram_errors;
        return error == 1 && counter == 0 && location == SRAM ? SUCCESS : NOT_SUPPORTED;
    }
    *out = ecc_errors(gpu, error, counter, location);
    return ecc_location(gpu, counter, location);
}

struct detailed_ecc {
    unsigned long long l1, l2, device, registers;
};

API nvmlDeviceGetDetailedEccErrors(void *device, unsigned error, unsigned counter, struct detailed_ecc *out) {
    ENTER(device, GPU);
    NEED(out && error < 2 && counter < 2);
    if (gpu->cc_major >= 8)
        return NOT_SUPPORTED;
    *out = (struct detailed_ecc){ecc_errors(gpu, error, counter, L1), ecc_errors(gpu, error, counter, L2),
                                 ecc_errors(gpu, error, counter, DRAM), ecc_errors(gpu, error, counter, REGISTERS)};
    return SUCCESS;
}

struct sram_status {
    unsigned version;
    unsigned long long aggregate_parity, aggregate_secded, aggregate_corrected, volatile_parity, volatile_secded,
        volatile_corrected, l2, sm, pcie, microcontroller, other;
    unsigned exceeded;
};

API nvmlDeviceGetSramEccErrorStatus(void *device, struct sram_status *out) {
    ENTER(device, GPU);
    NEED(out);
    if (out->version != VERSION(*out, 1))
        return VERSION_MISMATCH;
    if (gpu->cc_major < 8)
        return NOT_SUPPORTED;
    uint64_t all = ecc_errors(gpu, 1, 1, SRAM);
    *out = (struct sram_status){out->version, 0, all, ecc_errors(gpu, 0, 1, SRAM), 0, ecc_errors(gpu, 1, 0, SRAM),
                                ecc_errors(gpu, 0, 0, SRAM), 0, all, 0, 0, 0, all >= 10};
    return SUCCESS;
}

API nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending) {
    ENTER(device, GPU);
    NEED(current && pending);
    *current = *pending = 1;
    return SUCCESS;
}

NUMBER(nvmlDeviceGetDefaultEccMode, 1)

// ---- Retired pages: Volta and before. Remapped rows: Ampere and later.

enum { CAUSES = 2 };

static int retired(const struct gpu *gpu, unsigned cause, unsigned *count, unsigned long long *addresses,
                   unsigned long long *times) {
    NEED(count && cause < CAUSES);
    if (gpu->cc_major >= 8)
        return NOT_SUPPORTED;
    unsigned room = *count;
    *count = cause ? gpu->retired_double : gpu->retired_single;
    for (unsigned i = 0; addresses && i < *count && i < room; i++) {
        addresses[i] = 0x100000ull * (i + 1) + cause * 0x1000;
        if (times)
            times[i] = 1700000000ull + i;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

API nvmlDeviceGetRetiredPages(void *device, unsigned cause, unsigned *count, unsigned long long *addresses) {
    ENTER(device, GPU);
    return retired(gpu, cause, count, addresses, NULL);
}

API nvmlDeviceGetRetiredPages_v2(void *device, unsigned cause, unsigned *count, unsigned long long *addresses,
                                 unsigned long long *times) {
    ENTER(device, GPU);
    return retired(gpu, cause, count, addresses, times);
}

API nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *out) {
    ENTER(device, GPU);
    NEED(out);
    if (gpu->cc_major >= 8)
        return NOT_SUPPORTED;
    *out = gpu->retired_pending;
    return SUCCESS;
}

API nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    ENTER(device, GPU);
    NEED(corrected && uncorrected && pending && failed);
    if (!has_rows(gpu))
        return NOT_SUPPORTED;
    *corrected = gpu->rows_corrected;
    *uncorrected = gpu->rows_uncorrected;
    *pending = gpu->rows_pending;
    *failed = gpu->rows_failed;
    return SUCCESS;
}

API nvmlDeviceGetRowRemapperHistogram(void *device, uint32_t *out) {
    ENTER(device, GPU);
    NEED(out);
    if (gpu->cc_major < 8)
        return NOT_SUPPORTED;
    memcpy(out, gpu->banks, sizeof gpu->banks);
    return SUCCESS;
}

struct repair {
    unsigned version, channel, tpc;
};

API nvmlDeviceGetRepairStatus(void *device, struct repair *out) {
    ENTER(device, GPU);
    NEED(out);
    if (out->version != VERSION(*out, 1))
        return VERSION_MISMATCH;
    if (gpu->cc_major < 8)
        return NOT_SUPPORTED;
    out->channel = gpu->repair_pending;
    out->tpc = 0;
    return SUCCESS;
}

// ---- Violations: how long the clocks were below what they could be, in ns

enum { SW_POWER = 2, HW_SLOWDOWN, SYNC_BOOST, SW_THERMAL, HW_THERMAL, HW_BRAKE, BOARD = 9, RELIABILITY };
enum { POLICIES = 12 };

int violation_ns(const struct gpu *gpu, unsigned policy, int64_t now, uint64_t *out) {
    static const int reasons[POLICIES][3] = {
        {SW_POWER}, {SW_THERMAL, HW_THERMAL}, {SYNC_BOOST}, {HW_BRAKE, BOARD}, {0}, {RELIABILITY}, {0}, {0}, {0}, {0},
        {SW_POWER, SW_THERMAL, HW_THERMAL}, {HW_SLOWDOWN}};
    NEED(out && policy < POLICIES && (policy < 6 || policy > 9));
    *out = 0;
    for (unsigned i = 0; i < 3 && reasons[policy][i]; i++)
        *out += reason_ns(gpu, reasons[policy][i], now);
    return SUCCESS;
}

struct violation {
    unsigned long long reference_us, violation_ns;
};

API nvmlDeviceGetViolationStatus(void *device, unsigned policy, struct violation *out) {
    ENTER(device, GPU);
    NEED(out);
    uint64_t ns;
    int code = violation_ns(gpu, policy, now_ns(), &ns);
    if (!code)
        *out = (struct violation){real_us(), ns};
    return code;
}
