/* From the tuples that runtime/native.py makes to the arrays that run. Every index is checked here, never when running. */
#include "program/program.h"

#include <stdlib.h>

static void *room(Program *program, size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    void **more = realloc(program->allocations, (program->allocation_count + 1) * sizeof *more);
    if (more)
        program->allocations = more;
    if (!memory || !more) {
        free(memory);
        PyErr_NoMemory();
        return NULL;
    }
    more[program->allocation_count++] = memory;
    return memory;
}

static int bad(const char *what) {
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "a program has a bad %s", what);
    return -1;
}

/* An int within [low, high). */
static int number(PyObject *object, int64_t low, int64_t high, int64_t *value, const char *what) {
    *value = PyLong_AsLongLong(object);
    if ((*value == -1 && PyErr_Occurred()) || *value < low || *value >= high)
        return bad(what);
    return 0;
}

static int small(PyObject *object, int64_t low, int64_t high, int32_t *value, const char *what) {
    int64_t wide;
    if (number(object, low, high, &wide, what))
        return -1;
    *value = (int32_t)wide;
    return 0;
}

static int indices(Program *program, PyObject *tuple, int64_t limit, Indices *result, const char *what) {
    if (!PyTuple_Check(tuple))
        return bad(what);
    result->count = (int32_t)PyTuple_GET_SIZE(tuple);
    if (!(result->at = room(program, result->count, sizeof *result->at)))
        return -1;
    for (int32_t i = 0; i < result->count; i++)
        if (small(PyTuple_GET_ITEM(tuple, i), 0, limit, result->at + i, what))
            return -1;
    return 0;
}

static void at_least(int32_t *most, int64_t count) {
    if (count > *most)
        *most = (int32_t)count;
}

/* (kind, optional, word or index or entries, object) */
static int read_value(Program *program, PyObject *tuple, Value *value, int64_t *numbers) {
    int32_t kind, optional;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4 ||
        small(PyTuple_GET_ITEM(tuple, 0), 0, VALUE_KINDS, &kind, "kind of argument") ||
        small(PyTuple_GET_ITEM(tuple, 1), 0, 2, &optional, "argument"))
        return bad("argument");
    PyObject *payload = PyTuple_GET_ITEM(tuple, 2);
    value->kind = kind;
    value->optional = optional;
    value->object = PyTuple_GET_ITEM(tuple, 3);
    switch (kind) {
    case VALUE_WORD:
        value->word = PyLong_AsUnsignedLongLongMask(payload);
        (*numbers)++;
        return PyErr_Occurred() ? -1 : 0;
    case VALUE_STRING:
        return PyUnicode_AsUTF8(value->object) ? 0 : -1;
    case VALUE_SLOT:
        return small(payload, 0, program->slot_count, &value->index, "slot of an argument");
    case VALUE_INTEGER:
        (*numbers)++;
        return small(payload, 0, program->row_count, &value->index, "integer of an argument");
    case VALUE_LIST:
        value->count = (int32_t)PyTuple_GET_SIZE(payload);
        if (value->object == Py_None)
            value->object = NULL;
        at_least(&program->most_buffers, value->count);
        if (!(value->entries = room(program, value->count, sizeof *value->entries)))
            return -1;
        for (int32_t i = 0; i < value->count; i++)
            if (read_value(program, PyTuple_GET_ITEM(payload, i), value->entries + i, numbers))
                return -1;
        return 0;
    default:
        return 0;
    }
}

/* slot, sizes, strides, dtype, element, device type, device index, arena index or -1 */
static int read_allocate(Program *program, PyObject *tuple, Step *step) {
    at_least(&program->most_numbers, 2 * PyTuple_GET_SIZE(PyTuple_GET_ITEM(tuple, 2)));
    return small(PyTuple_GET_ITEM(tuple, 1), 0, program->slot_count, &step->slot, "slot") ||
           indices(program, PyTuple_GET_ITEM(tuple, 2), program->row_count, &step->sizes, "size") ||
           indices(program, PyTuple_GET_ITEM(tuple, 3), program->row_count, &step->strides, "stride") ||
           step->sizes.count != step->strides.count ||
           small(PyTuple_GET_ITEM(tuple, 4), 0, 256, &step->dtype, "dtype") ||
           small(PyTuple_GET_ITEM(tuple, 5), 0, 128, &step->device_type, "device") ||
           small(PyTuple_GET_ITEM(tuple, 6), -1, 128, &step->device_index, "device index") ||
           small(PyTuple_GET_ITEM(tuple, 7), -1, program->arena_count, &step->base, "arena slot");
}

