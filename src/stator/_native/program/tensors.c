/* From a Python tensor to libtorch's handle and back.
 *
 * A tensor's PyObject embeds an at::Tensor; its address is the handle, borrowed for as long as the object lives. Where it lies
 * is found by looking for the known TensorImpl pointer of sample tensors, and must be the same in all of them.
 */
#include "program/program.h"

Py_ssize_t tensor_offset;
static PyTypeObject *base_type, *tensor_type, *parameter_type;
static PyObject *disabled_dispatch;

int calibrate_tensors(PyObject *tensor_base, PyObject *tensor, PyObject *parameter, PyObject *disabled,
                      PyObject *samples) {
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(samples); i++) {
        PyObject *pair = PyList_GET_ITEM(samples, i);
        PyObject *sample = PyTuple_GET_ITEM(pair, 0), *capsule = PyTuple_GET_ITEM(pair, 1);
        void **handle = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
        if (!handle)
            return -1;
        void *implementation = *handle;
        torch.aoti_torch_delete_tensor_object(handle);
        Py_ssize_t size = ((PyTypeObject *)tensor_base)->tp_basicsize, offset = sizeof(PyObject), at = 0;
        for (; offset + (Py_ssize_t)sizeof(void *) <= size; offset += sizeof(void *))
            if (*(void **)((char *)sample + offset) == implementation) {
                at = offset;
                break;
            }
        if (!at || (found && at != found)) {
            PyErr_SetString(PyExc_RuntimeError, "a tensor's Python object does not hold its tensor where others do");
            return -1;
        }
        found = at;
    }
    tensor_offset = found;
    base_type = (PyTypeObject *)Py_NewRef(tensor_base);
    tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    parameter_type = (PyTypeObject *)Py_NewRef(parameter);
    disabled_dispatch = Py_NewRef(disabled);
    return 0;
}

/* Whether operators on this subclass run ATen's own kernels: it has no __torch_dispatch__ of its own. */
static int is_plain_subclass(PyTypeObject *type) {
    if (!PyType_IsSubtype(type, base_type))
        return 0;
    PyObject *dispatch = PyObject_GetAttrString((PyObject *)type, "__torch_dispatch__");
    if (!dispatch) {
        PyErr_Clear();
        return 1;
    }
    int plain = dispatch == disabled_dispatch;
    Py_DECREF(dispatch);
    return plain;
}

Tensor tensor_of(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (type != tensor_type && type != parameter_type && !is_plain_subclass(type)) {
        PyErr_Format(PyExc_TypeError, "a program takes plain tensors, not %.100s", type->tp_name);
        return NULL;
    }
    return (char *)object + tensor_offset;
}

int has_torch_function(PyObject *object) {
    return Py_TYPE(object) != tensor_type && Py_TYPE(object) != parameter_type;
}

PyObject *wrap_tensor(Tensor owned) {
    PyObject *object = torch.wrap(owned);
    torch.aoti_torch_delete_tensor_object(owned);
    return object;
}

int is_plain(Tensor handle) {
    int32_t device, layout;
    bool defined;
    return !torch.aoti_torch_is_defined(handle, &defined) && defined &&
           !torch.aoti_torch_get_device_type(handle, &device) && device == torch.aoti_torch_device_type_cpu() &&
           !torch.aoti_torch_get_layout(handle, &layout) && layout == torch.aoti_torch_layout_strided();
}
