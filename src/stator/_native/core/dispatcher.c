/* Dispatcher and Continuation: callables that find the entry whose guards hold and call its residual.
 *
 * A Dispatcher stands for a Python function and binds arguments as CPython would; a Continuation stands for a place
 * inside one and takes plain positional arguments. When no entry matches, `on_miss(dispatcher, function, locals)`
 * decides, and its result is the call's.
 *
 * A result that is a TailCall is called on in a loop, so that a loop of a million graph breaks uses no stack.
 */
#include "core.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* a Python function; None for a Continuation */
    EntryTable *table;
    PyObject *on_miss;
    PyObject *names; /* of a Continuation's arguments */
    PyObject *attributes;
    PyObject *weak_references;
    Signature signature;
} Dispatcher;

enum { MODE_NORMAL = 0, MODE_EAGER = 1 };
static int mode = MODE_NORMAL;

#define STACK_ARGUMENTS 96

/* Calls the entry's residual with locals and fetched values. NULL without an exception: its guards fail. */
static PyObject *try_entry(EntryTable *table, EntryArray *array, Py_ssize_t index, PyObject *function,
                           PyObject *const *locals, Py_ssize_t count) {
    Entry *entry = array->items[index];
    GuardProgram *program = entry->program;
    if (UNLIKELY(program == NULL)) {
        return NULL; /* the collector took it apart */
    }
    Py_ssize_t fetch_count = program_fetch_count(program);
    Py_ssize_t total = 1 + entry->passes_function + count + fetch_count;
    PyObject *space[STACK_ARGUMENTS];
    PyObject **arguments = space;
    if (UNLIKELY(total > STACK_ARGUMENTS)) {
        arguments = PyMem_Malloc((size_t)total * sizeof(PyObject *));
        if (arguments == NULL) {
            return PyErr_NoMemory();
        }
    }
    PyObject **own = arguments + 1 + entry->passes_function;
    PyObject **fetched = own + count;
    PyObject *result = NULL;
    arguments[1] = function; /* unless it is passed, locals or fetched values are written over it */
    /* A Python function takes its own references to all arguments before anything else happens. */
    bool owned = !(PyFunction_Check(entry->residual) &&
                   ((PyFunctionObject *)entry->residual)->vectorcall == _PyFunction_Vectorcall);
    if (program_run(program, function, locals, count, fetched, &owned) == 1) {
        PyObject *residual = Py_NewRef(entry->residual);
        memcpy(own, locals, (size_t)count * sizeof(PyObject *));
        entry->hits++;
        if (index > 0) {
            table_promote(table, array, index);
        }
        result = PyObject_Vectorcall(residual, arguments + 1, (size_t)(total - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                     NULL);
        Py_DECREF(residual);
        for (Py_ssize_t item = 0; owned && item < fetch_count; item++) {
            Py_DECREF(fetched[item]);
        }
    }
    if (UNLIKELY(arguments != space)) {
        PyMem_Free(arguments);
    }
    return result;
}

static PyObject *miss(Dispatcher *self, PyObject *function, PyObject *const *locals, Py_ssize_t count) {
    PyObject *tuple = PyTuple_New(count);
    if (tuple == NULL) {
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        PyTuple_SET_ITEM(tuple, index, Py_NewRef(locals[index]));
    }
    PyObject *arguments[3] = {(PyObject *)self, function, tuple};
    PyObject *result = PyObject_Vectorcall(self->on_miss, arguments, 3, NULL);
    Py_DECREF(tuple);
    return result;
}

static PyObject *dispatch_locals(Dispatcher *self, PyObject *const *locals, Py_ssize_t count) {
    EntryTable *table = self->table;
    EntryArray *array = table->array;
    PyObject *result = NULL;
    if (LIKELY(array != NULL && array->count > 0)) {
        array->references++;
        for (Py_ssize_t index = 0; index < array->count; index++) {
            result = try_entry(table, array, index, self->function, locals, count);
            if (result != NULL || PyErr_Occurred()) {
                break;
            }
        }
        entry_array_release(array);
        if (result != NULL || PyErr_Occurred()) {
            return result;
        }
    }
    return miss(self, self->function, locals, count);
}

#define STACK_LOCALS 24

/* Keywords, defaults, stars: locals are bound into an array of our own. */
static PyObject *dispatch_bound(Dispatcher *self, const Signature *signature, bool entries_apply,
                                PyObject *const *arguments, size_t flags, PyObject *names) {
    PyObject *space[STACK_LOCALS];
    PyObject **locals = space;
    if (signature->locals > STACK_LOCALS) {
        locals = PyMem_Malloc((size_t)signature->locals * sizeof(PyObject *));
        if (locals == NULL) {
            return PyErr_NoMemory();
        }
    }
    PyObject *result = NULL;
    if (signature_bind(signature, (PyFunctionObject *)self->function, arguments, PyVectorcall_NARGS(flags), names,
                       locals)) {
        result = entries_apply ? dispatch_locals(self, locals, signature->locals)
                               : miss(self, self->function, locals, signature->locals);
        for (int index = 0; index < signature->locals; index++) {
            Py_DECREF(locals[index]);
        }
    } else if (!PyErr_Occurred()) {
        result = PyObject_Vectorcall(self->function, arguments, flags, names); /* raises Python's own TypeError */
    }
    if (locals != space) {
        PyMem_Free(locals);
    }
    return result;
}

/* The function got another code object: the entries are about the old one, so Python decides what to do. */
static PyObject *dispatch_foreign(Dispatcher *self, PyObject *const *arguments, size_t flags, PyObject *names) {
    Signature signature;
    signature_init(&signature, (PyCodeObject *)((PyFunctionObject *)self->function)->func_code);
    PyObject *result = dispatch_bound(self, &signature, false, arguments, flags, names);
    Py_DECREF(signature.code);
    return result;
}

static PyObject *dispatch_function(Dispatcher *self, PyObject *const *arguments, size_t flags, PyObject *names) {
    const Signature *signature = &self->signature;
    if (UNLIKELY(mode == MODE_EAGER)) {
        return PyObject_Vectorcall(self->function, arguments, flags, names);
    }
    if (UNLIKELY(((PyFunctionObject *)self->function)->func_code != (PyObject *)signature->code)) {
        return dispatch_foreign(self, arguments, flags, names);
    }
    if (LIKELY(names == NULL && PyVectorcall_NARGS(flags) == signature->locals &&
               signature->locals == signature->positional)) {
        return dispatch_locals(self, arguments, signature->locals);
    }
    return dispatch_bound(self, signature, true, arguments, flags, names);
}

static PyObject *dispatch_continuation(Dispatcher *self, PyObject *const *arguments, size_t flags, PyObject *names) {
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (UNLIKELY((names != NULL && PyTuple_GET_SIZE(names) > 0) || count != PyTuple_GET_SIZE(self->names))) {
        PyErr_Format(PyExc_TypeError, "this continuation takes %zd positional arguments (%zd given)",
                     PyTuple_GET_SIZE(self->names), count);
        return NULL;
    }
    return dispatch_locals(self, arguments, count);
}

static PyObject *dispatch_once(Dispatcher *self, PyObject *const *arguments, size_t flags, PyObject *names) {
    return Py_TYPE(self) == &Continuation_Type ? dispatch_continuation(self, arguments, flags, names)
                                               : dispatch_function(self, arguments, flags, names);
}

static PyObject *call_on(PyObject *result) {
    while (result != NULL && Py_TYPE(result) == &TailCall_Type) {
        TailCall *call = (TailCall *)result;
        PyTypeObject *type = Py_TYPE(call->callable);
        PyObject *next =
            type == &Continuation_Type || type == &Dispatcher_Type
                ? dispatch_once((Dispatcher *)call->callable, call->arguments, (size_t)Py_SIZE(call), NULL)
                : PyObject_Vectorcall(call->callable, call->arguments, (size_t)Py_SIZE(call), NULL);
        Py_DECREF(call);
        result = next;
    }
    return result;
}

static PyObject *dispatcher_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names) {
    if (UNLIKELY(Py_EnterRecursiveCall(" in a compiled function"))) {
        return NULL;
    }
    PyObject *result = dispatch_once((Dispatcher *)self, arguments, flags, names);
    if (UNLIKELY(result != NULL && Py_TYPE(result) == &TailCall_Type)) {
        result = call_on(result);
    }
    Py_LeaveRecursiveCall();
    return result;
}

