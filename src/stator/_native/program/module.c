#include "program/calls.h"

#include <stddef.h>
#include <stdlib.h>

#include <structmember.h>

static int traverse(Program *self, visitproc visit, void *arg) {
    Py_VISIT(self->keep); /* everything a program refers to; like a tuple, it cannot begin a cycle by itself */
    return 0;
}

static void destroy(Program *self) {
    PyObject_GC_UnTrack(self);
    while (self->idle) {
        Frame *frame = self->idle;
        self->idle = frame->next;
        free_frame(self, frame);
    }
    for (int32_t i = 0; i < self->allocation_count; i++)
        free(self->allocations[i]);
    free(self->allocations);
    Py_XDECREF(self->keep);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *describe(Program *self, PyObject *Py_UNUSED(none)) {
    return PyObject_CallNoArgs(self->describe);
}

static PyObject *represent(Program *self) {
    return PyUnicode_FromFormat("<program %U: %d steps>", self->name, self->step_count);
}

static PyMethodDef methods[] = {
    {"describe", (PyCFunction)describe, METH_NOARGS, "The program as people read it."},
    {NULL},
};

static PyMemberDef members[] = {
    {"plan", T_OBJECT_EX, offsetof(Program, plan), READONLY, "The plan it was made from."},
    {NULL},
};

static PyTypeObject program_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator._native.program.Program",
    .tp_doc = "A compiled graph: program(*inputs) -> tuple. Made by stator.runtime.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Program, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = make_program,
    .tp_dealloc = (destructor)destroy,
    .tp_traverse = (traverseproc)traverse,
    .tp_repr = (reprfunc)represent,
    .tp_methods = methods,
    .tp_members = members,
};

static PyObject *connect(PyObject *self, PyObject *arguments) {
    const char *library;
    PyObject *base, *tensor, *parameter, *disabled, *samples;
    if (!PyArg_ParseTuple(arguments, "sO!O!O!OO!", &library, &PyType_Type, &base, &PyType_Type, &tensor, &PyType_Type,
                          &parameter, &disabled, &PyList_Type, &samples))
        return NULL;
    const char *missing = resolve_shims(library);
    if (missing) {
        torch.wrap = NULL;
        return PyErr_Format(PyExc_ImportError, "libtorch has no %s", missing);
    }
    if (calibrate_tensors(base, tensor, parameter, disabled, samples)) {
        torch.wrap = NULL;
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *has_shim(PyObject *self, PyObject *name) {
    const char *text = PyUnicode_AsUTF8(name);
    if (!text)
        return NULL;
#define ROW(result, symbol, parameters)                                                                             \
    if (!PyUnicode_CompareWithASCIIString(name, #symbol))                                                           \
        return PyBool_FromLong(torch.symbol != NULL);
    OPTIONAL_SHIMS(ROW)
#undef ROW
    Py_RETURN_FALSE;
}

static PyObject *blas(PyObject *self, PyObject *arguments) {
    PyObject *samples;
    unsigned long long lazy;
    if (!PyArg_ParseTuple(arguments, "O!K", &PyList_Type, &samples, &lazy))
        return NULL;
    return PyBool_FromLong(connect_blas(samples, lazy));
}

static PyObject *keep(PyObject *self, PyObject *samples) {
    int connected = connect_kept(samples);
    return connected < 0 ? NULL : PyBool_FromLong(connected);
}

static PyObject *keep_nothing(PyObject *self, PyObject *Py_UNUSED(none)) {
    forget_kept();
    Py_RETURN_NONE;
}

static PyObject *no_blas(PyObject *self, PyObject *Py_UNUSED(none)) {
    forget_blas();
    Py_RETURN_NONE;
}

static PyObject *product(PyObject *self, PyObject *arguments) {
    PyObject *out, *added, *left, *right;
    double beta, alpha;
    if (!PyArg_ParseTuple(arguments, "OOOOdd", &out, &added, &left, &right, &beta, &alpha))
        return NULL;
    Tensor tensors[4] = {tensor_of(out), added == Py_None ? NULL : tensor_of(added), tensor_of(left), tensor_of(right)};
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(small_product(tensors[0], tensors[1], tensors[2], tensors[3], beta, alpha));
}

static PyMethodDef functions[] = {
    {"connect_blas", blas, METH_VARARGS,
     "connect_blas([(tensor, dispatch keys), ...], keys of lazy tensors): use BLAS for small products; whether it can."},
    {"forget_blas", no_blas, METH_NOARGS, "Leave small products to ATen."},
    {"small_product", product, METH_VARARGS,
     "small_product(out, added or None, left, right, beta, alpha): by BLAS; whether it was done."},
    {"connect_kept", keep, METH_O,
     "connect_kept([(tensor, address of its storage, holders, bytes, data), ...]): keep the memory of large results for "
     "the next ones; whether it can."},
    {"forget_kept", keep_nothing, METH_NOARGS, "Give idle memory of large results back to the system."},
    {"connect", connect, METH_VARARGS,
     "connect(library, TensorBase, Tensor, Parameter, disabled dispatch, samples): find libtorch's functions and where "
     "tensors keep their handle; ImportError names what is missing."},
    {"has_shim", has_shim, METH_O, "Whether this libtorch has an optional function."},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "program", "The native runtime of compiled graphs; see stator/runtime.", -1, functions,
};

PyMODINIT_FUNC PyInit_program(void) {
    if (PyType_Ready(&program_type) < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddObjectRef(made, "Program", (PyObject *)&program_type) < 0)
        Py_CLEAR(made);
    return made;
}
