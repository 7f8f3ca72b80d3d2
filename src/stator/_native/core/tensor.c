/* TENSOR guards and integer geometry, read raw or through libtorch's shims; see tensor_read.h for the layout.
 *
 * The fast ways answer only for tensors whose key set is plain. -1 (or `false` from tensor_integer) sends the caller
 * to guards/storage.py and guards/reference.py, which ask torch itself.
 */
#include "core.h"

StatorTensorLayout tensor_layout = {.level = STATOR_READ_PYTHON};
int tensor_layout_kind;
static PyObject *dispatch_keys_of; /* torch._C._dispatch_keys, for the level of the shims */
static PyObject *name_raw_repr;

/* The key set asked of Python: ~150 ns. Only used where no raw field proved itself. */
static bool keys_by_python(PyObject *value, uint64_t *keys) {
    PyObject *set = dispatch_keys_of == NULL ? NULL : PyObject_CallOneArg(dispatch_keys_of, value);
    PyObject *number = set == NULL ? NULL : PyObject_CallMethodNoArgs(set, name_raw_repr);
    Py_XDECREF(set);
    if (number == NULL) {
        PyErr_Clear();
        return false;
    }
    *keys = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return true;
}

/* As the fields lie side by side in a tensor. */
static uint32_t pack(int32_t dtype, int32_t device_type, int32_t device_index) {
    uint16_t code = (uint16_t)dtype;
    uint8_t bytes[4] = {0, 0, (uint8_t)device_type, (uint8_t)device_index};
    uint32_t word;
    memcpy(bytes, &code, sizeof(code));
    memcpy(&word, bytes, sizeof(word));
    return word;
}

static int check_shims(const TensorCheck *check, PyObject *value) {
    const StatorTensorLayout *layout = &tensor_layout;
    uint64_t keys;
    if (!keys_by_python(value, &keys)) {
        return -1;
    }
    if ((keys & check->key_mask) != check->keys) {
        return check->key_mask == UINT64_MAX ? 0 : -1;
    }
    void *handle = stator_tensor_handle(layout, value);
    int64_t dim, offset, *sizes, *strides;
    int32_t dtype, device_type, device_index;
    if (layout->get_dim(handle, &dim) || layout->get_dtype(handle, &dtype) ||
        layout->get_device_type(handle, &device_type) || layout->get_device_index(handle, &device_index) ||
        layout->get_sizes(handle, &sizes) || layout->get_strides(handle, &strides) ||
        layout->get_storage_offset(handle, &offset)) {
        return -1;
    }
    return dim == check->dim && pack(dtype, device_type, device_index) == check->dtype_and_device &&
           layout->requires_grad(stator_tensor_impl(layout, value)) == check->requires_grad &&
           same_or_wild(sizes, check->sizes, check->dim, check->exact_sizes) &&
           (check->strides_free || same_or_wild(strides, check->sizes + check->dim, check->dim, check->exact_strides)) &&
           (check->offset_free || offset == check->storage_offset);
}

int tensor_check_any(const TensorCheck *check, PyObject *value) {
    if (Py_TYPE(value) != check->kind) {
        return 0;
    }
    if (check->fast && tensor_layout.level != STATOR_READ_PYTHON) {
        return tensor_layout.level == STATOR_READ_RAW ? tensor_check_at(&tensor_layout, check, value) : check_shims(check, value);
    }
    if (tensor_layout.level == STATOR_READ_RAW && check->key_mask == UINT64_MAX &&
        stator_impl_keys(&tensor_layout, stator_tensor_impl(&tensor_layout, value)) != check->keys) {
        return 0;
    }
    return -1;
}

bool tensor_integer(PyObject *value, int which, int64_t index, int64_t *result, bool *reachable) {
    const StatorTensorLayout *layout = &tensor_layout;
    if (layout->level != STATOR_READ_RAW) {
        return false;
    }
    const char *impl = stator_tensor_impl(layout, value);
    if (!stator_tensor_is_plain(layout, stator_impl_keys(layout, impl))) {
        return false;
    }
    *reachable = which == 2 || (index >= 0 && index < stator_impl_dim(layout, impl));
    if (*reachable) {
        *result = which == 2   ? stator_impl_storage_offset(layout, impl)
                  : which == 1 ? stator_impl_strides(layout, impl)[index]
                               : stator_impl_sizes(layout, impl)[index];
    }
    return true;
}

