/* One call of a program. */
#include "program/calls.h"

#include <string.h>

void take_gil(Frame *frame) {
    if (frame->released) {
        PyThreadState *state = frame->released;
        frame->released = NULL;
        PyEval_RestoreThread(state);
    }
}

static void drop_gil(const Program *program, Frame *frame) {
    if (program->releases_gil && !frame->released)
        frame->released = PyEval_SaveThread();
}

static int bind_inputs(const Program *program, Frame *frame, PyObject *const *arguments) {
    for (int32_t i = 0; i < program->input_count; i++) {
        int32_t slot = program->inputs[i];
        Place *place = frame->places + slot;
        PyObject *object = arguments[i];
        switch (program->slots[slot].kind) {
        case SLOT_TENSOR_INPUT: {
            Tensor handle = tensor_of(object);
            if (!handle)
                return -1;
            place->object = object;
            frame->subclasses |= has_torch_function(object);
            if (fill_tensor(program, frame, slot, handle, BORROWED))
                return -1;
            break;
        }
        case SLOT_INTEGER_INPUT:
            if (!PyLong_Check(object)) {
                PyErr_Format(PyExc_TypeError, "input %d of %U takes an int, not %.100s", i, program->name,
                             Py_TYPE(object)->tp_name);
                return -1;
            }
            place->integer = PyLong_AsLongLong(object);
            if (place->integer == -1 && PyErr_Occurred())
                return -1;
            break;
        default:
            place->object = object;
        }
    }
    for (int32_t i = 0; i < program->constant_count; i++) {
        Place *place = frame->places + program->constant_slots[i];
        place->object = program->constants[i];
        if (fill_tensor(program, frame, program->constant_slots[i], (char *)place->object + tensor_offset, BORROWED))
            return -1;
    }
    return 0;
}

static void gather(const Frame *frame, const Indices *rows, int64_t *numbers) {
    for (int32_t i = 0; i < rows->count; i++)
        numbers[i] = frame->integers[rows->at[i]];
}

static int allocate(const Program *program, Frame *frame, const Step *step) {
    if (step->base >= 0 && frame->offsets[step->base] >= 0)
        return 0; /* it lies in the arena */
    int64_t *sizes = frame->numbers, *strides = sizes + step->sizes.count;
    gather(frame, &step->sizes, sizes);
    gather(frame, &step->strides, strides);
    Tensor handle;
    if (new_tensor(step->sizes.count, sizes, strides, step->dtype, step->device_type, step->device_index, &handle))
        return run_out_of_shim(frame, "libtorch could not allocate a tensor");
    frame->places[step->slot].plain = 1;
    return fill_tensor(program, frame, step->slot, handle, OWNED);
}

static int view(const Program *program, Frame *frame, const Step *step) {
    const Place *base = frame->places + step->base;
    Place *place = frame->places + step->slot;
    uint8_t needs = program->slots[step->slot].needs;
    int64_t offset = frame->integers[step->row];
    place->element = step->element ? step->element : base->element;
    place->data = base->data ? (char *)base->data + offset * place->element : NULL;
    place->plain = base->plain;
    if (!(needs & NEEDS_HANDLE) || place->handle)
        return 0;
    int64_t *sizes = frame->numbers, *strides = sizes + step->sizes.count;
    gather(frame, &step->sizes, sizes);
    gather(frame, &step->strides, strides);
    if (torch.aoti_torch__reinterpret_tensor(base->handle, step->sizes.count, sizes, strides, offset, &place->handle))
        return run_out_of_shim(frame, "libtorch refused a view");
    place->ownership = step->resident && base->ownership == RESIDENT ? RESIDENT : OWNED;
    return 0;
}

typedef struct {
    KernelFunction function;
    void *const *buffers;
    const int64_t *ints;
} KernelCall;

static void run_share(int64_t begin, int64_t end, void *context) {
    const KernelCall *call = context;
    call->function(call->buffers, call->ints, begin, end);
}

static int kernel(const Program *program, Frame *frame, const Step *step) {
    int64_t total = frame->integers[step->row];
    if (total <= 0)
        return 0;
    for (int32_t i = 0; i < step->sizes.count; i++)
        frame->buffers[i] = frame->places[step->sizes.at[i]].data;
    const int64_t *ints = step->fixed;
    if (!ints) {
        gather(frame, &step->strides, frame->numbers);
        ints = frame->numbers;
    }
    if (total <= step->grain) {
        step->function(frame->buffers, ints, 0, total);
        return 0;
    }
    KernelCall call = {step->function, frame->buffers, ints};
    if (torch.torch_parallel_for(0, total, step->grain, run_share, &call))
        return run_out_of_shim(frame, "libtorch could not run a kernel in parallel");
    return 0;
}

static int item(const Program *program, Frame *frame, const Step *step) {
    Place *source = frame->places + step->base;
    if (source->object) { /* a list that Python returned */
        take_gil(frame);
        PyObject *entry = PySequence_GetItem(source->object, step->row);
        if (!entry)
            return -1;
        Place *place = frame->places + step->slot;
        place->object = entry;
        place->object_owned = 1;
        Tensor handle = tensor_of(entry);
        return handle ? fill_tensor(program, frame, step->slot, handle, BORROWED) : -1;
    }
    Tensor copy;
    if (step->row >= source->integer || torch.aoti_torch_new_tensor_handle(source->list[step->row], &copy))
        return FAIL(frame, "an operator returned a shorter list than the program was built for");
    return fill_tensor(program, frame, step->slot, copy, OWNED);
}

static void release(Frame *frame, const Step *step) {
    for (int32_t i = 0; i < step->sizes.count; i++) {
        Place *place = frame->places + step->sizes.at[i];
        if (place->object_owned)
            take_gil(frame);
        clear_place(place);
    }
}

