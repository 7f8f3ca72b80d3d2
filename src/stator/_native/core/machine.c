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
#include "guard_program.h"

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

/* Tensor checks come in long rows (the parameters of a module): a loop of their own, up to the first instruction
 * that is another, or whose check does not hold by the raw fields. */
static inline __attribute__((always_inline)) const Instruction *
skip_tensors_at(const StatorTensorLayout *layout, const Run *run, const Instruction *instruction,
                const Instruction *end) {
    const TensorCheck *checks = run->program->tensors;
    for (; instruction < end && instruction->op == OP_TENSOR; instruction++) {
        const TensorCheck *check = &checks[instruction->number];
        PyObject *value = run->registers[instruction->source];
        if (UNLIKELY(Py_TYPE(value) != check->kind || !check->fast || tensor_check_at(layout, check, value) != 1)) {
            break;
        }
    }
    return instruction;
}

static const Instruction *skip_tensors(const Run *run, const Instruction *instruction, const Instruction *end) {
    static const StatorTensorLayout new_layout = NEW_LAYOUT, old_layout = OLD_LAYOUT;
    if (UNLIKELY(tensor_layout.level != STATOR_READ_RAW)) {
        return instruction;
    }
    switch (tensor_layout_kind) {
    case LAYOUT_NEW: return skip_tensors_at(&new_layout, run, instruction, end);
    case LAYOUT_OLD: return skip_tensors_at(&old_layout, run, instruction, end);
    default: return skip_tensors_at(&tensor_layout, run, instruction, end);
    }
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
            if (UNLIKELY(!PyDict_Check(value) || key_of(instruction) == NULL)) {
                return FAILS;
            }
            record_dict(run, instruction, value);
            LOAD(dict_find(value, key_of(instruction)))
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
        case OP_REFERENT:
            if (UNLIKELY(!PyWeakref_CheckRef(value))) {
                return FAILS;
            }
            record_type(run, instruction, value);
            record_pointer(run, &((PyWeakReference *)value)->wr_object);
            LOAD(PyWeakref_GET_OBJECT(value))
        case OP_MEMBER: DELEGATE(load_member(run, instruction, value))
        case OP_GETTER: DELEGATE(get_slowly(run, instruction, value))
        case OP_FOLLOW: DELEGATE(follow_slowly(run, instruction, value))
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
            if (UNLIKELY(!PyDict_Check(value) || key_of(instruction) == NULL)) {
                return FAILS;
            }
            record_dict(run, instruction, value);
            REQUIRE(dict_find(value, key_of(instruction)) != NULL)
        case OP_LACKS_KEY:
            if (UNLIKELY(!PyDict_Check(value) || key_of(instruction) == NULL)) {
                return FAILS;
            }
            record_dict(run, instruction, value);
            REQUIRE(dict_find(value, key_of(instruction)) == NULL)
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
        case OP_TENSOR: {
            instruction = skip_tensors(run, instruction, end);
            if (LIKELY(instruction == end || instruction->op != OP_TENSOR)) {
                instruction--;
                break;
            }
            DELEGATE(check_tensor(run, instruction, registers[instruction->source]))
        }
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

static int fetch(Run *run, PyObject **fetched, bool *owned) {
    GuardProgram *program = run->program;
    if (!*owned && run->pins == NULL && !program->fetches_integers) {
        for (Py_ssize_t index = 0; index < program->fetch_count; index++) {
            fetched[index] = run->registers[program->fetches[index]];
        }
        return HOLDS;
    }
    *owned = true;
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
                PyObject **fetched, bool *owned) {
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
        answer = fetch(&run, fetched, owned);
    }
    PyMem_Free(space);
    release_pins(&run);
    Py_DECREF(program);
    return answer;
}

Py_ssize_t program_fetch_count(GuardProgram *program) {
    return program->fetch_count;
}

bool program_is_dead(GuardProgram *program) {
    return program->dead;
}

