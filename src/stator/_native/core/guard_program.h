/* What the files of the guard machine share: the instructions, the program and one run of it.
 *
 * machine.c says how they work together.
 */
#ifndef STATOR_GUARD_PROGRAM_H
#define STATOR_GUARD_PROGRAM_H

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
    X(REFERENT)     /* d = what the weak reference s points to, None if it is gone */ \
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

/* Instruction flags. */
enum {
    TYPED = 1,     /* the type of s has its fact already */
    VERSIONED = 2, /* the version of dict s has its fact already */
    HELD = 4,      /* s cannot have been dropped and replaced while the facts hold */
    WEAK = 8,      /* o, a key, is a weak reference to the key */
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
    bool fetches_integers;
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

/* facts.c */
void record(Run *run, const void *address, uint64_t expected);
void hold(Run *run, PyObject *value);
void record_slot(Run *run, PyObject *value, PyObject **slot);
void record_dict(Run *run, const Instruction *instruction, PyObject *dict);
void record_type_version(Run *run, PyTypeObject *type);
void recording_clear(Recording *recording);
void keep_way(Run *run, Group *group, PyObject *root, Recording *recording);
void way_free(Way *way);

static inline void record_pointer(Run *run, const void *address) {
    if (UNLIKELY(run->recording != NULL)) {
        record(run, address, *(const Word *)address);
    }
}

static inline void record_type(Run *run, const Instruction *instruction, PyObject *value) {
    if (UNLIKELY(run->recording != NULL) && !(instruction->flags & TYPED)) {
        record_pointer(run, &value->ob_type);
    }
}

static inline void spoil(Run *run) {
    if (run->recording != NULL) {
        run->recording->spoiled = true;
    }
}

/* slow.c */
int pin_registers(Run *run);
void release_pins(Run *run);
int match_tensor_slowly(const TensorCheck *check, PyObject *value);
int match_modes_slowly(const ModesCheck *check);
int follow_slowly(Run *run, const Instruction *instruction, PyObject *value);
int get_slowly(Run *run, const Instruction *instruction, PyObject *value);
extern PyMethodDef slow_methods[];

/* integers.c */
bool sizes_hold(const SizeCheck *check, const Run *run);
bool in_range(const RangeCheck *check, int64_t value);
bool size_check_init(GuardProgram *program, SizeCheck *check, PyObject *row);
bool range_check_init(RangeCheck *check, PyObject *row);

/* The key of an instruction; NULL if it died. */
static inline PyObject *key_of(const Instruction *instruction) {
    if (LIKELY(!(instruction->flags & WEAK))) {
        return instruction->object;
    }
    PyObject *key = ((PyWeakReference *)instruction->object)->wr_object;
    return key == Py_None ? NULL : key;
}

/* steps.c: instructions that take more than a line */
int load_dict(Run *run, const Instruction *instruction, PyObject *value);
int load_index(Run *run, const Instruction *instruction, PyObject *value);
int load_member(Run *run, const Instruction *instruction, PyObject *value);
int load_cell(Run *run, const Instruction *instruction);
int load_integer(Run *run, const Instruction *instruction, PyObject *value);
int lacks_attr(Run *run, const Instruction *instruction, PyObject *value);
int check_length(Run *run, const Instruction *instruction, PyObject *value);
int check_keys(Run *run, const Instruction *instruction, PyObject *value);
int check_module_call(Run *run, const Instruction *instruction, PyObject *value);
int check_tensor(Run *run, const Instruction *instruction, PyObject *value);
int check_modes(Run *run, const Instruction *instruction);
int check_equals(Run *run, const Instruction *instruction, PyObject *value);
int check_integer_object(Run *run, const Instruction *instruction, PyObject *value);
bool steps_init(void);

#endif