static int run_steps(const Program *program, Frame *frame) {
    for (int32_t i = 0; i < program->step_count; i++) {
        const Step *step = program->steps + i;
        int failed = 0;
        switch (step->kind) {
        case STEP_EVALUATE:
            failed = evaluate_rows(program, frame, step->element, step->grain);
            break;
        case STEP_ALLOCATE:
            failed = allocate(program, frame, step);
            break;
        case STEP_VIEW:
            failed = view(program, frame, step);
            break;
        case STEP_KERNEL:
            failed = kernel(program, frame, step);
            break;
        case STEP_CALL:
            failed = call_operator(program, frame, step);
            break;
        case STEP_EXPECT:
            failed = expect_layout(program, frame, step);
            break;
        case STEP_ITEM:
            failed = item(program, frame, step);
            break;
        default:
            release(frame, step);
        }
        if (failed) {
            frame->failed_step = i;
            return -1;
        }
        drop_gil(program, frame);
    }
    return 0;
}

/* An owned handle whose memory is not the arena's: a result may share scratch only by an operator that hides it. */
static Tensor out_of_arena(const Frame *frame, Tensor owned) {
    void *data = NULL;
    if (!frame->block_bytes || torch.aoti_torch_get_data_ptr(owned, &data) || (char *)data < frame->block ||
        (char *)data >= frame->block + frame->block_bytes)
        return owned;
    Tensor copy = NULL;
    torch.aoti_torch_clone_preserve_strides(owned, &copy);
    torch.aoti_torch_delete_tensor_object(owned);
    return copy;
}

static PyObject *output(const Program *program, Frame *frame, const Output *wanted) {
    if (wanted->kind == OUTPUT_NONE)
        Py_RETURN_NONE;
    if (wanted->kind == OUTPUT_INTEGER)
        return PyLong_FromLongLong(frame->integers[wanted->index]);
    Place *place = frame->places + wanted->index;
    SlotKind kind = program->slots[wanted->index].kind;
    if (kind == SLOT_INTEGER || kind == SLOT_INTEGER_INPUT)
        return PyLong_FromLongLong(place->integer);
    if (place->object)
        return Py_NewRef(place->object);
    if (kind == SLOT_LIST)
        return list_object(place);
    if (place->ownership != OWNED)
        return tensor_object(place);
    Tensor owned = out_of_arena(frame, place->handle);
    place->handle = NULL;
    place->ownership = BORROWED;
    PyObject *object = owned ? wrap_tensor(owned) : PyErr_NoMemory();
    if (object) { /* the same slot may be returned twice */
        place->object = Py_NewRef(object);
        place->object_owned = 1;
    }
    return object;
}

static PyObject *outputs(const Program *program, Frame *frame) {
    PyObject *tuple = PyTuple_New(program->output_count);
    for (int32_t i = 0; tuple && i < program->output_count; i++) {
        PyObject *object = output(program, frame, program->outputs + i);
        if (!object) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, object);
    }
    return tuple;
}

static int note_mutations(const Program *program, const Frame *frame) {
    if (!program->mutated_count)
        return 0;
    PyObject *written = PyTuple_New(program->mutated_count);
    if (!written)
        return -1;
    for (int32_t i = 0; i < program->mutated_count; i++)
        PyTuple_SET_ITEM(written, i, Py_NewRef(frame->places[program->mutated[i]].object));
    PyObject *done = PyObject_CallOneArg(program->mutation, written);
    Py_DECREF(written);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Raise what went wrong, with the step's note on it. */
static void raise_failure(const Program *program, Frame *frame) {
    if (!PyErr_Occurred())
        PyErr_SetString(frame->failure_type ? frame->failure_type : PyExc_RuntimeError,
                        frame->failure ? frame->failure : "a program failed without a reason");
    frame->failure = NULL;
    PyObject *note = frame->failed_step >= 0 ? program->steps[frame->failed_step].note : NULL;
    if (!note || note == Py_None)
        return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *added = value ? PyObject_CallMethod(value, "add_note", "O", note) : NULL;
    if (!added)
        PyErr_Clear();
    Py_XDECREF(added);
    PyErr_Restore(type, value, trace);
}

static void clear_places(const Program *program, Frame *frame) {
    for (int32_t i = 0; i < program->slot_count; i++) {
        Place *place = frame->places + i;
        clear_place(place);
        place->object = NULL;
        if (place->ownership == BORROWED)
            place->handle = NULL;
    }
}

PyObject *run_program(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names) {
    Program *program = (Program *)self;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (count != program->input_count || (names && PyTuple_GET_SIZE(names)))
        return PyErr_Format(PyExc_TypeError, "%U takes %d positional inputs, %zd were given", program->name,
                            program->input_count, count);
    Frame *frame = take_frame(program);
    if (!frame)
        return NULL;
    Py_INCREF(self); /* an operator written in Python may drop the last reference to this program */
    uint64_t guard[4];
    frame->failed_step = -1;
    frame->failure = NULL;
    frame->failure_type = NULL;
    frame->subclasses = 0;
    PyObject *result = NULL;
    if (!bind_inputs(program, frame, arguments) && !evaluate_rows(program, frame, program->constant_rows, program->first_rows) &&
        !lay_out(program, frame)) {
        if (program->calls_operators)
            torch.exclude_keys(guard, program->excluded_keys);
        drop_gil(program, frame);
        int failed = run_steps(program, frame);
        take_gil(frame);
        if (program->calls_operators)
            torch.exclude_keys_end(guard);
        if (!failed && !note_mutations(program, frame))
            result = outputs(program, frame);
    }
    if (!result)
        raise_failure(program, frame);
    clear_places(program, frame);
    give_frame(program, frame);
    Py_DECREF(self);
    return result;
}
