/* Small matrix products by the BLAS routine ATen itself ends in, without ATen's half microsecond before it.
 *
 * Only where ATen would call that routine with exactly these arguments: real, strided on the CPU, each matrix with one
 * unit stride and no dimension of 1 or 0, no lazy negation, and float32 matrix products not set to a lower precision. The
 * connection compares it bit by bit with torch.mm first (runtime/native.py), and drops it where they differ.
 */
#include "program/calls.h"

#include <string.h>

/* The keys are the last word of a TensorImpl but one; torch 2.11's has two more words than its successors'. */
enum { MOST_WORK = 1 << 18, IMPLEMENTATION_WORDS = 22, LONGER_WORDS = 24 };

static Py_ssize_t keys_offset; /* of a TensorImpl's dispatch keys; 0: the routines are not used */
static uint64_t lazy_keys;     /* negation and conjugation */
static int usual_precision; /* when connected, where Python said it is the full one */

static int float32_precision(void) {
    enum { MKLDNN = 2, MATMUL = 3 }; /* at::Float32Backend, at::Float32Op */
    return torch.float32_precision(torch.context(), MKLDNN, MATMUL);
}

static int exact_precision(void) {
    enum { IEEE = 1 }; /* at::Float32Precision: none, ieee, then the lower ones */
    int precision = float32_precision();
    return precision == usual_precision || (precision >= 0 && precision <= IEEE);
}

/* samples: (tensor, its dispatch keys), ...; returns whether the routines can be used. */
int connect_blas(PyObject *samples, uint64_t lazy) {
    keys_offset = 0;
    if (!torch.sgemm_ || !torch.dgemm_ || !torch.context || !torch.float32_precision)
        return 0;
    Py_ssize_t found = 0;
    for (Py_ssize_t word = 1; word < IMPLEMENTATION_WORDS || (!found && word < LONGER_WORDS); word++) {
        int same = 1;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(samples) && same; i++) {
            PyObject *pair = PyList_GET_ITEM(samples, i);
            uint64_t *implementation = *(void **)((char *)PyTuple_GET_ITEM(pair, 0) + tensor_offset);
            same = implementation[word] == PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 1));
        }
        if (same && found)
            return 0;
        if (same)
            found = word * (Py_ssize_t)sizeof(uint64_t);
    }
    keys_offset = found;
    lazy_keys = lazy;
    usual_precision = float32_precision();
    return found != 0;
}

void forget_blas(void) {
    keys_offset = 0;
}

typedef struct {
    int64_t *sizes, *strides;
    void *data;
    int32_t dtype;
} Matrix;

static int read_matrix(Tensor tensor, Matrix *matrix) {
    int64_t dimensions;
    const char *implementation = *(char **)tensor;
    return !(*(const uint64_t *)(implementation + keys_offset) & lazy_keys) &&
           !torch.aoti_torch_get_dim(tensor, &dimensions) && dimensions == 2 &&
           !torch.aoti_torch_get_dtype(tensor, &matrix->dtype) && !torch.aoti_torch_get_sizes(tensor, &matrix->sizes) &&
           !torch.aoti_torch_get_strides(tensor, &matrix->strides) && matrix->sizes[0] > 1 && matrix->sizes[1] > 1 &&
           !torch.aoti_torch_get_data_ptr(tensor, &matrix->data);
}

/* The leading dimension of a matrix as columns of its transpose (`*flag` N) or of itself (T); 0 if neither stride is 1. */
static int64_t leading(const Matrix *matrix, char *flag) {
    if (matrix->strides[1] == 1 && matrix->strides[0] >= matrix->sizes[1]) {
        *flag = 'N';
        return matrix->strides[0];
    }
    *flag = 'T';
    return matrix->strides[0] == 1 && matrix->strides[1] >= matrix->sizes[0] ? matrix->strides[1] : 0;
}

/* out = added, seen as a matrix of out's shape. */
static int copy_added(Tensor added, const Matrix *out, size_t element) {
    int64_t dimensions, *sizes, *strides;
    int32_t dtype;
    char *data;
    const char *implementation = *(char **)added;
    if (*(const uint64_t *)(implementation + keys_offset) & lazy_keys ||
        torch.aoti_torch_get_dim(added, &dimensions) || dimensions < 1 || dimensions > 2 ||
        torch.aoti_torch_get_dtype(added, &dtype) || dtype != out->dtype ||
        torch.aoti_torch_get_sizes(added, &sizes) || torch.aoti_torch_get_strides(added, &strides) ||
        torch.aoti_torch_get_data_ptr(added, (void **)&data) || data == out->data)
        return 0;
    int64_t rows = out->sizes[0], columns = out->sizes[1];
    if (sizes[dimensions - 1] != columns || strides[dimensions - 1] != 1 ||
        (dimensions == 2 && sizes[0] != rows && sizes[0] != 1))
        return 0;
    int64_t step = dimensions == 2 && sizes[0] == rows ? strides[0] : 0;
    for (int64_t row = 0; row < rows; row++)
        memcpy((char *)out->data + row * out->strides[0] * element, data + row * step * element, columns * element);
    return 1;
}

/* out = beta * added + alpha * left @ right; `added` NULL: none. Whether it was done. */
int small_product(Tensor out, Tensor added, Tensor left, Tensor right, double beta, double alpha) {
    enum { FLOAT32 = 6, FLOAT64 = 7 };
    Matrix a, b, c;
    if (!keys_offset || !read_matrix(left, &a) || !read_matrix(right, &b) || !read_matrix(out, &c))
        return 0;
    int64_t rows = c.sizes[0], columns = c.sizes[1], inner = a.sizes[1];
    if (a.dtype != b.dtype || a.dtype != c.dtype || (a.dtype != FLOAT32 && a.dtype != FLOAT64) || a.sizes[0] != rows ||
        b.sizes[0] != inner || b.sizes[1] != columns || rows > MOST_WORK || columns > MOST_WORK || inner > MOST_WORK ||
        rows * columns > MOST_WORK || rows * columns * inner > MOST_WORK || c.data == a.data || c.data == b.data)
        return 0;
    char flag_a, flag_b, flag_c;
    int64_t leading_a = leading(&a, &flag_a), leading_b = leading(&b, &flag_b), leading_c = leading(&c, &flag_c);
    if (!leading_a || !leading_b || !leading_c || flag_c != 'N' ||
        (a.dtype == FLOAT32 && !exact_precision()))
        return 0;
    size_t element = a.dtype == FLOAT32 ? sizeof(float) : sizeof(double);
    if (!added || beta == 0)
        beta = 0;
    else if (!copy_added(added, &c, element))
        return 0;
    /* Fortran's matrices are columns: the transposed product is right' @ left'. Its integers may have 32 or 64 bits. */
    if (a.dtype == FLOAT32) {
        float factor = (float)alpha, kept = (float)beta;
        torch.sgemm_(&flag_b, &flag_a, &columns, &rows, &inner, &factor, b.data, &leading_b, a.data, &leading_a, &kept,
                     c.data, &leading_c);
    } else
        torch.dgemm_(&flag_b, &flag_a, &columns, &rows, &inner, &alpha, b.data, &leading_b, a.data, &leading_a, &beta,
                     c.data, &leading_c);
    return 1;
}
