/* Hot operators by their own shims: no dispatcher, no boxing, results into memory that is already there where the
 * operator has an `out` form.
 *
 * The shims call the CPU kernels themselves, so every tensor must be a plain strided one on the CPU; anything else makes the
 * call `unsaid`, and it goes the general way.
 */
#include "program/calls.h"

/* The tensor of an argument; NULL if it is absent or not plain. */
static Tensor plain(const Frame *frame, const Value *value) {
    if (value->kind != VALUE_SLOT)
        return NULL;
    const Place *place = frame->places + value->index;
    return place->plain ? place->handle : NULL;
}

/* An optional tensor: whether it is absent or plain, and the pointer the shims take. */
static int optional(const Frame *frame, const Value *value, Tensor *room, Tensor **pointer) {
    *pointer = NULL;
    if (value->kind == VALUE_NONE || (value->kind == VALUE_SLOT && !frame->places[value->index].handle))
        return 1;
    *room = plain(frame, value);
    *pointer = room;
    return *room != NULL;
}

static int64_t word(const Frame *frame, const Value *value) {
    return value->kind == VALUE_INTEGER ? frame->integers[value->index] : (int64_t)value->word;
}

static double real(const Value *value) {
    double number;
    __builtin_memcpy(&number, &value->word, sizeof number);
    return number;
}

/* A list of integers, written where `room` points. */
static const int64_t *integers(const Frame *frame, const Value *value, int64_t **room) {
    int64_t *begin = *room;
    for (int32_t i = 0; i < value->count; i++)
        begin[i] = word(frame, value->entries + i);
    *room = begin + value->count;
    return begin;
}

static int is_floating(Tensor tensor) {
    int32_t dtype;
    if (torch.aoti_torch_get_dtype(tensor, &dtype))
        return 0;
    return (dtype >= 5 && dtype <= 7) /* half, float, double */ || dtype == 15 /* bfloat16 */;
}

enum { MOST_DIMENSIONS = 3 };

/* An empty contiguous result of a product of matrices (`rank` 2) or of batches of them (3). */
static int empty_product(Tensor left, Tensor right, int rank, Tensor *result) {
    int64_t dimensions, *left_sizes, *right_sizes, sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
    int32_t dtype;
    if (torch.aoti_torch_get_dim(left, &dimensions) || dimensions != rank ||
        torch.aoti_torch_get_dim(right, &dimensions) || dimensions != rank ||
        torch.aoti_torch_get_sizes(left, &left_sizes) || torch.aoti_torch_get_sizes(right, &right_sizes) ||
        torch.aoti_torch_get_dtype(left, &dtype))
        return -1;
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        sizes[i] = i == rank - 1 ? right_sizes[i] : left_sizes[i];
        strides[i] = stride;
        stride *= sizes[i] > 1 ? sizes[i] : 1;
    }
    return new_tensor(rank, sizes, strides, dtype, torch.aoti_torch_device_type_cpu(), -1, result);
}

/* mm and bmm: arguments (left, right) and `out` last; addmm and baddbmm: (added, left, right, beta, alpha). */
static int product(const Program *program, Frame *frame, const Step *step, int *unsaid) {
    const Value *values = step->values;
    int adds = step->way >= CALL_ADDMM, batched = step->way == CALL_BMM || step->way == CALL_BMM_OUT ||
                                                  step->way == CALL_BADDBMM || step->way == CALL_BADDBMM_OUT;
    int into = step->way == CALL_MM_OUT || step->way == CALL_BMM_OUT || step->way == CALL_ADDMM_OUT ||
               step->way == CALL_BADDBMM_OUT;
    Tensor added = adds ? plain(frame, values++) : NULL, left = plain(frame, values), right = plain(frame, values + 1);
    Tensor out = into ? plain(frame, step->values + step->count - 1) : NULL;
    if (!left || !right || (adds && (!added || !is_floating(left))) || (into && !out) ||
        (!into && empty_product(left, right, batched ? 3 : 2, &out))) {
        *unsaid = 1;
        return -1;
    }
    double beta = adds ? real(values + 2) : 0, alpha = adds ? real(values + 3) : 1;
    int failed;
    if (!batched && small_product(out, added, left, right, beta, alpha))
        failed = 0;
    else if (adds)
        failed = (batched ? torch.aoti_torch_cpu_baddbmm_out : torch.aoti_torch_cpu_addmm_out)(out, added, left, right,
                                                                                               beta, alpha);
    else
        failed = (batched ? torch.aoti_torch_cpu_bmm_out : torch.aoti_torch_cpu_mm_out)(out, left, right);
    if (failed) {
        if (!into)
            torch.aoti_torch_delete_tensor_object(out);
        return run_out_of_shim(frame, "a matrix product failed inside libtorch");
    }
    if (!into)
        return fill_tensor(program, frame, step->results.at[0], out, OWNED);
    if (!program->slots[step->results.at[0]].needs)
        return 0;
    Tensor same; /* the `out` overload returns its argument */
    if (torch.aoti_torch_new_tensor_handle(out, &same))
        return run_out_of_shim(frame, "libtorch refused a tensor handle");
    return fill_tensor(program, frame, step->results.at[0], same, OWNED);
}

