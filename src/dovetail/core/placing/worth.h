// SPDX-License-Identifier: Apache-2.0
// The worth of idle room, bit for bit as worth.py and expected_fill.py compute it with numpy: the worth of a node, its
// change by a pod, the GPU for a share, and the recursion behind the table.

#include <limits.h>
#include <stdint.h>
#include <string.h>
#include "layout.h"

#define OF_KIND (LEVELS * (UNITS + 1) * CELLS)

// Borrow the memory of an array. Where its items have another size, nothing is borrowed: `view->obj` is NULL.
static int borrow(PyObject *array, Py_buffer *view, Py_ssize_t item_bytes, int writable) {
    if (PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) < 0)
        return -1;
    if (view->itemsize != item_bytes) {
        PyErr_Format(PyExc_TypeError, "an array has items of %zd bytes, not of %zd", view->itemsize, item_bytes);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

// As numpy's //: rounded down; 0 where the divisor is 0.
static int64_t floor_divide(int64_t a, int64_t b) {
    if (b == 0)
        return 0;
    // Small numbers take a fifth of the time.
    if (a >= 0 && b > 0 && (a | b) <= UINT32_MAX)
        return (uint32_t)a / (uint32_t)b;
    int64_t quotient = a / b;
    return quotient - (a % b != 0 && (a % b < 0) != (b < 0));
}

static int64_t clip(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

// A cache of the worth of nodes: the same nodes are scored for one shape after another, and many have equal amounts.
#define MOST_NOTED 4096
#define GPUS_NOTED 16
typedef struct {
    int64_t cores;
    int32_t kind, gpus;
    uint16_t rooms[GPUS_NOTED];
} Idle;
typedef struct {
    Idle idle;
    int64_t worth;
} Note;

typedef struct {
    PyObject_HEAD
    Py_buffer arrays[WORTH_ARRAYS];
    Py_ssize_t size, gpu_rows, kinds, sizes, classes;
    Note *notes;
} Worth;

#define OF(array) ((const int64_t *)self->arrays[array].buf)

static Py_ssize_t length(const Worth *self, int array) {
    return self->arrays[array].len / 8;
}

// Whether every array reaches as far as it is read: the code below does not check again.
static int worth_reaches(const Worth *self) {
    int sound = self->size > 0 && self->kinds >= 0 && self->gpu_rows <= MOST_GPUS && self->sizes <= MOST_CLASSES;
    for (int i = IDLE_CPU; i <= NODE_GPUS; i++)
        sound &= i == IDLE_PARTS ? length(self, i) == self->gpu_rows * self->size : length(self, i) == self->size;
    sound &= length(self, TABLE) == (self->kinds + 1) * OF_KIND;
    sound &= length(self, PRICES) == self->classes * (self->kinds + 1);
    sound &= length(self, CLASS_CPU) == self->classes && length(self, CLASS_GPUS) == self->classes;
    sound &= length(self, CHANCES) == self->classes * (MOST_BUSY + 1);
    for (Py_ssize_t i = 0; i < self->classes; i++)
        sound &= OF(SIZE_OF)[i] >= 0 && OF(SIZE_OF)[i] < self->sizes;
    if (!sound)
        PyErr_SetString(PyExc_ValueError, "the arrays of a worth do not belong together");
    return sound ? 0 : -1;
}

static void worth_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    for (int i = 0; i < WORTH_ARRAYS; i++)
        if (((Worth *)object)->arrays[i].obj)
            PyBuffer_Release(&((Worth *)object)->arrays[i]);
    PyMem_Free(((Worth *)object)->notes);
    release(object);
    Py_DECREF(type);
}

// Worth(arrays): all with items of eight bytes, the `IdleArrays` and then the `LearnedArrays` of layout.py.
static PyObject *new_worth(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    PyObject *arrays;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &arrays))
        return NULL;
    if (PyTuple_Size(arrays) != WORTH_ARRAYS) {
        PyErr_Format(PyExc_ValueError, "%d arrays are needed", WORTH_ARRAYS);
        return NULL;
    }
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Worth *self = (Worth *)make(type, 0);
    if (!self)
        return NULL;
    for (int i = 0; i < WORTH_ARRAYS; i++)
        if (borrow(PyTuple_GetItem(arrays, i), &self->arrays[i], 8, 0) < 0)
            goto fail;
    self->size = length(self, IDLE_CPU);
    self->gpu_rows = self->size ? length(self, IDLE_PARTS) / self->size : 0;
    self->kinds = length(self, TABLE) / OF_KIND - 1;
    self->sizes = length(self, SIZES);
    self->classes = length(self, SIZE_OF);
    if (worth_reaches(self) < 0)
        goto fail;
    self->notes = PyMem_Calloc(MOST_NOTED, sizeof(Note));
    if (!self->notes) {
        PyErr_NoMemory();
        goto fail;
    }
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

