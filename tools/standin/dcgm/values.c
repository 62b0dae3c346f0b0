// SPDX-License-Identifier: Apache-2.0
// Watches, and the latest values of fields. A profiling field is a mean between two updates of its watch, so that it has
// no value after the first.

#include "dcgm.h"

#include <stdio.h>
#include <string.h>

enum { WATCHES = 4096, LIVE = 1, VALUE_VERSION = 2, TEXT = 256, BLOB = 4096 };
enum { FIELD_NAME = 50, FIELD_INDEX = 52, FIELD_UUID = 54, FIELD_MINOR = 55, FIELD_BUS = 57, FIRST_RATE = 1001 };
#define INT64_BLANK 0x7ffffffffffffff0ll
#define FP64_BLANK 140737488355328.0
enum { BLANK, NOT_FOUND_BLANK, NOT_SUPPORTED_BLANK };

static const enum rate rates[] = {
    RATE_GRAPHICS, RATE_SM, RATE_OCCUPANCY, RATE_TENSOR, RATE_DRAM, RATE_FP64, RATE_FP32, RATE_FP16, RATE_PCIE_TX,
    RATE_PCIE_RX, RATE_NVLINK_TX, RATE_NVLINK_RX, RATE_IMMA, RATE_HMMA, RATE_DFMA, RATE_INTEGER};
enum { LAST_RATE = FIRST_RATE + sizeof rates / sizeof *rates - 1 };

struct watch {
    int used, has_value;
    struct pair entity;
    unsigned short field;
    int64_t every_ns, at_ns;
    uint64_t at_us;
    double sum, value;
};

static struct watch watches[WATCHES];

void forget_watches(void) {
    memset(watches, 0, sizeof watches);
}

static int is_rate(unsigned field) {
    return field >= FIRST_RATE && field <= LAST_RATE;
}

static int is_bytes(unsigned field) {
    return is_rate(field) && rates[field - FIRST_RATE] > RATE_OFA;
}

int known_field(unsigned field) {
    return is_rate(field) || field == FIELD_NAME || field == FIELD_INDEX || field == FIELD_UUID ||
           field == FIELD_MINOR || field == FIELD_BUS;
}

static struct watch *watch_of(struct pair entity, unsigned field) {
    for (struct watch *w = watches; w < watches + WATCHES; w++)
        if (w->used && w->field == field && w->entity.group == entity.group && w->entity.id == entity.id)
            return w;
    return NULL;
}

static void update(struct watch *w, int64_t now) {
    struct entity entity;
    if (!is_rate(w->field) || find_entity(w->entity, &entity) || (w->at_ns && now <= w->at_ns))
        return;
    double sum = integral(entity.gpu, entity.load, rates[w->field - FIRST_RATE], now);
    if (w->at_ns) {
        w->value = (sum - w->sum) / ((now - w->at_ns) / 1e9);
        // The counters started again: there is no mean over that.
        w->has_value = w->value >= 0;
    }
    w->sum = sum;
    w->at_ns = now;
    w->at_us = real_us();
}

static int watch_one(struct pair entity, unsigned short field, long long every_us) {
    struct watch *w = watch_of(entity, field);
    for (struct watch *each = watches; !w && each < watches + WATCHES; each++)
        if (!each->used) {
            *each = (struct watch){.used = 1, .entity = entity, .field = field};
            w = each;
        }
    if (!w)
        return MAX_LIMIT;
    w->every_ns = every_us * 1000;
    update(w, now_ns());
    return OK;
}

API dcgmWatchFields(uintptr_t handle, uintptr_t group_id, uintptr_t fields_id, long long every_us, double keep_s,
                    int keep_samples) {
    ENTER_DCGM(handle);
    struct field_group *fields = field_group_by_id(fields_id);
    struct group everything = {.used = 1}, *group = group_by_id(group_id);
    if (group_id == ALL_GPUS || group_id == ALL_INSTANCES) {
        everything.count = entities_of(group_id == ALL_GPUS ? ENTITY_GPU : ENTITY_GPU_I, everything.entity,
                                       GROUP_ENTITIES);
        group = &everything;
    }
    if (!group)
        return NOT_CONFIGURED;
    MUST(fields && every_us > 0 && keep_s >= 0 && keep_samples >= 0 && (keep_s > 0 || keep_samples > 0));
    for (unsigned f = 0; f < fields->count; f++)
        if (is_rate(fields->field[f]) && host->engine_unprivileged)
            return REQUIRES_ROOT;
    for (unsigned e = 0; e < group->count && !code; e++)
        for (unsigned f = 0; f < fields->count && !code; f++)
            code = watch_one(group->entity[e], fields->field[f], every_us);
    return code;
}

API dcgmUnwatchFields(uintptr_t handle, uintptr_t group_id, uintptr_t fields_id) {
    ENTER_DCGM(handle);
    struct field_group *fields = field_group_by_id(fields_id);
    struct group *group = group_by_id(group_id);
    if (!group)
        return NOT_CONFIGURED;
    MUST(fields);
    for (unsigned e = 0; e < group->count; e++)
        for (unsigned f = 0; f < fields->count; f++) {
            struct watch *w = watch_of(group->entity[e], fields->field[f]);
            if (w)
                w->used = 0;
        }
    return OK;
}

