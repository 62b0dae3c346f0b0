// SPDX-License-Identifier: Apache-2.0
// The inner loop of score_cache.ScoreRow in C: the score of one shape on the slots that changed, the number of such
// pods that each of these slots takes where that is needed, and the best slot of all.
//
// Rules: the kernel reads and writes the arrays of the row, of the node table and of worth.py in place. It finds bit
// for bit what ScoreRow._redo and ScoreRow.best find with numpy under the scorings Tightest and ExpectedFill; a test
// compares them. numpy handles the shapes that it does not support (devices by claim, several forms, several replicas):
// see kernel.py. The kernel has no state but the addresses of the arrays, which live as long as it does. The
// values that C and Python share are in layout.py, of which setup.py makes layout.h; the worth of nodes under
// ExpectedFill is in worth.h, the arrangement of many pods in arrange.h.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include "worth.h"
#include "arrange.h"

static PyTypeObject *worth_type;

typedef struct {
    PyObject_HEAD
    Py_buffer arrays[ARRAYS];
    Py_buffer *tables, *tallies;
    Worth *worth;
    Py_ssize_t layouts, tallied, width, size, gpu_rows;
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
    for (Py_ssize_t i = 0; i < 2 * self->tallied; i++)
        if (self->tallies[i].obj)
            PyBuffer_Release(&self->tallies[i]);
    PyMem_Free(self->tables);
    PyMem_Free(self->tallies);
    Py_CLEAR(self->worth);
    self->tables = self->tallies = NULL;
    self->layouts = self->tallied = 0;
}

static void dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    let_go((Kernel *)object);
    release(object);
    Py_DECREF(type);
}

static Py_ssize_t items(const Kernel *self, int array) {
    return self->arrays[array].len / ITEM_BYTES[array];
}

// Whether every array reaches as far as it is read: the rest of this file does not check again.
static int reach(const Kernel *self) {
    Py_ssize_t size = self->size;
    int sound = size > 0 && size % BLOCK == 0;
    sound &= items(self, TOPS) == size / BLOCK && items(self, STALE) == size / BLOCK;
    for (int i = SUITABLE; i <= LAYOUT_IDS; i++)
        sound &= i == TOPS || i == STALE || items(self, i) == size;
    sound &= self->width >= TIGHTEST_AMOUNTS && items(self, FLOOR) == self->width;
    sound &= items(self, FREE) >= self->width * size;
    sound &= items(self, GPU_WHOLE) == size && self->gpu_rows > 0;
    if (self->arrays[PARTS].obj)
        sound &= items(self, PARTS) == FRACTION_ROWS * size;
    if (self->arrays[OPENED].obj)
        sound &= items(self, OPENED) == size;
    if (self->arrays[COPIES].obj)
        sound &= items(self, COPIES) == size;
    for (Py_ssize_t i = 0; i < self->tallied; i++)
        sound &= self->tallies[2 * i].len / 4 == size;
    if (self->worth)
        sound &= self->worth->size == size && self->worth->gpu_rows == self->gpu_rows && self->gpus >= 0;
    if (!sound)
        PyErr_SetString(PyExc_ValueError, "the arrays of a row are not of one size");
    return sound ? 0 : -1;
}

