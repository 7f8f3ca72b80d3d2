/* Operators: through the stable dispatcher, through direct shims (direct.c), or from Python.
 *
 * A native call that fails leaves nothing behind and is repeated from Python where repeating cannot be seen (ATen's own
 * operators check before they write), because Python raises the exception the user would get from eager. Elsewhere
 * the message libtorch kept becomes a RuntimeError.
 */
#include "program/calls.h"

#include <stdlib.h>
#include <string.h>

void clear_place(Place *place) {
    if (place->list) {
        for (int64_t i = 0; i < place->integer; i++)
            torch.aoti_torch_delete_tensor_object(place->list[i]);
        free(place->list);
        place->list = NULL;
    }
    if (place->object_owned) {
        Py_CLEAR(place->object);
        place->object_owned = 0;
        place->handle = NULL;
        place->ownership = BORROWED;
    } else if (place->ownership == OWNED) {
        if (place->handle)
            torch.aoti_torch_delete_tensor_object(place->handle);
        place->handle = NULL;
        place->ownership = BORROWED;
    }
}

int fill_tensor(const Program *program, Frame *frame, int32_t slot, Tensor handle, Ownership ownership) {
    Place *place = frame->places + slot;
    place->handle = handle;
    place->ownership = ownership;
    place->data = NULL;
    uint8_t needs = program->slots[slot].needs;
    bool defined = false;
    if (needs & NEEDS_PLAIN)
        place->plain = 0;
    if (!(needs & (NEEDS_DATA | NEEDS_PLAIN | NEEDS_ELEMENT)) || torch.aoti_torch_is_defined(handle, &defined) || !defined)
        return 0;
    if (needs & NEEDS_PLAIN)
        place->plain = is_plain(handle);
    int32_t dtype;
    if (needs & NEEDS_ELEMENT && !torch.aoti_torch_get_dtype(handle, &dtype))
        place->element = torch.aoti_torch_dtype_element_size(dtype);
    int64_t count = 0;
    if (needs & NEEDS_DATA && (torch.aoti_torch_get_data_ptr(handle, &place->data) ||
                               (!place->data && (torch.aoti_torch_get_numel(handle, &count) || count > 0))))
        return FAIL(frame, "a kernel reads a tensor that has no memory of its own");
    return 0;
}

int run_out_of_shim(Frame *frame, const char *otherwise) {
    const char *what = torch.torch_exception_get_what_without_backtrace
                           ? torch.torch_exception_get_what_without_backtrace()
                           : NULL;
    free(frame->failure_text);
    frame->failure_text = what && *what ? strdup(what) : NULL; /* libtorch keeps it only until its next exception */
    return FAIL(frame, frame->failure_text ? frame->failure_text : otherwise);
}

/* ---- the stable dispatcher */

static void discard(const Value *value, StableValue word);

static int encode_list(const Program *program, const Frame *frame, const Value *value, StableValue *word) {
    StableList list;
    const Place *place = value->kind == VALUE_SLOT ? frame->places + value->index : NULL;
    int64_t count = place ? place->integer : value->count;
    if (torch.torch_new_list_reserve_size(count, &list))
        return -1;
    *word = (StableValue)(uintptr_t)list;
    for (int64_t i = 0; i < count; i++) {
        StableValue entry = 0;
        Tensor copy;
        int failed;
        if (place) {
            failed = torch.aoti_torch_new_tensor_handle(place->list[i], &copy);
            entry = (StableValue)(uintptr_t)copy;
        } else
            failed = encode(program, frame, value->entries + i, &entry);
        if (failed || torch.torch_list_push_back(list, entry)) {
            Value begun = *value;
            begun.optional = 0;
            begun.count = (int32_t)i;
            discard(&begun, *word);
            return -1;
        }
    }
    return 0;
}

static StableValue *new_box(void) {
    StableValue *box = NULL;
    if (torch.torch_new_stable_ivalue)
        return torch.torch_new_stable_ivalue(&box) ? NULL : box;
    return torch.operator_new(sizeof *box);
}

static void delete_box(StableValue *box) {
    if (torch.torch_delete_stable_ivalue)
        torch.torch_delete_stable_ivalue(box);
    else
        torch.operator_delete(box);
}

