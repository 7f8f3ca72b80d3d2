/* The runtime of compiled graphs: one native call allocates, runs kernels, calls operators and wraps results.
 *
 * A Program is immutable after it was made and may run in several threads at once. What one call needs (slots, integers, the
 * arena) is a Frame; idle frames are kept by their program. Frames and blocks are taken and given back with
 * the GIL held, which is their lock; between the two nothing of the program is written.
 *
 * Data comes from stator/runtime/native.py as tuples of integers; the tuples stay alive in `Program.keep`, so every
 * PyObject pointer below is borrowed from it.
 */
#ifndef STATOR_PROGRAM_H
#define STATOR_PROGRAM_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "program/shims.h"

/* Kinds of slots: the order of SLOT_KINDS in runtime/plan.py. */
typedef enum {
    SLOT_TENSOR_INPUT,
    SLOT_INTEGER_INPUT,
    SLOT_OBJECT_INPUT,
    SLOT_CONSTANT,
    SLOT_EMPTY,
    SLOT_ARENA,
    SLOT_VIEW,
    SLOT_TENSOR,
    SLOT_OPTIONAL,
    SLOT_LIST,
    SLOT_INTEGER,
    SLOT_OBJECT,
    SLOT_KINDS
} SlotKind;

/* What the program needs of a slot beyond its tensor. */
enum { NEEDS_DATA = 1, NEEDS_HANDLE = 2, NEEDS_PLAIN = 4, NEEDS_ELEMENT = 8 };

typedef struct {
    uint8_t kind;
    uint8_t needs;
} Slot;

/* Integer expressions: the order of the operations in runtime/integers.py. */
typedef enum {
    INTEGER_CONSTANT,
    INTEGER_INPUT,
    INTEGER_SIZE,
    INTEGER_STRIDE,
    INTEGER_OFFSET,
    INTEGER_ADD,
    INTEGER_SUB,
    INTEGER_MUL,
    INTEGER_FLOORDIV,
    INTEGER_MOD,
    INTEGER_MIN,
    INTEGER_MAX,
    INTEGER_EQUAL,
    INTEGER_LESS,
    INTEGER_LESS_EQUAL,
    INTEGER_OPERATIONS
} IntegerOperation;

typedef struct {
    IntegerOperation operation;
    int64_t left, right;
} IntegerRow;

/* An argument of an operator. */
typedef enum {
    VALUE_NONE,
    VALUE_WORD,    /* bits of an int, float, bool, dtype, device, layout or memory format */
    VALUE_STRING,
    VALUE_SLOT,    /* index: a slot */
    VALUE_INTEGER, /* index: a row of the integers */
    VALUE_LIST,
    VALUE_OBJECT,  /* anything the stable interface cannot carry: calls from Python only */
    VALUE_KINDS
} ValueKind;

typedef struct Value {
    uint8_t kind;
    uint8_t optional; /* the schema says Optional: the value travels behind a pointer */
    int32_t index;
    int32_t count;
    StableValue word;
    PyObject *object; /* what Python gets, for constants */
    struct Value *entries;
} Value;

typedef enum { STEP_EVALUATE, STEP_ALLOCATE, STEP_VIEW, STEP_KERNEL, STEP_CALL, STEP_ITEM, STEP_RELEASE, STEP_EXPECT, STEP_KINDS } StepKind;

/* How an operator is reached: the order of WAYS in runtime/externs.py. */
typedef enum {
    CALL_PYTHON,
    CALL_DISPATCHER,
    CALL_MM,
    CALL_MM_OUT,
    CALL_BMM,
    CALL_BMM_OUT,
    CALL_ADDMM,
    CALL_ADDMM_OUT,
    CALL_BADDBMM,
    CALL_BADDBMM_OUT,
    CALL_CONVOLUTION,
    CALL_CONVOLUTION_BACKWARD,
    CALL_ATTENTION,
    CALL_ATTENTION_BACKWARD,
    CALL_CAT,
    CALL_WAYS
} CallWay;

typedef void (*KernelFunction)(void *const *buffers, const int64_t *ints, int64_t begin, int64_t end);

typedef struct {
    int32_t count;
    int32_t *at;
} Indices;

typedef struct {
    StepKind kind;
    int32_t slot, base, row; /* ALLOCATE, VIEW, ITEM, EXPECT; row: the view's offset, the kernel's total, the item's index */
    Indices sizes, strides;  /* rows; RELEASE and KERNEL: slots in `sizes`, integer rows in `strides` */
    int64_t element;         /* bytes of an element; EVALUATE: first row */
    int64_t grain;           /* EVALUATE: end row */
    int32_t dtype, device_type, device_index;
    KernelFunction function;
    int64_t *fixed; /* the kernel's integers, where all are constants */
    CallWay way;
    uint8_t rerun;  /* a failed call may be repeated from Python, to raise what Python raises */
    uint8_t resident; /* a view whose tensor may be kept with the frame */
    const char *op, *overload;
    Value *values;
    int32_t count, positional;
    Indices python; /* which values Python gets, positional first */
    Indices results;
    PyObject *callable, *names, *note;
} Step;