/* slot, base, sizes, strides, offset, element, resident */
static int read_view(Program *program, PyObject *tuple, Step *step) {
    int32_t resident;
    at_least(&program->most_numbers, 2 * PyTuple_GET_SIZE(PyTuple_GET_ITEM(tuple, 3)));
    if (small(PyTuple_GET_ITEM(tuple, 1), 0, program->slot_count, &step->slot, "slot") ||
        small(PyTuple_GET_ITEM(tuple, 2), 0, program->slot_count, &step->base, "slot") ||
        indices(program, PyTuple_GET_ITEM(tuple, 3), program->row_count, &step->sizes, "size") ||
        indices(program, PyTuple_GET_ITEM(tuple, 4), program->row_count, &step->strides, "stride") ||
        step->sizes.count != step->strides.count ||
        small(PyTuple_GET_ITEM(tuple, 5), 0, program->row_count, &step->row, "offset") ||
        number(PyTuple_GET_ITEM(tuple, 6), 0, 1 << 10, &step->element, "element size") ||
        small(PyTuple_GET_ITEM(tuple, 7), 0, 2, &resident, "view"))
        return -1;
    step->resident = resident;
    return 0;
}

/* address, slots, integers, total, grain */
static int read_kernel(Program *program, PyObject *tuple, Step *step) {
    step->function = (KernelFunction)PyLong_AsVoidPtr(PyTuple_GET_ITEM(tuple, 1));
    if (!step->function || indices(program, PyTuple_GET_ITEM(tuple, 2), program->slot_count, &step->sizes, "slot") ||
        indices(program, PyTuple_GET_ITEM(tuple, 3), program->row_count, &step->strides, "integer") ||
        small(PyTuple_GET_ITEM(tuple, 4), 0, program->row_count, &step->row, "total") ||
        number(PyTuple_GET_ITEM(tuple, 5), 1, INT64_MAX, &step->grain, "grain"))
        return bad("kernel");
    at_least(&program->most_buffers, step->sizes.count);
    at_least(&program->most_numbers, step->strides.count);
    for (int32_t i = 0; i < step->strides.count; i++)
        if (step->strides.at[i] >= program->constant_rows)
            return 0;
    if (!(step->fixed = room(program, step->strides.count, sizeof *step->fixed)))
        return -1;
    for (int32_t i = 0; i < step->strides.count; i++)
        step->fixed[i] = program->rows[step->strides.at[i]].left;
    return 0;
}

/* slot, base, sizes, strides, dtype, callable */
static int read_expect(Program *program, PyObject *tuple, Step *step) {
    step->callable = PyTuple_GET_ITEM(tuple, 6);
    return small(PyTuple_GET_ITEM(tuple, 1), 0, program->slot_count, &step->slot, "slot") ||
           small(PyTuple_GET_ITEM(tuple, 2), 0, program->slot_count, &step->base, "slot") ||
           indices(program, PyTuple_GET_ITEM(tuple, 3), program->row_count, &step->sizes, "size") ||
           indices(program, PyTuple_GET_ITEM(tuple, 4), program->row_count, &step->strides, "stride") ||
           step->sizes.count != step->strides.count ||
           small(PyTuple_GET_ITEM(tuple, 5), 0, 256, &step->dtype, "dtype");
}

/* way, rerun, operator, overload, values, results, callable, python order, positional, names */
static int read_call(Program *program, PyObject *tuple, Step *step) {
    int32_t way, rerun;
    PyObject *values = PyTuple_GET_ITEM(tuple, 5);
    if (small(PyTuple_GET_ITEM(tuple, 1), 0, CALL_WAYS, &way, "way to call") ||
        small(PyTuple_GET_ITEM(tuple, 2), 0, 2, &rerun, "call") ||
        !(step->op = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, 3))) ||
        !(step->overload = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, 4))))
        return -1;
    step->way = way;
    step->rerun = rerun;
    step->count = (int32_t)PyTuple_GET_SIZE(values);
    if (!(step->values = room(program, step->count, sizeof *step->values)))
        return -1;
    int64_t numbers = 0;
    for (int32_t i = 0; i < step->count; i++)
        if (read_value(program, PyTuple_GET_ITEM(values, i), step->values + i, &numbers))
            return -1;
    at_least(&program->most_numbers, numbers);
    step->callable = PyTuple_GET_ITEM(tuple, 7);
    step->names = PyTuple_GET_ITEM(tuple, 10);
    if (step->names == Py_None)
        step->names = NULL;
    if (indices(program, PyTuple_GET_ITEM(tuple, 6), program->slot_count, &step->results, "result") ||
        indices(program, PyTuple_GET_ITEM(tuple, 8), step->count, &step->python, "argument order") ||
        small(PyTuple_GET_ITEM(tuple, 9), 0, step->python.count + 1, &step->positional, "argument count"))
        return -1;
    at_least(&program->most_values, step->count);
    at_least(&program->most_values, step->results.count);
    return 0;
}

