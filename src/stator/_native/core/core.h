/* What the files of the native core share. The module's contract is in module.c. */
#ifndef STATOR_CORE_H
#define STATOR_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tensor_read.h"
#include "versions.h"

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Rows that Python hands over are tuples; anything else is a TypeError before it is parsed. */
static inline bool is_row(PyObject *row) {
    if (!PyTuple_Check(row)) {
        PyErr_Format(PyExc_TypeError, "expected a row, not %.100s", Py_TYPE(row)->tp_name);
        return false;
    }
    return true;
}

/* constants.c: the relation of guards/constants.py. No user code runs; no error is left set. */
bool constants_init(void);
bool same_constant(PyObject *value, PyObject *expected);
bool same_members(PyObject *value, PyObject *expected);
void constants_set_device_type(PyTypeObject *type);

/* storage.c: steps by C storage, as guards/storage.py. All results are borrowed unless said otherwise. */
bool storage_init(void);
PyObject **instance_dict_slot(PyObject *value); /* where the dict pointer lies; NULL: the object has no dict */
PyObject *dict_find(PyObject *dict, PyObject *key);
bool ordered_keys_readable(void);
bool is_ordered_dict(PyObject *dict);
const void *ordered_state_address(PyObject *dict);
PyObject *dict_key_at(PyObject *dict, Py_ssize_t index);
/* Members of `expected` that are weak references with that callback stand for what they refer to. */
bool dict_keys_are(PyObject *dict, PyObject *expected, PyObject *callback);
Py_ssize_t storage_length(PyObject *value, const void **address); /* -1: no length by C storage */
PyObject **object_member(PyObject *value, PyObject *descriptor, PyObject *name, bool *none_when_empty);
PyObject *sequence_item(PyObject *value, Py_ssize_t index);
bool is_object_member(PyTypeObject *type, PyObject *descriptor, PyObject *name);

/* tensor.c */
#define INLINE_NUMBERS 8

typedef struct {
    PyTypeObject *kind; /* strong */
    uint64_t key_mask;
    uint64_t keys;
    int32_t dim;
    uint32_t dtype_and_device; /* as they lie side by side in a tensor */
    bool fast;                 /* the raw fields answer exactly when the key set matches */
    bool requires_grad;
    bool exact_sizes; /* no wildcard */
    bool exact_strides;
    bool strides_free;
    bool offset_free;
    int64_t storage_offset;
    int64_t *sizes; /* sizes, then strides; WILDCARD where free */
    int64_t numbers[INLINE_NUMBERS]; /* where `sizes` points if they fit */
    PyObject *expected; /* strong: the TensorExpectation, for the slow way */
} TensorCheck;

#define WILDCARD INT64_MIN

extern StatorTensorLayout tensor_layout;
bool tensor_check_init(TensorCheck *check, PyObject *row);
void tensor_check_clear(TensorCheck *check);
bool tensor_layout_publish(PyObject *module);
extern PyMethodDef tensor_methods[];

static inline bool same_or_wild(const int64_t *actual, const int64_t *expected, int32_t count, bool exact) {
    for (int32_t index = 0; index < count; index++) {
        if (actual[index] != expected[index] && (exact || expected[index] != WILDCARD)) {
            return false;
        }
    }
    return true;
}

/* Layouts seen on 64-bit machines; before torch 2.13 everything behind the link to Python lay a word further. Where
 * calibration finds just these places, reading with them as constants halves the instructions; anywhere else the
 * calibrated places are used. */
#define KNOWN_LAYOUT(shift, flag)                                                                              \
    {.inline_dims = 5, .handle = 16, .dimensions = 56 + (shift), .sizes = 64 + (shift),                        \
     .strides = 104 + (shift), .storage_offset = 144 + (shift), .dtype = 160 + (shift),                        \
     .device_type = 162 + (shift), .device_index = 163 + (shift), .key_set = 168 + (shift),                    \
     .autograd_meta = 24, .requires_grad_flag = (flag)}
#define NEW_LAYOUT KNOWN_LAYOUT(0, 128)
#define OLD_LAYOUT KNOWN_LAYOUT(8, 144)
enum { LAYOUT_CALIBRATED, LAYOUT_NEW, LAYOUT_OLD };
extern int tensor_layout_kind;