typedef enum { OUTPUT_NONE, OUTPUT_SLOT, OUTPUT_INTEGER } OutputKind;

typedef struct {
    OutputKind kind;
    int32_t index;
} Output;

typedef struct {
    int32_t slot, bytes; /* bytes: a row */
    int32_t first, last; /* the steps that need it */
    int32_t step;        /* the one that makes it */
} ArenaSlot;

/* Who owns the handle of a place. */
typedef enum { BORROWED, OWNED, RESIDENT } Ownership;

typedef struct {
    Tensor handle;
    void *data;
    PyObject *object; /* inputs: borrowed; results of Python: owned */
    Tensor *list;
    int64_t integer; /* an integer slot's value; a list's length */
    int64_t element; /* bytes of an element, where a view needs them */
    uint8_t ownership, plain, object_owned;
} Place;

typedef struct Frame {
    struct Frame *next;
    int64_t *integers;
    void **buffers;
    int64_t *numbers; /* scratch for sizes, strides and kernel integers */
    StableValue *stack;
    /* The layout the resident handles were made for. */
    int64_t *layout; /* values of layout rows */
    int64_t *offsets; /* of arena slots; -1: allocated on its own */
    size_t arena_bytes;
    char *block;
    size_t block_bytes;
    uint8_t has_layout, keeps_block, inference, subclasses;
    /* A failure found without the GIL. */
    const char *failure;
    PyObject *failure_type; /* NULL: RuntimeError */
    char *failure_text;
    int32_t failed_step;
    PyThreadState *released; /* set while the GIL is not held */
    Place places[];
} Frame;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *keep, *plan, *describe, *mutation, *plain_functions;
    PyObject *name;
    Slot *slots;
    int32_t slot_count, input_count, row_count, constant_rows, first_rows, step_count, output_count;
    int32_t constant_count, arena_count, apart_count, layout_count, mutated_count;
    int32_t most_buffers, most_numbers, most_values;
    int32_t *inputs;
    int32_t *constant_slots;
    PyObject **constants;
    IntegerRow *rows;
    Step *steps;
    Output *outputs;
    ArenaSlot *arena, *apart; /* apart: what the program allocates outside the arena */
    int32_t *layout_rows, *mutated;
    uint64_t excluded_keys;
    uint8_t calls_operators, releases_gil;
    Frame *idle;
    int32_t idle_count;
    void **allocations; /* everything malloc'ed above */
    int32_t allocation_count;
} Program;

/* tensors.c: PyObject and handle */
extern Py_ssize_t tensor_offset; /* where a tensor's PyObject holds its at::Tensor */
int calibrate_tensors(PyObject *tensor_base, PyObject *tensor, PyObject *parameter, PyObject *disabled, PyObject *samples);
Tensor tensor_of(PyObject *object); /* borrowed; NULL with TypeError if it is no plain tensor */
PyObject *wrap_tensor(Tensor owned); /* consumes the handle */
int has_torch_function(PyObject *object); /* its class may override operators */
int is_plain(Tensor handle); /* strided, on the CPU */

/* kept.c */
int connect_kept(PyObject *samples);
void forget_kept(void);
int new_tensor(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,
               int32_t device_index, Tensor *result); /* an empty one; nonzero if libtorch refused */

/* blas.c */
int connect_blas(PyObject *samples, uint64_t lazy);
void forget_blas(void);

/* integers.c: 0, or -1 with frame->failure */
int evaluate_rows(const Program *program, Frame *frame, int64_t begin, int64_t end);

/* memory.c */
Frame *take_frame(Program *program);
void give_frame(Program *program, Frame *frame);
void free_frame(const Program *program, Frame *frame);
int lay_out(const Program *program, Frame *frame); /* with the GIL; -1 with an exception */

/* calls.c */
int call_operator(const Program *program, Frame *frame, const Step *step);
int expect_layout(const Program *program, Frame *frame, const Step *step);
void clear_place(Place *place);

/* run.c */
PyObject *run_program(PyObject *self, PyObject *const *arguments, size_t count, PyObject *names);
int fill_tensor(const Program *program, Frame *frame, int32_t slot, Tensor handle, Ownership ownership);
void take_gil(Frame *frame);

/* build.c */
PyObject *make_program(PyTypeObject *type, PyObject *arguments, PyObject *keywords);

#define FAIL_AS(frame, type, text) ((frame)->failure = (text), (frame)->failure_type = (type), -1)
#define FAIL(frame, text) FAIL_AS(frame, NULL, text)

#endif
