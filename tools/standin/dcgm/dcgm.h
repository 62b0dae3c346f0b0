// SPDX-License-Identifier: Apache-2.0
// A stand-in for the client library of DCGM (libdcgm): it answers for a host engine that "runs" on the machine of the
// file that $DOVETAIL_STANDIN names.
//
// Rules: structures, return codes and versions are those of dcgm_structs.h and dcgm_agent.h (DCGM 3 and 4). What a
// client creates (groups, watches) lives in its own process here; a host engine keeps it for as long as its connection.

#pragma once
#include "../nvml/nvml.h"

enum {
    OK = 0, BADPARAM = -1, GENERIC_ERROR = -3, DCGM_NOT_SUPPORTED = -6, INIT_ERROR = -7, DCGM_UNINITIALIZED = -10,
    VER_MISMATCH = -12, UNKNOWN_FIELD = -13, NO_DATA = -14, NOT_WATCHED = -16, NOT_CONFIGURED = -5,
    DCGM_GPU_IS_LOST = -18, CONNECTION_NOT_VALID = -21, MAX_LIMIT = -24, DUPLICATE_KEY = -26, REQUIRES_ROOT = -29,
    DCGM_INSUFFICIENT_SIZE = -31
};
enum { ENTITY_GPU = 1, ENTITY_GPU_I = 4, ENTITY_GPU_CI = 5 };
enum { MOST_DEVICES = 32, MOST_GROUPS = 64, GROUP_ENTITIES = 64, FIELD_GROUPS = 64, GROUP_FIELDS = 128 };
enum { INSTANCES_PER_GPU = 7, ALL_GPUS = 0x7fffffff, ALL_INSTANCES = 0x7ffffffd };

struct pair {
    int group;
    unsigned id;
};

// What an entity is in the file.
struct entity {
    unsigned g, gi;
    struct gpu *gpu;
    const struct load *load;
};

struct group {
    int used;
    unsigned count;
    struct pair entity[GROUP_ENTITIES];
};

struct field_group {
    int used;
    unsigned count;
    unsigned short field[GROUP_FIELDS];
    char name[256];
};

// client.c: with the lock held
int entered_dcgm(const char *call, uintptr_t handle);
void leave_dcgm(int *code);
int find_entity(struct pair pair, struct entity *out);
unsigned entities_of(int group, struct pair *out, unsigned room);
struct group *group_by_id(uintptr_t id);
struct field_group *field_group_by_id(uintptr_t id);

// values.c
int known_field(unsigned field);
void forget_watches(void);

#define ENTER_DCGM(handle)                                                                     \
    __attribute__((cleanup(leave_dcgm))) int code = entered_dcgm(__func__, handle);            \
    if (code)                                                                                  \
        return code
#define MUST(condition) if (!(condition)) return BADPARAM