/* Integers of a Python tuple, None as WILDCARD. */
static bool read_integers(PyObject *tuple, int64_t *into, int32_t count, bool *exact) {
    *exact = true;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_SetString(PyExc_ValueError, "a tensor expectation has one size and one stride a dimension");
        return false;
    }
    for (int32_t index = 0; index < count; index++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, index);
        if (item == Py_None) {
            into[index] = WILDCARD;
            *exact = false;
            continue;
        }
        into[index] = PyLong_AsLongLong(item);
        if (into[index] == -1 && PyErr_Occurred()) {
            return false;
        }
    }
    return true;
}

/* row: (expectation, kind, fast, key_mask, keys, dtype, device_type, device_index, requires_grad, sizes,
 *       strides or None, storage_offset or None), as guards/compile.py makes it. */
bool tensor_check_init(TensorCheck *check, PyObject *row) {
    PyObject *expected, *kind, *sizes, *strides, *offset;
    int fast, requires_grad, dtype, device_type, device_index;
    unsigned long long mask, keys;
    memset(check, 0, sizeof(*check));
    if (!is_row(row) ||
        !PyArg_ParseTuple(row, "OO!pKKiiipO!OO", &expected, &PyType_Type, &kind, &fast, &mask, &keys, &dtype,
                          &device_type, &device_index, &requires_grad, &PyTuple_Type, &sizes, &strides,
                          &offset)) {
        return false;
    }
    check->fast = fast;
    check->key_mask = mask;
    check->keys = keys;
    check->requires_grad = requires_grad;
    check->dtype_and_device = pack(dtype, device_type, device_index);
    check->strides_free = strides == Py_None;
    check->offset_free = offset == Py_None;
    if (PyTuple_GET_SIZE(sizes) > 1024) {
        PyErr_SetString(PyExc_ValueError, "too many dimensions");
        return false;
    }
    check->dim = (int32_t)PyTuple_GET_SIZE(sizes);
    if (!check->offset_free) {
        check->storage_offset = PyLong_AsLongLong(offset);
    }
    if (PyErr_Occurred()) {
        return false;
    }
    check->sizes = check->dim * 2 <= INLINE_NUMBERS ? check->numbers
                                                    : PyMem_Calloc((size_t)check->dim * 2, sizeof(int64_t));
    if (check->sizes == NULL) {
        PyErr_NoMemory();
        return false;
    }
    if (!read_integers(sizes, check->sizes, check->dim, &check->exact_sizes) ||
        (!check->strides_free &&
         !read_integers(strides, check->sizes + check->dim, check->dim, &check->exact_strides))) {
        tensor_check_clear(check);
        return false;
    }
    check->expected = Py_NewRef(expected);
    check->kind = (PyTypeObject *)Py_NewRef(kind);
    return true;
}

void tensor_check_clear(TensorCheck *check) {
    Py_CLEAR(check->expected);
    Py_CLEAR(check->kind);
    if (check->sizes != check->numbers) {
        PyMem_Free(check->sizes);
    }
    check->sizes = NULL;
}

static bool read_function(PyObject *addresses, const char *name, void **into) {
    PyObject *address = PyDict_GetItemString(addresses, name);
    *into = address == NULL ? NULL : PyLong_AsVoidPtr(address);
    return !PyErr_Occurred();
}

static bool read_offset(PyObject *offsets, const char *name, int32_t *into) {
    PyObject *offset = PyDict_GetItemString(offsets, name);
    *into = offset == NULL ? 0 : (int32_t)PyLong_AsLong(offset);
    return !PyErr_Occurred();
}