// Kernel(arrays, tables, tallies, worth, unknown, several, ranked, gpus, milli, memory).
//
// `arrays` are the `KernelArrays` of layout.py. `tables[layout]` is the closeness by free GPUs; it is None where the
// layout is not known, and the closeness is `unknown` then. `tallies` are pairs: the domains of the slots, and the
// copies added up by domain. `worth` is None under Tightest. `several`: the shape takes GPUs that have to be
// close. `ranked`: slots are ranked by the GPU of the part, or by the GPUs that MIG instances open. The shape
// takes `gpus` whole GPUs, or of one GPU `milli` thousandths, or `memory` thousandths of a MiB.
static PyObject *new_kernel(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    PyObject *arrays, *tables, *tallies, *worth;
    long long unknown, gpus, milli, memory;
    int several, ranked;
    if (!PyArg_ParseTuple(
            args, "O!O!O!OLppLLL", &PyTuple_Type, &arrays, &PyTuple_Type, &tables, &PyTuple_Type, &tallies, &worth,
            &unknown, &several, &ranked, &gpus, &milli, &memory))
        return NULL;
    if (PyTuple_Size(arrays) != ARRAYS) {
        PyErr_Format(PyExc_ValueError, "%d arrays are needed", ARRAYS);
        return NULL;
    }
    if (worth != Py_None && !PyObject_TypeCheck(worth, worth_type)) {
        PyErr_SetString(PyExc_TypeError, "a Worth, or None");
        return NULL;
    }
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Kernel *self = (Kernel *)make(type, 0);
    if (!self)
        return NULL;
    self->worth = worth == Py_None ? NULL : (Worth *)Py_NewRef(worth);
    self->unknown = unknown;
    self->several = several;
    self->ranked = ranked;
    self->gpus = gpus;
    self->share_milli = milli;
    self->share_memory = memory;
    for (int i = 0; i < ARRAYS; i++) {
        PyObject *array = PyTuple_GetItem(arrays, i);
        int writable = i == SCORE || i == TOPS || i == STALE || i == COPIES;
        if ((i == PARTS || i == OPENED || i == COPIES) && array == Py_None)
            continue;
        if (borrow(array, &self->arrays[i], ITEM_BYTES[i], writable) < 0)
            goto fail;
    }
    self->layouts = PyTuple_Size(tables);
    self->tallied = PyTuple_Size(tallies);
    self->tables = PyMem_Calloc((size_t)(self->layouts ? self->layouts : 1), sizeof(Py_buffer));
    self->tallies = PyMem_Calloc((size_t)(self->tallied ? 2 * self->tallied : 1), sizeof(Py_buffer));
    if (!self->tables || !self->tallies) {
        self->layouts = self->tallied = 0;
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t i = 0; i < self->layouts; i++) {
        PyObject *table = PyTuple_GetItem(tables, i);
        if (table != Py_None && borrow(table, &self->tables[i], 2, 0) < 0)
            goto fail;
    }
    for (Py_ssize_t i = 0; i < self->tallied; i++) {
        PyObject *domains, *tally;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tallies, i), "OO", &domains, &tally) ||
            borrow(domains, &self->tallies[2 * i], 4, 0) < 0 || borrow(tally, &self->tallies[2 * i + 1], 8, 1) < 0)
            goto fail;
    }
    self->size = items(self, SCORE);
    self->width = items(self, NEED);
    self->gpu_rows = self->size ? items(self, GPU_PARTS) / self->size : 0;
    if (reach(self) < 0)
        goto fail;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

#define AT(array, type) ((type *)self->arrays[array].buf)

static uint64_t packed(int64_t amount, PackedAmount to) {
    return (uint64_t)clip(amount >> to.unit_bits, 0, to.largest) << to.place_bits;
}

