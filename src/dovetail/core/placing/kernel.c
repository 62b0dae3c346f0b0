// SPDX-License-Identifier: Apache-2.0
// The inner loop of rows.Row in C: the score of one shape on the slots that changed, how many such pods each of them
// takes where that was asked, and the best slot of all.
//
// Rules: it reads and writes the very arrays of the row, of the node table and of what was learned, and finds bit for bit
// what Row._redo and Row.best find with numpy under the scorings Tightest and ExpectedFill; a test compares them. What it
// does not know (devices by claim, shapes of several forms, replicas by the dozen) stays with numpy:
// kernel.py says when. It decides nothing by itself and holds no state but the addresses of the arrays, which live as
// long as it does. Beside the row there is fill(), the recursion behind a table of worth.py.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 128
#define WANTED 4
#define INFEASIBLE (-((int64_t)1 << 62))
#define PERMILLE 1000
#define FIRST_BITS 43

// Pods, CPU, memory, GPUs: coarse units, the largest value kept, and the place of one unit (scores.py).
static const int UNIT_BITS[WANTED] = {62, 4, 28, 0};
static const int64_t LARGEST[WANTED] = {0, (1 << 18) - 1, (1 << 18) - 1, (1 << 7) - 1};
static const int PLACE_BITS[WANTED] = {0, 18, 0, 36};

// GPU, CPU, memory under ExpectedFill; and the places of what weighs more (expected_fill.py).
enum { AMOUNTS = 3 };
static const int FILL_UNIT_BITS[AMOUNTS] = {3, 7, 33};
static const int64_t FILL_LARGEST[AMOUNTS] = {(1 << 11) - 1, (1 << 11) - 1, (1 << 5) - 1};
static const int FILL_PLACE_BITS[AMOUNTS] = {16, 5, 0};
#define MOST_CHANGE (1 << 24)
#define CHANGE_BITS 27
#define FEWER_BITS 10
#define FILL_FIRST_BITS 42

// The table of worth.py: levels of a GPU, units of cores, and four numbers for each pair.
#define WHOLE_GPU_MILLI 1000
#define STEP_MILLI 10
#define LEVELS (WHOLE_GPU_MILLI / STEP_MILLI + 1)
#define UNITS 270
#define UNIT_MILLI 500
#define OF_KIND (LEVELS * (UNITS + 1) * 4)
#define MOST_SIZES 128
#define MOST_GPUS 64
#define MOST_BUSY 16
#define PART_BITS 10

enum { PODS, CPU, MEMORY, GPU };
enum {
    NEED, FLOOR, FREE, SUITABLE, PREFERENCE, SCORE, TOPS, STALE, REFUSED, BOOKS, FREE_BITS, LAYOUT_IDS,
    GPU_PARTS, GPU_WHOLE, PARTS, OPENED, COPIES, KINDS, NODE_GPUS, TABLE, PRICES, SIZES, SIZE_OF, CLASS_CPU, CLASS_GPUS,
    CHANCES, ARRAYS
};
static const Py_ssize_t ITEM_BYTES[ARRAYS] = {
    8, 8, 8, 1, 8, 8, 8, 1, 8, 8, 8, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8,
};

typedef struct {
    PyObject_HEAD
    Py_buffer arrays[ARRAYS];
    Py_buffer *tables;
    Py_ssize_t layouts, width, size, gpus_told, kinds, sizes, classes;
    int64_t unknown, gpus, share_milli, share_memory;
    int several, ranked;
} Kernel;

static void let_go(Kernel *self) {
    for (int i = 0; i < ARRAYS; i++)
        if (self->arrays[i].obj)
            PyBuffer_Release(&self->arrays[i]);
    for (Py_ssize_t i = 0; i < self->layouts; i++)
        if (self->tables[i].obj)
            PyBuffer_Release(&self->tables[i]);
    PyMem_Free(self->tables);
    self->tables = NULL;
    self->layouts = 0;
}

static void dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    let_go((Kernel *)object);
    release(object);
    Py_DECREF(type);
}

