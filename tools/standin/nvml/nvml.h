// SPDX-License-Identifier: Apache-2.0
// A stand-in for NVIDIA's management library: it answers NVML's calls from the file that $DOVETAIL_STANDIN names.
//
// Rules: answers, errors and the order in which arguments are checked follow nvml.h's documentation and what the driver
// is known to do. Every call holds the lock of the file while it works, and none waits while it holds it. The file is
// the only state but for what a process has opened: its event sets and the order of its GPUs. An instance is there once
// its `used` is set, which is the last thing that is written.
// Handles are numbers: what kind of thing, on which GPU, in which GPU instance, which compute instance.

#pragma once
#define _GNU_SOURCE
#include <stdint.h>

#include "layout.h"

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, MISMATCH = 18, IN_USE = 19, INSUFFICIENT_RESOURCES = 23,
    VERSION_MISMATCH = 25
};
enum { GPU = 1, MIG = 2, GI = 4, CI = 8 };
enum { COMPUTE_PROFILES = 9 };
#define MIB (1ull << 20)
#define API __attribute__((visibility("default"))) int
#define NEED(pointer) if (!(pointer)) return INVALID_ARGUMENT
#define VERSION(type, number) ((unsigned)(sizeof(type) | (number) << 24))

// A call: whether it may go on, and what its handle stands for.
struct entered {
    int code;
    unsigned kind, g, gi, ci;
    struct gpu *gpu;
    struct instance *instance;
    struct compute *compute;
    struct profile *profile;
};

struct placement {
    unsigned start, size;
};

// library.c: the file, its lock, handles
extern struct host *host;
extern int opened;
extern unsigned order[MOST_GPUS], order_count;
void lock(void);
void unlock(void);
void leave(struct entered *in);
int fault(const char *call, unsigned g, int everyone);
int decode(void *handle, unsigned kinds, struct entered *in);
struct entered enter(const char *call, void *handle, unsigned kinds);
void *handle(unsigned kind, unsigned g, unsigned gi, unsigned ci);
int text(char *out, unsigned size, const char *value);
void wake(uint32_t *word);

// mig_change.c: the rules of MIG
void uuid_of(const struct gpu *gpu, unsigned gi, unsigned ci, char out[96]);
void sync_access(const struct gpu *gpu);
struct profile *profile_by_id(struct gpu *gpu, unsigned id);
int fits(struct gpu *gpu, const struct profile *profile, unsigned start);
unsigned compute_size(unsigned index);
unsigned compute_step(unsigned size);
int compute_fits(const struct profile *profile, unsigned index);
int compute_free(const struct instance *instance, unsigned start, unsigned size);

// rights.c
int permitted(const char *call);

// mig_read.c
void mig_name(const struct profile *profile, unsigned slices, char out[96]);

// watch.c: who waits, who has a GPU open
void forget_event_sets(void);
int held(const struct gpu *gpu, unsigned gi, unsigned ci);
uint64_t used_mib(const struct gpu *gpu, unsigned gi);

#define ENTER(handle, kinds)                                                              \
    __attribute__((cleanup(leave))) struct entered in = enter(__func__, handle, kinds);   \
    struct gpu *gpu = in.gpu;                                                             \
    (void)gpu;                                                                            \
    if (in.code)                                                                          \
        return in.code
#define NUMBER(name, expression)            \
    API name(void *device, unsigned *out) { \
        ENTER(device, GPU);                 \
        NEED(out);                          \
        *out = (expression);                \
        return SUCCESS;                     \
    }
// Calls that the driver has and this machine's GPUs do not support.
#define UNSUPPORTED(name)         \
    API name(void *device) {      \
        ENTER(device, GPU);       \
        return NOT_SUPPORTED;     \
    }
#define UNSUPPORTED_ANYWHERE(name) \
    API name(void *anything) {     \
        (void)anything;            \
        ENTER(NULL, 0);            \
        return NOT_SUPPORTED;      \
    }