// The score of one slot. Sums that may overflow are unsigned, which equals numpy's arithmetic.
static int64_t score_of(const Kernel *self, Py_ssize_t slot, int books) {
    const int64_t *need = AT(NEED, int64_t), *least_left = AT(FLOOR, int64_t), *free = AT(FREE, int64_t) + slot;
    Py_ssize_t size = self->size;
    if (!AT(SUITABLE, uint8_t)[slot])
        return INFEASIBLE;
    if (books && AT(REFUSED, int64_t)[slot] == AT(BOOKS, int64_t)[slot])
        return INFEASIBLE;
    int64_t left[TIGHTEST_AMOUNTS];
    for (Py_ssize_t r = 0; r < self->width; r++) {
        int64_t rest = (int64_t)((uint64_t)free[r * size] - (uint64_t)need[r]);
        if (rest < least_left[r])
            return INFEASIBLE;
        if (r < TIGHTEST_AMOUNTS)
            left[r] = rest;
    }
    int64_t free_bits = AT(FREE_BITS, int64_t)[slot];
    uint64_t first = 0;
    if (self->arrays[PARTS].obj) {
        const int64_t *parts = AT(PARTS, int64_t) + slot, *opened = AT(GPU_PARTS, int64_t) + slot;
        int64_t taken = parts[TAKEN_ROW * size], limit = parts[LIMIT_ROW * size], opens = parts[OPENS_ROW * size];
        int64_t base = parts[BASE_ROW * size], unit = parts[UNIT_ROW * size];
        uint64_t whole = (uint64_t)AT(GPU_WHOLE, int64_t)[slot];
        if (free_bits & opens)
            whole -= (uint64_t)taken;
        // As an unsigned number, a GPU with too little left has a huge rest: it is never the smallest.
        for (Py_ssize_t g = 0; g < self->gpu_rows; g++) {
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
        int known = id > 0 && id < self->layouts && self->tables[id].obj;
        if (known && free_bits >= 0 && free_bits < self->tables[id].len / 2)
            close = ((const int16_t *)self->tables[id].buf)[free_bits];
        if (close < 0)
            return INFEASIBLE;
        first = (uint64_t)(PERMILLE - close);
    }
    uint64_t looseness = 0, score;
    if (self->worth) {
        int64_t share = self->share_memory;
        if (!share)
            share = AT(GPU_WHOLE, int64_t)[slot] / WHOLE_GPU_MILLI * self->share_milli;
        int64_t amounts[EXPECTED_FILL_AMOUNTS] = {0, left[CPU_ROW], left[MEMORY_ROW]};
        int64_t change = change_of(self->worth, slot, left[CPU_ROW], self->gpus, share, &amounts[0]);
        change = clip(change, -MOST_CHANGE, MOST_CHANGE);
        for (int r = 0; r < EXPECTED_FILL_AMOUNTS; r++)
            looseness += packed(amounts[r], EXPECTED_FILL[r]);
        score = ((uint64_t)change << CHANGE_BITS) - looseness;
        if (self->several || self->ranked)
            score = ((uint64_t)change << (CHANGE_BITS - FEWER_BITS)) - (looseness >> FEWER_BITS)
                    - (first << FILL_FIRST_BITS);
    } else {
        for (int r = 0; r < TIGHTEST_AMOUNTS; r++)
            looseness += packed(left[r], TIGHTEST[r]);
        score = -looseness - (first << FIRST_BITS);
    }
    return (int64_t)((uint64_t)AT(PREFERENCE, int64_t)[slot] + score);
}

// The number of pods of a shape without parts of a GPU that the slot could take, if one fits.
static int64_t copies_of(const Kernel *self, Py_ssize_t slot) {
    const int64_t *need = AT(NEED, int64_t), *free = AT(FREE, int64_t) + slot;
    int64_t copies = INT64_MAX;
    for (Py_ssize_t r = 0; r < self->width; r++)
        if (need[r] > 0 && free[r * self->size] / need[r] < copies)
            copies = free[r * self->size] / need[r];
    return copies;
}

// Store the number of pods that a slot could take, and update the sums.
static void put_copies(const Kernel *self, Py_ssize_t slot, int64_t copies) {
    int64_t more = copies - AT(COPIES, int64_t)[slot];
    AT(COPIES, int64_t)[slot] = copies;
    for (Py_ssize_t i = 0; more && i < self->tallied; i++) {
        int32_t domain = ((const int32_t *)self->tallies[2 * i].buf)[slot];
        if (domain >= 0 && domain < self->tallies[2 * i + 1].len / 8)
            ((int64_t *)self->tallies[2 * i + 1].buf)[domain] += more;
    }
}

// redo(slots, start, books): score the slots of a list again, from `start` on; `books`: whether kubelets keep state.
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
            put_copies(self, slot, score == INFEASIBLE ? 0 : copies_of(self, slot));
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
    {"redo", (PyCFunction)(void (*)(void))redo, METH_FASTCALL,
     "Score the slots of a list anew, from a place on, and count copies on them."},
    {"redo_all", (PyCFunction)(void (*)(void))redo_all, METH_FASTCALL, "Score the first slots anew."},
    {"best", best, METH_NOARGS, "The slot with the highest score, the lowest of equals."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef FUNCTIONS[] = {
    {"arrange", (PyCFunction)(void (*)(void))arrange, METH_FASTCALL, "Choose slots for many pods, see arrangement.py."},
    {"fill", (PyCFunction)(void (*)(void))fill, METH_FASTCALL, "Work out a table of expected use: expected_use.py."},
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
    if (!worth_type)
        worth_type = (PyTypeObject *)PyType_FromSpec(&WORTH_SPEC);
    int failed = !type || !worth_type || PyModule_AddObjectRef(module, "Kernel", type) < 0 ||
                 PyModule_AddObjectRef(module, "Worth", (PyObject *)worth_type) < 0;
    Py_XDECREF(type);
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