/* ---- the objects ---- */

static Dispatcher *make(PyTypeObject *type, PyObject *function, PyObject *table, PyObject *on_miss, PyObject *names) {
    if (!PyCallable_Check(on_miss)) {
        PyErr_SetString(PyExc_TypeError, "on_miss must be callable");
        return NULL;
    }
    Dispatcher *self = (Dispatcher *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = dispatcher_vectorcall;
    self->function = Py_NewRef(function);
    self->table = (EntryTable *)Py_NewRef(table);
    self->on_miss = Py_NewRef(on_miss);
    self->names = Py_XNewRef(names);
    return self;
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"function", "table", "on_miss", NULL};
    PyObject *function, *table, *on_miss;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!O", names, &PyFunction_Type, &function,
                                     &EntryTable_Type, &table, &on_miss)) {
        return NULL;
    }
    Dispatcher *self = make(type, function, table, on_miss, NULL);
    if (self != NULL) {
        signature_init(&self->signature, (PyCodeObject *)((PyFunctionObject *)function)->func_code);
    }
    return (PyObject *)self;
}

static PyObject *continuation_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"table", "on_miss", "names", NULL};
    PyObject *table, *on_miss, *argument_names;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!OO!", names, &EntryTable_Type, &table, &on_miss,
                                     &PyTuple_Type, &argument_names)) {
        return NULL;
    }
    return (PyObject *)make(type, Py_None, table, on_miss, argument_names);
}