static bool read_mask(PyObject *masks, const char *name, uint64_t *into) {
    PyObject *mask = PyDict_GetItemString(masks, name);
    *into = mask == NULL ? 0 : PyLong_AsUnsignedLongLong(mask);
    return !PyErr_Occurred();
}

static bool fill_layout(StatorTensorLayout *layout, PyObject *offsets, PyObject *masks, PyObject *addresses) {
    return read_offset(offsets, "inline_dims", &layout->inline_dims) &&
           read_offset(offsets, "handle", &layout->handle) &&
           read_offset(offsets, "dimensions", &layout->dimensions) &&
           read_offset(offsets, "sizes", &layout->sizes) && read_offset(offsets, "strides", &layout->strides) &&
           read_offset(offsets, "storage_offset", &layout->storage_offset) &&
           read_offset(offsets, "dtype", &layout->dtype) &&
           read_offset(offsets, "device_type", &layout->device_type) &&
           read_offset(offsets, "device_index", &layout->device_index) &&
           read_offset(offsets, "key_set", &layout->key_set) &&
           read_offset(offsets, "autograd_meta", &layout->autograd_meta) &&
           read_offset(offsets, "requires_grad_flag", &layout->requires_grad_flag) &&
           read_mask(masks, "plain", &layout->plain_keys) &&
           read_mask(masks, "conjugate", &layout->conjugate_key) &&
           read_mask(masks, "negative", &layout->negative_key) &&
           read_mask(masks, "inplace", &layout->inplace_key) &&
           read_function(addresses, "requires_grad", (void **)&layout->requires_grad) &&
           read_function(addresses, "get_dim", (void **)&layout->get_dim) &&
           read_function(addresses, "get_sizes", (void **)&layout->get_sizes) &&
           read_function(addresses, "get_strides", (void **)&layout->get_strides) &&
           read_function(addresses, "get_storage_offset", (void **)&layout->get_storage_offset) &&
           read_function(addresses, "get_dtype", (void **)&layout->get_dtype) &&
           read_function(addresses, "get_device_type", (void **)&layout->get_device_type) &&
           read_function(addresses, "get_device_index", (void **)&layout->get_device_index);
}