/* (kind, ..., note) */
static int read_step(Program *program, PyObject *tuple, Step *step) {
    static const Py_ssize_t LENGTHS[] = {4, 9, 9, 7, 12, 5, 3, 8};
    int32_t kind;
    if (!PyTuple_Check(tuple) || small(PyTuple_GET_ITEM(tuple, 0), 0, STEP_KINDS, &kind, "kind of step") ||
        PyTuple_GET_SIZE(tuple) != LENGTHS[kind])
        return bad("step");
    step->kind = kind;
    step->note = PyTuple_GET_ITEM(tuple, PyTuple_GET_SIZE(tuple) - 1);
    switch (step->kind) {
    case STEP_EVALUATE:
        return number(PyTuple_GET_ITEM(tuple, 1), 0, program->row_count + 1, &step->element, "row") ||
               number(PyTuple_GET_ITEM(tuple, 2), 0, program->row_count + 1, &step->grain, "row");
    case STEP_ALLOCATE:
        return read_allocate(program, tuple, step);
    case STEP_VIEW:
        return read_view(program, tuple, step);
    case STEP_KERNEL:
        return read_kernel(program, tuple, step);
    case STEP_CALL:
        return read_call(program, tuple, step);
    case STEP_EXPECT:
        return read_expect(program, tuple, step);
    case STEP_ITEM:
        return small(PyTuple_GET_ITEM(tuple, 1), 0, program->slot_count, &step->slot, "slot") ||
               small(PyTuple_GET_ITEM(tuple, 2), 0, program->slot_count, &step->base, "slot") ||
               small(PyTuple_GET_ITEM(tuple, 3), 0, INT32_MAX, &step->row, "item");
    default:
        return indices(program, PyTuple_GET_ITEM(tuple, 1), program->slot_count, &step->sizes, "slot");
    }
}

static int read_rows(Program *program, PyObject *rows) {
    program->row_count = (int32_t)PyTuple_GET_SIZE(rows);
    if (!(program->rows = room(program, program->row_count, sizeof *program->rows)))
        return -1;
    for (int32_t i = 0; i < program->row_count; i++) {
        IntegerRow *row = program->rows + i;
        int operation;
        long long left, right;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "iLL", &operation, &left, &right))
            return -1;
        if (operation < 0 || operation >= INTEGER_OPERATIONS ||
            (operation >= INTEGER_ADD && (left < 0 || left >= i || right < 0 || right >= i)) ||
            (operation != INTEGER_CONSTANT && operation < INTEGER_ADD && (left < 0 || left >= program->slot_count)) ||
            (operation == INTEGER_CONSTANT) != (i < program->constant_rows))
            return bad("integer");
        *row = (IntegerRow){operation, left, right};
    }
    return 0;
}

static int read_slots(Program *program, PyObject *slots, PyObject *inputs, PyObject *constants) {
    Indices read;
    program->slot_count = (int32_t)PyTuple_GET_SIZE(slots);
    if (!(program->slots = room(program, program->slot_count, sizeof *program->slots)))
        return -1;
    for (int32_t i = 0; i < program->slot_count; i++) {
        int kind, needs;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(slots, i), "ii", &kind, &needs))
            return -1;
        if (kind < 0 || kind >= SLOT_KINDS)
            return bad("kind of slot");
        program->slots[i] = (Slot){kind, needs};
    }
    if (indices(program, inputs, program->slot_count, &read, "input"))
        return -1;
    program->inputs = read.at;
    program->input_count = read.count;
    program->constant_count = (int32_t)PyTuple_GET_SIZE(constants);
    program->constant_slots = room(program, program->constant_count, sizeof *program->constant_slots);
    program->constants = room(program, program->constant_count, sizeof *program->constants);
    if (!program->constant_slots || !program->constants)
        return -1;
    for (int32_t i = 0; i < program->constant_count; i++) {
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(constants, i), "iO", program->constant_slots + i, program->constants + i))
            return -1;
        if (program->constant_slots[i] < 0 || program->constant_slots[i] >= program->slot_count ||
            !tensor_of(program->constants[i]))
            return bad("constant");
    }
    return 0;
}