static int borrow(PyObject *array, Py_buffer *view, Py_ssize_t item_bytes, int writable) {
    if (PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) < 0)
        return -1;
    if (view->itemsize != item_bytes) {
        PyErr_Format(PyExc_TypeError, "an array has items of %zd bytes, not of %zd", view->itemsize, item_bytes);
        return -1;
    }
    return 0;
}

static Py_ssize_t items(const Kernel *self, int array) {
    return self->arrays[array].len / ITEM_BYTES[array];
}

// Whether every array reaches as far as it will be read: the rest of this file does not look.
static int reach(const Kernel *self) {
    Py_ssize_t size = self->size;
    int sound = size > 0 && size % BLOCK == 0 && items(self, TOPS) == size / BLOCK && items(self, STALE) == size / BLOCK;
    for (int i = SUITABLE; i <= LAYOUT_IDS; i++)
        sound &= i == TOPS || i == STALE || items(self, i) == size;
    sound &= self->width >= WANTED && items(self, FLOOR) == self->width && items(self, FREE) >= self->width * size;
    sound &= items(self, GPU_WHOLE) == size && self->gpus_told > 0;
    if (self->arrays[PARTS].obj)
        sound &= items(self, PARTS) == 5 * size;
    if (self->arrays[OPENED].obj)
        sound &= items(self, OPENED) == size;
    if (self->arrays[COPIES].obj)
        sound &= items(self, COPIES) == size;
    if (self->arrays[KINDS].obj) {
        sound &= items(self, KINDS) == size && self->kinds >= 0 && items(self, TABLE) == (self->kinds + 1) * OF_KIND;
        sound &= items(self, PRICES) == self->classes * (self->kinds + 1) && self->gpus_told <= MOST_GPUS;
        sound &= items(self, NODE_GPUS) == size && items(self, CHANCES) == self->classes * (MOST_BUSY + 1);
        sound &= items(self, CLASS_CPU) == self->classes && items(self, CLASS_GPUS) == self->classes;
        sound &= self->sizes <= MOST_SIZES && self->gpus >= 0;
        for (Py_ssize_t i = 0; i < self->classes; i++) {
            int64_t at = ((const int64_t *)self->arrays[SIZE_OF].buf)[i];
            sound &= at >= 0 && at < self->sizes;
        }
    }
    if (!sound)
        PyErr_SetString(PyExc_ValueError, "the arrays of a row are not of one size");
    return sound ? 0 : -1;
}

