/* GuardProgram as a Python object: read from the rows guards/compile.py makes, and taken apart. */
#include "guard_program.h"

#include <structmember.h>

static const char *const opcode_names[] = {
#define NAME(name) #name,
    OPCODES(NAME)
#undef NAME
};

bool program_bind_entry(GuardProgram *program, PyObject *entry) {
    if (program->entry != NULL) {
        PyErr_SetString(PyExc_ValueError, "this guard program belongs to another entry");
        return false;
    }
    program->entry = entry;
    return true;
}

void program_release_entry(GuardProgram *program) {
    program->entry = NULL;
}

static PyObject *death_call(PyObject *self, PyObject *arguments, PyObject *names) {
    GuardProgram *program = ((DeathWatch *)self)->program;
    if (program != NULL) {
        program->dead = true;
        Entry *entry = (Entry *)program->entry;
        if (entry != NULL && entry->table != NULL) {
            Py_INCREF(entry);
            bool removed = table_remove(entry->table, entry);
            Py_DECREF(entry);
            if (!removed && PyErr_Occurred()) {
                return NULL;
            }
        }
    }
    Py_RETURN_NONE;
}

static PyTypeObject DeathWatch_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator._native.core.DeathWatch",
    .tp_doc = "Callback of weak references: drops the entry whose object died.",
    .tp_basicsize = sizeof(DeathWatch),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_call = death_call,
};

static PyObject *weak_reference(GuardProgram *program, PyObject *value) {
    if (program->watch == NULL) {
        DeathWatch *watch = PyObject_New(DeathWatch, &DeathWatch_Type);
        if (watch == NULL) {
            return NULL;
        }
        watch->program = program;
        program->watch = (PyObject *)watch;
    }
    return PyWeakref_NewRef(value, program->watch);
}

static bool allocate(void **into, Py_ssize_t count, size_t size) {
    *into = PyMem_Calloc((size_t)count + 1, size);
    if (*into == NULL) {
        PyErr_NoMemory();
        return false;
    }
    return true;
}

static bool op_takes_key(int op) {
    return op == OP_KEY || op == OP_HAS_KEY || op == OP_LACKS_KEY;
}

/* rows: list of (key, whether it is held weakly); a weak one is told apart by its callback. */
static PyObject *read_keys(GuardProgram *program, PyObject *rows) {
    if (!PyList_Check(rows)) {
        PyErr_SetString(PyExc_TypeError, "KEYS takes a list of keys");
        return NULL;
    }
    PyObject *keys = PyTuple_New(PyList_GET_SIZE(rows));
    for (Py_ssize_t index = 0; keys != NULL && index < PyTuple_GET_SIZE(keys); index++) {
        PyObject *key;
        int weak;
        PyObject *row = PyList_GET_ITEM(rows, index);
        PyObject *kept = is_row(row) && PyArg_ParseTuple(row, "Op", &key, &weak)
                             ? (weak ? weak_reference(program, key) : Py_NewRef(key))
                             : NULL;
        if (kept == NULL) {
            Py_CLEAR(keys);
        } else {
            PyTuple_SET_ITEM(keys, index, kept);
        }
    }
    return keys;
}

/* row: (opcode, destination, source, number, flags, object) */
static bool read_instructions(GuardProgram *program, PyObject *rows) {
    Py_ssize_t count = PyList_GET_SIZE(rows);
    if (!allocate((void **)&program->instructions, count, sizeof(Instruction))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        int op, destination, source, flags;
        long long number;
        PyObject *object;
        PyObject *row = PyList_GET_ITEM(rows, index);
        if (!is_row(row) ||
            !PyArg_ParseTuple(row, "iiiLiO", &op, &destination, &source, &number, &flags, &object)) {
            return false;
        }
        int limit = op == OP_INTEGER || op == OP_INTEGER_IS || op == OP_INTEGER_RANGE ? program->integer_count
                                                                                       : program->register_count;
        if (op < 0 || op >= OP_COUNT || destination < -1 || destination >= limit || source < -1 ||
            source >= program->register_count) {
            PyErr_Format(PyExc_ValueError, "instruction %zd is malformed", index);
            return false;
        }
        bool weak = op == OP_CONST_WEAK || op == OP_IS_WEAK || (op_takes_key(op) && (flags & WEAK));
        PyObject *kept = weak            ? weak_reference(program, object)
                         : op == OP_KEYS ? read_keys(program, object)
                                         : Py_NewRef(object);
        if (kept == NULL) {
            return false;
        }
        program->instructions[index] = (Instruction){.op = (uint8_t)op, .flags = (uint8_t)flags,
                                                     .destination = destination, .source = source,
                                                     .number = number, .object = kept};
        program->instruction_count = index + 1;
    }
    return true;
}