static int dispatcher_traverse(Dispatcher *self, visitproc visit, void *arg) {
    Py_VISIT(self->function);
    Py_VISIT(self->table);
    Py_VISIT(self->on_miss);
    Py_VISIT(self->names);
    Py_VISIT(self->attributes);
    Py_VISIT(self->signature.code);
    return 0;
}

/* A finalizer in the same cycle may still call it: what a call needs stays, and the table is left empty. */
static int dispatcher_clear(Dispatcher *self) {
    PyObject *on_miss = self->on_miss;
    self->on_miss = Py_NewRef((PyObject *)&PyTuple_Type); /* rejects three arguments: an error, not a crash */
    Py_XDECREF(on_miss);
    Py_CLEAR(self->attributes);
    return 0;
}

static void dispatcher_dealloc(Dispatcher *self) {
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_CLEAR(self->on_miss);
    Py_CLEAR(self->attributes);
    Py_CLEAR(self->function);
    Py_CLEAR(self->table);
    Py_CLEAR(self->names);
    Py_CLEAR(self->signature.code);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *dispatcher_get(PyObject *self, PyObject *instance, PyObject *owner) {
    if (instance == NULL || instance == Py_None) {
        return Py_NewRef(self);
    }
    return PyMethod_New(self, instance);
}

/* What it does not have itself it has from its function. */
static PyObject *dispatcher_getattro(PyObject *self, PyObject *name) {
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return value;
    }
    PyErr_Clear();
    return PyObject_GetAttr(((Dispatcher *)self)->function, name);
}

/* Names that every type defines: own value first, then the function's. */
static PyObject *get_own_or_function(Dispatcher *self, const char *name) {
    PyObject *own = self->attributes == NULL ? NULL : PyDict_GetItemString(self->attributes, name);
    return own != NULL ? Py_NewRef(own) : PyObject_GetAttrString(self->function, name);
}

static int set_own(Dispatcher *self, const char *name, PyObject *value) {
    if (self->attributes == NULL && (self->attributes = PyDict_New()) == NULL) {
        return -1;
    }
    if (value == NULL) {
        return PyDict_DelItemString(self->attributes, name);
    }
    return PyDict_SetItemString(self->attributes, name, value);
}

static PyObject *get_named(Dispatcher *self, void *name) {
    return get_own_or_function(self, name);
}

static int set_named(Dispatcher *self, PyObject *value, void *name) {
    return set_own(self, name, value);
}

static PyObject *get_wrapped(Dispatcher *self, void *name) {
    PyObject *own = self->attributes == NULL ? NULL : PyDict_GetItemString(self->attributes, name);
    return Py_NewRef(own != NULL ? own : self->function);
}

static PyObject *dispatcher_repr(Dispatcher *self) {
    PyObject *name = get_own_or_function(self, "__qualname__");
    if (name == NULL) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("<compiled function %S at %p>", name, self);
    Py_DECREF(name);
    return text;
}

static PyObject *dispatcher_reduce(Dispatcher *self, PyObject *unused) {
    return get_own_or_function(self, "__qualname__"); /* pickled by name, as functions are */
}

static PyObject *dispatcher_itself(PyObject *self, PyObject *unused) {
    return Py_NewRef(self);
}