/* At level RAW, for a value of the expected kind: 1: matches, 0: does not, -1: ask the slow way. */
static inline __attribute__((always_inline)) int tensor_check_at(const StatorTensorLayout *layout,
                                                                 const TensorCheck *check, PyObject *value) {
    const char *impl = stator_tensor_impl(layout, value);
    if (UNLIKELY((stator_impl_keys(layout, impl) & check->key_mask) != check->keys)) {
        return check->key_mask == UINT64_MAX ? 0 : -1;
    }
    if (stator_impl_dim(layout, impl) != check->dim ||
        stator_impl_dtype_and_device(layout, impl) != check->dtype_and_device ||
        !same_or_wild(stator_impl_sizes(layout, impl), check->sizes, check->dim, check->exact_sizes) ||
        (!check->strides_free && !same_or_wild(stator_impl_strides(layout, impl), check->sizes + check->dim,
                                               check->dim, check->exact_strides)) ||
        (!check->offset_free && stator_impl_storage_offset(layout, impl) != check->storage_offset)) {
        return 0;
    }
    return stator_impl_requires_grad(layout, impl, tensor_layout.requires_grad) == check->requires_grad;
}

/* At any level and for any value; 1, 0 or -1 as above. The slow way may run Python code. */
int tensor_check_any(const TensorCheck *check, PyObject *value);
/* Integer geometry of a tensor; false: ask the slow way. `which` is 0 size, 1 stride, 2 storage offset. */
bool tensor_integer(PyObject *value, int which, int64_t index, int64_t *result, bool *reachable);

/* modes.c */
typedef struct {
    uint32_t looked_at; /* bits of MODE_* */
    PyObject *expected; /* strong: the ModesExpectation, for the slow way */
    bool slow;
    int8_t grad_enabled, inference_mode, deterministic, warn_only, cpu_default_device;
    int8_t torch_function_enabled, torch_function_off;
    int8_t default_dtype;
    int64_t function_modes, dispatch_modes;
    int autocast_count;
    int8_t autocast[4][3]; /* device type, enabled, dtype */
    int8_t autocast_cache;
} ModesCheck;

bool modes_check_init(ModesCheck *check, PyObject *row);
void modes_check_clear(ModesCheck *check);
/* 1, 0, or -1: ask the slow way. */
int modes_check_fast(const ModesCheck *check);
extern PyMethodDef modes_methods[];
/* Torch functions off while a getter of a tensor runs; returns what to restore, negative when it cannot. */
int torch_function_disable(void);
void torch_function_restore(int state);

/* machine.c */
extern PyTypeObject GuardProgram_Type;
typedef struct GuardProgram GuardProgram;

Py_ssize_t program_fetch_count(GuardProgram *program);
/* 1: all guards hold, and `fetched` (room for program_fetch_count) holds the values; 0: a guard fails; -1: an
 * exception is set. Runs user code never, other Python code only on the slow ways.
 * `*owned`: whether fetched values are new references. A caller that comes with false asks to borrow them, which is
 * granted where they are certain to live until Python code runs next. */
int program_run(GuardProgram *program, PyObject *function, PyObject *const *locals, Py_ssize_t count,
                PyObject **fetched, bool *owned);
bool program_is_dead(GuardProgram *program);
bool program_bind_entry(GuardProgram *program, PyObject *entry);
void program_release_entry(GuardProgram *program);
extern PyMethodDef machine_methods[];
bool machine_init(PyObject *module);

/* entries.c */
typedef struct {
    Py_ssize_t references;
    Py_ssize_t count;
    struct Entry *items[];
} EntryArray;

typedef struct EntryTable EntryTable;
typedef struct Entry {
    PyObject_HEAD
    GuardProgram *program;
    PyObject *residual;
    PyObject *owner;
    EntryTable *table; /* borrowed, NULL once removed */
    PyObject *weak_references;
    uint64_t hits;
    bool passes_function;
} Entry;

struct EntryTable {
    PyObject_HEAD
    EntryArray *array; /* never NULL; replaced, never changed */
    PyObject *lock;
    PyObject *weak_references;
};

extern PyTypeObject Entry_Type;
extern PyTypeObject EntryTable_Type;
extern PyTypeObject TailCall_Type;

typedef struct {
    PyObject_VAR_HEAD
    PyObject *callable;
    PyObject *arguments[]; /* Py_SIZE of them */
} TailCall;

void entry_array_release(EntryArray *array);
bool table_remove(EntryTable *table, Entry *entry);
void table_promote(EntryTable *table, EntryArray *seen, Py_ssize_t index);

/* binding.c */
typedef struct {
    PyCodeObject *code; /* strong */
    int positional, positional_only, keyword_only, locals;
    bool star_arguments, star_keywords;
} Signature;

bool signature_init(Signature *signature, PyCodeObject *code);
/* Fills `locals` with new references; false without an exception: Python would raise TypeError. On false with
 * an exception set, memory ran out. */
bool signature_bind(const Signature *signature, PyFunctionObject *function, PyObject *const *arguments,
                    Py_ssize_t count, PyObject *names, PyObject **locals);

/* dispatcher.c */
extern PyTypeObject Dispatcher_Type;
extern PyTypeObject Continuation_Type;
extern PyMethodDef dispatcher_methods[];

#endif