/* row: (start, stable stop, stop, saved start, saved stop, root, memoized) */
static bool read_groups(GuardProgram *program, PyObject *rows) {
    Py_ssize_t count = PyList_GET_SIZE(rows);
    if (!allocate((void **)&program->groups, count, sizeof(Group))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        Group *group = &program->groups[index];
        int memoized;
        PyObject *row = PyList_GET_ITEM(rows, index);
        if (!is_row(row) ||
            !PyArg_ParseTuple(row, "iiiiiip", &group->start, &group->stable_stop, &group->stop, &group->saved_start,
                              &group->saved_stop, &group->root, &memoized)) {
            return false;
        }
        group->memoized = memoized;
        if (group->start < 0 || group->stable_stop < group->start || group->stop < group->stable_stop ||
            group->stop > program->instruction_count || group->saved_start < 0 ||
            group->saved_stop < group->saved_start || group->saved_stop > program->register_count) {
            PyErr_Format(PyExc_ValueError, "group %zd is malformed", index);
            return false;
        }
        program->group_count = index + 1;
    }
    return true;
}

static bool read_tensors(GuardProgram *program, PyObject *rows) {
    if (!allocate((void **)&program->tensors, PyList_GET_SIZE(rows), sizeof(TensorCheck))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(rows); index++) {
        if (!tensor_check_init(&program->tensors[index], PyList_GET_ITEM(rows, index))) {
            return false;
        }
        program->tensor_count = index + 1;
    }
    return true;
}

static bool read_modes(GuardProgram *program, PyObject *rows) {
    if (!allocate((void **)&program->modes, PyList_GET_SIZE(rows), sizeof(ModesCheck))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(rows); index++) {
        if (!modes_check_init(&program->modes[index], PyList_GET_ITEM(rows, index))) {
            return false;
        }
        program->modes_count = index + 1;
    }
    return true;
}

static bool read_sizes(GuardProgram *program, PyObject *rows) {
    if (!allocate((void **)&program->sizes, PyList_GET_SIZE(rows), sizeof(SizeCheck))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(rows); index++) {
        program->size_count = index + 1;
        if (!size_check_init(program, &program->sizes[index], PyList_GET_ITEM(rows, index))) {
            return false;
        }
    }
    return true;
}

static bool read_ranges(GuardProgram *program, PyObject *rows) {
    if (!allocate((void **)&program->ranges, PyList_GET_SIZE(rows), sizeof(RangeCheck))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(rows); index++) {
        if (!range_check_init(&program->ranges[index], PyList_GET_ITEM(rows, index))) {
            return false;
        }
        program->range_count = index + 1;
    }
    return true;
}

static bool read_fetches(GuardProgram *program, PyObject *rows) {
    if (!allocate((void **)&program->fetches, PyList_GET_SIZE(rows), sizeof(int32_t))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(rows); index++) {
        long source = PyLong_AsLong(PyList_GET_ITEM(rows, index));
        if (PyErr_Occurred()) {
            return false;
        }
        if (source >= program->register_count || ~source >= program->integer_count) {
            PyErr_SetString(PyExc_ValueError, "a fetch is malformed");
            return false;
        }
        program->fetches[index] = (int32_t)source;
        program->fetches_integers = program->fetches_integers || source < 0;
        program->fetch_count = index + 1;
    }
    return true;
}

/* Numbers that index a table of the program; only known once the tables are read. */
static bool check_numbers(GuardProgram *program) {
    for (Py_ssize_t index = 0; index < program->instruction_count; index++) {
        const Instruction *instruction = &program->instructions[index];
        Py_ssize_t limit = instruction->op == OP_TENSOR                                        ? program->tensor_count
                           : instruction->op == OP_MODES                                       ? program->modes_count
                           : instruction->op == OP_SIZES                                       ? program->size_count
                           : instruction->op == OP_RANGE || instruction->op == OP_INTEGER_RANGE ? program->range_count
                                                                                               : PY_SSIZE_T_MAX;
        if (instruction->number < 0 && instruction->op != OP_INTEGER_IS) {
            limit = 0;
        }
        if (instruction->number >= limit) {
            PyErr_Format(PyExc_ValueError, "the number of instruction %zd is out of range", index);
            return false;
        }
    }
    return true;
}

