/* GuardProgram: a guard tree as instructions, and the machine that runs them.
 *
 * A program is a sequence of groups, one for the subtree of each changing root. A group has a stable part and a
 * volatile part:
 *  - stable instructions follow pointers through objects that rarely change (modules, globals, classes). The first
 *    successful run records *facts*: pairs (address, word). While every fact holds, in order, every load of the part
 *    would lead to the same object and every guard of it would hold, so later runs compare words instead.
 *  - volatile instructions (tensors, sets, global state) run each time on the registers the facts vouch for.
 *
 * Laws of facts. (1) An address is readable because the facts before it hold: it lies in the root, which the
 * caller keeps alive, or in an object that a proven container holds. (2) A dict version is globally unique, so an
 * equal version means equal content, held without a gap. (3) Where a container can drop an object without a trace
 * (list items, cells, roots), an equal pointer may be another object at the same address: constants compared by
 * value there are kept alive by the recording, types and dicts carry facts of their own. (4) A load whose
 * stability cannot be expressed spoils the recording, never the answer.
 *
 * Registers are borrowed references: no instruction runs Python code except on the slow ways, and those pin every
 * live register first. A program that meets a slow way starts over once, with registers cleared, so that it knows
 * which are live.
 */
#include "core.h"

typedef uint64_t __attribute__((may_alias)) Word;

typedef struct {
    const Word *address;
    uint64_t expected;
} Fact;

/* name, then what it does; `d`, `s` registers, `a` the number, `o` the object of the instruction. */
#define OPCODES(X)                                                                  \
    X(LOCAL)        /* d = argument a */                                            \
    X(FUNCTION)     /* d = the function */                                          \
    X(CELL)         /* d = contents of closure cell a */                            \
    X(CONST)        /* d = o */                                                     \
    X(CONST_WEAK)   /* d = what the weak reference o points to */                   \
    X(DICT)         /* d = instance dict of s */                                    \
    X(KEY)          /* d = s[o] by storage */                                       \
    X(INDEX)        /* d = s[a] by storage */                                       \
    X(DICT_KEY)     /* d = a-th key of s */                                         \
    X(TYPE)         /* d = type of s */                                             \
    X(LOOKUP)       /* d = o on the MRO of s */                                     \
    X(CONTENTS)     /* d = contents of the cell s */                                \
    X(MEMBER)       /* d = field of s behind the descriptor named o */              \
    X(GETTER)       /* d = what the getset descriptor o, or named o, answers; slow way */ \
    X(FOLLOW)       /* d = storage.follow(*o, s); slow way */                       \
    X(INTEGER)      /* integer d = size, stride or offset (flags) a of s */         \
    X(TYPE_IS)      /* type of s is o */                                            \
    X(IS)           /* s is o */                                                    \
    X(IS_WEAK)      /* s is what the weak reference o points to */                  \
    X(IS_NOT)       /* s is not o */                                                \
    X(EQUALS)       /* s is the same constant as o */                               \
    X(LENGTH)       /* length of s is a */                                          \
    X(KEYS)         /* keys of s are o, in order */                                 \
    X(HAS_KEY)      /* o in s */                                                    \
    X(LACKS_KEY)    /* o not in s */                                                \
    X(MEMBERS)      /* members of s are o */                                        \
    X(LACKS_ATTR)   /* o not in the instance dict of s */                           \
    X(LOOKUP_ABSENT) /* o not on the MRO of s */                                    \
    X(TENSOR)       /* s fits tensor check a */                                     \
    X(MODULE_CALL)  /* s, an o, has no hooks and no call of its own */              \
    X(CODE_IS)      /* s is a function with code o */                               \
    X(SAME)         /* s is d */                                                    \
    X(DIFFERENT)    /* s is not d */                                                \
    X(MODES)        /* modes check a holds */                                       \
    X(SIZES)        /* size program a holds */                                      \
    X(RANGE)        /* s is an int within o */                                      \
    X(INTEGER_IS)   /* integer s is a */                                            \
    X(INTEGER_RANGE) /* integer s within range check a */                           \
    X(FAIL)         /* never holds */

enum {
#define ENUMERATE(name) OP_##name,
    OPCODES(ENUMERATE)
#undef ENUMERATE
        OP_COUNT
};

static const char *const opcode_names[] = {
#define NAME(name) #name,
    OPCODES(NAME)
#undef NAME
};

/* Instruction flags. */
enum {
    TYPED = 1,     /* the type of s has its fact already */
    VERSIONED = 2, /* the version of dict s has its fact already */
    HELD = 4,      /* s cannot have been dropped and replaced while the facts hold */
};