static PyMethodDef dispatcher_own_methods[] = {
    {"__reduce__", (PyCFunction)dispatcher_reduce, METH_NOARGS, NULL},
    {"__copy__", dispatcher_itself, METH_NOARGS, NULL},
    {"__deepcopy__", dispatcher_itself, METH_O, NULL},
    {NULL},
};

static PyMemberDef dispatcher_members[] = {
    {"__stator_function__", T_OBJECT, offsetof(Dispatcher, function), READONLY, "the function it stands for"},
    {"__stator_table__", T_OBJECT, offsetof(Dispatcher, table), READONLY, "its EntryTable"},
    {"__stator_on_miss__", T_OBJECT, offsetof(Dispatcher, on_miss), READONLY, "what it calls when no entry matches"},
    {NULL},
};

static PyGetSetDef dispatcher_fields[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"__wrapped__", (getter)get_wrapped, (setter)set_named, "the function it stands for", "__wrapped__"},
    {"__name__", (getter)get_named, (setter)set_named, NULL, "__name__"},
    {"__qualname__", (getter)get_named, (setter)set_named, NULL, "__qualname__"},
    {"__doc__", (getter)get_named, (setter)set_named, NULL, "__doc__"},
    {"__module__", (getter)get_named, (setter)set_named, NULL, "__module__"},
    {NULL},
};

PyTypeObject Dispatcher_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator._native.core.Dispatcher",
    .tp_basicsize = sizeof(Dispatcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = dispatcher_new,
    .tp_dealloc = (destructor)dispatcher_dealloc,
    .tp_traverse = (traverseproc)dispatcher_traverse,
    .tp_clear = (inquiry)dispatcher_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Dispatcher, vectorcall),
    .tp_dictoffset = offsetof(Dispatcher, attributes),
    .tp_weaklistoffset = offsetof(Dispatcher, weak_references),
    .tp_getattro = dispatcher_getattro,
    .tp_descr_get = dispatcher_get,
    .tp_repr = (reprfunc)dispatcher_repr,
    .tp_methods = dispatcher_own_methods,
    .tp_members = dispatcher_members,
    .tp_getset = dispatcher_fields,
};

static PyObject *continuation_repr(Dispatcher *self) {
    return PyUnicode_FromFormat("<continuation of %zd values at %p>", PyTuple_GET_SIZE(self->names), self);
}

static PyMemberDef continuation_members[] = {
    {"names", T_OBJECT, offsetof(Dispatcher, names), READONLY, "the names of its arguments"},
    {"__stator_table__", T_OBJECT, offsetof(Dispatcher, table), READONLY, "its EntryTable"},
    {"__stator_on_miss__", T_OBJECT, offsetof(Dispatcher, on_miss), READONLY, "what it calls when no entry matches"},
    {NULL},
};

static PyGetSetDef continuation_fields[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

PyTypeObject Continuation_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator._native.core.Continuation",
    .tp_doc = "Continuation(table, on_miss, names): a dispatcher for a place inside a function; plain arguments only.",
    .tp_basicsize = sizeof(Dispatcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = continuation_new,
    .tp_dealloc = (destructor)dispatcher_dealloc,
    .tp_traverse = (traverseproc)dispatcher_traverse,
    .tp_clear = (inquiry)dispatcher_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Dispatcher, vectorcall),
    .tp_dictoffset = offsetof(Dispatcher, attributes),
    .tp_weaklistoffset = offsetof(Dispatcher, weak_references),
    .tp_repr = (reprfunc)continuation_repr,
    .tp_members = continuation_members,
    .tp_getset = continuation_fields,
};

static PyObject *set_mode(PyObject *module, PyObject *value) {
    long wanted = PyLong_AsLong(value);
    if (wanted == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (wanted != MODE_NORMAL && wanted != MODE_EAGER) {
        PyErr_SetString(PyExc_ValueError, "the mode is 0 (normal) or 1 (call functions eagerly)");
        return NULL;
    }
    int before = mode;
    mode = (int)wanted;
    return PyLong_FromLong(before);
}

static PyObject *get_mode(PyObject *module, PyObject *unused) {
    return PyLong_FromLong(mode);
}

PyMethodDef dispatcher_methods[] = {
    {"set_mode", set_mode, METH_O,
     "set_mode(mode): 0 normal, 1 every Dispatcher calls its function eagerly; returns the mode before"},
    {"get_mode", get_mode, METH_NOARGS, "get_mode(): what set_mode set"},
    {NULL},
};
