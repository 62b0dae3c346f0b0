// SPDX-License-Identifier: Apache-2.0
// What happens to a GPU: event sets and waits for events.

#include "nvml.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SETS = 32 };

struct event_set {
    int used;
    unsigned next;
    uint64_t types[MOST_GPUS];
    unsigned since[MOST_GPUS];
};

static struct event_set sets[SETS];

void forget_event_sets(void) {
    memset(sets, 0, sizeof sets);
}

API nvmlEventSetCreate(void **out) {
    ENTER(NULL, 0);
    NEED(out);
    for (struct event_set *set = sets; set < sets + SETS; set++)
        if (!set->used) {
            *set = (struct event_set){.used = 1, .next = host->events_reported};
            *out = set;
            return SUCCESS;
        }
    return INSUFFICIENT_RESOURCES;
}

static int is_set(const struct event_set *set) {
    return set >= sets && set < sets + SETS && set->used;
}

enum { SUPPORTED_EVENTS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 };

API nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *out) {
    ENTER(device, GPU);
    NEED(out);
    *out = SUPPORTED_EVENTS;
    return SUCCESS;
}

API nvmlDeviceRegisterEvents(void *device, unsigned long long types, struct event_set *set) {
    ENTER(device, GPU);
    NEED(is_set(set) && types);
    if (types & ~(unsigned long long)SUPPORTED_EVENTS)
        return NOT_SUPPORTED;
    if (!set->types[in.g])
        set->since[in.g] = host->events_reported;
    set->types[in.g] |= types;
    return SUCCESS;
}

struct event_data {
    void *device;
    unsigned long long type, data;
    unsigned gi, ci;
};

API nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned timeout_ms) {
    ENTER(NULL, 0);
    NEED(out);
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += timeout_ms % 1000 * 1000000l;
    for (;;) {
        if (!opened)
            return UNINITIALIZED;
        NEED(is_set(set));
        if (host->events_reported - set->next > EVENTS)
            set->next = host->events_reported - EVENTS;
        while (set->next != host->events_reported) {
            unsigned number = set->next++;
            struct event *e = &host->event[number % EVENTS];
            if (!(set->types[e->gpu] & e->type) || (int)(number - set->since[e->gpu]) < 0)
                continue;
            *out = (struct event_data){handle(GPU, e->gpu, 0, 0), e->type, e->data, e->gi, e->ci};
            return SUCCESS;
        }
        for (unsigned g = 0; g < host->gpu_count; g++)
            if (set->types[g] && (host->gpu[g].lost || host->gpu[g].gone))
                return GPU_IS_LOST;
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long left_ns = (end.tv_sec - now.tv_sec) * 1000000000ll + end.tv_nsec - now.tv_nsec;
        if (left_ns <= 0)
            return TIMEOUT;
        struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
        struct host *mapped = host;
        unsigned changes = mapped->changes;
        unlock();
        syscall(SYS_futex, &mapped->changes, FUTEX_WAIT, changes, &left, NULL, 0);
        lock();
    }
}

API nvmlEventSetFree(struct event_set *set) {
    ENTER(NULL, 0);
    NEED(is_set(set));
    set->used = 0;
    wake(&host->changes);
    return SUCCESS;
}