/* Whether a tensor argument is absent: an optional result, or an undefined one. */
static int is_absent(const Place *place) {
    bool defined = false;
    return !place->handle || torch.aoti_torch_is_defined(place->handle, &defined) || !defined;
}

int encode(const Program *program, const Frame *frame, const Value *value, StableValue *word) {
    *word = 0;
    StableValue inner = 0;
    switch (value->kind) {
    case VALUE_NONE:
        return 0;
    case VALUE_WORD:
        inner = value->word;
        break;
    case VALUE_INTEGER:
        inner = (StableValue)frame->integers[value->index];
        break;
    case VALUE_STRING: {
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(value->object, &length); /* made, and kept, when the program was built */
        StableString string;
        if (torch.torch_new_string_handle(text, length, &string))
            return -1;
        inner = (StableValue)(uintptr_t)string;
        break;
    }
    case VALUE_SLOT: {
        const Place *place = frame->places + value->index;
        if (program->slots[value->index].kind == SLOT_LIST) {
            if (!place->list || encode_list(program, frame, value, &inner))
                return -1;
            break;
        }
        if (is_absent(place))
            return value->optional ? 0 : -1;
        Tensor copy;
        if (torch.aoti_torch_new_tensor_handle(place->handle, &copy))
            return -1;
        inner = (StableValue)(uintptr_t)copy;
        break;
    }
    case VALUE_LIST:
        if (encode_list(program, frame, value, &inner))
            return -1;
        break;
    default:
        return -1;
    }
    if (value->optional) {
        StableValue *box = new_box();
        if (!box) {
            Value bare = *value;
            bare.optional = 0;
            discard(&bare, inner);
            return -1;
        }
        *box = inner;
        inner = (StableValue)(uintptr_t)box;
    }
    *word = inner;
    return 0;
}

/* Free what `encode` made and no call took. */
static void discard(const Value *value, StableValue word) {
    if (value->optional && word) {
        StableValue *box = (StableValue *)(uintptr_t)word;
        Value bare = *value;
        bare.optional = 0;
        discard(&bare, *box);
        delete_box(box);
        return;
    }
    void *handle = (void *)(uintptr_t)word;
    if (!handle)
        return;
    size_t count = 0;
    if (value->kind == VALUE_STRING)
        torch.torch_delete_string(handle);
    else if (value->kind == VALUE_LIST) {
        torch.torch_list_size(handle, &count);
        for (size_t i = 0; i < count; i++) {
            StableValue entry;
            if (!torch.torch_list_get_item(handle, i, &entry))
                discard(value->entries + i, entry);
        }
        torch.torch_delete_list(handle);
    } else if (value->kind == VALUE_SLOT)
        torch.aoti_torch_delete_tensor_object(handle);
}

static int take_list(Frame *frame, Place *place, StableList list) {
    size_t count;
    if (torch.torch_list_size(list, &count))
        return FAIL(frame, "libtorch lost a list it returned");
    place->list = calloc(count + 1, sizeof *place->list);
    if (!place->list)
        return FAIL(frame, "out of memory for a list of tensors");
    for (size_t i = 0; i < count; i++) {
        StableValue entry;
        torch.torch_list_get_item(list, i, &entry);
        place->list[i] = (Tensor)(uintptr_t)entry;
    }
    place->integer = (int64_t)count;
    torch.torch_delete_list(list);
    return 0;
}

/* Put one returned word into its slot. */
static int take_result(const Program *program, Frame *frame, int32_t slot, StableValue word) {
    Place *place = frame->places + slot;
    void *pointer = (void *)(uintptr_t)word;
    switch (program->slots[slot].kind) {
    case SLOT_TENSOR:
        return fill_tensor(program, frame, slot, pointer, OWNED);
    case SLOT_OPTIONAL: {
        if (!pointer) {
            place->handle = NULL;
            return 0;
        }
        Tensor handle = (Tensor)(uintptr_t) * (StableValue *)pointer;
        delete_box(pointer);
        return fill_tensor(program, frame, slot, handle, OWNED);
    }
    case SLOT_LIST:
        return take_list(frame, place, pointer);
    default:
        place->integer = (int64_t)word;
        return 0;
    }
}

