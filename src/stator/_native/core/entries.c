/* Entry, EntryTable and TailCall: what a code object has been compiled to.
 *
 * A table's entries are an immutable array that is swapped whole, so a thread that walks one array is not
 * disturbed by another that inserts or removes. Hot entries move towards the front by the same swap.
 */
#include "core.h"

#include <structmember.h>

/* ---- entries ---- */

static PyObject *entry_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"program", "residual", "passes_function", "owner", NULL};
    PyObject *program, *residual, *owner = Py_None;
    int passes_function = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O|pO", names, &GuardProgram_Type, &program, &residual,
                                     &passes_function, &owner)) {
        return NULL;
    }
    if (!PyCallable_Check(residual)) {
        PyErr_SetString(PyExc_TypeError, "the residual of an entry must be callable");
        return NULL;
    }
    Entry *entry = (Entry *)type->tp_alloc(type, 0);
    if (entry == NULL) {
        return NULL;
    }
    if (!program_bind_entry((GuardProgram *)program, (PyObject *)entry)) {
        Py_DECREF(entry);
        return NULL;
    }
    entry->program = (GuardProgram *)Py_NewRef(program);
    entry->residual = Py_NewRef(residual);
    entry->owner = Py_NewRef(owner);
    entry->passes_function = passes_function;
    return (PyObject *)entry;
}

static int entry_traverse(Entry *entry, visitproc visit, void *arg) {
    Py_VISIT(entry->program);
    Py_VISIT(entry->residual);
    Py_VISIT(entry->owner);
    return 0;
}

/* The residual stays until the end: a thread may still be about to call it. Cycles are cut at the program. */
static int entry_clear(Entry *entry) {
    if (entry->program != NULL) {
        program_release_entry(entry->program);
    }
    Py_CLEAR(entry->program);
    Py_CLEAR(entry->residual);
    Py_CLEAR(entry->owner);
    return 0;
}

static void entry_dealloc(Entry *entry) {
    PyObject_GC_UnTrack(entry);
    if (entry->weak_references != NULL) {
        PyObject_ClearWeakRefs((PyObject *)entry);
    }
    entry_clear(entry);
    Py_TYPE(entry)->tp_free(entry);
}

static PyMemberDef entry_members[] = {
    {"program", T_OBJECT, offsetof(Entry, program), READONLY, "its guards"},
    {"residual", T_OBJECT, offsetof(Entry, residual), READONLY, "what is called when they hold"},
    {"owner", T_OBJECT, offsetof(Entry, owner), READONLY, "whatever its maker keeps with it"},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, "how often its guards held"},
    {"passes_function", T_BOOL, offsetof(Entry, passes_function), READONLY,
     "whether the residual takes the function object first"},
    {NULL},
};

static PyObject *entry_in_table(Entry *entry, void *closure) {
    return PyBool_FromLong(entry->table != NULL);
}

static PyGetSetDef entry_fields[] = {
    {"in_table", (getter)entry_in_table, NULL, "whether a table holds it"},
    {NULL},
};

PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator._native.core.Entry",
    .tp_doc = "Entry(program, residual, passes_function=False, owner=None): guards, and what to call when they hold.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_weaklistoffset = offsetof(Entry, weak_references),
    .tp_members = entry_members,
    .tp_getset = entry_fields,
};

/* ---- tables ---- */

static EntryArray *array_new(Py_ssize_t count) {
    EntryArray *array = PyMem_Malloc(sizeof(EntryArray) + (size_t)count * sizeof(Entry *));
    if (array == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    array->references = 1;
    array->count = 0;
    return array;
}

void entry_array_release(EntryArray *array) {
    if (--array->references == 0) {
        for (Py_ssize_t index = 0; index < array->count; index++) {
            Py_DECREF(array->items[index]);
        }
        PyMem_Free(array);
    }
}

static void array_append(EntryArray *array, Entry *entry) {
    array->items[array->count++] = (Entry *)Py_NewRef(entry);
}

static void table_publish(EntryTable *table, EntryArray *array) {
    EntryArray *old = table->array;
    table->array = array;
    entry_array_release(old); /* last: entries that fall may run Python code */
}

bool table_remove(EntryTable *table, Entry *entry) {
    EntryArray *array = array_new(table->array->count);
    if (array == NULL) {
        return false;
    }
    bool found = false;
    for (Py_ssize_t index = 0; index < table->array->count; index++) {
        if (table->array->items[index] == entry) {
            found = true;
        } else {
            array_append(array, table->array->items[index]);
        }
    }
    if (!found) {
        entry_array_release(array);
        return false;
    }
    entry->table = NULL;
    table_publish(table, array);
    return true;
}

/* An entry that is hit clearly more often than the one before it changes places with it. */
#define CLEARLY 16

void table_promote(EntryTable *table, EntryArray *seen, Py_ssize_t index) {
    if (index == 0 || table->array != seen || seen->items[index]->hits < seen->items[index - 1]->hits + CLEARLY) {
        return;
    }
    EntryArray *array = array_new(seen->count);
    if (array == NULL) {
        PyErr_Clear();
        return;
    }
    for (Py_ssize_t place = 0; place < seen->count; place++) {
        Py_ssize_t from = place == index - 1 ? index : place == index ? index - 1 : place;
        array_append(array, seen->items[from]);
    }
    table_publish(table, array);
}

static PyObject *table_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "", names)) {
        return NULL;
    }
    PyObject *thread = PyImport_ImportModule("_thread");
    PyObject *lock = thread == NULL ? NULL : PyObject_CallMethod(thread, "RLock", NULL);
    Py_XDECREF(thread);
    if (lock == NULL) {
        return NULL;
    }
    EntryTable *table = (EntryTable *)type->tp_alloc(type, 0);
    if (table == NULL) {
        Py_DECREF(lock);
        return NULL;
    }
    table->lock = lock;
    table->array = array_new(0);
    if (table->array == NULL) {
        Py_DECREF(table);
        return NULL;
    }
    return (PyObject *)table;
}