// Worth.of: the worth of a node of a kind with so many cores and so much of each of its GPUs, the emptiest first.
static int64_t worked_out(const Worth *self, int64_t kind, int64_t gpus, int64_t cores, const int64_t *rooms) {
    int64_t counts[MOST_CLASSES], total = 0;
    cores = cores < 0 ? 0 : cores;
    for (Py_ssize_t s = 0; s < self->sizes; s++) {
        counts[s] = 0;
        for (Py_ssize_t g = 0; g < self->gpu_rows; g++)
            counts[s] += floor_divide(rooms[g], OF(SIZES)[s]);
    }
    for (Py_ssize_t i = 0; i < self->classes; i++) {
        int64_t price = OF(PRICES)[i * (self->kinds + 1) + kind];
        if (price == 0)
            continue;
        int64_t several = OF(CLASS_GPUS)[i], idle = counts[OF(SIZE_OF)[i]];
        int64_t whole = floor_divide(idle, several), begun = idle - whole * several;
        int64_t asked = OF(CLASS_CPU)[i], by_cores = asked > 0 && whole > 0 ? floor_divide(cores, asked) : whole;
        int64_t places = by_cores < whole ? by_cores : whole;
        int64_t busy = (whole + 1) * several <= gpus ? clip(several - begun, 0, MOST_BUSY) : 0;
        total += places * price;
        total += OF(CHANCES)[i * (MOST_BUSY + 1) + busy] * price >> PART_BITS;
    }
    for (Py_ssize_t g = 0; g < self->gpu_rows; g++) {
        int64_t level = clip(rooms[g] / STEP_MILLI, 0, LEVELS - 1);
        if (level == 0)
            break;
        int64_t reached = cores < (UNITS - 1) * UNIT_MILLI ? cores : (UNITS - 1) * UNIT_MILLI;
        int64_t units = reached / UNIT_MILLI, rest = reached - units * UNIT_MILLI;
        const int64_t *at = OF(TABLE) + ((kind * LEVELS + level) * (UNITS + 1) + units) * CELLS;
        total += at[USE] + floor_divide(at[FURTHER_USE] * rest, UNIT_MILLI);
        cores -= at[CORES] + floor_divide(at[FURTHER_CORES] * rest, UNIT_MILLI);
        cores = cores < 0 ? 0 : cores;
    }
    return total;
}

// The same, from the cache where it is there.
static int64_t worth_of(const Worth *self, int64_t kind, int64_t gpus, int64_t cores, const int64_t *rooms) {
    // One more, so that an empty entry matches no node.
    Idle idle = {.cores = (cores < 0 ? 0 : cores) + 1, .kind = (int32_t)kind, .gpus = (int32_t)gpus};
    uint64_t hash = (uint64_t)idle.cores * 0x9E3779B97F4A7C15u ^ (uint64_t)kind << 32 ^ (uint64_t)gpus;
    if (self->gpu_rows > GPUS_NOTED)
        return worked_out(self, kind, gpus, cores, rooms);
    for (Py_ssize_t g = 0; g < self->gpu_rows; g++) {
        if (rooms[g] < 0 || rooms[g] > UINT16_MAX)
            return worked_out(self, kind, gpus, cores, rooms);
        idle.rooms[g] = (uint16_t)rooms[g];
        hash = (hash ^ (uint64_t)rooms[g]) * 0x9E3779B97F4A7C15u;
    }
    Note *note = self->notes + (hash >> 52);
    if (memcmp(&note->idle, &idle, sizeof idle) != 0) {
        note->idle = idle;
        note->worth = worked_out(self, kind, gpus, cores, rooms);
    }
    return note->worth;
}

// Insert a value at its place among `count` descending values.
static void insert(int64_t *falling, Py_ssize_t count, int64_t value) {
    for (; count > 0 && falling[count - 1] < value; count--)
        falling[count] = falling[count - 1];
    falling[count] = value;
}

// What is left of a GPU of a slot, in the units of GPU_WHOLE.
static int64_t gpu_left(const Worth *self, Py_ssize_t slot, Py_ssize_t gpu) {
    int64_t whole = (uint64_t)OF(IDLE_BITS)[slot] >> gpu & 1 ? OF(WHOLE_UNITS)[slot] : 0;
    return OF(IDLE_PARTS)[gpu * self->size + slot] + whole;
}

