// SPDX-License-Identifier: Apache-2.0
// The file that a library maps: its lock, its waiters, and the faults and overrides in it.

#include "nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
struct host *host;
static int file = -1;

void lock(void) {
    pthread_mutex_lock(&mutex);
    if (file >= 0)
        while (flock(file, LOCK_EX) && errno == EINTR)
            continue;
}

void unlock(void) {
    if (file >= 0)
        flock(file, LOCK_UN);
    pthread_mutex_unlock(&mutex);
}

// Wakes the waiters for a change of the word, in this process and others.
void wake(uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

// No call of NVML: for a test that changes the file.
__attribute__((visibility("default"))) void standin_wake(uint32_t *word) {
    wake(word);
}

// Waits until the fault is gone or is another one, without the lock.
static void hang(const struct fault *f, const char *call) {
    while (f->used && f->ms == NONE && !strcmp(f->call, call)) {
        struct host *mapped = host;
        unsigned changes = mapped->changes;
        unlock();
        syscall(SYS_futex, &mapped->changes, FUTEX_WAIT, changes, NULL, NULL, 0);
        lock();
    }
}

// Applies faults to a call for GPU g, or for none: those of all GPUs (`all`) and of this one. With the lock
// held, but not during waits.
int injected(const char *call, unsigned g, int all) {
    for (struct fault *f = host->fault; f < host->fault + MOST_FAULTS; f++) {
        if (!f->used || !(f->gpu == NONE ? all : f->gpu == g) || strcmp(f->call, call))
            continue;
        if (f->ms == NONE)
            hang(f, call);
        unsigned code = f->code, ms = f->ms == NONE ? 0 : f->ms;
        if (f->left && !--f->left)
            f->used = 0;
        if (ms) {
            struct timespec wait = {ms / 1000, ms % 1000 * 1000000l};
            unlock();
            nanosleep(&wait, NULL);
            lock();
        }
        if (code)
            return code;
    }
    return SUCCESS;
}

const struct override *override_of(unsigned space, unsigned g, unsigned id, unsigned scope) {
    for (const struct override *o = host->override; o < host->override + MOST_OVERRIDES; o++)
        if (o->used && o->space == space && (o->gpu == NONE || o->gpu == g) && o->id == id &&
            (o->scope == NONE || o->scope == scope))
            return o;
    return NULL;
}

static int map_file(void) {
    const char *path = getenv("DOVETAIL_STANDIN");
    int fresh = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fresh < 0)
        return DRIVER_NOT_LOADED;
    struct stat seen;
    struct host *mapped = MAP_FAILED;
    if (!fstat(fresh, &seen) && seen.st_size == sizeof *host)
        mapped = mmap(NULL, sizeof *host, PROT_READ | PROT_WRITE, MAP_SHARED, fresh, 0);
    if (mapped == MAP_FAILED || mapped->magic != MAGIC || mapped->size != sizeof *host) {
        close(fresh);
        return DRIVER_NOT_LOADED;
    }
    // The old mapping stays: a thread may still be waiting on it.
    if (file >= 0)
        close(file);
    file = fresh;
    host = mapped;
    return SUCCESS;
}

// Maps the file, unless the library is open.
int map(const int *opened) {
    int code = SUCCESS;
    pthread_mutex_lock(&mutex);
    if (!*opened)
        code = map_file();
    pthread_mutex_unlock(&mutex);
    return code;
}