typedef struct {
    uint8_t op;
    uint8_t flags;
    int32_t destination;
    int32_t source;
    int64_t number;
    PyObject *object;
} Instruction;

typedef struct {
    PyObject *root; /* compared, never followed */
    Py_ssize_t count;
    Fact *facts;
    PyObject **saved; /* registers as the facts vouch for them; borrowed */
    Py_ssize_t held_count;
    PyObject **held; /* strong: constants that law 3 asks to keep */
} Way;

#define WAYS 32

enum { ROOT_NONE = -1, ROOT_FUNCTION = -2 }; /* else the index of an argument */

typedef struct {
    int32_t start, stable_stop, stop;
    int32_t saved_start, saved_stop;
    int32_t root;
    bool memoized;
    int way_count, last_way, next_way;
    uint32_t misses, pause;
    Way *ways[WAYS];
} Group;

enum {
    DO_CONST, DO_LOAD_INTEGER, DO_LOAD_OBJECT, DO_ADD, DO_SUB, DO_MUL, DO_FLOORDIV, DO_MOD, DO_MIN,
    DO_MAX, DO_NEG, DO_EQ, DO_NE, DO_LT, DO_LE, DO_GT, DO_GE, DO_AND, DO_OR, DO_NOT,
};
static const char *const size_names[] = {
    "const", "load_integer", "load_object", "add", "sub", "mul", "floordiv", "mod", "min", "max",
    "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", NULL,
};
#define SIZE_DEPTH 64

typedef struct {
    uint8_t op;
    int64_t number;
} SizeOperation;

typedef struct {
    Py_ssize_t count;
    SizeOperation *operations;
} SizeCheck;

typedef struct {
    bool bounded_below, bounded_above;
    int64_t low, high;
} RangeCheck;

/* The callback of weak references: removes the entry whose object died. It knows its program by a bare pointer that
 * the program clears when it goes first. */
typedef struct {
    PyObject_HEAD
    GuardProgram *program;
} DeathWatch;

struct GuardProgram {
    PyObject_HEAD
    Py_ssize_t instruction_count, group_count, tensor_count, modes_count, size_count, range_count, fetch_count;
    Instruction *instructions;
    Group *groups;
    TensorCheck *tensors;
    ModesCheck *modes;
    SizeCheck *sizes;
    RangeCheck *ranges;
    int32_t *fetches; /* register, or ~integer register */
    int32_t register_count, integer_count;
    bool clears_registers; /* met a slow way once */
    bool dead;             /* an object it holds weakly died */
    PyObject *watch;
    PyObject *entry; /* borrowed */
    PyObject *weak_references;
};

typedef struct {
    Fact *facts;
    Py_ssize_t count, capacity;
    PyObject **held; /* strong */
    Py_ssize_t held_count, held_capacity;
    bool spoiled;
} Recording;

typedef struct {
    GuardProgram *program;
    PyObject *function;
    PyObject *const *locals;
    Py_ssize_t local_count;
    PyObject **registers;
    int64_t *integers;
    Recording *recording; /* NULL: not recording */
    PyObject **pins;      /* strong */
    Py_ssize_t pin_count, pin_capacity;
    PyObject **seen; /* registers as they were last pinned */
  
} Run;

enum { FAILS = 0, HOLDS = 1, START_OVER = 2, RAISED = -1 };

static PyObject *follow_slowly, *match_tensor_slowly, *match_modes_slowly;

/* ---- facts ---- */

static void record(Run *run, const void *address, uint64_t expected) {
    Recording *recording = run->recording;
    if (LIKELY(recording == NULL) || recording->spoiled) {
        return;
    }
    for (Py_ssize_t back = recording->count; back-- > 0 && back >= recording->count - 8;) {
        if (recording->facts[back].address == (const Word *)address) {
            return;
        }
    }
    if (recording->count == recording->capacity) {
        Py_ssize_t capacity = recording->capacity ? recording->capacity * 2 : 64;
        Fact *facts = PyMem_Realloc(recording->facts, (size_t)capacity * sizeof(Fact));
        if (facts == NULL) {
            recording->spoiled = true;
            return;
        }
        recording->facts = facts;
        recording->capacity = capacity;
    }
    recording->facts[recording->count++] = (Fact){address, expected};
}

static void record_pointer(Run *run, const void *address) {
    if (UNLIKELY(run->recording != NULL)) {
        record(run, address, *(const Word *)address);
    }
}

static void spoil(Run *run) {
    if (run->recording != NULL) {
        run->recording->spoiled = true;
    }
}