static int call_dispatcher(const Program *program, Frame *frame, const Step *step, int *unsaid) {
    StableValue *stack = frame->stack;
    for (int32_t i = 0; i < step->count; i++)
        if (encode(program, frame, step->values + i, stack + i)) {
            while (i-- > 0)
                discard(step->values + i, stack[i]);
            *unsaid = 1;
            return -1;
        }
    if (torch.torch_call_dispatcher(step->op, step->overload, stack, torch.aoti_torch_abi_version()))
        return run_out_of_shim(frame, "an operator failed inside libtorch");
    int result = 0;
    for (int32_t i = 0; i < step->results.count; i++)
        if (take_result(program, frame, step->results.at[i], stack[i]))
            result = -1;
    return result;
}

/* ---- Python */

/* The Python object of a place that holds a tensor. */
PyObject *tensor_object(Place *place) {
    if (place->object)
        return Py_NewRef(place->object);
    if (is_absent(place))
        Py_RETURN_NONE;
    Tensor copy;
    if (torch.aoti_torch_new_tensor_handle(place->handle, &copy)) {
        PyErr_NoMemory();
        return NULL;
    }
    return wrap_tensor(copy);
}

PyObject *list_object(const Place *place) {
    PyObject *list = PyList_New(place->integer);
    for (int64_t i = 0; list && i < place->integer; i++) {
        Tensor copy;
        PyObject *entry = torch.aoti_torch_new_tensor_handle(place->list[i], &copy) ? PyErr_NoMemory() : wrap_tensor(copy);
        if (!entry) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, entry);
    }
    return list;
}

static PyObject *to_python(const Program *program, Frame *frame, const Value *value) {
    switch (value->kind) {
    case VALUE_INTEGER:
        return PyLong_FromLongLong(frame->integers[value->index]);
    case VALUE_SLOT: {
        Place *place = frame->places + value->index;
        if (program->slots[value->index].kind == SLOT_LIST)
            return place->object ? Py_NewRef(place->object) : list_object(place);
        return tensor_object(place);
    }
    case VALUE_LIST: {
        if (value->object)
            return Py_NewRef(value->object);
        PyObject *list = PyList_New(value->count);
        for (int32_t i = 0; list && i < value->count; i++) {
            PyObject *entry = to_python(program, frame, value->entries + i);
            if (!entry) {
                Py_CLEAR(list);
                break;
            }
            PyList_SET_ITEM(list, i, entry);
        }
        return list;
    }
    default:
        return Py_NewRef(value->object);
    }
}

/* Put one object that Python returned into its slot; steals it. */
static int take_object(const Program *program, Frame *frame, int32_t slot, PyObject *object) {
    Place *place = frame->places + slot;
    SlotKind kind = program->slots[slot].kind;
    clear_place(place);
    if (kind == SLOT_INTEGER) {
        place->integer = PyBool_Check(object) ? object == Py_True : PyLong_AsLongLong(object);
        Py_DECREF(object);
        return place->integer == -1 && PyErr_Occurred() ? -1 : 0;
    }
    place->object = object;
    place->object_owned = 1;
    place->handle = NULL;
    if ((kind != SLOT_TENSOR && kind != SLOT_OPTIONAL) || object == Py_None)
        return 0;
    Tensor handle = tensor_of(object);
    return handle ? fill_tensor(program, frame, slot, handle, BORROWED) : -1;
}

/* Whether a result is as the trace said: its dtype, its sizes, and its strides where they matter. */
static int is_expected(const Frame *frame, const Step *step, Tensor handle) {
    int64_t rank, *sizes, *strides, count = 1;
    int32_t dtype;
    if (torch.aoti_torch_get_dim(handle, &rank) || rank != step->sizes.count ||
        torch.aoti_torch_get_dtype(handle, &dtype) || dtype != step->dtype ||
        torch.aoti_torch_get_sizes(handle, &sizes) || torch.aoti_torch_get_strides(handle, &strides))
        return 0;
    for (int64_t i = 0; i < rank; i++)
        if (sizes[i] != frame->integers[step->sizes.at[i]])
            return 0;
        else
            count *= sizes[i];
    for (int64_t i = 0; i < rank && count; i++)
        if (sizes[i] != 1 && strides[i] != frame->integers[step->strides.at[i]])
            return 0;
    return 1;
}

