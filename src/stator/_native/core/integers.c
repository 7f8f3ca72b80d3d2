/* Guards over 64-bit integers: size programs and ranges, as guards/size_program.py states them. */
#include "guard_program.h"

static const char *const size_names[] = {
    "const", "load_integer", "load_object", "add", "sub", "mul", "floordiv", "mod", "min", "max",
    "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", NULL,
};

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

bool sizes_hold(const SizeCheck *check, const Run *run) {
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

bool in_range(const RangeCheck *check, int64_t value) {
    return (!check->bounded_below || check->low <= value) && (!check->bounded_above || value <= check->high);
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
bool size_check_init(GuardProgram *program, SizeCheck *check, PyObject *row) {
    int depth = 0;
    if (!is_row(row)) {
        return false;
    }
    check->operations = PyMem_Calloc((size_t)PyTuple_GET_SIZE(row) + 1, sizeof(SizeOperation));
    if (check->operations == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(row); index++) {
        const char *name;
        long long number;
        PyObject *operation = PyTuple_GET_ITEM(row, index);
        if (!is_row(operation) || !PyArg_ParseTuple(operation, "sL", &name, &number)) {
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

static bool read_bound(PyObject *bound, bool *bounded, int64_t *into) {
    *bounded = bound != Py_None;
    *into = *bounded ? PyLong_AsLongLong(bound) : 0;
    return !PyErr_Occurred();
}

bool range_check_init(RangeCheck *check, PyObject *row) {
    PyObject *low, *high;
    return is_row(row) && PyArg_ParseTuple(row, "OO", &low, &high) && read_bound(low, &check->bounded_below, &check->low) &&
           read_bound(high, &check->bounded_above, &check->high);
}
