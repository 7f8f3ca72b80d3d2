/* Reading tensors without torch's headers.
 *
 * Contract. `_native/calibrate.py` finds where a tensor's fields lie, proves it on tensors of many kinds against
 * torch's own answers, and hands the result to the core, which publishes it as the capsule
 * "stator._native.core.tensor_layout". Fields may be read raw only at level RAW and only for tensors whose key set is
 * plain (`stator_tensor_is_plain`): dense tensors of a known device, no Python key, no wrapper, no symbolic sizes.
 * Everything else goes the slow, exact way through Python.
 *
 * Why raw: a property read through libtorch's C shims costs 2-4 ns and a guard needs six of them for each tensor.
 */
#ifndef STATOR_TENSOR_READ_H
#define STATOR_TENSOR_READ_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define STATOR_LAYOUT_CAPSULE "stator._native.core.tensor_layout"

enum { STATOR_READ_PYTHON = 0, STATOR_READ_SHIMS = 1, STATOR_READ_RAW = 2 };

typedef int32_t (*StatorShimLong)(void *tensor, int64_t *result);
typedef int32_t (*StatorShimInt)(void *tensor, int32_t *result);
typedef int32_t (*StatorShimPointer)(void *tensor, int64_t **result);

typedef struct {
    int32_t level;          /* STATOR_READ_* */
    int32_t inline_dims;    /* up to so many dimensions sizes and strides lie in the tensor itself */
    int32_t handle;         /* offset of the at::Tensor in the Python object; its address is the shims' handle */
    int32_t dimensions;     /* offsets into the TensorImpl from here on */
    int32_t sizes;
    int32_t strides;
    int32_t storage_offset;
    int32_t dtype;          /* 16 bits */
    int32_t device_type;    /* 8 bits */
    int32_t device_index;   /* 8 bits */
    int32_t key_set;
    int32_t autograd_meta;  /* pointer to the AutogradMeta, NULL: requires no grad */
    int32_t requires_grad_flag; /* offset into the AutogradMeta: one byte; 0: no such place is known */
    uint64_t plain_keys;    /* a key set within this mask is plain */
    uint64_t conjugate_key;
    uint64_t negative_key;
    uint64_t inplace_key;   /* ADInplaceOrView: absent from inference tensors */
    bool (*requires_grad)(const void *impl);
    StatorShimLong get_dim;
    StatorShimPointer get_sizes;
    StatorShimPointer get_strides;
    StatorShimLong get_storage_offset;
    StatorShimInt get_dtype;
    StatorShimInt get_device_type;
    StatorShimInt get_device_index;
} StatorTensorLayout;

static inline void *stator_tensor_handle(const StatorTensorLayout *layout, PyObject *tensor) {
    return (char *)tensor + layout->handle;
}

static inline const char *stator_tensor_impl(const StatorTensorLayout *layout, PyObject *tensor) {
    return *(const char *const *)((char *)tensor + layout->handle);
}

static inline uint64_t stator_impl_keys(const StatorTensorLayout *layout, const char *impl) {
    return *(const uint64_t *)(impl + layout->key_set);
}

static inline bool stator_tensor_is_plain(const StatorTensorLayout *layout, uint64_t keys) {
    return (keys & ~layout->plain_keys) == 0;
}

static inline int64_t stator_impl_dim(const StatorTensorLayout *layout, const char *impl) {
    return *(const int64_t *)(impl + layout->dimensions);
}

static inline const int64_t *stator_impl_sizes(const StatorTensorLayout *layout, const char *impl) {
    if (stator_impl_dim(layout, impl) <= layout->inline_dims) {
        return (const int64_t *)(impl + layout->sizes);
    }
    return *(const int64_t *const *)(impl + layout->sizes);
}

static inline const int64_t *stator_impl_strides(const StatorTensorLayout *layout, const char *impl) {
    int64_t dim = stator_impl_dim(layout, impl);
    if (dim <= layout->inline_dims) {
        return (const int64_t *)(impl + layout->strides);
    }
    return *(const int64_t *const *)(impl + layout->sizes) + dim;
}

static inline int64_t stator_impl_storage_offset(const StatorTensorLayout *layout, const char *impl) {
    return *(const int64_t *)(impl + layout->storage_offset);
}

static inline int32_t stator_impl_dtype(const StatorTensorLayout *layout, const char *impl) {
    uint16_t code;
    memcpy(&code, impl + layout->dtype, sizeof(code));
    return code;
}

static inline int32_t stator_impl_device_type(const StatorTensorLayout *layout, const char *impl) {
    return *(const int8_t *)(impl + layout->device_type);
}

static inline int32_t stator_impl_device_index(const StatorTensorLayout *layout, const char *impl) {
    return *(const int8_t *)(impl + layout->device_index);
}

/* The dtype and the device as one word: they lie side by side, which calibration checks. */
static inline uint32_t stator_impl_dtype_and_device(const StatorTensorLayout *layout, const char *impl) {
    uint32_t word;
    memcpy(&word, impl + layout->dtype, sizeof(word));
    return word;
}

static inline bool stator_impl_requires_grad(const StatorTensorLayout *layout, const char *impl,
                                             bool (*requires_grad)(const void *impl)) {
    const char *meta = *(const char *const *)(impl + layout->autograd_meta);
    if (meta == NULL) {
        return false;
    }
    /* The flag is set for leaves only; what has a gradient function, or is a view, answers for itself. */
    return (layout->requires_grad_flag != 0 && meta[layout->requires_grad_flag] == 1) || requires_grad(impl);
}

#endif
