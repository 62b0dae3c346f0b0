// SPDX-License-Identifier: Apache-2.0
// A client of a host engine: its connection, the entities of the machine, its groups of entities and of fields.

#include "dcgm.h"

#include <stdio.h>
#include <string.h>

enum { CONNECTIONS = 16, DEFAULT_PORT = 5555 };

static int initialized;
// The start of the engine that each connection belongs to.
static unsigned connections[CONNECTIONS], known_start;
static struct group groups[MOST_GROUPS];
static struct field_group field_groups[FIELD_GROUPS];

void leave_dcgm(int *code) {
    (void)code;
    unlock();
}

int entered_dcgm(const char *call, uintptr_t handle) {
    lock();
    if (!initialized)
        return DCGM_UNINITIALIZED;
    int code = injected(call, NONE, 1);
    if (code)
        return code;
    if (!handle || handle > CONNECTIONS || !connections[handle - 1])
        return BADPARAM;
    int same = host->engine_running && connections[handle - 1] == host->engine_starts;
    return same ? OK : CONNECTION_NOT_VALID;
}

API dcgmInit(void) {
    if (map(&initialized))
        return INIT_ERROR;
    lock();
    int code = injected(__func__, NONE, 1);
    if (!code)
        initialized = 1;
    unlock();
    return code;
}

// Groups and watches end with the engine, and with the last connection of a client.
static void forget(void) {
    memset(groups, 0, sizeof groups);
    memset(field_groups, 0, sizeof field_groups);
    forget_watches();
}

API dcgmShutdown(void) {
    lock();
    int code = initialized ? OK : DCGM_UNINITIALIZED;
    initialized = 0;
    memset(connections, 0, sizeof connections);
    forget();
    unlock();
    return code;
}

struct connect_v1 {
    unsigned version, persist;
};
struct connect_v2 {
    unsigned version, persist, timeout_ms, unix_socket;
};

static int reaches(const char *address, int unix_socket) {
    char name[256];
    unsigned port = DEFAULT_PORT;
    if (unix_socket || !host->engine_running || strlen(address) >= sizeof name)
        return 0;
    if (sscanf(address, "%255[^:]:%u", name, &port) < 1)
        return 0;
    return port == host->engine_port && (!strcmp(name, "localhost") || !strcmp(name, "127.0.0.1"));
}

API dcgmConnect_v2(const char *address, struct connect_v2 *with, uintptr_t *out) {
    lock();
    int code = initialized ? injected(__func__, NONE, 1) : DCGM_UNINITIALIZED;
    int first = with && with->version == VERSION(struct connect_v1, 1);
    if (!code && !(address && *address && with && out))
        code = BADPARAM;
    if (!code && !first && with->version != VERSION(struct connect_v2, 2))
        code = VER_MISMATCH;
    if (!code && !reaches(address, !first && with->unix_socket))
        code = CONNECTION_NOT_VALID;
    for (unsigned i = 0; !code && i < CONNECTIONS; i++)
        if (!connections[i]) {
            if (known_start != host->engine_starts)
                forget();
            connections[i] = known_start = host->engine_starts;
            *out = i + 1;
            unlock();
            return OK;
        }
    unlock();
    return code ? code : MAX_LIMIT;
}

API dcgmConnect(const char *address, uintptr_t *out) {
    struct connect_v2 with = {.version = VERSION(struct connect_v2, 2)};
    return dcgmConnect_v2(address, &with, out);
}

API dcgmDisconnect(uintptr_t handle) {
    lock();
    int code = initialized ? OK : DCGM_UNINITIALIZED;
    if (!code && (!handle || handle > CONNECTIONS || !connections[handle - 1]))
        code = BADPARAM;
    unsigned left = 0;
    if (!code)
        connections[handle - 1] = 0;
    for (unsigned i = 0; i < CONNECTIONS; i++)
        left += connections[i] != 0;
    if (!code && !left)
        forget();
    unlock();
    return code;
}

// ---- Entities: GPUs have their index, GPU instances are numbered in the order of their ids