static int table_traverse(EntryTable *table, visitproc visit, void *arg) {
    Py_VISIT(table->lock);
    /* An array that a running call holds too is not ours alone; its entries stay reachable. */
    if (table->array != NULL && table->array->references == 1) {
        for (Py_ssize_t index = 0; index < table->array->count; index++) {
            Py_VISIT(table->array->items[index]);
        }
    }
    return 0;
}

static void forget_entries(EntryTable *table, EntryArray *array) {
    for (Py_ssize_t index = 0; index < array->count; index++) {
        if (array->items[index]->table == table) {
            array->items[index]->table = NULL;
        }
    }
}

static int table_clear_gc(EntryTable *table) {
    EntryArray *array = table->array;
    table->array = NULL;
    if (array != NULL) {
        forget_entries(table, array);
        entry_array_release(array);
    }
    Py_CLEAR(table->lock);
    return 0;
}

/* The collector clears a table nobody can reach any more; calls from finalizers still find an empty one. */
static int table_clear_cycle(EntryTable *table) {
    EntryArray *empty = array_new(0);
    if (empty == NULL) {
        PyErr_Clear();
        return 0;
    }
    if (table->array == NULL) {
        table->array = empty;
        return 0;
    }
    forget_entries(table, table->array);
    table_publish(table, empty);
    return 0;
}

static void table_dealloc(EntryTable *table) {
    PyObject_GC_UnTrack(table);
    if (table->weak_references != NULL) {
        PyObject_ClearWeakRefs((PyObject *)table);
    }
    table_clear_gc(table);
    Py_TYPE(table)->tp_free(table);
}

static PyObject *table_insert(EntryTable *table, PyObject *value) {
    if (!PyObject_TypeCheck(value, &Entry_Type)) {
        PyErr_SetString(PyExc_TypeError, "insert takes an Entry");
        return NULL;
    }
    Entry *entry = (Entry *)value;
    if (entry->table != NULL) {
        PyErr_SetString(PyExc_ValueError, "this entry is in a table already");
        return NULL;
    }
    if (entry->program == NULL || program_is_dead(entry->program)) {
        Py_RETURN_FALSE; /* what it was about is gone already */
    }
    EntryArray *array = array_new(table->array->count + 1);
    if (array == NULL) {
        return NULL;
    }
    for (Py_ssize_t index = 0; index < table->array->count; index++) {
        array_append(array, table->array->items[index]);
    }
    array_append(array, entry);
    entry->table = table;
    table_publish(table, array);
    Py_RETURN_TRUE;
}

