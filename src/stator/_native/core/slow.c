/* The slow ways: Python answers what C cannot read. Live registers are pinned first, since any code may run then. */
#include "guard_program.h"

static PyObject *follow_function, *tensor_function, *modes_function;

static bool pin(Run *run, PyObject *stolen) {
    if (run->pin_count == run->pin_capacity) {
        Py_ssize_t capacity = run->pin_capacity ? run->pin_capacity * 2 : 32;
        PyObject **pins = PyMem_Realloc(run->pins, (size_t)capacity * sizeof(PyObject *));
        if (pins == NULL) {
            Py_DECREF(stolen);
            PyErr_NoMemory();
            return false;
        }
        run->pins = pins;
        run->pin_capacity = capacity;
    }
    run->pins[run->pin_count++] = stolen;
    return true;
}

/* Before Python code may run: hold every live register. HOLDS, START_OVER or RAISED. */
int pin_registers(Run *run) {
    spoil(run);
    if (!run->program->clears_registers) {
        run->program->clears_registers = true;
        return START_OVER;
    }
    if (run->seen == NULL) {
        run->seen = PyMem_Calloc((size_t)run->program->register_count + 1, sizeof(PyObject *));
        if (run->seen == NULL) {
            PyErr_NoMemory();
            return RAISED;
        }
    }
    for (int32_t index = 0; index < run->program->register_count; index++) {
        PyObject *value = run->registers[index];
        if (value != run->seen[index]) {
            run->seen[index] = value;
            if (!pin(run, Py_NewRef(value))) {
                return RAISED;
            }
        }
    }
    return HOLDS;
}

/* A failing slow way is a failing guard; only what is no Exception (an interrupt) goes up to the caller. */
static int swallow(void) {
    if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return FAILS;
    }
    return RAISED;
}

static int slow_answer(PyObject *function, PyObject *expected, PyObject *value) {
    if (function == NULL) {
        return FAILS;
    }
    PyObject *arguments[2] = {expected, value};
    PyObject *answer = PyObject_Vectorcall(function, arguments, value == NULL ? 1 : 2, NULL);
    if (answer == NULL) {
        return swallow();
    }
    int truth = answer == Py_True;
    Py_DECREF(answer);
    return truth;
}

int follow_slowly(Run *run, const Instruction *instruction, PyObject *value) {
    int pinned = pin_registers(run);
    if (pinned != HOLDS) {
        return pinned;
    }
    if (follow_function == NULL) {
        return FAILS;
    }
    PyObject *arguments[3] = {PyTuple_GET_ITEM(instruction->object, 0), PyTuple_GET_ITEM(instruction->object, 1),
                              value == NULL ? Py_None : value};
    PyObject *found = PyObject_Vectorcall(follow_function, arguments, 3, NULL);
    if (found == NULL) {
        return swallow();
    }
    if (instruction->op == OP_INTEGER) {
        int overflow = 0;
        int64_t number = PyLong_CheckExact(found) ? PyLong_AsLongLongAndOverflow(found, &overflow) : 0;
        bool ok = PyLong_CheckExact(found) && !overflow;
        Py_DECREF(found);
        run->integers[instruction->destination] = number;
        return ok ? HOLDS : FAILS;
    }
    run->registers[instruction->destination] = found;
    return pin(run, found) ? HOLDS : RAISED;
}

/* A getset descriptor of a builtin type; torch's own getters must not call a mode or `__torch_function__`. */
int get_slowly(Run *run, const Instruction *instruction, PyObject *value) {
    int pinned = pin_registers(run);
    if (pinned != HOLDS) {
        return pinned;
    }
    PyObject *descriptor = PyUnicode_Check(instruction->object) ? _PyType_Lookup(Py_TYPE(value), instruction->object)
                                                                : instruction->object;
    if (descriptor == NULL ||
        (Py_TYPE(descriptor) != &PyGetSetDescr_Type && Py_TYPE(descriptor) != &PyMemberDescr_Type) ||
        !PyType_IsSubtype(Py_TYPE(value), PyDescr_TYPE(descriptor))) {
        return FAILS;
    }
    Py_INCREF(descriptor);
    int state = torch_function_disable();
    PyObject *found = Py_TYPE(descriptor)->tp_descr_get(descriptor, value, (PyObject *)Py_TYPE(value));
    torch_function_restore(state);
    Py_DECREF(descriptor);
    if (found == NULL) {
        return swallow();
    }
    run->registers[instruction->destination] = found;
    return pin(run, found) ? HOLDS : RAISED;
}

int match_tensor_slowly(const TensorCheck *check, PyObject *value) {
    return slow_answer(tensor_function, check->expected, value);
}

int match_modes_slowly(const ModesCheck *check) {
    return slow_answer(modes_function, check->expected, NULL);
}

/* What falls may run finalizers, which must not see or lose a pending exception. */
void release_pins(Run *run) {
    PyMem_Free(run->seen);
    if (LIKELY(run->pins == NULL)) {
        return;
    }
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    for (Py_ssize_t index = 0; index < run->pin_count; index++) {
        Py_DECREF(run->pins[index]);
    }
    PyMem_Free(run->pins);
    PyErr_Restore(type, error, traceback);
}

static PyObject *set_slow_ways(PyObject *module, PyObject *arguments) {
    PyObject *follow, *tensor, *modes;
    if (!PyArg_ParseTuple(arguments, "OOO", &follow, &tensor, &modes)) {
        return NULL;
    }
    Py_XSETREF(follow_function, Py_NewRef(follow));
    Py_XSETREF(tensor_function, Py_NewRef(tensor));
    Py_XSETREF(modes_function, Py_NewRef(modes));
    Py_RETURN_NONE;
}

PyMethodDef slow_methods[] = {
    {"set_slow_ways", set_slow_ways, METH_VARARGS,
     "set_slow_ways(follow, tensor_matches, modes_match): Python answers for what C cannot read"},
    {NULL},
};