// What is left of each GPU, the emptiest first; returns their sum in thousandths.
static int64_t gpus_left(const Worth *self, Py_ssize_t slot, int64_t *left, int64_t *rooms) {
    int64_t unit = OF(WHOLE_UNITS)[slot] / WHOLE_GPU_MILLI, sum = 0;
    for (Py_ssize_t g = 0; g < self->gpu_rows; g++)
        insert(left, g, gpu_left(self, slot, g));
    for (Py_ssize_t g = 0; g < self->gpu_rows; g++)
        sum += rooms[g] = floor_divide(left[g], unit);
    return sum;
}

// The worth of the slot after a share of the GPU of this rank is taken.
static int64_t worth_less(const Worth *self, Py_ssize_t slot, int64_t cpu_left, int64_t share, Py_ssize_t rank,
                          const int64_t *left, const int64_t *rooms) {
    int64_t after[MOST_GPUS], unit = OF(WHOLE_UNITS)[slot] / WHOLE_GPU_MILLI;
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < self->gpu_rows; i++)
        if (i != rank)
            after[kept++] = rooms[i];
    insert(after, kept, floor_divide(left[rank] - share, unit));
    return worth_of(self, OF(KINDS)[slot], OF(NODE_GPUS)[slot], cpu_left, after);
}

// The rank of the best GPU for a share, of equals the tightest, and the worth of the slot afterwards; -1 where no GPU
// has room (expected_fill._shared).
static Py_ssize_t best_shared(const Worth *self, Py_ssize_t slot, int64_t cpu_left, int64_t share, const int64_t *left,
                              const int64_t *rooms, int64_t *best) {
    Py_ssize_t chosen = -1;
    for (Py_ssize_t g = 0; g < self->gpu_rows && left[g] >= share; g++) {
        // Of GPUs with equal amounts left, one suffices: the last.
        if (g + 1 < self->gpu_rows && left[g] == left[g + 1])
            continue;
        int64_t worth = worth_less(self, slot, cpu_left, share, g, left, rooms);
        if (chosen < 0 || worth >= *best) {
            *best = worth;
            chosen = g;
        }
    }
    return chosen;
}

// The change of the worth of a slot (expected_fill._change) by a pod that takes so many GPUs, or a share of one.
// Sets `idle_milli` to what is idle of all GPUs of the slot.
static int64_t change_of(const Worth *self, Py_ssize_t slot, int64_t cpu_left, int64_t gpus, int64_t share,
                         int64_t *idle_milli) {
    int64_t left[MOST_GPUS], rooms[MOST_GPUS], after[MOST_GPUS], kind = OF(KINDS)[slot];
    Py_ssize_t count = self->gpu_rows;
    *idle_milli = gpus_left(self, slot, left, rooms);
    if (kind < 0 || kind >= self->kinds)
        return 0;
    int64_t before = worth_of(self, kind, OF(NODE_GPUS)[slot], OF(IDLE_CPU)[slot], rooms), best = 0;
    if (share) {
        Py_ssize_t chosen = best_shared(self, slot, cpu_left, share, left, rooms, &best);
        return chosen < 0 || best - before < -MOST_CHANGE ? -MOST_CHANGE : best - before;
    }
    for (Py_ssize_t g = 0; g < count; g++)
        after[g] = g + gpus < count ? rooms[g + gpus] : 0;
    return worth_of(self, kind, OF(NODE_GPUS)[slot], cpu_left, after) - before;
}

// share_gpu(slot, share): the GPU for the share, after the slot's cores were taken; -1 where none has room. Of GPUs
// with equal amounts left it is the first.
static PyObject *share_gpu(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    const Worth *self = (const Worth *)object;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "share_gpu(slot, share)");
        return NULL;
    }
    Py_ssize_t slot = PyLong_AsSsize_t(args[0]);
    int64_t share = PyLong_AsLongLong(args[1]), left[MOST_GPUS], rooms[MOST_GPUS], best = 0;
    if (PyErr_Occurred())
        return NULL;
    if (slot < 0 || slot >= self->size) {
        PyErr_Format(PyExc_IndexError, "slot %zd of %zd", slot, self->size);
        return NULL;
    }
    if (OF(KINDS)[slot] < 0 || OF(KINDS)[slot] > self->kinds) {
        PyErr_Format(PyExc_ValueError, "slot %zd is of no kind that is known", slot);
        return NULL;
    }
    gpus_left(self, slot, left, rooms);
    Py_ssize_t chosen = best_shared(self, slot, OF(IDLE_CPU)[slot], share, left, rooms, &best), gpu = 0;
    while (chosen >= 0 && gpu_left(self, slot, gpu) != left[chosen])
        gpu++;
    return PyLong_FromSsize_t(chosen < 0 ? -1 : gpu);
}