/* ((slot, bytes, first, last, step), ...) */
static int read_lifetimes(Program *program, PyObject *tuple, ArenaSlot **result, int32_t *count) {
    *count = (int32_t)PyTuple_GET_SIZE(tuple);
    if (!(*result = room(program, *count, sizeof **result)))
        return -1;
    for (int32_t i = 0; i < *count; i++) {
        ArenaSlot *slot = *result + i;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "iiiii", &slot->slot, &slot->bytes, &slot->first, &slot->last,
                              &slot->step))
            return -1;
        if (slot->slot < 0 || slot->slot >= program->slot_count || slot->bytes < 0 ||
            slot->bytes >= program->row_count || slot->first < 0 || slot->last < slot->first ||
            slot->last > program->step_count || slot->step < 0 || slot->step >= program->step_count)
            return bad("lifetime");
    }
    return 0;
}

static int read_outputs(Program *program, PyObject *tuple) {
    program->output_count = (int32_t)PyTuple_GET_SIZE(tuple);
    if (!(program->outputs = room(program, program->output_count, sizeof *program->outputs)))
        return -1;
    for (int32_t i = 0; i < program->output_count; i++) {
        int kind, index;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "ii", &kind, &index))
            return -1;
        int32_t limit = kind == OUTPUT_SLOT ? program->slot_count : kind == OUTPUT_INTEGER ? program->row_count : 1;
        if (kind < 0 || kind > OUTPUT_INTEGER || index < 0 || index >= limit)
            return bad("output");
        program->outputs[i] = (Output){kind, index};
    }
    return 0;
}

PyObject *make_program(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"name", "plan", "describe", "slots", "inputs", "constants", "constant_rows", "first_rows",
                            "rows", "steps", "arena", "apart", "layout", "outputs", "mutated", "mutation",
                            "plain_functions", "excluded_keys", "calls_operators", "releases_gil", NULL};
    PyObject *name, *plan, *describe, *slots, *inputs, *constants, *rows, *steps, *arena, *apart, *layout, *outputs;
    PyObject *mutated, *mutation, *plain_functions;
    int constant_rows, first_rows, calls_operators, releases_gil;
    unsigned long long excluded;
    if (!torch.wrap) {
        PyErr_SetString(PyExc_RuntimeError, "the native runtime was not connected to libtorch");
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "UOOO!O!O!iiO!O!O!O!O!O!O!OOKpp", names, &name, &plan, &describe,
                                     &PyTuple_Type, &slots, &PyTuple_Type, &inputs, &PyTuple_Type, &constants,
                                     &constant_rows, &first_rows, &PyTuple_Type, &rows, &PyTuple_Type, &steps,
                                     &PyTuple_Type, &arena, &PyTuple_Type, &apart, &PyTuple_Type, &layout,
                                     &PyTuple_Type, &outputs, &PyTuple_Type, &mutated, &mutation, &plain_functions,
                                     &excluded, &calls_operators, &releases_gil))
        return NULL;
    Program *program = (Program *)type->tp_alloc(type, 0);
    if (!program)
        return NULL;
    program->vectorcall = run_program;
    program->keep = PyTuple_Pack(7, name, plan, describe, constants, steps, mutation, plain_functions);
    program->name = name;
    program->plan = plan;
    program->describe = describe;
    program->mutation = mutation;
    program->plain_functions = plain_functions;
    program->excluded_keys = excluded;
    program->calls_operators = calls_operators;
    program->releases_gil = releases_gil;
    program->constant_rows = constant_rows;
    program->first_rows = first_rows;
    program->arena_count = (int32_t)PyTuple_GET_SIZE(arena);
    program->step_count = (int32_t)PyTuple_GET_SIZE(steps);
    Indices read;
    int good = program->keep && !read_slots(program, slots, inputs, constants) && !read_rows(program, rows) &&
               first_rows >= constant_rows && first_rows <= program->row_count &&
               (program->steps = room(program, program->step_count, sizeof *program->steps));
    for (int32_t i = 0; i < program->step_count && good; i++)
        good = !read_step(program, PyTuple_GET_ITEM(steps, i), program->steps + i);
    good = good && !read_lifetimes(program, arena, &program->arena, &program->arena_count) &&
           !read_lifetimes(program, apart, &program->apart, &program->apart_count) && !read_outputs(program, outputs);
    if (good && (good = !indices(program, layout, program->row_count, &read, "layout"))) {
        program->layout_rows = read.at;
        program->layout_count = read.count;
    }
    if (good && (good = !indices(program, mutated, program->slot_count, &read, "mutated input"))) {
        program->mutated = read.at;
        program->mutated_count = read.count;
    }
    if (!good) {
        bad("part");
        Py_DECREF(program);
        return NULL;
    }
    return (PyObject *)program;
}