static void hold(Run *run, PyObject *value) {
    Recording *recording = run->recording;
    if (recording == NULL || recording->spoiled) {
        return;
    }
    if (recording->held_count == recording->held_capacity) {
        Py_ssize_t capacity = recording->held_capacity ? recording->held_capacity * 2 : 8;
        PyObject **held = PyMem_Realloc(recording->held, (size_t)capacity * sizeof(PyObject *));
        if (held == NULL) {
            recording->spoiled = true;
            return;
        }
        recording->held = held;
        recording->held_capacity = capacity;
    }
    recording->held[recording->held_count++] = Py_NewRef(value);
}

/* Where an object keeps its dict depends on its type, and on its length if it has one. */
static void record_slot(Run *run, PyObject *value, PyObject **slot) {
    if (UNLIKELY(run->recording != NULL)) {
        if (Py_TYPE(value)->tp_itemsize != 0) {
            record_pointer(run, &((PyVarObject *)value)->ob_size);
        }
        record_pointer(run, slot);
    }
}

static inline void record_type(Run *run, const Instruction *instruction, PyObject *value) {
    if (UNLIKELY(run->recording != NULL) && !(instruction->flags & TYPED)) {
        record_pointer(run, &value->ob_type);
    }
}

static void record_dict(Run *run, const Instruction *instruction, PyObject *dict) {
    if (LIKELY(run->recording == NULL)) {
        return;
    }
#if DICT_VERSIONS
    record_type(run, instruction, dict);
    if (!(instruction->flags & VERSIONED)) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
        record_pointer(run, &((PyDictObject *)dict)->ma_version_tag);
#pragma GCC diagnostic pop
    }
#else
    spoil(run);
#endif
}

/* A class and all its bases are as they were while the version tag stands (a change zeroes it). */
static void record_type_version(Run *run, PyTypeObject *type) {
    if (LIKELY(run->recording == NULL)) {
        return;
    }
#if TYPE_VERSIONS
    _Static_assert(offsetof(PyTypeObject, tp_finalize) - offsetof(PyTypeObject, tp_version_tag) == 8,
                   "the version tag fills a word");
    if ((type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) && type->tp_version_tag != 0) {
        record_pointer(run, &type->tp_version_tag);
        record_pointer(run, &type->tp_flags);
        return;
    }
#endif
    spoil(run);
}

static void way_free(Way *way) {
    if (way == NULL) {
        return;
    }
    Py_ssize_t count = way->held_count;
    PyObject **held = way->held;
    PyMem_Free(way->facts);
    PyMem_Free(way->saved);
    PyMem_Free(way);
    for (Py_ssize_t index = 0; index < count; index++) {
        Py_DECREF(held[index]);
    }
    PyMem_Free(held);
}

static void recording_clear(Recording *recording) {
    PyMem_Free(recording->facts);
    for (Py_ssize_t index = 0; index < recording->held_count; index++) {
        Py_DECREF(recording->held[index]);
    }
    PyMem_Free(recording->held);
    *recording = (Recording){0};
}