static PyMethodDef WORTH_METHODS[] = {
    {"share_gpu", (PyCFunction)(void (*)(void))share_gpu, METH_FASTCALL,
     "The GPU of a slot that a share is taken of."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot WORTH_SLOTS[] = {
    {Py_tp_new, new_worth},
    {Py_tp_dealloc, worth_dealloc},
    {Py_tp_methods, WORTH_METHODS},
    {Py_tp_doc, "The arrays of what was learned, and of what it is learned of."},
    {0, NULL},
};

static PyType_Spec WORTH_SPEC = {
    .name = "dovetail.core.placing._kernel.Worth",
    .basicsize = sizeof(Worth),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = WORTH_SLOTS,
};

// The expected use of a GPU and of the cores beside it, by what is left of both: `found`, from the sums over the
// classes that fit (weight, GPU, cores) and from what each step of a class leaves. Level 0 is 0. Sums are taken modulo
// 2^64, as numpy takes them.
static void fill_levels(const int64_t *fitting, const int64_t *level_of, const int64_t *units_of, const int64_t *rates,
                        Py_ssize_t steps, int64_t *found) {
    const Py_ssize_t plane = (Py_ssize_t)LEVELS * UNITS;
    memset(found, 0, (size_t)(2 * plane) * sizeof(int64_t));
    for (Py_ssize_t level = 1; level < LEVELS; level++) {
        const int64_t *weights = fitting + level * UNITS;
        for (int amount = 0; amount < 2; amount++) {
            const int64_t *sums = fitting + (amount + 1) * plane + level * UNITS;
            int64_t *table = found + amount * plane, *here = table + level * UNITS;
            uint64_t all[UNITS];
            for (int units = 0; units < UNITS; units++)
                all[units] = (uint64_t)sums[units];
            for (Py_ssize_t i = 0; i < steps; i++) {
                if (!level_of[i] || level_of[i] > level)
                    continue;
                const int64_t *below = table + (level - level_of[i]) * UNITS;
                const uint64_t rate = (uint64_t)rates[i];
                for (Py_ssize_t units = units_of[i], left = 0; units < UNITS; units++, left++)
                    all[units] += rate * (uint64_t)below[left];
            }
            // Steps that take cores alone lead to the values right before.
            for (int units = 0; units < UNITS; units++) {
                for (Py_ssize_t i = 0; i < steps; i++)
                    if (!level_of[i] && units_of[i] <= units)
                        all[units] += (uint64_t)rates[i] * (uint64_t)here[units - units_of[i]];
                here[units] = (int64_t)all[units] / weights[units];
            }
        }
    }
}

static PyObject *fill(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    static const Py_ssize_t LEAST[] = {3 * LEVELS * UNITS, 0, 0, 0, 2 * LEVELS * UNITS};
    Py_buffer views[5];
    int borrowed = 0, wrong = count != 5;
    while (!wrong && borrowed < 5) {
        if (borrow(arguments[borrowed], &views[borrowed], 8, borrowed == 4) < 0)
            break;
        wrong = views[borrowed].len < 8 * LEAST[borrowed];
        borrowed++;
    }
    const int64_t *of[5] = {0};
    Py_ssize_t steps = borrowed == 5 ? views[1].len / 8 : 0;
    wrong |= borrowed == 5 && (views[2].len / 8 != steps || views[3].len / 8 != steps);
    for (int i = 0; i < borrowed; i++)
        of[i] = views[i].buf;
    for (Py_ssize_t i = 0; i < steps && !wrong; i++)
        wrong = of[1][i] < 0 || of[2][i] < 0 || (of[1][i] == 0 && of[2][i] == 0);
    for (Py_ssize_t i = 0; i < LEVELS * UNITS && borrowed == 5 && !wrong; i++)
        wrong = of[0][i] < 1;
    if (borrowed == 5 && !wrong)
        fill_levels(of[0], of[1], of[2], of[3], steps, views[4].buf);
    for (int i = 0; i < borrowed; i++)
        PyBuffer_Release(&views[i]);
    if (PyErr_Occurred())
        return NULL;
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, "arrays that do not belong together, a weight or a step of nothing");
        return NULL;
    }
    Py_RETURN_NONE;
}