static PyObject *program_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"registers", "integers", "instructions", "groups", "fetches",
                            "tensors",   "modes",    "sizes",        "ranges", NULL};
    int registers, integers;
    PyObject *instructions, *groups, *fetches, *tensors, *modes, *sizes, *ranges;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "iiO!O!O!O!O!O!O!", names, &registers, &integers,
                                     &PyList_Type, &instructions, &PyList_Type, &groups, &PyList_Type, &fetches,
                                     &PyList_Type, &tensors, &PyList_Type, &modes, &PyList_Type, &sizes,
                                     &PyList_Type, &ranges)) {
        return NULL;
    }
    GuardProgram *program = (GuardProgram *)type->tp_alloc(type, 0);
    if (program == NULL) {
        return NULL;
    }
    program->register_count = registers;
    program->integer_count = integers;
    if (registers < 0 || integers < 0 || !read_instructions(program, instructions) ||
        !read_groups(program, groups) || !read_tensors(program, tensors) || !read_modes(program, modes) ||
        !read_sizes(program, sizes) || !read_ranges(program, ranges) || !read_fetches(program, fetches) ||
        !check_numbers(program)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a guard program has no negative number of registers");
        }
        Py_DECREF(program);
        return NULL;
    }
    return (PyObject *)program;
}

static int program_traverse(GuardProgram *program, visitproc visit, void *arg) {
    for (Py_ssize_t index = 0; index < program->instruction_count; index++) {
        Py_VISIT(program->instructions[index].object);
    }
    for (Py_ssize_t index = 0; index < program->tensor_count; index++) {
        Py_VISIT(program->tensors[index].expected);
        Py_VISIT(program->tensors[index].kind);
    }
    for (Py_ssize_t index = 0; index < program->modes_count; index++) {
        Py_VISIT(program->modes[index].expected);
    }
    for (Py_ssize_t index = 0; index < program->group_count; index++) {
        Group *group = &program->groups[index];
        for (int way = 0; way < group->way_count; way++) {
            for (Py_ssize_t held = 0; held < group->ways[way]->held_count; held++) {
                Py_VISIT(group->ways[way]->held[held]);
            }
        }
    }
    return 0;
}

/* Also makes the program dead: without its objects it must not run again. */
static int program_clear(GuardProgram *program) {
    program->dead = true;
    if (program->watch != NULL) {
        ((DeathWatch *)program->watch)->program = NULL;
        Py_CLEAR(program->watch);
    }
    for (Py_ssize_t index = 0; index < program->instruction_count; index++) {
        Py_CLEAR(program->instructions[index].object);
    }
    for (Py_ssize_t index = 0; index < program->tensor_count; index++) {
        tensor_check_clear(&program->tensors[index]);
    }
    for (Py_ssize_t index = 0; index < program->modes_count; index++) {
        modes_check_clear(&program->modes[index]);
    }
    for (Py_ssize_t index = 0; index < program->group_count; index++) {
        Group *group = &program->groups[index];
        while (group->way_count > 0) {
            way_free(group->ways[--group->way_count]);
        }
    }
    return 0;
}

static void program_dealloc(GuardProgram *program) {
    PyObject_GC_UnTrack(program);
    if (program->weak_references != NULL) {
        PyObject_ClearWeakRefs((PyObject *)program);
    }
    program_clear(program);
    for (Py_ssize_t index = 0; index < program->size_count; index++) {
        PyMem_Free(program->sizes[index].operations);
    }
    PyMem_Free(program->instructions);
    PyMem_Free(program->groups);
    PyMem_Free(program->tensors);
    PyMem_Free(program->modes);
    PyMem_Free(program->sizes);
    PyMem_Free(program->ranges);
    PyMem_Free(program->fetches);
    Py_TYPE(program)->tp_free(program);
}

