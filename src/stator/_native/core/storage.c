/* Steps by C storage: what guards/storage.py says, without its price. Nothing here runs Python code. */
#include "core.h"

#include <structmember.h>

/* The head of a dict's keys: one layout from 3.11 to 3.14, checked by storage_init. */
typedef struct {
    Py_ssize_t references;
    uint8_t log2_size;
    uint8_t log2_index_bytes;
    uint8_t kind; /* 0: keys of any kind; else all keys are exact strings */
} DictKeysHead;

/* An OrderedDict keeps its own order in a linked list: one layout from 3.5 to 3.14, checked by storage_init. */
typedef struct OrderedNode {
    PyObject *key;
    Py_hash_t hash;
    struct OrderedNode *next;
    struct OrderedNode *previous;
} OrderedNode;

typedef struct {
    PyDictObject dict;
    OrderedNode *first;
    OrderedNode *last;
    OrderedNode **fast_nodes;
    Py_ssize_t fast_nodes_size;
    void *resize_sentinel;
    size_t state; /* changes with every change of order */
} OrderedDict;

static bool string_keys_known;
static bool ordered_known;
static PyTypeObject *deque_type;

static bool only_string_keys(PyObject *dict) {
    return string_keys_known && ((DictKeysHead *)((PyDictObject *)dict)->ma_keys)->kind != 0;
}

bool is_ordered_dict(PyObject *dict) {
    return Py_TYPE(dict) == &PyODict_Type || PyType_IsSubtype(Py_TYPE(dict), &PyODict_Type);
}

bool ordered_keys_readable(void) {
    return ordered_known;
}

const void *ordered_state_address(PyObject *dict) {
    return &((OrderedDict *)dict)->state;
}

/* {"a": 1} has string keys, {1: 1} has not; after move_to_end("a") an OrderedDict of a, b starts with b. */
static bool learn_layouts(void) {
    PyObject *strings = Py_BuildValue("{s:i}", "a", 1);
    PyObject *numbers = Py_BuildValue("{i:i}", 1, 1);
    PyObject *ordered = PyODict_New();
    PyObject *first = PyUnicode_InternFromString("a"), *second = PyUnicode_InternFromString("b");
    bool ok = strings && numbers && ordered && first && second;
    if (ok) {
        string_keys_known = ((DictKeysHead *)((PyDictObject *)strings)->ma_keys)->kind != 0 &&
                            ((DictKeysHead *)((PyDictObject *)numbers)->ma_keys)->kind == 0;
        ok = PyODict_SetItem(ordered, first, Py_None) == 0 && PyODict_SetItem(ordered, second, Py_None) == 0;
        bool large = (size_t)PyODict_Type.tp_basicsize >= sizeof(OrderedDict);
        size_t before = large ? ((OrderedDict *)ordered)->state : 0;
        PyObject *moved = ok ? PyObject_CallMethod(ordered, "move_to_end", "O", first) : NULL;
        ok = moved != NULL;
        Py_XDECREF(moved);
        if (ok && large) {
            OrderedDict *dict = (OrderedDict *)ordered;
            ordered_known = dict->first != NULL && dict->last != NULL && dict->first->key == second &&
                            dict->last->key == first && dict->first->next == dict->last && dict->state != before;
        }
    }
    Py_XDECREF(strings);
    Py_XDECREF(numbers);
    Py_XDECREF(ordered);
    Py_XDECREF(first);
    Py_XDECREF(second);
    return ok;
}

bool storage_init(void) {
    PyObject *collections = PyImport_ImportModule("collections");
    if (collections == NULL) {
        return false;
    }
    deque_type = (PyTypeObject *)PyObject_GetAttrString(collections, "deque");
    Py_DECREF(collections);
    return deque_type != NULL && learn_layouts();
}

/* Making the dict of an object that kept its attributes inline allocates; the collector must not run finalizers
 * of the user's in the middle of a guard program. */
static PyObject **make_dict(PyObject *value) {
    int was_enabled = PyGC_Disable();
    PyObject **slot = _PyObject_GetDictPtr(value);
    if (was_enabled) {
        PyGC_Enable();
    }
    return slot;
}

PyObject **instance_dict_slot(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (PyType_Check(value)) {
        return NULL;
    }
#ifdef MANAGED_DICT_SLOT
    if (LIKELY(type->tp_flags & Py_TPFLAGS_MANAGED_DICT)) {
        if (LIKELY(MANAGED_DICT_IS_MADE(value))) {
            return MANAGED_DICT_SLOT(value);
        }
        PyObject **slot = make_dict(value);
        if (slot != NULL && *slot == NULL) {
            PyErr_Clear();
        }
        return slot;
    }
#else
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        int was_enabled = PyGC_Disable();
        PyObject *dict = PyObject_GenericGetDict(value, NULL);
        if (was_enabled) {
            PyGC_Enable();
        }
        if (dict == NULL) {
            PyErr_Clear();
            return NULL;
        }
        Py_DECREF(dict); /* the object holds it */
    }
#endif
    if (type->tp_dictoffset == 0 && !(type->tp_flags & Py_TPFLAGS_MANAGED_DICT)) {
        return NULL;
    }
    return make_dict(value);
}

/* Keys that could run a user's `__eq__` are never compared: without a promise that all are strings, each key is
 * compared as a constant. */
PyObject *dict_find(PyObject *dict, PyObject *key) {
    if (LIKELY(PyUnicode_CheckExact(key) && only_string_keys(dict))) {
        PyObject *found = PyDict_GetItemWithError(dict, key);
        if (UNLIKELY(found == NULL)) {
            PyErr_Clear();
        }
        return found;
    }
    PyObject *candidate, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &candidate, &value)) {
        if (same_constant(candidate, key)) {
            return value;
        }
    }
    return NULL;
}