API dcgmUpdateAllFields(uintptr_t handle, int wait) {
    ENTER_DCGM(handle);
    MUST(wait == 0 || wait == 1);
    int64_t now = now_ns();
    for (struct watch *w = watches; w < watches + WATCHES; w++)
        if (w->used)
            update(w, now);
    return OK;
}

struct value_v1 {
    unsigned version;
    unsigned short field, type;
    int status;
    int64_t at_us;
    union {
        int64_t natural;
        double real;
        char text[TEXT], blob[BLOB];
    } value;
};
struct value_v2 {
    unsigned version;
    int group;
    unsigned entity;
    unsigned short field, type;
    int status;
    unsigned unused;
    int64_t at_us;
    union {
        int64_t natural;
        double real;
        char text[TEXT], blob[BLOB];
    } value;
};

static void text_of(const struct entity *entity, unsigned field, char *out) {
    const struct gpu *gpu = entity->gpu;
    if (field == FIELD_BUS)
        snprintf(out, TEXT, "%08X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->device);
    else
        snprintf(out, TEXT, "%s", field == FIELD_UUID ? gpu->uuid : gpu->name);
}

// Failed values hold a blank, which careless readers take for a number.
static void blank(struct value_v2 *out, int status, int which) {
    out->status = status;
    if (out->type == 'd')
        out->value.real = FP64_BLANK + which;
    else if (out->type == 'i')
        out->value.natural = INT64_BLANK + which;
    else
        snprintf(out->value.text, TEXT, "<<<NULL>>>");
}

static void rate_of(const struct entity *entity, struct value_v2 *out, int64_t now) {
    struct watch *w = watch_of((struct pair){out->group, out->entity}, out->field);
    const struct override *instead = override_of(DCGM_SPACE, entity->g, out->field, entity->gi);
    if (!w) {
        blank(out, NOT_WATCHED, NOT_FOUND_BLANK);
        return;
    }
    // The engine updates by itself.
    if (now - w->at_ns >= w->every_ns)
        update(w, now);
    out->at_us = (int64_t)w->at_us;
    if (entity->gi != NONE && is_bytes(out->field)) {
        blank(out, OK, NOT_SUPPORTED_BLANK);
    } else if (instead) {
        out->status = (int)instead->code;
        memcpy(&out->value, &instead->bits, sizeof instead->bits);
    } else if (!w->has_value) {
        blank(out, NO_DATA, BLANK);
    } else if (is_bytes(out->field)) {
        out->value.natural = (int64_t)(w->value * MIB);
    } else {
        out->value.real = w->value;
    }
}

static void latest(struct pair pair, unsigned short field, unsigned flags, int64_t now, struct value_v2 *out) {
    struct entity entity;
    *out = (struct value_v2){.version = VERSION(*out, VALUE_VERSION), .group = pair.group, .entity = pair.id,
                             .field = field, .at_us = (int64_t)real_us()};
    out->type = field == FIELD_INDEX || field == FIELD_MINOR || is_bytes(field) ? 'i' : is_rate(field) ? 'd' : 's';
    if (!known_field(field)) {
        blank(out, UNKNOWN_FIELD, NOT_FOUND_BLANK);
    } else if (find_entity(pair, &entity)) {
        blank(out, BADPARAM, NOT_FOUND_BLANK);
    } else if (entity.gpu->lost || entity.gpu->gone) {
        blank(out, DCGM_GPU_IS_LOST, BLANK);
    } else if (is_rate(field)) {
        rate_of(&entity, out, now);
    } else if (!(flags & LIVE) && !watch_of(pair, field)) {
        blank(out, NOT_WATCHED, NOT_FOUND_BLANK);
    } else if (out->type == 'i') {
        out->value.natural = field == FIELD_INDEX ? entity.g : entity.gpu->minor;
    } else {
        text_of(&entity, field, out->value.text);
    }
}

API dcgmEntitiesGetLatestValues(uintptr_t handle, const struct pair *entities, unsigned entity_count,
                                const unsigned short *fields, unsigned field_count, unsigned flags,
                                struct value_v2 *out) {
    ENTER_DCGM(handle);
    MUST(entities && entity_count && fields && field_count && out && flags <= LIVE);
    int64_t now = now_ns();
    for (unsigned e = 0; e < entity_count; e++)
        for (unsigned f = 0; f < field_count; f++)
            latest(entities[e], fields[f], flags, now, out++);
    return OK;
}

API dcgmEntityGetLatestValues(uintptr_t handle, int group, int entity, const unsigned short *fields, unsigned count,
                              struct value_v1 *out) {
    ENTER_DCGM(handle);
    MUST(entity >= 0 && fields && count && out);
    int64_t now = now_ns();
    for (unsigned f = 0; f < count; f++) {
        struct value_v2 value;
        latest((struct pair){group, (unsigned)entity}, fields[f], 0, now, &value);
        out[f] = (struct value_v1){VERSION(*out, 1), value.field, value.type, value.status, value.at_us, {0}};
        memcpy(&out[f].value, &value.value, sizeof value.value);
    }
    return OK;
}
