/* The integers of a program, in evaluation order: Python's arithmetic in 64 bits, where leaving them is an error. */
#include "program/program.h"

static const char OVERFLOW[] = "an integer of the program does not fit 64 bits";
static const char NO_DIVISOR[] = "integer division or modulo by zero";

static int64_t floor_divide(int64_t left, int64_t right) {
    int64_t quotient = left / right;
    return quotient - ((left % right != 0) && ((left < 0) != (right < 0)));
}

static int read_shape(const IntegerRow *row, const Place *place, int64_t *value) {
    switch (row->operation) {
    case INTEGER_SIZE:
        return torch.aoti_torch_get_size(place->handle, row->right, value);
    case INTEGER_STRIDE:
        return torch.aoti_torch_get_stride(place->handle, row->right, value);
    default:
        return torch.aoti_torch_get_storage_offset(place->handle, value);
    }
}

int evaluate_rows(const Program *program, Frame *frame, int64_t begin, int64_t end) {
    int64_t *values = frame->integers;
    for (int64_t i = begin; i < end; i++) {
        const IntegerRow *row = program->rows + i;
        if (row->operation < INTEGER_ADD) {
            const Place *place = frame->places + row->left;
            if (row->operation == INTEGER_INPUT)
                values[i] = place->integer;
            else if (!place->handle || read_shape(row, place, values + i))
                return FAIL(frame, "a tensor lacks a dimension the program reads");
            continue;
        }
        int64_t left = values[row->left], right = values[row->right], value = 0;
        int overflow = 0;
        switch (row->operation) {
        case INTEGER_ADD:
            overflow = __builtin_add_overflow(left, right, &value);
            break;
        case INTEGER_SUB:
            overflow = __builtin_sub_overflow(left, right, &value);
            break;
        case INTEGER_MUL:
            overflow = __builtin_mul_overflow(left, right, &value);
            break;
        case INTEGER_FLOORDIV:
        case INTEGER_MOD:
            if (!right)
                return FAIL_AS(frame, PyExc_ZeroDivisionError, NO_DIVISOR);
            if (right == -1) { /* the lowest integer has no positive twin */
                overflow = row->operation == INTEGER_FLOORDIV && __builtin_sub_overflow(0, left, &value);
                break;
            }
            value = floor_divide(left, right);
            if (row->operation == INTEGER_MOD)
                value = left - value * right;
            break;
        case INTEGER_MIN:
            value = left < right ? left : right;
            break;
        case INTEGER_MAX:
            value = left > right ? left : right;
            break;
        case INTEGER_EQUAL:
            value = left == right;
            break;
        case INTEGER_LESS:
            value = left < right;
            break;
        default:
            value = left <= right;
        }
        if (overflow)
            return FAIL_AS(frame, PyExc_OverflowError, OVERFLOW);
        values[i] = value;
    }
    return 0;
}