// Kernel(arrays, tables, unknown, several, ranked, gpus, milli, memory): `arrays` in the order above, PARTS None where the
// shape takes no part of a GPU, OPENED where it takes no MIG instance, COPIES where they were not asked, and those from KINDS on None under Tightest; `tables[layout]` the closeness by free GPUs,
// None where the layout says nothing, and then it is `unknown`. `several` GPUs have to be close; `ranked` by the part's
// GPU, or by the cards that are broken into. The shape takes `gpus` whole ones, or of one so much, in thousandths or in thousandths of a MiB.
static PyObject *new_kernel(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    PyObject *arrays, *tables;
    long long unknown, gpus, milli, memory;
    int several, ranked;
    if (!PyArg_ParseTuple(
            args, "O!O!LppLLL", &PyTuple_Type, &arrays, &PyTuple_Type, &tables, &unknown, &several, &ranked, &gpus,
            &milli, &memory))
        return NULL;
    if (PyTuple_Size(arrays) != ARRAYS) {
        PyErr_Format(PyExc_ValueError, "%d arrays are needed", ARRAYS);
        return NULL;
    }
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Kernel *self = (Kernel *)make(type, 0);
    if (!self)
        return NULL;
    self->unknown = unknown;
    self->several = several;
    self->ranked = ranked;
    self->gpus = gpus;
    self->share_milli = milli;
    self->share_memory = memory;
    for (int i = 0; i < ARRAYS; i++) {
        PyObject *array = PyTuple_GetItem(arrays, i);
        int writable = i == SCORE || i == TOPS || i == STALE || i == COPIES;
        if ((i == PARTS || i == OPENED || i == COPIES || (i >= KINDS && PyTuple_GetItem(arrays, KINDS) == Py_None)) && array == Py_None)
            continue;
        if (borrow(array, &self->arrays[i], ITEM_BYTES[i], writable) < 0)
            goto fail;
    }
    self->layouts = PyTuple_Size(tables);
    self->tables = PyMem_Calloc(self->layouts ? self->layouts : 1, sizeof(Py_buffer));
    if (!self->tables) {
        self->layouts = 0;
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t i = 0; i < self->layouts; i++) {
        PyObject *table = PyTuple_GetItem(tables, i);
        if (table != Py_None && borrow(table, &self->tables[i], 2, 0) < 0)
            goto fail;
    }
    self->size = items(self, SCORE);
    self->width = items(self, NEED);
    self->gpus_told = self->size ? items(self, GPU_PARTS) / self->size : 0;
    if (self->arrays[KINDS].obj) {
        self->kinds = items(self, TABLE) / OF_KIND - 1;
        self->sizes = items(self, SIZES);
        self->classes = items(self, SIZE_OF);
    }
    if (reach(self) < 0)
        goto fail;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

// As numpy's //: rounded down; 0 where the divisor is 0.
static int64_t floor_divide(int64_t a, int64_t b) {
    if (b == 0)
        return 0;
    int64_t quotient = a / b;
    return quotient - (a % b != 0 && (a % b < 0) != (b < 0));
}

#define AT(array, type) ((type *)self->arrays[array].buf)

static int64_t clip(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

// Worth.of: what a node of a kind is worth with so many cores and so much of each of its GPUs, the emptiest first.
static int64_t worth_of(const Kernel *self, int64_t kind, int64_t gpus, int64_t cores, const int64_t *rooms) {
    int64_t counts[MOST_SIZES], total = 0;
    cores = cores < 0 ? 0 : cores;
    for (Py_ssize_t s = 0; s < self->sizes; s++) {
        counts[s] = 0;
        for (Py_ssize_t g = 0; g < self->gpus_told; g++)
            counts[s] += floor_divide(rooms[g], AT(SIZES, int64_t)[s]);
    }
    for (Py_ssize_t i = 0; i < self->classes; i++) {
        int64_t price = AT(PRICES, int64_t)[i * (self->kinds + 1) + kind];
        if (price == 0)
            continue;
        int64_t several = AT(CLASS_GPUS, int64_t)[i], idle = counts[AT(SIZE_OF, int64_t)[i]];
        int64_t whole = floor_divide(idle, several), begun = idle - whole * several;
        int64_t asked = AT(CLASS_CPU, int64_t)[i], by_cores = floor_divide(cores, asked);
        int64_t places = asked > 0 && by_cores < whole ? by_cores : whole;
        int64_t busy = (whole + 1) * several <= gpus ? clip(several - begun, 0, MOST_BUSY) : 0;
        total += places * price;
        total += AT(CHANCES, int64_t)[i * (MOST_BUSY + 1) + busy] * price >> PART_BITS;
    }
    for (Py_ssize_t g = 0; g < self->gpus_told; g++) {
        int64_t level = clip(rooms[g] / STEP_MILLI, 0, LEVELS - 1);
        if (level == 0)
            break;
        int64_t reached = cores < (UNITS - 1) * UNIT_MILLI ? cores : (UNITS - 1) * UNIT_MILLI;
        int64_t units = reached / UNIT_MILLI, rest = reached - units * UNIT_MILLI;
        const int64_t *at = AT(TABLE, int64_t) + ((kind * LEVELS + level) * (UNITS + 1) + units) * 4;
        total += at[0] + floor_divide(at[1] * rest, UNIT_MILLI);
        cores -= at[2] + floor_divide(at[3] * rest, UNIT_MILLI);
        cores = cores < 0 ? 0 : cores;
    }
    return total;
}

// Put a value where it belongs among `count` that fall.
static void insert(int64_t *falling, Py_ssize_t count, int64_t value) {
    for (; count > 0 && falling[count - 1] < value; count--)
        falling[count] = falling[count - 1];
    falling[count] = value;
}

// How the worth of a node changes (expected_fill._change). `idle_milli` is set to what is idle of all its GPUs.
static int64_t change_of(const Kernel *self, Py_ssize_t slot, int64_t cpu_milli, int64_t cpu_left, int64_t *idle_milli) {
    int64_t left[MOST_GPUS], rooms[MOST_GPUS], after[MOST_GPUS];
    int64_t whole = AT(GPU_WHOLE, int64_t)[slot], unit = whole / WHOLE_GPU_MILLI, kind = AT(KINDS, int64_t)[slot];
    int64_t gpus = AT(NODE_GPUS, int64_t)[slot];
    uint64_t free_bits = (uint64_t)AT(FREE_BITS, int64_t)[slot];
    Py_ssize_t count = self->gpus_told;
    *idle_milli = 0;
    for (Py_ssize_t g = 0; g < count; g++) {
        int64_t amount = AT(GPU_PARTS, int64_t)[g * self->size + slot] + (free_bits >> g & 1 ? whole : 0);
        insert(left, g, amount);
    }
    for (Py_ssize_t g = 0; g < count; g++) {
        rooms[g] = floor_divide(left[g], unit);
        *idle_milli += rooms[g];
    }
    if (kind < 0 || kind >= self->kinds)
        return 0;
    int64_t before = worth_of(self, kind, gpus, cpu_milli, rooms), best = before - MOST_CHANGE;
    if (!self->share_milli && !self->share_memory) {
        for (Py_ssize_t g = 0; g < count; g++)
            after[g] = g + self->gpus < count ? rooms[g + self->gpus] : 0;
        return worth_of(self, kind, gpus, cpu_left, after) - before;
    }
    int64_t share = self->share_memory ? self->share_memory : unit * self->share_milli;
    for (Py_ssize_t g = 0; g < count && left[g] >= share; g++) {
        if (g + 1 < count && left[g] == left[g + 1])
            continue;
        for (Py_ssize_t i = 0, kept = 0; i < count; i++)
            if (i != g)
                after[kept++] = rooms[i];
        insert(after, count - 1, floor_divide(left[g] - share, unit));
        int64_t worth = worth_of(self, kind, gpus, cpu_left, after);
        best = worth > best ? worth : best;
    }
    return best - before;
}

// The score of one slot. Sums that may run over are taken without a sign, as numpy's do in effect.
static int64_t score_of(const Kernel *self, Py_ssize_t slot, int books) {
    const int64_t *need = AT(NEED, int64_t), *least_left = AT(FLOOR, int64_t), *free = AT(FREE, int64_t) + slot;
    Py_ssize_t size = self->size;
    if (!AT(SUITABLE, uint8_t)[slot])
        return INFEASIBLE;
    if (books && AT(REFUSED, int64_t)[slot] == AT(BOOKS, int64_t)[slot])
        return INFEASIBLE;
    int64_t left[WANTED];
    for (Py_ssize_t r = 0; r < self->width; r++) {
        int64_t rest = (int64_t)((uint64_t)free[r * size] - (uint64_t)need[r]);
        if (rest < least_left[r])
            return INFEASIBLE;
        if (r < WANTED)
            left[r] = rest;
    }
    int64_t free_bits = AT(FREE_BITS, int64_t)[slot];
    uint64_t first = 0;
    if (self->arrays[PARTS].obj) {
        const int64_t *parts = AT(PARTS, int64_t) + slot, *opened = AT(GPU_PARTS, int64_t) + slot;
        int64_t taken = parts[0], limit = parts[size], opens = parts[2 * size], base = parts[3 * size], unit = parts[4 * size];
        uint64_t whole = (uint64_t)AT(GPU_WHOLE, int64_t)[slot];
        if (free_bits & opens)
            whole -= (uint64_t)taken;
        // Seen without a sign, a GPU with too little left has a huge rest: never the smallest.
        for (Py_ssize_t g = 0; g < self->gpus_told; g++) {
            uint64_t rest = (uint64_t)opened[g * size] - (uint64_t)taken;
            whole = rest < whole ? rest : whole;
        }
        if ((int64_t)whole >= limit)
            return INFEASIBLE;
        if (self->ranked)
            first = (uint64_t)base + (uint64_t)floor_divide((int64_t)whole, unit);
    }
    if (self->ranked && self->arrays[OPENED].obj)
        first = (uint64_t)AT(OPENED, int64_t)[slot];
    if (self->several) {
        int32_t id = AT(LAYOUT_IDS, int32_t)[slot];
        int64_t close = self->unknown;
        if (id > 0 && id < self->layouts && self->tables[id].obj && free_bits >= 0 && free_bits < self->tables[id].len / 2)
            close = ((const int16_t *)self->tables[id].buf)[free_bits];
        if (close < 0)
            return INFEASIBLE;
        first = (uint64_t)(PERMILLE - close);
    }
    uint64_t looseness = 0, score;
    if (self->arrays[KINDS].obj) {
        int64_t amounts[AMOUNTS] = {0, left[CPU], left[MEMORY]};
        int64_t change = change_of(self, slot, free[CPU * size], left[CPU], &amounts[0]);
        change = clip(change, -MOST_CHANGE, MOST_CHANGE);
        for (int r = 0; r < AMOUNTS; r++)
            looseness += (uint64_t)clip(amounts[r] >> FILL_UNIT_BITS[r], 0, FILL_LARGEST[r]) << FILL_PLACE_BITS[r];
        score = ((uint64_t)change << CHANGE_BITS) - looseness;
        if (self->several || self->ranked)
            score = ((uint64_t)change << (CHANGE_BITS - FEWER_BITS)) - (looseness >> FEWER_BITS) - (first << FILL_FIRST_BITS);
    } else {
        for (int r = 0; r < WANTED; r++)
            looseness += (uint64_t)clip(left[r] >> UNIT_BITS[r], 0, LARGEST[r]) << PLACE_BITS[r];
        score = -looseness - (first << FIRST_BITS);
    }
    return (int64_t)((uint64_t)AT(PREFERENCE, int64_t)[slot] + score);
}

// How many pods of a shape that takes no part of a GPU the slot could take, one of which fits.
static int64_t copies_of(const Kernel *self, Py_ssize_t slot) {
    const int64_t *need = AT(NEED, int64_t), *free = AT(FREE, int64_t) + slot;
    int64_t copies = INT64_MAX;
    for (Py_ssize_t r = 0; r < self->width; r++)
        if (need[r] > 0 && free[r * self->size] / need[r] < copies)
            copies = free[r * self->size] / need[r];
    return copies;
}

// redo(slots, start, books): score anew what a list of slots tells from `start` on; `books`: whether kubelets keep any.
static PyObject *redo(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Kernel *self = (Kernel *)object;
    if (count != 3 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "redo(slots, start, books)");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(args[1]), end = PyList_Size(args[0]);
    int books = PyObject_IsTrue(args[2]);
    if (PyErr_Occurred())
        return NULL;
    for (Py_ssize_t i = start < 0 ? 0 : start; i < end; i++) {
        Py_ssize_t slot = PyLong_AsSsize_t(PyList_GetItem(args[0], i));
        if (slot < 0 || slot >= self->size) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_IndexError, "slot %zd of %zd", slot, self->size);
            return NULL;
        }
        int64_t score = AT(SCORE, int64_t)[slot] = score_of(self, slot, books);
        AT(STALE, uint8_t)[slot / BLOCK] = 1;
        if (self->arrays[COPIES].obj)
            AT(COPIES, int64_t)[slot] = score == INFEASIBLE ? 0 : copies_of(self, slot);
    }
    Py_RETURN_NONE;
}

