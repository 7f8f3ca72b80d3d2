/* Instructions that take more than a line: each follows or checks by C storage, and records the facts it used. */
#include "guard_program.h"

int load_dict(Run *run, const Instruction *instruction, PyObject *value) {
    PyObject **slot = instance_dict_slot(value);
    if (slot == NULL) {
        return FAILS;
    }
    if (UNLIKELY(*slot == NULL)) {
        int was_enabled = PyGC_Disable();
        PyObject *made = PyObject_GenericGetDict(value, NULL);
        if (was_enabled) {
            PyGC_Enable();
        }
        if (made == NULL) {
            PyErr_Clear();
            return FAILS;
        }
        Py_DECREF(made); /* the object holds it */
        if (*slot == NULL) {
            return FAILS;
        }
    }
    record_type(run, instruction, value);
    record_slot(run, value, slot);
    run->registers[instruction->destination] = *slot;
    return HOLDS;
}

int lacks_attr(Run *run, const Instruction *instruction, PyObject *value) {
    record_type(run, instruction, value);
    PyObject **slot = instance_dict_slot(value);
    if (slot == NULL) {
        return HOLDS;
    }
    record_slot(run, value, slot);
    if (*slot == NULL) {
        return HOLDS;
    }
    Instruction on_dict = {.flags = TYPED};
    record_dict(run, &on_dict, *slot);
    return dict_find(*slot, instruction->object) == NULL;
}

int load_index(Run *run, const Instruction *instruction, PyObject *value) {
    Py_ssize_t index = (Py_ssize_t)instruction->number;
    PyObject *item = sequence_item(value, index);
    if (item == NULL) {
        return FAILS;
    }
    run->registers[instruction->destination] = item;
    if (UNLIKELY(run->recording != NULL)) {
        record_type(run, instruction, value);
        if (PyList_Check(value)) {
            record_pointer(run, &((PyVarObject *)value)->ob_size);
            record_pointer(run, &((PyListObject *)value)->ob_item);
            record_pointer(run, &((PyListObject *)value)->ob_item[index]);
        } else if (PyTuple_Check(value)) {
            if (!(instruction->flags & HELD)) {
                record_pointer(run, &((PyVarObject *)value)->ob_size);
                record_pointer(run, &((PyTupleObject *)value)->ob_item[index]);
            }
        } else {
            spoil(run);
        }
    }
    return HOLDS;
}

int load_member(Run *run, const Instruction *instruction, PyObject *value) {
    PyObject *descriptor = _PyType_Lookup(Py_TYPE(value), instruction->object);
    bool none_when_empty;
    PyObject **field = descriptor == NULL
                           ? NULL
                           : object_member(value, descriptor, instruction->object, &none_when_empty);
    if (field == NULL) {
        return descriptor == NULL ? FAILS : get_slowly(run, instruction, value);
    }
    if (*field == NULL && !none_when_empty) {
        return FAILS;
    }
    record_type(run, instruction, value);
    record_type_version(run, Py_TYPE(value));
    record_pointer(run, field);
    run->registers[instruction->destination] = *field == NULL ? Py_None : *field;
    return HOLDS;
}

int load_cell(Run *run, const Instruction *instruction) {
    PyFunctionObject *function = (PyFunctionObject *)run->function;
    if (!PyFunction_Check(function) || function->func_closure == NULL ||
        instruction->number >= PyTuple_GET_SIZE(function->func_closure)) {
        return FAILS;
    }
    PyObject *cell = PyTuple_GET_ITEM(function->func_closure, (Py_ssize_t)instruction->number);
    PyObject *contents = PyCell_GET(cell);
    if (contents == NULL) {
        return FAILS;
    }
    record_pointer(run, &run->function->ob_type);
    record_pointer(run, &function->func_closure);
    record_pointer(run, &((PyVarObject *)function->func_closure)->ob_size);
    record_pointer(run, &((PyTupleObject *)function->func_closure)->ob_item[instruction->number]);
    record_pointer(run, &((PyCellObject *)cell)->ob_ref);
    run->registers[instruction->destination] = contents;
    return HOLDS;
}

int check_length(Run *run, const Instruction *instruction, PyObject *value) {
    const void *address;
    if (storage_length(value, &address) != instruction->number) {
        return FAILS;
    }
    record_type(run, instruction, value);
    if (address != NULL) {
        record_pointer(run, address);
    } else if (!(instruction->flags & HELD)) {
        if (PyTuple_Check(value) || PyBytes_Check(value)) {
            record_pointer(run, &((PyVarObject *)value)->ob_size);
        } else if (PyUnicode_Check(value)) {
            record_pointer(run, &((PyASCIIObject *)value)->length);
        } else {
            spoil(run);
        }
    }
    return HOLDS;
}