static PyObject *set_tensor_layout(PyObject *module, PyObject *arguments) {
    int level;
    PyObject *offsets, *masks, *addresses, *keys_function;
    if (!PyArg_ParseTuple(arguments, "iO!O!O!O", &level, &PyDict_Type, &offsets, &PyDict_Type, &masks, &PyDict_Type,
                          &addresses, &keys_function)) {
        return NULL;
    }
    StatorTensorLayout layout = {.level = level};
    if (!fill_layout(&layout, offsets, masks, addresses)) {
        return NULL;
    }
    bool shims = layout.requires_grad && layout.get_dim && layout.get_sizes && layout.get_strides &&
                 layout.get_storage_offset && layout.get_dtype && layout.get_device_type && layout.get_device_index;
    if ((level == STATOR_READ_SHIMS && !shims) || (level == STATOR_READ_RAW && !layout.requires_grad)) {
        PyErr_SetString(PyExc_ValueError, "the layout lacks functions its level needs");
        return NULL;
    }
    if (name_raw_repr == NULL && (name_raw_repr = PyUnicode_InternFromString("raw_repr")) == NULL) {
        return NULL;
    }
    Py_INCREF(keys_function);
    Py_XSETREF(dispatch_keys_of, keys_function);
    static const StatorTensorLayout known[] = {{0}, NEW_LAYOUT, OLD_LAYOUT};
    tensor_layout = layout;
    /* The offsets lie side by side, from inline_dims to requires_grad_flag. */
    size_t start = offsetof(StatorTensorLayout, inline_dims);
    size_t stop = offsetof(StatorTensorLayout, requires_grad_flag) + sizeof(layout.requires_grad_flag);
    tensor_layout_kind = LAYOUT_CALIBRATED;
    for (int kind = LAYOUT_NEW; kind <= LAYOUT_OLD; kind++) {
        if (memcmp((const char *)&layout + start, (const char *)&known[kind] + start, stop - start) == 0) {
            tensor_layout_kind = kind;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *integers(const int64_t *values, int64_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (int64_t index = 0; tuple != NULL && index < count; index++) {
        PyObject *number = PyLong_FromLongLong(values[index]);
        if (number == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, index, number);
    }
    return tuple;
}

static PyObject *read_tensor(PyObject *module, PyObject *value) {
    const StatorTensorLayout *layout = &tensor_layout;
    uint64_t keys = 0;
    const char *impl = NULL;
    if (layout->level == STATOR_READ_RAW) {
        impl = stator_tensor_impl(layout, value);
        keys = stator_impl_keys(layout, impl);
    } else if (layout->level == STATOR_READ_SHIMS && !keys_by_python(value, &keys)) {
        Py_RETURN_NONE;
    }
    if (layout->level == STATOR_READ_PYTHON || !stator_tensor_is_plain(layout, keys)) {
        Py_RETURN_NONE;
    }
    int64_t dim, offset, *sizes, *strides;
    int32_t dtype, device_type, device_index;
    bool requires_grad;
    if (layout->level == STATOR_READ_RAW) {
        dim = stator_impl_dim(layout, impl);
        sizes = (int64_t *)stator_impl_sizes(layout, impl);
        strides = (int64_t *)stator_impl_strides(layout, impl);
        offset = stator_impl_storage_offset(layout, impl);
        dtype = stator_impl_dtype(layout, impl);
        device_type = stator_impl_device_type(layout, impl);
        device_index = stator_impl_device_index(layout, impl);
        requires_grad = stator_impl_requires_grad(layout, impl, layout->requires_grad);
    } else {
        void *handle = stator_tensor_handle(layout, value);
        if (layout->get_dim(handle, &dim) || layout->get_dtype(handle, &dtype) ||
            layout->get_device_type(handle, &device_type) || layout->get_device_index(handle, &device_index) ||
            layout->get_sizes(handle, &sizes) || layout->get_strides(handle, &strides) ||
            layout->get_storage_offset(handle, &offset)) {
            Py_RETURN_NONE;
        }
        requires_grad = layout->requires_grad(stator_tensor_impl(layout, value));
    }
    if (dim < 0 || dim > 1024) { /* a layout that is about to be refused by calibration */
        Py_RETURN_NONE;
    }
    PyObject *size_tuple = integers(sizes, dim), *stride_tuple = integers(strides, dim);
    if (size_tuple == NULL || stride_tuple == NULL) {
        Py_XDECREF(size_tuple);
        Py_XDECREF(stride_tuple);
        return NULL;
    }
    return Py_BuildValue("{s:N,s:N,s:L,s:i,s:i,s:i,s:O,s:K}", "sizes", size_tuple, "strides", stride_tuple,
                         "storage_offset", (long long)offset, "dtype", dtype, "device_type", device_type,
                         "device_index", device_index, "requires_grad", requires_grad ? Py_True : Py_False,
                         "dispatch_keys", (unsigned long long)keys);
}

bool tensor_layout_publish(PyObject *module) {
    PyObject *capsule = PyCapsule_New(&tensor_layout, STATOR_LAYOUT_CAPSULE, NULL);
    if (capsule == NULL || PyModule_AddObject(module, "tensor_layout", capsule) < 0) {
        Py_XDECREF(capsule);
        return false;
    }
    return true;
}

static PyObject *set_device_type(PyObject *module, PyObject *type) {
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "set_device_type takes a type");
        return NULL;
    }
    constants_set_device_type((PyTypeObject *)type);
    Py_RETURN_NONE;
}

PyMethodDef tensor_methods[] = {
    {"set_tensor_layout", set_tensor_layout, METH_VARARGS,
     "set_tensor_layout(level, offsets, masks, addresses, dispatch_keys): what calibration found"},
    {"set_device_type", set_device_type, METH_O, "set_device_type(torch.device): its values are constants"},
    {"read_tensor", read_tensor, METH_O,
     "read_tensor(tensor): its fields as a dict, or None where only Python can answer"},
    {NULL},
};