/* input, weight, bias, stride, padding, dilation, transposed, output_padding, groups */
static int convolution(const Program *program, Frame *frame, const Step *step, int *unsaid) {
    const Value *values = step->values;
    Tensor input = plain(frame, values), weight = plain(frame, values + 1), room, *bias, result;
    if (!input || !weight || !optional(frame, values + 2, &room, &bias)) {
        *unsaid = 1;
        return -1;
    }
    int64_t *numbers = frame->numbers;
    const int64_t *stride = integers(frame, values + 3, &numbers), *padding = integers(frame, values + 4, &numbers);
    const int64_t *dilation = integers(frame, values + 5, &numbers), *output = integers(frame, values + 7, &numbers);
    if (torch.aoti_torch_cpu_convolution(input, weight, bias, stride, values[3].count, padding, values[4].count,
                                         dilation, values[5].count, (int32_t)word(frame, values + 6), output,
                                         values[7].count, word(frame, values + 8), &result))
        return run_out_of_shim(frame, "a convolution failed inside libtorch");
    return fill_tensor(program, frame, step->results.at[0], result, OWNED);
}

static int take_results(const Program *program, Frame *frame, const Step *step, Tensor *results) {
    int failed = 0;
    for (int32_t i = 0; i < step->results.count; i++)
        failed |= fill_tensor(program, frame, step->results.at[i], results[i], OWNED);
    return failed;
}

/* grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask */
static int convolution_backward(const Program *program, Frame *frame, const Step *step, int *unsaid) {
    const Value *values = step->values;
    Tensor grad = plain(frame, values), input = plain(frame, values + 1), weight = plain(frame, values + 2), results[3];
    if (!grad || !input || !weight) {
        *unsaid = 1;
        return -1;
    }
    int64_t *numbers = frame->numbers;
    const int64_t *bias = integers(frame, values + 3, &numbers), *stride = integers(frame, values + 4, &numbers);
    const int64_t *padding = integers(frame, values + 5, &numbers), *dilation = integers(frame, values + 6, &numbers);
    const int64_t *output = integers(frame, values + 8, &numbers);
    int32_t mask[3];
    for (int i = 0; i < 3; i++)
        mask[i] = (int32_t)word(frame, values[10].entries + i);
    if (torch.aoti_torch_cpu_convolution_backward(
            grad, input, weight, values[3].kind == VALUE_NONE ? NULL : &bias, values[3].count, stride, values[4].count,
            padding, values[5].count, dilation, values[6].count, (int32_t)word(frame, values + 7), output,
            values[8].count, word(frame, values + 9), mask, 3, results, results + 1, results + 2))
        return run_out_of_shim(frame, "the backward of a convolution failed inside libtorch");
    return take_results(program, frame, step, results);
}

/* query, key, value, dropout_p, is_causal, *, attn_mask, scale */
static int attention(const Program *program, Frame *frame, const Step *step, int *unsaid) {
    const Value *values = step->values;
    Tensor query = plain(frame, values), key = plain(frame, values + 1), value = plain(frame, values + 2), room, *mask;
    if (!query || !key || !value || !optional(frame, values + 5, &room, &mask)) {
        *unsaid = 1;
        return -1;
    }
    double scale = real(values + 6);
    Tensor results[2];
    if (torch.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
            query, key, value, real(values + 3), (int32_t)word(frame, values + 4), mask,
            values[6].kind == VALUE_NONE ? NULL : &scale, results, results + 1))
        return run_out_of_shim(frame, "attention failed inside libtorch");
    return take_results(program, frame, step, results);
}

/* grad, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask, scale */
static int attention_backward(const Program *program, Frame *frame, const Step *step, int *unsaid) {
    const Value *values = step->values;
    Tensor tensors[6], room, *mask, results[3];
    for (int i = 0; i < 6; i++)
        if (!(tensors[i] = plain(frame, values + i))) {
            *unsaid = 1;
            return -1;
        }
    if (!optional(frame, values + 8, &room, &mask)) {
        *unsaid = 1;
        return -1;
    }
    double scale = real(values + 9);
    if (torch.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward(
            tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5], real(values + 6),
            (int32_t)word(frame, values + 7), mask, values[9].kind == VALUE_NONE ? NULL : &scale, results, results + 1,
            results + 2))
        return run_out_of_shim(frame, "the backward of attention failed inside libtorch");
    return take_results(program, frame, step, results);
}

static int concatenation(const Program *program, Frame *frame, const Step *step, int *unsaid) {
    const Value *list = step->values;
    Tensor *tensors = (Tensor *)frame->buffers, result;
    for (int32_t i = 0; i < list->count; i++)
        if (!(tensors[i] = plain(frame, list->entries + i))) {
            *unsaid = 1;
            return -1;
        }
    if (torch.aoti_torch_cpu_cat(tensors, list->count, word(frame, step->values + 1), &result))
        return run_out_of_shim(frame, "a concatenation failed inside libtorch");
    return fill_tensor(program, frame, step->results.at[0], result, OWNED);
}

int call_direct(const Program *program, Frame *frame, const Step *step, int *unsaid) {
    switch (step->way) {
    case CALL_CONVOLUTION:
        return convolution(program, frame, step, unsaid);
    case CALL_CONVOLUTION_BACKWARD:
        return convolution_backward(program, frame, step, unsaid);
    case CALL_ATTENTION:
        return attention(program, frame, step, unsaid);
    case CALL_ATTENTION_BACKWARD:
        return attention_backward(program, frame, step, unsaid);
    case CALL_CAT:
        return concatenation(program, frame, step, unsaid);
    default:
        return product(program, frame, step, unsaid);
    }
}
