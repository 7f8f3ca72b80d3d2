/* libtorch's C interface as this extension calls it: one row a symbol, resolved at run time.
 *
 * No torch header is needed, so one binary serves every supported torch. REQUIRED rows must all be found, or the native
 * runtime is not used; OPTIONAL rows may be missing, and code that wants one asks whether its pointer is set.
 */
#ifndef STATOR_PROGRAM_SHIMS_H
#define STATOR_PROGRAM_SHIMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void *Tensor;         /* a pointer to an at::Tensor: an owning handle, or a borrowed one */
typedef uint64_t StableValue; /* one value of the stable dispatcher interface */
typedef void *StableList;
typedef void *StableString;
typedef void (*RangeFunction)(int64_t begin, int64_t end, void *context);

/* X(return type, name, parameters) */
#define REQUIRED_SHIMS(X)                                                                                           \
    X(int32_t, aoti_torch_delete_tensor_object, (Tensor))                                                           \
    X(int32_t, aoti_torch_new_tensor_handle, (Tensor, Tensor *))                                                    \
    X(int32_t, aoti_torch_get_data_ptr, (Tensor, void **))                                                          \
    X(int32_t, aoti_torch_get_numel, (Tensor, int64_t *))                                                           \
    X(int32_t, aoti_torch_get_dim, (Tensor, int64_t *))                                                             \
    X(int32_t, aoti_torch_get_size, (Tensor, int64_t, int64_t *))                                                   \
    X(int32_t, aoti_torch_get_sizes, (Tensor, int64_t **))                                                          \
    X(int32_t, aoti_torch_get_strides, (Tensor, int64_t **))                                                        \
    X(int32_t, aoti_torch_get_stride, (Tensor, int64_t, int64_t *))                                                 \
    X(int32_t, aoti_torch_get_storage_offset, (Tensor, int64_t *))                                                  \
    X(int32_t, aoti_torch_get_dtype, (Tensor, int32_t *))                                                           \
    X(size_t, aoti_torch_dtype_element_size, (int32_t))                                                             \
    X(int32_t, aoti_torch_get_device_type, (Tensor, int32_t *))                                                     \
    X(int32_t, aoti_torch_get_layout, (Tensor, int32_t *))                                                          \
    X(int32_t, aoti_torch_is_defined, (Tensor, bool *))                                                             \
    X(int32_t, aoti_torch_device_type_cpu, (void))                                                                  \
    X(int32_t, aoti_torch_layout_strided, (void))                                                                   \
    X(int32_t, aoti_torch_clone_preserve_strides, (Tensor, Tensor *))                                               \
    X(int32_t, aoti_torch__reinterpret_tensor,                                                                      \
      (Tensor, int64_t, const int64_t *, const int64_t *, int64_t, Tensor *))                                       \
    X(int32_t, aoti_torch_empty_strided,                                                                            \
      (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Tensor *))                             \
    X(int32_t, aoti_torch_create_tensor_from_blob,                                                                  \
      (void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t, Tensor *))            \
    X(uint64_t, aoti_torch_abi_version, (void))                                                                     \
    X(int32_t, torch_call_dispatcher, (const char *, const char *, StableValue *, uint64_t))                        \
    X(int32_t, torch_new_list_reserve_size, (size_t, StableList *))                                                 \
    X(int32_t, torch_list_size, (StableList, size_t *))                                                             \
    X(int32_t, torch_list_get_item, (StableList, size_t, StableValue *))                                            \
    X(int32_t, torch_list_push_back, (StableList, StableValue))                                                     \
    X(int32_t, torch_delete_list, (StableList))                                                                     \
    X(int32_t, torch_new_string_handle, (const char *, size_t, StableString *))                                     \
    X(int32_t, torch_delete_string, (StableString))                                                                 \
    X(int32_t, torch_parallel_for, (int64_t, int64_t, int64_t, RangeFunction, void *))

#define OPTIONAL_SHIMS(X)                                                                                           \
    X(const char *, torch_exception_get_what_without_backtrace, (void))                                             \
    X(int32_t, torch_new_stable_ivalue, (StableValue **))                                                           \
    X(int32_t, torch_delete_stable_ivalue, (StableValue *))                                                         \
    X(int32_t, aoti_torch_cpu_mm_out, (Tensor, Tensor, Tensor))                                                     \
    X(int32_t, aoti_torch_cpu_bmm_out, (Tensor, Tensor, Tensor))                                                    \
    X(int32_t, aoti_torch_cpu_addmm_out, (Tensor, Tensor, Tensor, Tensor, double, double))                          \
    X(int32_t, aoti_torch_cpu_baddbmm_out, (Tensor, Tensor, Tensor, Tensor, double, double))                        \
    X(int32_t, aoti_torch_cpu_convolution,                                                                          \
      (Tensor, Tensor, Tensor *, const int64_t *, int64_t, const int64_t *, int64_t, const int64_t *, int64_t,      \
       int32_t, const int64_t *, int64_t, int64_t, Tensor *))                                                       \
    X(int32_t, aoti_torch_cpu_convolution_backward,                                                                 \
      (Tensor, Tensor, Tensor, const int64_t **, int64_t, const int64_t *, int64_t, const int64_t *, int64_t,       \
       const int64_t *, int64_t, int32_t, const int64_t *, int64_t, int64_t, const int32_t *, int64_t, Tensor *,    \
       Tensor *, Tensor *))                                                                                         \
    X(int32_t, aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu,                                          \
      (Tensor, Tensor, Tensor, double, int32_t, Tensor *, double *, Tensor *, Tensor *))                            \
    X(int32_t, aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward,                                 \
      (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, double, int32_t, Tensor *, double *, Tensor *, Tensor *,     \
       Tensor *))                                                                                                   \
    X(int32_t, aoti_torch_cpu_cat, (const Tensor *, int64_t, int64_t, Tensor *))

typedef struct {
#define MEMBER(result, name, parameters) result(*name) parameters;
    REQUIRED_SHIMS(MEMBER)
    OPTIONAL_SHIMS(MEMBER)
#undef MEMBER
    /* C++ functions with plain enough parameters, found by mangled name. */
    void *(*wrap)(Tensor);                           /* THPVariable_Wrap: a new reference; may empty the handle */
    void (*exclude_keys)(void *guard, uint64_t);     /* c10::impl::ExcludeDispatchKeyGuard's constructor */
    void (*exclude_keys_end)(void *guard);           /* and its destructor */
    void *(*context)(void);                          /* at::globalContext */
    int (*float32_precision)(const void *context, int backend, int operation); /* at::Context::float32Precision */
    void (*sgemm_)(const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const float *,
                   const void *, const int64_t *, const void *, const int64_t *, const float *, void *,
                   const int64_t *); /* BLAS, as libtorch was linked with it */
    void (*dgemm_)(const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const double *,
                   const void *, const int64_t *, const void *, const int64_t *, const double *, void *,
                   const int64_t *);
    bool (*inference_mode)(void);                    /* c10::InferenceMode::is_enabled */
    void *(*operator_new)(size_t);
    void (*operator_delete)(void *);
} Shims;

extern Shims torch;

/* Fill `torch` from an already loaded libtorch_python; NULL, or the name of the first symbol that is missing. */
const char *resolve_shims(const char *library);

#endif
