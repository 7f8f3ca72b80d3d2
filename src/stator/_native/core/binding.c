/* Binding arguments to the locals of a function exactly as CPython binds them.
 *
 * Locals come in the order of co_varnames: positional, keyword-only, then *args, then **kwargs. Defaults are
 * read at each call, since a program may change them. Where CPython would raise, binding only reports failure: the
 * dispatcher then calls the function itself, so that the TypeError is Python's own.
 */
#include "core.h"

bool signature_init(Signature *signature, PyCodeObject *code) {
    *signature = (Signature){
        .code = (PyCodeObject *)Py_NewRef(code),
        .positional = code->co_argcount,
        .positional_only = code->co_posonlyargcount,
        .keyword_only = code->co_kwonlyargcount,
        .star_arguments = (code->co_flags & CO_VARARGS) != 0,
        .star_keywords = (code->co_flags & CO_VARKEYWORDS) != 0,
    };
    signature->locals = signature->positional + signature->keyword_only + signature->star_arguments +
                        signature->star_keywords;
    return true;
}

static PyObject *variable_name(const Signature *signature, int index) {
    return PyTuple_GET_ITEM(signature->code->co_localsplusnames, index);
}

/* Which local a keyword names, -1 for none. Names are nearly always the same interned object. */
static int find_name(const Signature *signature, PyObject *keyword, int from, int to) {
    for (int index = from; index < to; index++) {
        if (variable_name(signature, index) == keyword) {
            return index;
        }
    }
    for (int index = from; index < to; index++) {
        if (PyUnicode_Compare(variable_name(signature, index), keyword) == 0) {
            return index;
        }
    }
    return -1;
}

static bool bind_keywords(const Signature *signature, PyObject *const *values, PyObject *names, PyObject **locals) {
    int named = signature->positional + signature->keyword_only;
    PyObject *rest = signature->star_keywords ? locals[signature->locals - 1] : NULL;
    for (Py_ssize_t position = 0; position < PyTuple_GET_SIZE(names); position++) {
        PyObject *keyword = PyTuple_GET_ITEM(names, position);
        if (!PyUnicode_CheckExact(keyword)) {
            return false; /* a subclass may compare as it likes: leave it to Python */
        }
        int index = find_name(signature, keyword, signature->positional_only, named);
        if (index >= 0) {
            if (locals[index] != NULL) {
                return false;
            }
            locals[index] = Py_NewRef(values[position]);
        } else if (rest == NULL || PyDict_SetItem(rest, keyword, values[position]) < 0) {
            return false;
        }
    }
    return true;
}

static bool fill_defaults(const Signature *signature, PyFunctionObject *function, PyObject **locals) {
    PyObject *defaults = function->func_defaults;
    Py_ssize_t count = defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults);
    for (int index = 0; index < signature->positional; index++) {
        if (locals[index] == NULL) {
            Py_ssize_t place = index - (signature->positional - count);
            if (place < 0) {
                return false;
            }
            locals[index] = Py_NewRef(PyTuple_GET_ITEM(defaults, place));
        }
    }
    for (int index = signature->positional; index < signature->positional + signature->keyword_only; index++) {
        if (locals[index] == NULL) {
            PyObject *found = function->func_kwdefaults == NULL
                                  ? NULL
                                  : PyDict_GetItemWithError(function->func_kwdefaults,
                                                            variable_name(signature, index));
            if (found == NULL) {
                return false;
            }
            locals[index] = Py_NewRef(found);
        }
    }
    return true;
}

static bool bind(const Signature *signature, PyFunctionObject *function, PyObject *const *arguments,
                 Py_ssize_t count, PyObject *names, PyObject **locals) {
    Py_ssize_t direct = count < signature->positional ? count : signature->positional;
    for (Py_ssize_t index = 0; index < direct; index++) {
        locals[index] = Py_NewRef(arguments[index]);
    }
    int star = signature->positional + signature->keyword_only;
    if (signature->star_arguments) {
        PyObject *rest = PyTuple_New(count - direct);
        if (rest == NULL) {
            return false;
        }
        for (Py_ssize_t index = direct; index < count; index++) {
            PyTuple_SET_ITEM(rest, index - direct, Py_NewRef(arguments[index]));
        }
        locals[star] = rest;
    } else if (count > direct) {
        return false;
    }
    if (signature->star_keywords && (locals[signature->locals - 1] = PyDict_New()) == NULL) {
        return false;
    }
    return (names == NULL || bind_keywords(signature, arguments + count, names, locals)) &&
           fill_defaults(signature, function, locals);
}

bool signature_bind(const Signature *signature, PyFunctionObject *function, PyObject *const *arguments,
                    Py_ssize_t count, PyObject *names, PyObject **locals) {
    memset(locals, 0, (size_t)signature->locals * sizeof(PyObject *));
    if (bind(signature, function, arguments, count, names, locals)) {
        return true;
    }
    for (int index = 0; index < signature->locals; index++) {
        Py_CLEAR(locals[index]);
    }
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_Clear();
    }
    return false;
}