// redo_all(used, books): score the first `used` slots.
static PyObject *redo_all(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Kernel *self = (Kernel *)object;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "redo_all(used, books)");
        return NULL;
    }
    Py_ssize_t used = PyLong_AsSsize_t(args[0]);
    int books = PyObject_IsTrue(args[1]);
    if (PyErr_Occurred())
        return NULL;
    used = used > self->size ? self->size : used;
    for (Py_ssize_t slot = 0; slot < used; slot++)
        AT(SCORE, int64_t)[slot] = score_of(self, slot, books);
    memset(self->arrays[STALE].buf, 1, (size_t)(self->size / BLOCK));
    Py_RETURN_NONE;
}

static Py_ssize_t first_of_highest(const int64_t *values, Py_ssize_t count) {
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 1; i < count; i++)
        if (values[i] > values[found])
            found = i;
    return found;
}

// best(): the slot with the highest score, the lowest of equals.
static PyObject *best(PyObject *object, PyObject *Py_UNUSED(none)) {
    Kernel *self = (Kernel *)object;
    const int64_t *score = AT(SCORE, int64_t);
    int64_t *tops = AT(TOPS, int64_t);
    uint8_t *stale = AT(STALE, uint8_t);
    Py_ssize_t blocks = self->size / BLOCK;
    for (Py_ssize_t block = 0; block < blocks; block++)
        if (stale[block]) {
            const int64_t *own = score + block * BLOCK;
            tops[block] = own[first_of_highest(own, BLOCK)];
            stale[block] = 0;
        }
    Py_ssize_t start = first_of_highest(tops, blocks) * BLOCK;
    return PyLong_FromSsize_t(start + first_of_highest(score + start, BLOCK));
}

