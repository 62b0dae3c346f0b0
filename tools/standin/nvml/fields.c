// SPDX-License-Identifier: Apache-2.0
// nvmlDeviceGetFieldValues: many numbers in one call, each with its own type and its own return code.

#include "nvml.h"

#include <string.h>

// Each id is used once and never changes (nvml.h): these are those of it that are not about links.
enum {
    ECC_CURRENT = 1, ECC_PENDING, ECC_TOTALS, ECC_LOCAL = 7, ECC_LOCAL_END = 28, RETIRED_SINGLE, RETIRED_DOUBLE,
    RETIRED_PENDING, POLICY = 74, POLICY_RELIABILITY = 79, POLICY_CLOCKS = 80, MEMORY_TEMPERATURE = 82, ENERGY_TOTAL,
    PENDING_SINGLE = 92, PENDING_DOUBLE, REPLAYS, ROLLOVERS, REMAPPED_CORRECTED = 142, REMAPPED_UNCORRECTED,
    REMAPPED_PENDING, REMAPPED_FAILURE, RECOVERIES = 169, C2C_LINKS, C2C_STATUS, C2C_BANDWIDTH, PCIE_FIRST,
    PCIE_LAST = 183, RESETLESS_MIG, POWER_AVERAGE, POWER_INSTANT, POWER_LEAST, POWER_MOST, POWER_DEFAULT, POWER_LIMIT,
    ENERGY, POWER_REQUESTED, LIMIT_SHUTDOWN, LIMIT_SLOWDOWN, LIMIT_MEMORY, LIMIT_MAXIMUM, PCIE_SENT, PCIE_RECEIVED,
    MIG_QUERY, RESET_STATUS = 226, DRAIN_STATUS, RECOVERY_ACTION = 230, C2C_ERRORS, C2C_POWER = 234, SW_THERMAL_NS = 269, HW_THERMAL_NS,
    BRAKE_NS, CORRECTED_INACTIVE = 301, UNCORRECTED_INACTIVE
};
enum { L1, L2, DRAM, REGISTERS, TEXTURE, CBU = 6 };
enum { SCOPE_GPU, SCOPE_MODULE, SCOPE_MEMORY };

struct value {
    unsigned type;
    uint64_t bits;
};

static int ecc_field(const struct gpu *gpu, unsigned id, struct value *out) {
    out->type = UNSIGNED_LONG_LONG;
    if (id < ECC_LOCAL) {
        out->bits = ecc_errors(gpu, (id - ECC_TOTALS) % 2, (id - ECC_TOTALS) / 2, NONE);
        return SUCCESS;
    }
    // Eleven ids for volatile errors, eleven for aggregate ones: corrected and uncorrected of each location, and the
    // uncorrected ones of the control units.
    static const unsigned locations[] = {L1, L2, DRAM, REGISTERS, TEXTURE, CBU};
    unsigned counter = (id - ECC_LOCAL) / 11, place = (id - ECC_LOCAL) % 11, location = locations[place / 2];
    int code = ecc_location(gpu, counter, location);
    if (!code)
        out->bits = ecc_errors(gpu, location == CBU ? 1 : place % 2, counter, location);
    return code;
}

static int power_field(const struct gpu *gpu, unsigned id, unsigned scope, struct value *out) {
    // The module is the GPU with its CPU, and the driver has the power of the memory on no card here.
    if (scope > SCOPE_MEMORY)
        return INVALID_ARGUMENT;
    if (gpu->cc_major < 8 || scope == SCOPE_MEMORY || (scope == SCOPE_MODULE && !gpu->module_power_mw))
        return NOT_SUPPORTED;
    out->bits = id == POWER_AVERAGE   ? scope ? gpu->module_power_mw : gpu->power_mw
                : id == POWER_INSTANT ? scope ? gpu->module_power_mw : gpu->power_instant_mw
                : id == POWER_LEAST   ? least_power_mw(gpu)
                                      : gpu->power_limit_mw;
    return SUCCESS;
}

