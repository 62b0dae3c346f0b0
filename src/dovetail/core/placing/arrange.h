// SPDX-License-Identifier: Apache-2.0
// The arrangement of many pods of one shape, slot by slot. arrangement.py is the reference in numpy.

#include <stdlib.h>

typedef struct {
    int64_t rank, number;
} Ranked;

// The copies and scores of all slots, the domain of each slot at every fabric level, the widest first, and the slots
// that are chosen so far.
typedef struct {
    const int64_t *copies, *score;
    const int32_t **levels;
    Py_ssize_t depth;
    int64_t *chosen;
    Py_ssize_t count;
} Arrangement;

// The highest rank first, of equals the lowest number.
static int by_rank(const void *a, const void *b) {
    const Ranked *one = a, *other = b;
    if (one->rank != other->rank)
        return one->rank < other->rank ? 1 : -1;
    return (one->number > other->number) - (one->number < other->number);
}

// Choose slots that together take `wanted` pods, of `size` candidates in ascending order, which are overwritten. Fails
// only for lack of memory.
static int gather(Arrangement *own, Py_ssize_t level, int64_t *slots, Py_ssize_t size, int64_t wanted) {
    if (level == own->depth) {
        Ranked *ranked = PyMem_Malloc((size_t)(size ? size : 1) * sizeof(Ranked));
        if (!ranked)
            return -1;
        for (Py_ssize_t i = 0; i < size; i++)
            ranked[i] = (Ranked){own->score[slots[i]], slots[i]};
        qsort(ranked, (size_t)size, sizeof(Ranked), by_rank);
        for (Py_ssize_t i = 0; i < size && wanted > 0; i++) {
            own->chosen[own->count++] = ranked[i].number;
            wanted -= own->copies[ranked[i].number];
        }
        PyMem_Free(ranked);
        return 0;
    }
    const int32_t *domains = own->levels[level];
    int32_t last = -1;
    for (Py_ssize_t i = 0; i < size; i++)
        last = domains[slots[i]] > last ? domains[slots[i]] : last;
    // The slots without a domain form one more domain, the last.
    Py_ssize_t numbers = (Py_ssize_t)last + 2, used = 0;
    int64_t *sums = PyMem_Calloc((size_t)numbers, sizeof(int64_t));
    Ranked *ranked = PyMem_Malloc((size_t)numbers * sizeof(Ranked));
    if (!sums || !ranked) {
        PyMem_Free(sums);
        PyMem_Free(ranked);
        return -1;
    }
    for (Py_ssize_t i = 0; i < size; i++)
        sums[domains[slots[i]] < 0 ? last + 1 : domains[slots[i]]] += own->copies[slots[i]];
    for (Py_ssize_t number = 0; number < numbers; number++)
        if (sums[number])
            ranked[used++] = (Ranked){sums[number], number};
    qsort(ranked, (size_t)used, sizeof(Ranked), by_rank);
    // Take domains from the largest down while they are needed whole; then the tightest of those that take the rest.
    Py_ssize_t whole = 0;
    int64_t rest = -1;
    for (; whole < used && ranked[whole].rank < wanted; whole++) {
        wanted -= ranked[whole].rank;
        sums[ranked[whole].number] = 0;
    }
    for (Py_ssize_t i = whole; i < used && ranked[i].rank >= wanted; i++)
        if (rest < 0 || ranked[i].rank < ranked[rest].rank)
            rest = i;
    rest = rest < 0 ? -1 : ranked[rest].number;
    Py_ssize_t inside = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        int64_t slot = slots[i], number = domains[slot] < 0 ? last + 1 : domains[slot];
        if (number == rest)
            slots[inside++] = slot;
        else if (!sums[number])
            own->chosen[own->count++] = slot;
    }
    PyMem_Free(sums);
    PyMem_Free(ranked);
    return inside ? gather(own, level + 1, slots, inside, wanted) : 0;
}

// The chosen slots with their numbers of pods: all slots but the last are filled.
static PyObject *times_by_slot(const Arrangement *own, int64_t wanted) {
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found && i < own->count; i++) {
        int64_t slot = own->chosen[i], times = own->copies[slot] < wanted ? own->copies[slot] : wanted;
        PyObject *key = PyLong_FromLongLong(slot), *value = PyLong_FromLongLong(times);
        wanted -= times;
        if (!key || !value || PyDict_SetItem(found, key, value) < 0)
            Py_CLEAR(found);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return found;
}

// arrange(copies, score, scope, count, levels): see arrangement.py; `scope` None for all slots. Raises ValueError for
// arrays that do not match, IndexError for a scope that reaches beyond them.
static PyObject *arrange(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    if (count != 5 || !PyTuple_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "arrange(copies, score, scope, count, levels)");
        return NULL;
    }
    int64_t wanted = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    enum { COPIES_OF, SCORE_OF, SCOPE, FIRST_LEVEL };
    Py_ssize_t depth = PyTuple_Size(args[4]), held = 0, size, inside;
    Py_buffer *views = PyMem_Calloc((size_t)(FIRST_LEVEL + depth), sizeof(Py_buffer));
    const int32_t **levels = PyMem_Calloc((size_t)(depth ? depth : 1), sizeof(int32_t *));
    int64_t *slots = NULL;
    PyObject *found = NULL;
    if (!views || !levels) {
        PyErr_NoMemory();
        goto end;
    }
    for (; held < FIRST_LEVEL + depth; held++) {
        PyObject *array = held < FIRST_LEVEL ? args[held] : PyTuple_GetItem(args[4], held - FIRST_LEVEL);
        if (array != Py_None && borrow(array, &views[held], held < FIRST_LEVEL ? 8 : 4, 0) < 0)
            goto end;
    }
    size = views[COPIES_OF].len / 8;
    inside = views[SCOPE].obj ? views[SCOPE].len / 8 : size;
    int sound = views[COPIES_OF].obj && views[SCORE_OF].len == views[COPIES_OF].len;
    for (Py_ssize_t i = 0; i < depth; i++) {
        levels[i] = views[FIRST_LEVEL + i].buf;
        sound &= views[FIRST_LEVEL + i].len == size * 4;
    }
    if (!sound) {
        PyErr_SetString(PyExc_ValueError, "the arrays of an arrangement are not of one size");
        goto end;
    }
    // The candidates, and after them the chosen slots.
    slots = PyMem_Malloc((size_t)(2 * inside + 1) * sizeof(int64_t));
    if (!slots) {
        PyErr_NoMemory();
        goto end;
    }
    Arrangement own = {views[COPIES_OF].buf, views[SCORE_OF].buf, levels, depth, slots + inside, 0};
    const int64_t *scope = views[SCOPE].buf;
    Py_ssize_t candidates = 0;
    for (Py_ssize_t i = 0; i < inside; i++) {
        int64_t slot = scope ? scope[i] : i;
        if (slot < 0 || slot >= size) {
            PyErr_Format(PyExc_IndexError, "slot %lld of %zd", (long long)slot, size);
            goto end;
        }
        if (own.copies[slot] > 0)
            slots[candidates++] = slot;
    }
    if (gather(&own, 0, slots, candidates, wanted) < 0)
        PyErr_NoMemory();
    else
        found = times_by_slot(&own, wanted);
end:
    for (Py_ssize_t i = 0; i < held; i++)
        if (views[i].obj)
            PyBuffer_Release(&views[i]);
    PyMem_Free(slots);
    PyMem_Free(levels);
    PyMem_Free(views);
    return found;
}