static PyMethodDef METHODS[] = {
    {"redo", (PyCFunction)(void (*)(void))redo, METH_FASTCALL, "Score, and count copies on, the slots of a list anew, from a place on."},
    {"redo_all", (PyCFunction)(void (*)(void))redo_all, METH_FASTCALL, "Score the first slots anew."},
    {"best", best, METH_NOARGS, "The slot with the highest score, the lowest of equals."},
    {NULL, NULL, 0, NULL},
};

// What is expected to be used of a GPU and of the cores beside it, by what is left of both: `found` from the sums over
// the classes that fit (weight, GPU, cores) and from what each step of a class leaves. Level 0 is 0. Sums are taken
// modulo 2^64, as numpy takes them.
static void fill_levels(const int64_t *fitting, const int64_t *level_of, const int64_t *units_of, const int64_t *rates,
                        Py_ssize_t steps, int64_t *found) {
    const Py_ssize_t plane = (Py_ssize_t)LEVELS * UNITS;
    memset(found, 0, 2 * plane * sizeof(int64_t));
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
            // Steps that take cores alone lead to what was found right before.
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
        wrong = of[1][i] < 0 || of[2][i] < 0 || of[1][i] + of[2][i] < 1;
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

static PyMethodDef FUNCTIONS[] = {
    {"fill", (PyCFunction)(void (*)(void))fill, METH_FASTCALL, "Work out a table of expected use, see worth.py."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_new, new_kernel},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_doc, "The arrays of one row and what works on them."},
    {0, NULL},
};

static PyType_Spec SPEC = {
    .name = "dovetail.core.placing._kernel.Kernel",
    .basicsize = sizeof(Kernel),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = SLOTS,
};

static int run(PyObject *module) {
    PyObject *type = PyType_FromSpec(&SPEC);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Kernel", type);
    Py_DECREF(type);
    return failed ? -1 : PyModule_AddStringConstant(module, "SOURCE", SOURCE_DIGEST);
}

static PyModuleDef_Slot MODULE_SLOTS[] = {{Py_mod_exec, run}, {0, NULL}};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "_kernel", .m_doc = "See placing/kernel.c.", .m_methods = FUNCTIONS,
    .m_slots = MODULE_SLOTS,
};

PyMODINIT_FUNC PyInit__kernel(void) {
    return PyModuleDef_Init(&MODULE);
}