static int limit_field(const struct gpu *gpu, unsigned id, struct value *out) {
    out->type = SIGNED_INT;
    if (!has_margins(gpu) || (id == LIMIT_MEMORY && !gpu->memory_maximum_c))
        return NOT_SUPPORTED;
    int limit = id == LIMIT_SHUTDOWN   ? (int)gpu->maximum_c - (int)gpu->shutdown_c
                : id == LIMIT_SLOWDOWN ? (int)gpu->maximum_c - (int)gpu->slowdown_c
                                       : 0;
    out->bits = (unsigned)limit;
    return SUCCESS;
}

static int rows_field(const struct gpu *gpu, unsigned id, struct value *out) {
    if (!has_rows(gpu))
        return NOT_SUPPORTED;
    out->bits = id == REMAPPED_CORRECTED     ? gpu->rows_corrected
                : id == REMAPPED_UNCORRECTED ? gpu->rows_uncorrected
                : id == REMAPPED_PENDING     ? gpu->rows_pending
                : id == REMAPPED_FAILURE     ? gpu->rows_failed
                                             : 0;
    return SUCCESS;
}

static int pages_field(const struct gpu *gpu, unsigned id, struct value *out) {
    if (gpu->cc_major >= 8)
        return NOT_SUPPORTED;
    out->type = UNSIGNED_LONG_LONG;
    out->bits = id == RETIRED_SINGLE                           ? gpu->retired_single
                : id == RETIRED_DOUBLE                         ? gpu->retired_double
                : id == RETIRED_PENDING || id == PENDING_DOUBLE ? gpu->retired_pending
                                                               : 0;
    return SUCCESS;
}

static int reason_field(const struct gpu *gpu, unsigned id, int64_t now, struct value *out) {
    enum { SW_THERMAL = 5, HW_THERMAL, BRAKE };
    out->type = UNSIGNED_LONG_LONG;
    if (id >= SW_THERMAL_NS) {
        out->bits = reason_ns(gpu, id - SW_THERMAL_NS + SW_THERMAL, now);
        return SUCCESS;
    }
    return violation_ns(gpu, id <= POLICY_RELIABILITY ? id - POLICY : id - POLICY_CLOCKS + 10, now, &out->bits);
}

static int pcie_field(const struct gpu *gpu, unsigned id, int64_t now, struct value *out) {
    out->type = id >= PCIE_SENT ? UNSIGNED_LONG_LONG : UNSIGNED_INT;
    if (id >= PCIE_FIRST && id <= PCIE_LAST)
        out->bits = gpu->pcie_error[id - PCIE_FIRST];
    else if (id >= PCIE_SENT)
        out->bits = (uint64_t)(integral(gpu, &gpu->load, id == PCIE_SENT ? RATE_PCIE_TX : RATE_PCIE_RX, now) * MIB);
    else
        out->bits = id == REPLAYS ? gpu->pcie_replays : id == ROLLOVERS ? gpu->pcie_rollovers : gpu->pcie_recoveries;
    return id >= RECOVERIES && gpu->cc_major < 8 ? NOT_SUPPORTED : SUCCESS;
}

static int c2c_field(const struct gpu *gpu, unsigned id, unsigned scope, struct value *out) {
    enum { LINKS = 10, BANDWIDTH_MBPS = 45000 };
    if (!gpu->has_c2c)
        return NOT_SUPPORTED;
    if (id != C2C_LINKS && scope >= LINKS)
        return INVALID_ARGUMENT;
    out->bits = id == C2C_LINKS                          ? LINKS
                : id == C2C_STATUS                         ? 1
                : id == C2C_BANDWIDTH                      ? BANDWIDTH_MBPS
                : id >= C2C_ERRORS && id < C2C_POWER ? gpu->c2c_error[id - C2C_ERRORS]
                                                           : 0;
    return SUCCESS;
}