static PyObject *table_remove_method(EntryTable *table, PyObject *value) {
    if (!PyObject_TypeCheck(value, &Entry_Type)) {
        PyErr_SetString(PyExc_TypeError, "remove takes an Entry");
        return NULL;
    }
    bool removed = ((Entry *)value)->table == table && table_remove(table, (Entry *)value);
    if (PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(removed);
}

static PyObject *table_clear_method(EntryTable *table, PyObject *unused) {
    EntryArray *empty = array_new(0);
    if (empty == NULL) {
        return NULL;
    }
    forget_entries(table, table->array);
    table_publish(table, empty);
    Py_RETURN_NONE;
}

static PyObject *table_get_entries(EntryTable *table, void *closure) {
    EntryArray *array = table->array;
    array->references++; /* making the tuple may run the collector, and it a finalizer that changes the table */
    PyObject *tuple = PyTuple_New(array->count);
    for (Py_ssize_t index = 0; tuple != NULL && index < array->count; index++) {
        PyTuple_SET_ITEM(tuple, index, Py_NewRef(array->items[index]));
    }
    entry_array_release(array);
    return tuple;
}

static PyMethodDef table_methods[] = {
    {"insert", (PyCFunction)table_insert, METH_O,
     "insert(entry): publish it behind the others; False if what it is about died already"},
    {"remove", (PyCFunction)table_remove_method, METH_O, "remove(entry): whether it was there"},
    {"clear", (PyCFunction)table_clear_method, METH_NOARGS, "clear(): drop every entry"},
    {NULL},
};

static PyMemberDef table_members[] = {
    {"lock", T_OBJECT, offsetof(EntryTable, lock), READONLY, "the re-entrant lock to hold while compiling"},
    {NULL},
};

static PyGetSetDef table_fields[] = {
    {"entries", (getter)table_get_entries, NULL, "its entries in the order they are tried"},
    {NULL},
};

PyTypeObject EntryTable_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator._native.core.EntryTable",
    .tp_doc = "EntryTable(): the entries of one code object; function objects with that code share it.",
    .tp_basicsize = sizeof(EntryTable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = table_new,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_traverse = (traverseproc)table_traverse,
    .tp_clear = (inquiry)table_clear_cycle,
    .tp_weaklistoffset = offsetof(EntryTable, weak_references),
    .tp_methods = table_methods,
    .tp_members = table_members,
    .tp_getset = table_fields,
};

/* ---- tail calls ---- */

#define SPARE_SIZE 24
#define SPARE_LIMIT 32
static TailCall *spare[SPARE_LIMIT];
static int spare_count;

static TailCall *tail_call_new(PyObject *callable, PyObject *const *arguments, Py_ssize_t count) {
    TailCall *call;
    if (count <= SPARE_SIZE && spare_count > 0) {
        call = spare[--spare_count];
        Py_SET_SIZE(call, count);
        _Py_NewReference((PyObject *)call);
    } else {
        call = PyObject_GC_NewVar(TailCall, &TailCall_Type, count < SPARE_SIZE ? SPARE_SIZE : count);
        if (call == NULL) {
            return NULL;
        }
        Py_SET_SIZE(call, count);
    }
    call->callable = Py_NewRef(callable);
    for (Py_ssize_t index = 0; index < count; index++) {
        call->arguments[index] = Py_NewRef(arguments[index]);
    }
    PyObject_GC_Track(call);
    return call;
}

static PyObject *tail_call_vectorcall(PyObject *type, PyObject *const *arguments, size_t flags, PyObject *names) {
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (count < 1 || (names != NULL && PyTuple_GET_SIZE(names) > 0)) {
        PyErr_SetString(PyExc_TypeError, "TailCall takes a callable and its positional arguments");
        return NULL;
    }
    return (PyObject *)tail_call_new(arguments[0], arguments + 1, count - 1);
}

static int tail_call_traverse(TailCall *call, visitproc visit, void *arg) {
    Py_VISIT(call->callable);
    for (Py_ssize_t index = 0; index < Py_SIZE(call); index++) {
        Py_VISIT(call->arguments[index]);
    }
    return 0;
}

static void tail_call_dealloc(TailCall *call) {
    PyObject_GC_UnTrack(call);
    Py_TRASHCAN_BEGIN(call, tail_call_dealloc)
    Py_ssize_t count = Py_SIZE(call);
    Py_CLEAR(call->callable);
    for (Py_ssize_t index = 0; index < count; index++) {
        Py_CLEAR(call->arguments[index]);
    }
    if (count <= SPARE_SIZE && spare_count < SPARE_LIMIT) {
        spare[spare_count++] = call;
    } else {
        PyObject_GC_Del(call);
    }
    Py_TRASHCAN_END
}

static PyObject *tail_call_arguments(TailCall *call, void *closure) {
    PyObject *tuple = PyTuple_New(Py_SIZE(call));
    for (Py_ssize_t index = 0; tuple != NULL && index < Py_SIZE(call); index++) {
        PyTuple_SET_ITEM(tuple, index, Py_NewRef(call->arguments[index]));
    }
    return tuple;
}

static PyMemberDef tail_call_members[] = {
    {"callable", T_OBJECT, offsetof(TailCall, callable), READONLY, "what to call next"},
    {NULL},
};

static PyGetSetDef tail_call_fields[] = {
    {"args", (getter)tail_call_arguments, NULL, "its arguments"},
    {NULL},
};

PyTypeObject TailCall_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator._native.core.TailCall",
    .tp_doc = "TailCall(callable, *args): a residual returns one to have the dispatcher call on without a stack.",
    .tp_basicsize = offsetof(TailCall, arguments),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall = tail_call_vectorcall,
    .tp_dealloc = (destructor)tail_call_dealloc,
    .tp_traverse = (traverseproc)tail_call_traverse,
    .tp_members = tail_call_members,
    .tp_getset = tail_call_fields,
};