/* ---- pins ---- */

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
static int pin_registers(Run *run) {
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

static int follow_slow(Run *run, const Instruction *instruction, PyObject *value) {
    int pinned = pin_registers(run);
    if (pinned != HOLDS) {
        return pinned;
    }
    if (follow_slowly == NULL) {
        return FAILS;
    }
    PyObject *arguments[3] = {PyTuple_GET_ITEM(instruction->object, 0), PyTuple_GET_ITEM(instruction->object, 1),
                              value};
    PyObject *found = PyObject_Vectorcall(follow_slowly, arguments, 3, NULL);
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
static int get_slow(Run *run, const Instruction *instruction, PyObject *value) {
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

/* ---- guards over integers ---- */

static bool load_object_integer(PyObject *value, int64_t *result) {
    if (!PyLong_CheckExact(value) && !PyBool_Check(value)) {
        return false;
    }
    int overflow;
    *result = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

static bool floor_divide(int64_t left, int64_t right, int64_t *quotient, int64_t *remainder) {
    if (right == 0 || (left == INT64_MIN && right == -1)) {
        return false;
    }
    *quotient = left / right;
    *remainder = left % right;
    if (*remainder != 0 && (*remainder < 0) != (right < 0)) {
        *remainder += right;
        *quotient -= 1;
    }
    return true;
}

static bool size_step(uint8_t op, int64_t left, int64_t right, int64_t *result) {
    int64_t other;
    switch (op) {
    case DO_ADD: return !__builtin_add_overflow(left, right, result);
    case DO_SUB: return !__builtin_sub_overflow(left, right, result);
    case DO_MUL: return !__builtin_mul_overflow(left, right, result);
    case DO_FLOORDIV: return floor_divide(left, right, result, &other);
    case DO_MOD:
        if (right == -1) { /* also where the quotient would not fit */
            *result = 0;
            return true;
        }
        return floor_divide(left, right, &other, result);
    case DO_MIN: *result = left < right ? left : right; return true;
    case DO_MAX: *result = left > right ? left : right; return true;
    case DO_EQ: *result = left == right; return true;
    case DO_NE: *result = left != right; return true;
    case DO_LT: *result = left < right; return true;
    case DO_LE: *result = left <= right; return true;
    case DO_GT: *result = left > right; return true;
    case DO_GE: *result = left >= right; return true;
    case DO_AND: *result = left && right; return true;
    case DO_OR: *result = left || right; return true;
    default: return false;
    }
}

static bool sizes_hold(const SizeCheck *check, const Run *run) {
    int64_t stack[SIZE_DEPTH];
    int depth = 0;
    for (Py_ssize_t index = 0; index < check->count; index++) {
        const SizeOperation *operation = &check->operations[index];
        switch (operation->op) {
        case DO_CONST: stack[depth++] = operation->number; break;
        case DO_LOAD_INTEGER: stack[depth++] = run->integers[operation->number]; break;
        case DO_LOAD_OBJECT:
            if (!load_object_integer(run->registers[operation->number], &stack[depth])) {
                return false;
            }
            depth++;
            break;
        case DO_NEG:
            if (__builtin_sub_overflow((int64_t)0, stack[depth - 1], &stack[depth - 1])) {
                return false;
            }
            break;
        case DO_NOT: stack[depth - 1] = !stack[depth - 1]; break;
        default:
            depth--;
            if (!size_step(operation->op, stack[depth - 1], stack[depth], &stack[depth - 1])) {
                return false;
            }
        }
    }
    return stack[0] != 0;
}

static bool in_range(const RangeCheck *check, int64_t value) {
    return (!check->bounded_below || check->low <= value) && (!check->bounded_above || value <= check->high);
}

/* ---- single instructions with more than a line ---- */

static int load_dict(Run *run, const Instruction *instruction, PyObject *value) {
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

static int lacks_attr(Run *run, const Instruction *instruction, PyObject *value) {
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

static int load_index(Run *run, const Instruction *instruction, PyObject *value) {
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

static int load_member(Run *run, const Instruction *instruction, PyObject *value) {
    PyObject *descriptor = _PyType_Lookup(Py_TYPE(value), instruction->object);
    bool none_when_empty;
    PyObject **field = descriptor == NULL
                           ? NULL
                           : object_member(value, descriptor, instruction->object, &none_when_empty);
    if (field == NULL) {
        return descriptor == NULL ? FAILS : get_slow(run, instruction, value);
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

static int load_cell(Run *run, const Instruction *instruction) {
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

static int check_length(Run *run, const Instruction *instruction, PyObject *value) {
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

static int check_keys(Run *run, const Instruction *instruction, PyObject *value) {
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
    return dict_keys_are(value, instruction->object);
}

/* Names whose presence in the instance dict diverts a module's call, and dicts that have to be empty. */
static const char *const call_names[] = {"forward", "_call_impl", "__call__"};
static const char *const hook_names[] = {"_backward_hooks", "_backward_pre_hooks", "_forward_hooks",
                                         "_forward_pre_hooks"};
static PyObject *call_keys[3], *hook_keys[4], *compiled_call_key;

static int check_module_call(Run *run, const Instruction *instruction, PyObject *value) {
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
    PyObject *compiled = dict_find(dict, compiled_call_key);
    if (compiled != NULL && compiled != Py_None) {
        return FAILS;
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

static int check_tensor(Run *run, const Instruction *instruction, PyObject *value) {
    const TensorCheck *check = &run->program->tensors[instruction->number];
    int answer = tensor_check_fast(check, value);
    if (LIKELY(answer >= 0)) {
        return answer;
    }
    int pinned = pin_registers(run);
    return pinned != HOLDS ? pinned : slow_answer(match_tensor_slowly, check->expected, value);
}

static int check_modes(Run *run, const Instruction *instruction) {
    const ModesCheck *check = &run->program->modes[instruction->number];
    int answer = modes_check_fast(check);
    if (LIKELY(answer >= 0)) {
        return answer;
    }
    int pinned = pin_registers(run);
    return pinned != HOLDS ? pinned : slow_answer(match_modes_slowly, check->expected, NULL);
}

static int load_integer(Run *run, const Instruction *instruction, PyObject *value) {
    bool reachable;
    /* Only tensors have these steps; the object of the instruction is (step, key), then torch.Tensor. */
    if (!PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)PyTuple_GET_ITEM(instruction->object, 2))) {
        return FAILS;
    }
    if (tensor_integer(value, instruction->flags, instruction->number, &run->integers[instruction->destination],
                       &reachable)) {
        return reachable;
    }
    return follow_slow(run, instruction, value);
}

static int check_equals(Run *run, const Instruction *instruction, PyObject *value) {
    if (!same_constant(value, instruction->object)) {
        return FAILS;
    }
    if (value != instruction->object && !(instruction->flags & HELD)) {
        hold(run, value);
    }
    return HOLDS;
}

static int check_integer_object(Run *run, const Instruction *instruction, PyObject *value) {
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

/* ---- the machine ---- */

#define LOAD(expression)                                 \
    {                                                    \
        PyObject *loaded = (expression);                 \
        if (loaded == NULL) {                            \
            return FAILS;                                \
        }                                                \
        run->registers[instruction->destination] = loaded; \
        break;                                           \
    }
#define REQUIRE(condition) \
    if (!(condition)) {    \
        return FAILS;      \
    }                      \
    break;
#define DELEGATE(expression)              \
    {                                     \
        int answer = (expression);        \
        if (UNLIKELY(answer != HOLDS)) {  \
            return answer;                \
        }                                 \
        break;                            \
    }

static int run_range(Run *run, int32_t start, int32_t stop) {
    PyObject **registers = run->registers;
    const Instruction *instruction = run->program->instructions + start;
    const Instruction *end = run->program->instructions + stop;
    for (; instruction < end; instruction++) {
        PyObject *value = instruction->source >= 0 ? registers[instruction->source] : NULL;
        switch (instruction->op) {
        case OP_LOCAL: LOAD(instruction->number < run->local_count ? run->locals[instruction->number] : NULL)
        case OP_FUNCTION: LOAD(run->function)
        case OP_CELL: DELEGATE(load_cell(run, instruction))
        case OP_CONST: LOAD(instruction->object)
        case OP_CONST_WEAK:
            record_pointer(run, &((PyWeakReference *)instruction->object)->wr_object);
            LOAD(((PyWeakReference *)instruction->object)->wr_object == Py_None
                     ? NULL
                     : ((PyWeakReference *)instruction->object)->wr_object)
        case OP_DICT: DELEGATE(load_dict(run, instruction, value))
        case OP_KEY:
            if (UNLIKELY(!PyDict_Check(value))) {
                return FAILS;
            }
            record_dict(run, instruction, value);
            LOAD(dict_find(value, instruction->object))
        case OP_INDEX: DELEGATE(load_index(run, instruction, value))
        case OP_DICT_KEY:
            if (UNLIKELY(!PyDict_Check(value))) {
                return FAILS;
            }
            record_dict(run, instruction, value);
            if (is_ordered_dict(value)) {
                record_pointer(run, ordered_state_address(value));
            }
            LOAD(dict_key_at(value, (Py_ssize_t)instruction->number))
        case OP_TYPE:
            record_type(run, instruction, value);
            LOAD((PyObject *)Py_TYPE(value))
        case OP_LOOKUP:
            if (UNLIKELY(!PyType_Check(value))) {
                return FAILS;
            }
            registers[instruction->destination] = _PyType_Lookup((PyTypeObject *)value, instruction->object);
            record_type_version(run, (PyTypeObject *)value);
            LOAD(registers[instruction->destination])
        case OP_CONTENTS:
            if (UNLIKELY(!PyCell_Check(value))) {
                return FAILS;
            }
            record_type(run, instruction, value);
            record_pointer(run, &((PyCellObject *)value)->ob_ref);
            LOAD(PyCell_GET(value))
        case OP_MEMBER: DELEGATE(load_member(run, instruction, value))
        case OP_GETTER: DELEGATE(get_slow(run, instruction, value))
        case OP_FOLLOW: DELEGATE(follow_slow(run, instruction, value))
        case OP_INTEGER: DELEGATE(load_integer(run, instruction, value))
        case OP_TYPE_IS:
            record_pointer(run, &value->ob_type);
            REQUIRE((PyObject *)Py_TYPE(value) == instruction->object)
        case OP_IS: REQUIRE(value == instruction->object)
        case OP_IS_WEAK:
            record_pointer(run, &((PyWeakReference *)instruction->object)->wr_object);
            REQUIRE(value == ((PyWeakReference *)instruction->object)->wr_object && value != Py_None)
        case OP_IS_NOT: REQUIRE(value != instruction->object)
        case OP_EQUALS: DELEGATE(check_equals(run, instruction, value))
        case OP_LENGTH: DELEGATE(check_length(run, instruction, value))
        case OP_KEYS: DELEGATE(check_keys(run, instruction, value))
        case OP_HAS_KEY:
            if (UNLIKELY(!PyDict_Check(value))) {
                return FAILS;
            }
            record_dict(run, instruction, value);
            REQUIRE(dict_find(value, instruction->object) != NULL)
        case OP_LACKS_KEY:
            if (UNLIKELY(!PyDict_Check(value))) {
                return FAILS;
            }
            record_dict(run, instruction, value);
            REQUIRE(dict_find(value, instruction->object) == NULL)
        case OP_MEMBERS:
            spoil(run);
            REQUIRE(PyAnySet_Check(value) && same_members(value, instruction->object))
        case OP_LACKS_ATTR: DELEGATE(lacks_attr(run, instruction, value))
        case OP_LOOKUP_ABSENT:
            if (UNLIKELY(!PyType_Check(value) ||
                         _PyType_Lookup((PyTypeObject *)value, instruction->object) != NULL)) {
                return FAILS;
            }
            record_type_version(run, (PyTypeObject *)value);
            break;
        case OP_TENSOR: DELEGATE(check_tensor(run, instruction, value))
        case OP_MODULE_CALL: DELEGATE(check_module_call(run, instruction, value))
        case OP_CODE_IS:
            if (UNLIKELY(!PyFunction_Check(value))) {
                return FAILS;
            }
            record_type(run, instruction, value);
            record_pointer(run, &((PyFunctionObject *)value)->func_code);
            REQUIRE(((PyFunctionObject *)value)->func_code == instruction->object)
        case OP_SAME: REQUIRE(value == registers[instruction->destination])
        case OP_DIFFERENT: REQUIRE(value != registers[instruction->destination])
        case OP_MODES: DELEGATE(check_modes(run, instruction))
        case OP_SIZES: REQUIRE(sizes_hold(&run->program->sizes[instruction->number], run))
        case OP_RANGE: DELEGATE(check_integer_object(run, instruction, value))
        case OP_INTEGER_IS: REQUIRE(run->integers[instruction->destination] == instruction->number)
        case OP_INTEGER_RANGE:
            REQUIRE(in_range(&run->program->ranges[instruction->number], run->integers[instruction->destination]))
        default: return FAILS;
        }
    }
    return HOLDS;
}

/* ---- groups: facts first ---- */

static bool facts_hold(const Way *way) {
    const Fact *fact = way->facts, *end = fact + way->count;
    for (; fact < end; fact++) {
        if (UNLIKELY(*fact->address != fact->expected)) {
            return false;
        }
    }
    return true;
}

static Way *find_way(Group *group, PyObject *root) {
    if (group->way_count == 0) {
        return NULL;
    }
    Way *way = group->ways[group->last_way];
    if (LIKELY(way->root == root)) {
        return way;
    }
    for (int index = 0; index < group->way_count; index++) {
        if (group->ways[index]->root == root) {
            group->last_way = index;
            return group->ways[index];
        }
    }
    return NULL;
}

static void keep_way(Run *run, Group *group, PyObject *root, Recording *recording) {
    Py_ssize_t saved_count = group->saved_stop - group->saved_start;
    Way *way = PyMem_Calloc(1, sizeof(Way));
    PyObject **saved = PyMem_Calloc((size_t)saved_count + 1, sizeof(PyObject *));
    if (way == NULL || saved == NULL) {
        PyMem_Free(way);
        PyMem_Free(saved);
        recording_clear(recording);
        return;
    }
    memcpy(saved, run->registers + group->saved_start, (size_t)saved_count * sizeof(PyObject *));
    Fact *fitted = PyMem_Realloc(recording->facts, (size_t)(recording->count + 1) * sizeof(Fact));
    *way = (Way){.root = root, .count = recording->count, .facts = fitted ? fitted : recording->facts,
                 .saved = saved, .held_count = recording->held_count, .held = recording->held};
    int place = -1;
    for (int index = 0; index < group->way_count; index++) {
        if (group->ways[index]->root == root) {
            place = index;
        }
    }
    if (place < 0) {
        place = group->way_count < WAYS ? group->way_count++ : (group->next_way++) % WAYS;
    }
    Way *old = group->ways[place];
    group->ways[place] = way;
    group->last_way = place;
    way_free(old);
}

#define PAUSE_AFTER 16

static int run_stable(Run *run, Group *group) {
    PyObject *root = group->root == ROOT_NONE ? NULL
                     : group->root == ROOT_FUNCTION ? run->function
                     : group->root < run->local_count ? run->locals[group->root] : NULL;
    if (group->root >= 0 && root == NULL) {
        return FAILS;
    }
    Way *way = find_way(group, root);
    if (way != NULL && LIKELY(facts_hold(way))) {
        group->misses = 0;
        memcpy(run->registers + group->saved_start, way->saved,
               (size_t)(group->saved_stop - group->saved_start) * sizeof(PyObject *));
        return HOLDS;
    }
    /* A root that never looks the same twice is not worth recording: pause, longer each time. */
    if (group->pause > 0) {
        group->pause--;
        return run_range(run, group->start, group->stable_stop);
    }
    if (++group->misses > PAUSE_AFTER) {
        group->pause = group->misses < 1024 ? group->misses * 4 : 4096;
    }
    Recording recording = {0};
    run->recording = &recording;
    int answer = run_range(run, group->start, group->stable_stop);
    run->recording = NULL;
    if (answer == HOLDS && !recording.spoiled) {
        keep_way(run, group, root, &recording);
    } else {
        recording_clear(&recording);
    }
    return answer;
}

static int run_groups(Run *run) {
    GuardProgram *program = run->program;
    for (Py_ssize_t index = 0; index < program->group_count; index++) {
        Group *group = &program->groups[index];
        int answer = group->memoized ? run_stable(run, group) : run_range(run, group->start, group->stable_stop);
        if (answer == HOLDS) {
            answer = run_range(run, group->stable_stop, group->stop);
        }
        if (answer != HOLDS) {
            return answer;
        }
    }
    return HOLDS;
}

static int fetch(Run *run, PyObject **fetched) {
    GuardProgram *program = run->program;
    for (Py_ssize_t index = 0; index < program->fetch_count; index++) {
        int32_t source = program->fetches[index];
        PyObject *value = source >= 0 ? Py_NewRef(run->registers[source])
                                      : PyLong_FromLongLong(run->integers[~source]);
        if (value == NULL) {
            while (index-- > 0) {
                Py_DECREF(fetched[index]);
            }
            return RAISED;
        }
        fetched[index] = value;
    }
    return HOLDS;
}

#define STACK_REGISTERS 320

int program_run(GuardProgram *program, PyObject *function, PyObject *const *locals, Py_ssize_t count,
                PyObject **fetched) {
    PyObject *register_space[STACK_REGISTERS];
    int64_t integer_space[STACK_REGISTERS];
    if (UNLIKELY(program->dead)) {
        return FAILS;
    }
    Run run = {.program = program, .function = function, .locals = locals, .local_count = count,
               .registers = register_space, .integers = integer_space};
    void *space = NULL;
    if (UNLIKELY(program->register_count > STACK_REGISTERS || program->integer_count > STACK_REGISTERS)) {
        space = PyMem_Malloc((size_t)program->register_count * sizeof(PyObject *) +
                             (size_t)program->integer_count * sizeof(int64_t));
        if (space == NULL) {
            PyErr_NoMemory();
            return RAISED;
        }
        run.registers = space;
        run.integers = (int64_t *)((char *)space + (size_t)program->register_count * sizeof(PyObject *));
    }
    Py_INCREF(program);
    int answer;
    do {
        if (program->clears_registers) {
            memset(run.registers, 0, (size_t)program->register_count * sizeof(PyObject *));
        }
        answer = run_groups(&run);
    } while (UNLIKELY(answer == START_OVER));
    if (answer == HOLDS) {
        answer = fetch(&run, fetched);
    }
    PyMem_Free(space);
    PyMem_Free(run.seen);
    if (UNLIKELY(run.pins != NULL)) {
        PyObject *type, *error, *traceback; /* what falls may run finalizers */
        PyErr_Fetch(&type, &error, &traceback);
        for (Py_ssize_t index = 0; index < run.pin_count; index++) {
            Py_DECREF(run.pins[index]);
        }
        PyMem_Free(run.pins);
        PyErr_Restore(type, error, traceback);
    }
    Py_DECREF(program);
    return answer;
}

Py_ssize_t program_fetch_count(GuardProgram *program) {
    return program->fetch_count;
}

bool program_is_dead(GuardProgram *program) {
    return program->dead;
}

/* ---- death of what is held weakly ---- */

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

/* ---- making a program ---- */

static bool allocate(void **into, Py_ssize_t count, size_t size) {
    *into = PyMem_Calloc((size_t)count + 1, size);
    if (*into == NULL) {
        PyErr_NoMemory();
        return false;
    }
    return true;
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
        if (!PyTuple_Check(row) ||
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
        bool weak = op == OP_CONST_WEAK || op == OP_IS_WEAK;
        PyObject *kept = weak ? weak_reference(program, object) : Py_NewRef(object);
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
        if (!PyTuple_Check(row) ||
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

static int size_opcode(const char *name) {
    for (int op = 0; size_names[op] != NULL; op++) {
        if (strcmp(size_names[op], name) == 0) {
            return op;
        }
    }
    return -1;
}

/* row: tuple of (name, number); stack effects are checked here so that the machine need not. */
static bool read_size_check(GuardProgram *program, SizeCheck *check, PyObject *row) {
    int depth = 0;
    if (!PyTuple_Check(row) ||
        !allocate((void **)&check->operations, PyTuple_GET_SIZE(row), sizeof(SizeOperation))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(row); index++) {
        const char *name;
        long long number;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(row, index), "sL", &name, &number)) {
            return false;
        }
        int op = size_opcode(name);
        int operands = op <= DO_LOAD_OBJECT ? 0 : op == DO_NEG || op == DO_NOT ? 1 : 2;
        bool bad_load = (op == DO_LOAD_INTEGER && (number < 0 || number >= program->integer_count)) ||
                        (op == DO_LOAD_OBJECT && (number < 0 || number >= program->register_count));
        if (op < 0 || depth < operands || bad_load || (depth += 1 - operands) > SIZE_DEPTH) {
            PyErr_SetString(PyExc_ValueError, "a size program is malformed or too deep");
            return false;
        }
        check->operations[index] = (SizeOperation){(uint8_t)op, number};
    }
    check->count = PyTuple_GET_SIZE(row);
    if (depth != 1) {
        PyErr_SetString(PyExc_ValueError, "a size program leaves exactly one value");
        return false;
    }
    return true;
}

static bool read_sizes(GuardProgram *program, PyObject *rows) {
    if (!allocate((void **)&program->sizes, PyList_GET_SIZE(rows), sizeof(SizeCheck))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(rows); index++) {
        program->size_count = index + 1;
        if (!read_size_check(program, &program->sizes[index], PyList_GET_ITEM(rows, index))) {
            return false;
        }
    }
    return true;
}

static bool read_bound(PyObject *bound, bool *bounded, int64_t *into) {
    *bounded = bound != Py_None;
    *into = *bounded ? PyLong_AsLongLong(bound) : 0;
    return !PyErr_Occurred();
}

static bool read_ranges(GuardProgram *program, PyObject *rows) {
    if (!allocate((void **)&program->ranges, PyList_GET_SIZE(rows), sizeof(RangeCheck))) {
        return false;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(rows); index++) {
        PyObject *low, *high;
        RangeCheck *check = &program->ranges[index];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(rows, index), "OO", &low, &high) ||
            !read_bound(low, &check->bounded_below, &check->low) ||
            !read_bound(high, &check->bounded_above, &check->high)) {
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
    int answer = program_run(program, function, &PyTuple_GET_ITEM(locals, 0), PyTuple_GET_SIZE(locals), fetched);
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

static PyObject *set_slow_ways(PyObject *module, PyObject *arguments) {
    PyObject *follow, *tensor, *modes;
    if (!PyArg_ParseTuple(arguments, "OOO", &follow, &tensor, &modes)) {
        return NULL;
    }
    Py_XSETREF(follow_slowly, Py_NewRef(follow));
    Py_XSETREF(match_tensor_slowly, Py_NewRef(tensor));
    Py_XSETREF(match_modes_slowly, Py_NewRef(modes));
    Py_RETURN_NONE;
}

static PyObject *is_field(PyObject *module, PyObject *arguments) {
    PyObject *type, *name;
    if (!PyArg_ParseTuple(arguments, "O!U", &PyType_Type, &type, &name)) {
        return NULL;
    }
    PyObject *descriptor = _PyType_Lookup((PyTypeObject *)type, name);
    return PyBool_FromLong(descriptor != NULL && is_object_member((PyTypeObject *)type, descriptor, name));
}

PyMethodDef machine_methods[] = {
    {"set_slow_ways", set_slow_ways, METH_VARARGS,
     "set_slow_ways(follow, tensor_matches, modes_match): Python answers for what C cannot read"},
    {"is_field", is_field, METH_VARARGS, "is_field(type, name): whether SLOT name only reads a field of instances"},
    {NULL},
};

static bool intern_all(const char *const *names, PyObject **into, int count) {
    for (int index = 0; index < count; index++) {
        into[index] = PyUnicode_InternFromString(names[index]);
        if (into[index] == NULL) {
            return false;
        }
    }
    return true;
}

bool machine_init(PyObject *module) {
    static const char *const compiled_name[] = {"_compiled_call_impl"};
    if (!intern_all(call_names, call_keys, 3) || !intern_all(hook_names, hook_keys, 4) ||
        !intern_all(compiled_name, &compiled_call_key, 1) || PyType_Ready(&DeathWatch_Type) < 0) {
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