static PyObject *integers_of(const Frame *frame, const Indices *rows) {
    PyObject *tuple = PyTuple_New(rows->count);
    for (int32_t i = 0; tuple && i < rows->count; i++) {
        PyObject *entry = PyLong_FromLongLong(frame->integers[rows->at[i]]);
        if (!entry) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, entry);
    }
    return tuple;
}

int expect_layout(const Program *program, Frame *frame, const Step *step) {
    Place *base = frame->places + step->base, *place = frame->places + step->slot;
    if (!is_absent(base) && is_expected(frame, step, base->handle)) {
        place->handle = base->handle;
        place->ownership = BORROWED;
        place->data = base->data;
        place->element = base->element;
        place->plain = base->plain;
        return 0;
    }
    take_gil(frame);
    PyObject *tensor = tensor_object(base), *result = NULL;
    PyObject *sizes = integers_of(frame, &step->sizes), *strides = integers_of(frame, &step->strides);
    if (tensor && sizes && strides)
        result = PyObject_CallFunctionObjArgs(step->callable, tensor, sizes, strides, NULL);
    Py_XDECREF(tensor);
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    return result ? take_object(program, frame, step->slot, result) : -1;
}

static PyObject *call_object(const Program *program, Frame *frame, const Step *step) {
    int32_t count = step->python.count, made = 0;
    PyObject **arguments = malloc((count + 1) * sizeof *arguments), *result = NULL;
    if (!arguments)
        return PyErr_NoMemory();
    for (; made < count; made++)
        if (!(arguments[made] = to_python(program, frame, step->values + step->python.at[made])))
            break;
    if (made == count) {
        PyObject *without = frame->subclasses ? PyObject_CallNoArgs(program->plain_functions) : NULL;
        PyObject *entered = without ? PyObject_CallMethod(without, "__enter__", NULL) : NULL;
        if (!frame->subclasses || entered)
            result = PyObject_Vectorcall(step->callable, arguments, step->positional, step->names);
        if (entered) {
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            Py_XDECREF(PyObject_CallMethod(without, "__exit__", "OOO", Py_None, Py_None, Py_None));
            PyErr_Restore(type, value, trace);
        }
        Py_XDECREF(entered);
        Py_XDECREF(without);
    }
    while (made-- > 0)
        Py_DECREF(arguments[made]);
    free(arguments);
    return result;
}

static int call_python(const Program *program, Frame *frame, const Step *step) {
    take_gil(frame);
    PyObject *result = call_object(program, frame, step);
    if (!result)
        return -1;
    if (step->results.count == 1)
        return take_object(program, frame, step->results.at[0], result);
    int failed = 0;
    if (step->results.count) {
        PyObject *sequence = PySequence_Fast(result, "an operator with several results returned one");
        if (!sequence || PySequence_Fast_GET_SIZE(sequence) != step->results.count) {
            if (sequence)
                PyErr_Format(PyExc_RuntimeError, "an operator returned %zd results instead of %d",
                             PySequence_Fast_GET_SIZE(sequence), step->results.count);
            failed = -1;
        }
        for (int32_t i = 0; i < step->results.count && !failed; i++)
            failed = take_object(program, frame, step->results.at[i], Py_NewRef(PySequence_Fast_GET_ITEM(sequence, i)));
        Py_XDECREF(sequence);
    }
    Py_DECREF(result);
    return failed;
}

int call_operator(const Program *program, Frame *frame, const Step *step) {
    if (step->way == CALL_PYTHON)
        return call_python(program, frame, step);
    int unsaid = 0; /* the native way does not fit these arguments: no failure of the operator */
    int failed = step->way == CALL_DISPATCHER ? call_dispatcher(program, frame, step, &unsaid)
                                              : call_direct(program, frame, step, &unsaid);
    if (!failed || (!unsaid && !step->rerun))
        return failed;
    frame->failure = NULL;
    return call_python(program, frame, step);
}
