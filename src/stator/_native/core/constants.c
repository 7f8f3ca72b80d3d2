/* When two constants are the same: the relation that guards/constants.py states, on C storage. */
#include "core.h"

static PyTypeObject *device_type; /* torch.device: compared by its own C equality */
static PyObject *range_parts[3];

bool constants_init(void) {
    static const char *const names[3] = {"start", "stop", "step"};
    for (int part = 0; part < 3; part++) {
        range_parts[part] = PyUnicode_InternFromString(names[part]);
        if (range_parts[part] == NULL) {
            return false;
        }
    }
    return true;
}

void constants_set_device_type(PyTypeObject *type) {
    Py_INCREF(type);
    Py_XSETREF(device_type, type);
}

/* Both are of one exact builtin type whose equality is C. */
static bool equal_by_type(PyObject *value, PyObject *expected) {
    int answer = PyObject_RichCompareBool(value, expected, Py_EQ);
    if (answer < 0) {
        PyErr_Clear();
    }
    return answer == 1;
}

static bool same_items(PyObject *value, PyObject *expected) {
    Py_ssize_t count = PyTuple_GET_SIZE(expected);
    if (PyTuple_GET_SIZE(value) != count) {
        return false;
    }
    if (Py_EnterRecursiveCall(" while comparing constants")) {
        PyErr_Clear();
        return false;
    }
    bool same = true;
    for (Py_ssize_t index = 0; same && index < count; index++) {
        same = same_constant(PyTuple_GET_ITEM(value, index), PyTuple_GET_ITEM(expected, index));
    }
    Py_LeaveRecursiveCall();
    return same;
}

static bool same_range(PyObject *value, PyObject *expected) {
    bool same = true;
    for (int part = 0; same && part < 3; part++) {
        PyObject *left = PyObject_GetAttr(value, range_parts[part]);
        PyObject *right = PyObject_GetAttr(expected, range_parts[part]);
        same = left != NULL && right != NULL && same_constant(left, right);
        Py_XDECREF(left);
        Py_XDECREF(right);
        PyErr_Clear();
    }
    return same;
}

/* Sets (of whatever subclass) whose members can be paired off. Members of one set often come in one order, so the
 * candidate at the same place is tried first. */
bool same_members(PyObject *value, PyObject *expected) {
    Py_ssize_t count = PySet_GET_SIZE(expected);
    if (PySet_GET_SIZE(value) != count) {
        return false;
    }
    if (count == 0) {
        return true;
    }
    PyObject **members = PyMem_Calloc((size_t)count, sizeof(PyObject *));
    if (members == NULL) {
        return false;
    }
    Py_ssize_t position = 0, filled = 0;
    PyObject *member;
    Py_hash_t hash;
    while (filled < count && _PySet_NextEntry(expected, &position, &member, &hash)) {
        members[filled++] = member;
    }
    bool same = true;
    position = 0;
    for (Py_ssize_t index = 0; same && _PySet_NextEntry(value, &position, &member, &hash); index++) {
        same = false;
        for (Py_ssize_t step = 0; step < count; step++) {
            Py_ssize_t candidate = (index + step) % count;
            if (members[candidate] != NULL && same_constant(member, members[candidate])) {
                members[candidate] = NULL;
                same = true;
                break;
            }
        }
    }
    PyMem_Free(members);
    return same;
}

bool same_constant(PyObject *value, PyObject *expected) {
    if (value == expected) {
        return true;
    }
    PyTypeObject *type = Py_TYPE(expected);
    if (Py_TYPE(value) != type) {
        return false;
    }
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type || type == device_type) {
        return equal_by_type(value, expected);
    }
    if (type == &PyFloat_Type) {
        return memcmp(&((PyFloatObject *)value)->ob_fval, &((PyFloatObject *)expected)->ob_fval, sizeof(double)) == 0;
    }
    if (type == &PyComplex_Type) {
        return memcmp(&((PyComplexObject *)value)->cval, &((PyComplexObject *)expected)->cval, sizeof(Py_complex)) ==
               0;
    }
    if (PyTuple_Check(expected)) {
        return same_items(value, expected);
    }
    if (type == &PySlice_Type) {
        PySliceObject *left = (PySliceObject *)value, *right = (PySliceObject *)expected;
        return same_constant(left->start, right->start) && same_constant(left->stop, right->stop) &&
               same_constant(left->step, right->step);
    }
    if (type == &PyRange_Type) {
        return same_range(value, expected);
    }
    if (type == &PyFrozenSet_Type) {
        return same_members(value, expected);
    }
    return false; /* told apart by identity */
}