int find_entity(struct pair pair, struct entity *out) {
    unsigned instance = pair.id % INSTANCES_PER_GPU;
    *out = (struct entity){pair.group == ENTITY_GPU ? pair.id : pair.id / INSTANCES_PER_GPU, NONE, NULL, NULL};
    if ((pair.group != ENTITY_GPU && pair.group != ENTITY_GPU_I) || out->g >= host->gpu_count)
        return BADPARAM;
    out->gpu = &host->gpu[out->g];
    out->load = &out->gpu->load;
    for (unsigned gi = 0; pair.group == ENTITY_GPU_I && gi < MOST_INSTANCES; gi++)
        if (out->gpu->mig_mode && out->gpu->instance[gi].used && !instance--) {
            out->gi = gi;
            out->load = &out->gpu->instance[gi].load;
        }
    return pair.group == ENTITY_GPU || out->gi != NONE ? OK : BADPARAM;
}

// The entities of a group of entities; how many there are.
unsigned entities_of(int group, struct pair *out, unsigned room) {
    unsigned count = 0, most = group == ENTITY_GPU ? 1 : INSTANCES_PER_GPU;
    struct entity entity;
    for (unsigned id = 0; id < host->gpu_count * most; id++)
        if (!find_entity((struct pair){group, id}, &entity) && count++ < room)
            out[count - 1] = (struct pair){group, id};
    return count;
}

static int list_gpus(unsigned *out, int *count) {
    MUST(out && count);
    struct pair found[MOST_DEVICES];
    *count = (int)entities_of(ENTITY_GPU, found, MOST_DEVICES);
    for (int i = 0; i < *count; i++)
        out[i] = found[i].id;
    return OK;
}

API dcgmGetAllDevices(uintptr_t handle, unsigned *out, int *count) {
    ENTER_DCGM(handle);
    return list_gpus(out, count);
}

API dcgmGetAllSupportedDevices(uintptr_t handle, unsigned *out, int *count) {
    ENTER_DCGM(handle);
    return list_gpus(out, count);
}

API dcgmGetEntityGroupEntities(uintptr_t handle, int group, unsigned *out, int *count, unsigned flags) {
    ENTER_DCGM(handle);
    MUST(count && *count >= 0 && (out || !*count) && flags < 2);
    if (group != ENTITY_GPU && group != ENTITY_GPU_I)
        return DCGM_NOT_SUPPORTED;
    struct pair found[MOST_GPUS * INSTANCES_PER_GPU];
    int room = *count;
    *count = (int)entities_of(group, found, MOST_GPUS * INSTANCES_PER_GPU);
    for (int i = 0; i < *count && i < room; i++)
        out[i] = found[i].id;
    return *count > room ? DCGM_INSUFFICIENT_SIZE : OK;
}

struct hierarchy_entry {
    struct pair entity, parent;
    char uuid[128];
    unsigned index, instance, compute, profile, slices;
};
struct hierarchy {
    unsigned version, count;
    struct hierarchy_entry entry[MOST_DEVICES * 14];
};

API dcgmGetGpuInstanceHierarchy(uintptr_t handle, struct hierarchy *out) {
    ENTER_DCGM(handle);
    MUST(out);
    if (out->version != VERSION(*out, 2))
        return VER_MISMATCH;
    struct pair found[MOST_GPUS * INSTANCES_PER_GPU];
    out->count = entities_of(ENTITY_GPU_I, found, MOST_GPUS * INSTANCES_PER_GPU);
    for (unsigned i = 0; i < out->count; i++) {
        struct entity entity;
        find_entity(found[i], &entity);
        const struct profile *profile = &entity.gpu->profile[entity.gpu->instance[entity.gi].profile];
        struct hierarchy_entry *e = &out->entry[i];
        *e = (struct hierarchy_entry){.entity = found[i], .parent = {ENTITY_GPU, entity.g}, .index = entity.g,
                                      .instance = entity.gi, .compute = NONE, .profile = profile->id,
                                      .slices = profile->compute};
        snprintf(e->uuid, sizeof e->uuid, "%s", entity.gpu->uuid);
    }
    return OK;
}

// ---- Groups

struct group *group_by_id(uintptr_t id) {
    return id && id <= MOST_GROUPS && groups[id - 1].used ? &groups[id - 1] : NULL;
}

struct field_group *field_group_by_id(uintptr_t id) {
    return id && id <= FIELD_GROUPS && field_groups[id - 1].used ? &field_groups[id - 1] : NULL;
}