PyObject *dict_key_at(PyObject *dict, Py_ssize_t index) {
    if (is_ordered_dict(dict)) {
        OrderedNode *node = ordered_known ? ((OrderedDict *)dict)->first : NULL;
        while (node != NULL && index-- > 0) {
            node = node->next;
        }
        return node == NULL ? NULL : node->key;
    }
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        if (index-- == 0) {
            return key;
        }
    }
    return NULL;
}

static bool is_expected_key(PyObject *key, PyObject *expected, PyObject *callback) {
    if (UNLIKELY(callback != NULL && PyWeakref_CheckRefExact(expected) &&
                 ((PyWeakReference *)expected)->wr_callback == callback)) {
        return key == ((PyWeakReference *)expected)->wr_object;
    }
    return same_constant(key, expected);
}

bool dict_keys_are(PyObject *dict, PyObject *expected, PyObject *callback) {
    Py_ssize_t count = PyTuple_GET_SIZE(expected);
    if (((PyDictObject *)dict)->ma_used != count) {
        return false;
    }
    if (is_ordered_dict(dict)) {
        OrderedNode *node = ordered_known ? ((OrderedDict *)dict)->first : NULL;
        for (Py_ssize_t index = 0; index < count; index++, node = node->next) {
            if (node == NULL || !is_expected_key(node->key, PyTuple_GET_ITEM(expected, index), callback)) {
                return false;
            }
        }
        return true;
    }
    PyObject *key, *value;
    Py_ssize_t position = 0, index = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        if (index >= count || !is_expected_key(key, PyTuple_GET_ITEM(expected, index++), callback)) {
            return false;
        }
    }
    return index == count;
}

/* `address`: where that length lies, NULL for objects whose length cannot change (or lies nowhere). */
Py_ssize_t storage_length(PyObject *value, const void **address) {
    *address = NULL;
    if (PyList_Check(value) || PyByteArray_Check(value) || PyType_IsSubtype(Py_TYPE(value), deque_type)) {
        *address = &((PyVarObject *)value)->ob_size;
        return Py_SIZE(value);
    }
    if (PyTuple_Check(value) || PyBytes_Check(value)) {
        return Py_SIZE(value);
    }
    if (PyDict_Check(value)) {
        *address = &((PyDictObject *)value)->ma_used;
        return ((PyDictObject *)value)->ma_used;
    }
    if (PyAnySet_Check(value)) {
        *address = &((PySetObject *)value)->used;
        return PySet_GET_SIZE(value);
    }
    if (PyUnicode_Check(value)) {
        return PyUnicode_GET_LENGTH(value);
    }
    if (Py_TYPE(value) == &PyRange_Type) {
        Py_ssize_t count = PyRange_Type.tp_as_sequence->sq_length(value);
        if (count < 0) {
            PyErr_Clear();
        }
        return count;
    }
    return -1;
}

/* Getset descriptors of functions that only hand out a field. */
typedef struct {
    const char *name;
    size_t offset;
} Field;

static const Field function_fields[] = {
    {"__code__", offsetof(PyFunctionObject, func_code)},
    {"__defaults__", offsetof(PyFunctionObject, func_defaults)},
    {"__kwdefaults__", offsetof(PyFunctionObject, func_kwdefaults)},
    {NULL, 0},
};

static Py_ssize_t member_offset(PyTypeObject *type, PyObject *descriptor, PyObject *name) {
    if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
        PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        if ((member->type == T_OBJECT || member->type == T_OBJECT_EX) &&
            PyType_IsSubtype(type, PyDescr_TYPE(descriptor))) {
            return member->offset;
        }
        return -1;
    }
    if (type == &PyFunction_Type && Py_TYPE(descriptor) == &PyGetSetDescr_Type) {
        for (const Field *field = function_fields; field->name != NULL; field++) {
            if (PyUnicode_CompareWithASCIIString(name, field->name) == 0) {
                return (Py_ssize_t)field->offset;
            }
        }
    }
    return -1;
}

bool is_object_member(PyTypeObject *type, PyObject *descriptor, PyObject *name) {
    return member_offset(type, descriptor, name) >= 0;
}

/* Where the object behind a descriptor lies, NULL if it is no plain field. An empty field reads as None, but for
 * the members of `__slots__`, which are then absent. */
PyObject **object_member(PyObject *value, PyObject *descriptor, PyObject *name, bool *none_when_empty) {
    Py_ssize_t offset = member_offset(Py_TYPE(value), descriptor, name);
    *none_when_empty = !(Py_TYPE(descriptor) == &PyMemberDescr_Type &&
                         ((PyMemberDescrObject *)descriptor)->d_member->type == T_OBJECT_EX);
    return offset < 0 ? NULL : (PyObject **)((char *)value + offset);
}

/* An item of a list, tuple or deque (of whatever subclass), NULL if there is none. */
PyObject *sequence_item(PyObject *value, Py_ssize_t index) {
    if (PyList_Check(value)) {
        return index < PyList_GET_SIZE(value) ? PyList_GET_ITEM(value, index) : NULL;
    }
    if (PyTuple_Check(value)) {
        return index < PyTuple_GET_SIZE(value) ? PyTuple_GET_ITEM(value, index) : NULL;
    }
    if (PyType_IsSubtype(Py_TYPE(value), deque_type) && index < Py_SIZE(value)) {
        PyObject *item = deque_type->tp_as_sequence->sq_item(value, index);
        if (item == NULL) {
            PyErr_Clear();
            return NULL;
        }
        Py_DECREF(item); /* the deque holds it */
        return item;
    }
    return NULL;
}