static PyObject *program_check(GuardProgram *program, PyObject *arguments) {
    PyObject *function, *locals;
    if (!PyArg_ParseTuple(arguments, "OO!", &function, &PyTuple_Type, &locals)) {
        return NULL;
    }
    PyObject **fetched = PyMem_Calloc((size_t)program->fetch_count + 1, sizeof(PyObject *));
    if (fetched == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *result = NULL;
    bool owned = true;
    int answer =
        program_run(program, function, &PyTuple_GET_ITEM(locals, 0), PyTuple_GET_SIZE(locals), fetched, &owned);
    if (answer == FAILS) {
        result = Py_NewRef(Py_None);
    } else if (answer == HOLDS) {
        result = PyTuple_New(program->fetch_count);
        for (Py_ssize_t index = 0; index < program->fetch_count; index++) {
            if (result == NULL) {
                Py_DECREF(fetched[index]);
            } else {
                PyTuple_SET_ITEM(result, index, fetched[index]);
            }
        }
    }
    PyMem_Free(fetched);
    return result;
}

/* (opcode name, destination, source, number, flags) for each instruction: tests assert on them. */
static PyObject *program_listing(GuardProgram *program, PyObject *unused) {
    PyObject *list = PyList_New(0);
    for (Py_ssize_t index = 0; list != NULL && index < program->instruction_count; index++) {
        const Instruction *instruction = &program->instructions[index];
        PyObject *row = Py_BuildValue("(siiLi)", opcode_names[instruction->op], instruction->destination,
                                      instruction->source, (long long)instruction->number, instruction->flags);
        if (row == NULL || PyList_Append(list, row) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *program_facts(GuardProgram *program, void *closure) {
    Py_ssize_t total = 0;
    for (Py_ssize_t index = 0; index < program->group_count; index++) {
        const Group *group = &program->groups[index];
        for (int way = 0; way < group->way_count; way++) {
            total += group->ways[way]->count;
        }
    }
    return PyLong_FromSsize_t(total);
}

static PyObject *program_get_dead(GuardProgram *program, void *closure) {
    return PyBool_FromLong(program->dead);
}

static PyObject *program_get_count(GuardProgram *program, void *closure) {
    return PyLong_FromSsize_t(program->instruction_count);
}

static PyMethodDef program_methods[] = {
    {"check", (PyCFunction)program_check, METH_VARARGS,
     "check(function, arguments): the fetched values if every guard holds, else None"},
    {"listing", (PyCFunction)program_listing, METH_NOARGS, "listing(): its instructions as rows"},
    {NULL},
};

static PyGetSetDef program_fields[] = {
    {"facts", (getter)program_facts, NULL, "how many facts its recordings hold"},
    {"dead", (getter)program_get_dead, NULL, "whether an object it held weakly died"},
    {"instruction_count", (getter)program_get_count, NULL, "how many instructions it has"},
    {NULL},
};

PyTypeObject GuardProgram_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator._native.core.GuardProgram",
    .tp_doc = "A guard tree as native instructions; made by stator.guards.compile_guards.",
    .tp_basicsize = sizeof(GuardProgram),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = program_new,
    .tp_dealloc = (destructor)program_dealloc,
    .tp_traverse = (traverseproc)program_traverse,
    .tp_clear = (inquiry)program_clear,
    .tp_weaklistoffset = offsetof(GuardProgram, weak_references),
    .tp_methods = program_methods,
    .tp_getset = program_fields,
};

static PyObject *is_field(PyObject *module, PyObject *arguments) {
    PyObject *type, *name;
    if (!PyArg_ParseTuple(arguments, "O!U", &PyType_Type, &type, &name)) {
        return NULL;
    }
    PyObject *descriptor = _PyType_Lookup((PyTypeObject *)type, name);
    return PyBool_FromLong(descriptor != NULL && is_object_member((PyTypeObject *)type, descriptor, name));
}

PyMethodDef machine_methods[] = {
    {"is_field", is_field, METH_VARARGS, "is_field(type, name): whether SLOT name only reads a field of instances"},
    {NULL},
};

bool machine_init(PyObject *module) {
    if (!steps_init() || PyType_Ready(&DeathWatch_Type) < 0 || PyModule_AddFunctions(module, slow_methods) < 0) {
        return false;
    }
    PyObject *opcodes = PyDict_New();
    for (int op = 0; opcodes != NULL && op < OP_COUNT; op++) {
        PyObject *number = PyLong_FromLong(op);
        if (number == NULL || PyDict_SetItemString(opcodes, opcode_names[op], number) < 0) {
            Py_CLEAR(opcodes);
        }
        Py_XDECREF(number);
    }
    if (opcodes == NULL || PyModule_AddObject(module, "OPCODES", opcodes) < 0) {
        Py_XDECREF(opcodes);
        return false;
    }
    return true;
}