int check_keys(Run *run, const Instruction *instruction, PyObject *value) {
    if (!PyDict_Check(value)) {
        return FAILS;
    }
    record_dict(run, instruction, value);
    if (is_ordered_dict(value)) { /* its order changes without a new version */
        if (!ordered_keys_readable()) {
            return FAILS;
        }
        record_pointer(run, ordered_state_address(value));
    }
    return dict_keys_are(value, instruction->object, run->program->watch);
}

/* Names whose presence in the instance dict diverts a module's call, and dicts that have to be empty. */
static const char *const call_names[] = {"forward", "_call_impl", "__call__"};
static const char *const hook_names[] = {"_backward_hooks", "_backward_pre_hooks", "_forward_hooks",
                                         "_forward_pre_hooks"};
static PyObject *call_keys[3], *hook_keys[4];

int check_module_call(Run *run, const Instruction *instruction, PyObject *value) {
    if (!PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)instruction->object)) {
        return FAILS;
    }
    PyObject **slot = instance_dict_slot(value);
    if (slot == NULL || *slot == NULL) {
        return FAILS;
    }
    PyObject *dict = *slot;
    record_type(run, instruction, value);
    record_slot(run, value, slot);
    Instruction on_dict = {.flags = TYPED};
    record_dict(run, &on_dict, dict);
    for (int index = 0; index < 3; index++) {
        if (dict_find(dict, call_keys[index]) != NULL) {
            return FAILS;
        }
    }
    for (int index = 0; index < 4; index++) {
        PyObject *hooks = dict_find(dict, hook_keys[index]);
        if (hooks == NULL || !PyDict_Check(hooks) || ((PyDictObject *)hooks)->ma_used != 0) {
            return FAILS;
        }
        /* The module's dict holds it; a type that cannot be reassigned needs no fact. */
        if (UNLIKELY(run->recording != NULL) && !(Py_TYPE(hooks)->tp_flags & Py_TPFLAGS_IMMUTABLETYPE)) {
            record_pointer(run, &hooks->ob_type);
        }
        record_pointer(run, &((PyDictObject *)hooks)->ma_used);
    }
    return HOLDS;
}

int check_tensor(Run *run, const Instruction *instruction, PyObject *value) {
    const TensorCheck *check = &run->program->tensors[instruction->number];
    int answer = tensor_check_any(check, value);
    if (answer >= 0) {
        return answer;
    }
    int pinned = pin_registers(run);
    return pinned != HOLDS ? pinned : match_tensor_slowly(check, value);
}

int check_modes(Run *run, const Instruction *instruction) {
    const ModesCheck *check = &run->program->modes[instruction->number];
    int answer = modes_check_fast(check);
    if (LIKELY(answer >= 0)) {
        return answer;
    }
    int pinned = pin_registers(run);
    return pinned != HOLDS ? pinned : match_modes_slowly(check);
}

int load_integer(Run *run, const Instruction *instruction, PyObject *value) {
    bool reachable;
    /* Only tensors have these steps; the object of the instruction is (step, key), then torch.Tensor. */
    if (!PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)PyTuple_GET_ITEM(instruction->object, 2))) {
        return FAILS;
    }
    if (tensor_integer(value, instruction->flags, instruction->number, &run->integers[instruction->destination],
                       &reachable)) {
        return reachable;
    }
    return follow_slowly(run, instruction, value);
}

int check_equals(Run *run, const Instruction *instruction, PyObject *value) {
    if (!same_constant(value, instruction->object)) {
        return FAILS;
    }
    if (value != instruction->object && !(instruction->flags & HELD)) {
        hold(run, value);
    }
    return HOLDS;
}

int check_integer_object(Run *run, const Instruction *instruction, PyObject *value) {
    int64_t number;
    int overflow;
    const RangeCheck *check = &run->program->ranges[instruction->number];
    if (!PyLong_CheckExact(value)) {
        return FAILS;
    }
    number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow > 0 ? check->bounded_above : overflow < 0 ? check->bounded_below : !in_range(check, number)) {
        return FAILS;
    }
    if (!(instruction->flags & HELD)) {
        hold(run, value);
    }
    return HOLDS;
}

static bool intern_all(const char *const *names, PyObject **into, int count) {
    for (int index = 0; index < count; index++) {
        into[index] = PyUnicode_InternFromString(names[index]);
        if (into[index] == NULL) {
            return false;
        }
    }
    return true;
}

bool steps_init(void) {
    return intern_all(call_names, call_keys, 3) && intern_all(hook_names, hook_keys, 4);
}