API dcgmGroupCreate(uintptr_t handle, int type, const char *name, uintptr_t *out) {
    enum { EVERY_GPU, EMPTY, SWITCHES, EVERY_INSTANCE };
    ENTER_DCGM(handle);
    MUST(name && out && type >= EVERY_GPU && type <= EVERY_INSTANCE && type != SWITCHES);
    for (unsigned i = 0; i < MOST_GROUPS; i++)
        if (!groups[i].used) {
            groups[i] = (struct group){.used = 1};
            if (type != EMPTY)
                groups[i].count = entities_of(type == EVERY_GPU ? ENTITY_GPU : ENTITY_GPU_I, groups[i].entity,
                                              GROUP_ENTITIES);
            *out = i + 1;
            return OK;
        }
    return MAX_LIMIT;
}

API dcgmGroupDestroy(uintptr_t handle, uintptr_t id) {
    ENTER_DCGM(handle);
    struct group *group = group_by_id(id);
    if (!group)
        return NOT_CONFIGURED;
    group->used = 0;
    return OK;
}

API dcgmGroupAddEntity(uintptr_t handle, uintptr_t id, int entity_group, unsigned entity) {
    ENTER_DCGM(handle);
    struct group *group = group_by_id(id);
    struct entity found;
    if (!group)
        return NOT_CONFIGURED;
    MUST(!find_entity((struct pair){entity_group, entity}, &found));
    for (unsigned i = 0; i < group->count; i++)
        MUST(group->entity[i].group != entity_group || group->entity[i].id != entity);
    if (group->count == GROUP_ENTITIES)
        return MAX_LIMIT;
    group->entity[group->count++] = (struct pair){entity_group, entity};
    return OK;
}

API dcgmFieldGroupCreate(uintptr_t handle, int count, const unsigned short *fields, const char *name, uintptr_t *out) {
    ENTER_DCGM(handle);
    MUST(count > 0 && count <= GROUP_FIELDS && fields && name && strlen(name) < sizeof field_groups->name && out);
    unsigned place = FIELD_GROUPS;
    for (int i = 0; i < count; i++)
        if (!known_field(fields[i]))
            return UNKNOWN_FIELD;
    for (unsigned i = FIELD_GROUPS; i-- > 0;) {
        if (!field_groups[i].used)
            place = i;
        else if (!strcmp(field_groups[i].name, name))
            return DUPLICATE_KEY;
    }
    if (place == FIELD_GROUPS)
        return MAX_LIMIT;
    field_groups[place] = (struct field_group){.used = 1, .count = (unsigned)count};
    memcpy(field_groups[place].field, fields, (unsigned)count * sizeof *fields);
    strcpy(field_groups[place].name, name);
    *out = place + 1;
    return OK;
}

API dcgmFieldGroupDestroy(uintptr_t handle, uintptr_t id) {
    ENTER_DCGM(handle);
    struct field_group *group = field_group_by_id(id);
    MUST(group);
    group->used = 0;
    return OK;
}

__attribute__((visibility("default"))) const char *errorString(int code) {
    static const struct {
        int code;
        const char *text;
    } texts[] = {{OK, "Success"}, {BADPARAM, "Bad parameter passed to function"}, {GENERIC_ERROR, "Generic error"},
                 {NOT_CONFIGURED, "Setting not configured"}, {DCGM_NOT_SUPPORTED, "Feature not supported"},
                 {INIT_ERROR, "DCGM initialization error"}, {DCGM_UNINITIALIZED, "Object is in an undefined state"},
                 {VER_MISMATCH, "API version mismatch"}, {UNKNOWN_FIELD, "Unknown field"},
                 {NO_DATA, "No data is available"}, {NOT_WATCHED, "Field is not being updated"},
                 {DCGM_GPU_IS_LOST, "GPU is lost"},
                 {CONNECTION_NOT_VALID, "Host engine connection invalid/disconnected"},
                 {MAX_LIMIT, "Max limit reached for the object"}, {DUPLICATE_KEY, "Duplicate key passed to function"},
                 {REQUIRES_ROOT, "The host engine must run as root"},
                 {DCGM_INSUFFICIENT_SIZE, "An input argument is not large enough"}};
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == code)
            return texts[i].text;
    return NULL;
}