static int field(const struct gpu *gpu, unsigned id, unsigned scope, int64_t now, struct value *out) {
    *out = (struct value){UNSIGNED_INT, 0};
    int code = link_field(gpu, id, scope, now, &out->type, &out->bits);
    if (code != NOT_FOUND)
        return code;
    if (id >= ECC_TOTALS && id <= ECC_LOCAL_END)
        return ecc_field(gpu, id, out);
    if ((id >= POLICY && id < MEMORY_TEMPERATURE) || (id >= SW_THERMAL_NS && id <= BRAKE_NS))
        return reason_field(gpu, id, now, out);
    if (id >= POWER_AVERAGE && id <= POWER_REQUESTED && id != ENERGY)
        return power_field(gpu, id, scope, out);
    if (id >= LIMIT_SHUTDOWN && id <= LIMIT_MAXIMUM)
        return limit_field(gpu, id, out);
    if (id == REPLAYS || id == ROLLOVERS || id == RECOVERIES || (id >= PCIE_FIRST && id <= PCIE_LAST) ||
        id == PCIE_SENT || id == PCIE_RECEIVED)
        return pcie_field(gpu, id, now, out);
    if ((id >= C2C_LINKS && id <= C2C_BANDWIDTH) || (id >= C2C_ERRORS && id <= C2C_POWER))
        return c2c_field(gpu, id, scope, out);
    if ((id >= REMAPPED_CORRECTED && id <= REMAPPED_FAILURE) || id == CORRECTED_INACTIVE || id == UNCORRECTED_INACTIVE)
        return rows_field(gpu, id, out);
    if ((id >= RETIRED_SINGLE && id <= RETIRED_PENDING) || id == PENDING_SINGLE || id == PENDING_DOUBLE)
        return pages_field(gpu, id, out);
    switch (id) {
    case ECC_CURRENT:
    case ECC_PENDING:
        out->bits = 1;
        return SUCCESS;
    case MEMORY_TEMPERATURE:
        out->bits = gpu->memory_temperature_c;
        return gpu->memory_temperature_c ? SUCCESS : NOT_SUPPORTED;
    case ENERGY_TOTAL:
    case ENERGY:
        out->type = UNSIGNED_LONG_LONG;
        out->bits = energy_mj(gpu, now);
        return SUCCESS;
    case RESETLESS_MIG:
    case MIG_QUERY:
        out->bits = gpu->mig_capable && !gpu->mode_change_resets;
        return SUCCESS;
    case RESET_STATUS:
    case DRAIN_STATUS:
        out->bits = gpu->recovery_action == (id == RESET_STATUS ? 1 : 4);
        return SUCCESS;
    case RECOVERY_ACTION:
        out->bits = gpu->recovery_action;
        return SUCCESS;
    default:
        return NOT_SUPPORTED;
    }
}

struct field_value {
    uint32_t id, scope;
    int64_t timestamp, latency_us;
    uint32_t type, code;
    uint64_t value;
};

API nvmlDeviceGetFieldValues(void *device, int count, struct field_value *values) {
    ENTER(device, GPU);
    NEED(values && count > 0);
    int64_t now = now_ns();
    for (struct field_value *v = values; v < values + count; v++) {
        const struct override *instead = override_of(FIELD_SPACE, in.g, v->id, v->scope);
        struct value value = {UNSIGNED_INT, 0};
        v->timestamp = (int64_t)real_us();
        v->latency_us = 0;
        // An id from after this driver is none to it.
        v->code = !v->id || v->id >= host->fields ? INVALID_ARGUMENT : (unsigned)field(gpu, v->id, v->scope, now, &value);
        if (instead) {
            v->code = instead->code;
            value = (struct value){instead->type, instead->bits};
        }
        v->type = value.type;
        // What a failed value has in it is of no meaning: here it is what a careless reader would notice.
        v->value = v->code ? 0xDEADBEEFDEADBEEFull : value.bits;
    }
    return SUCCESS;
}
