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
    VERSION_MISMATCH = 25, UNKNOWN = 999
};
// The types of NVML's values.
enum { DOUBLE, UNSIGNED_INT, UNSIGNED_LONG, UNSIGNED_LONG_LONG, SIGNED_LONG_LONG, SIGNED_INT, UNSIGNED_SHORT };
enum { FIELD_SPACE, METRIC_SPACE, DCGM_SPACE };
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

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct placement {
    unsigned start, size;
};

// mapped.c: the file, its lock, faults
extern struct host *host;
int map(const int *opened);
void lock(void);
void unlock(void);
void wake(uint32_t *word);
int injected(const char *call, unsigned g, int all);
const struct override *override_of(unsigned space, unsigned g, unsigned id, unsigned scope);

// library.c: handles
extern int opened;
extern unsigned order[MOST_GPUS], order_count;
void leave(struct entered *in);
int fault(const char *call, unsigned g, int all);
int decode(void *handle, unsigned kinds, struct entered *in);
struct entered enter(const char *call, void *handle, unsigned kinds);
void *handle(unsigned kind, unsigned g, unsigned gi, unsigned ci);
int text(char *out, unsigned size, const char *value);

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
int permitted(const char *call, int divided);

// mig_read.c
void mig_name(const struct profile *profile, unsigned slices, char out[96]);

// device.c
void pci(struct pci_info *out, unsigned domain, unsigned bus, unsigned device, unsigned id, unsigned subsystem);

// load.c: the clock, and what grows on it
int64_t now_ns(void);
uint64_t real_us(void);
double integral(const struct gpu *gpu, const struct load *load, enum rate rate, int64_t now);
uint64_t energy_mj(const struct gpu *gpu, int64_t now);
uint64_t reason_ns(const struct gpu *gpu, unsigned reason, int64_t now);
double link_mib(const struct gpu *gpu, unsigned number, int sent, int64_t now);
void instances_change(struct gpu *gpu);
void instances_changed(struct gpu *gpu);

// telemetry.c, errors.c: for field values
unsigned least_power_mw(const struct gpu *gpu);
int has_margins(const struct gpu *gpu);
uint64_t ecc_errors(const struct gpu *gpu, unsigned error, unsigned counter, unsigned location);
int ecc_location(const struct gpu *gpu, unsigned counter, unsigned location);
int has_rows(const struct gpu *gpu);
int violation_ns(const struct gpu *gpu, unsigned policy, int64_t now, uint64_t *out);

// links.c: for field values
int link_field(const struct gpu *gpu, unsigned id, unsigned scope, int64_t now, unsigned *type, uint64_t *out);

// watch.c
void forget_event_sets(void);

// processes.c: processes that have a GPU open
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
