/* MODES guards: global and per-thread state of torch, read through functions libtorch exports.
 *
 * calibrate.py resolves the functions and proves each against Python's answer; a state whose function is missing
 * makes the whole check go the slow way (guards/modes.py).
 */
#include "core.h"

enum {
    MODE_GRAD = 1, MODE_INFERENCE = 2, MODE_AUTOCAST = 4, MODE_DTYPE = 8, MODE_DETERMINISTIC = 16,
    MODE_FUNCTION_MODES = 32, MODE_DISPATCH_MODES = 64, MODE_FUNCTION_ENABLED = 128, MODE_DEVICE = 256,
};

static struct {
    bool (*grad_enabled)(void);
    bool (*inference_mode)(void);
    int8_t (*default_dtype)(void);
    int64_t (*function_modes)(void);
    int64_t (*dispatch_modes)(void);
    int (*disabled_state)(void);
    void (*set_disabled_state)(int state);
    bool (*autocast_enabled)(int8_t device_type);
    int8_t (*autocast_dtype)(int8_t device_type);
    bool (*autocast_cache)(void);
    void *context;
    bool (*deterministic)(const void *context);
    bool (*warn_only)(const void *context);
} readers;

/* name -> where its address goes, and the states that need it. */
typedef struct {
    const char *name;
    void **address;
    uint32_t states;
} Reader;

static const Reader reader_rows[] = {
    {"grad_enabled", (void **)&readers.grad_enabled, MODE_GRAD},
    {"inference_mode", (void **)&readers.inference_mode, MODE_INFERENCE},
    {"default_dtype", (void **)&readers.default_dtype, MODE_DTYPE},
    {"function_modes", (void **)&readers.function_modes, MODE_FUNCTION_MODES | MODE_DEVICE},
    {"dispatch_modes", (void **)&readers.dispatch_modes, MODE_DISPATCH_MODES},
    {"disabled_state", (void **)&readers.disabled_state, MODE_FUNCTION_ENABLED},
    {"set_disabled_state", (void **)&readers.set_disabled_state, 0},
    {"autocast_enabled", (void **)&readers.autocast_enabled, MODE_AUTOCAST},
    {"autocast_dtype", (void **)&readers.autocast_dtype, MODE_AUTOCAST},
    {"autocast_cache", (void **)&readers.autocast_cache, MODE_AUTOCAST},
    {"context", &readers.context, MODE_DETERMINISTIC},
    {"deterministic", (void **)&readers.deterministic, MODE_DETERMINISTIC},
    {"warn_only", (void **)&readers.warn_only, MODE_DETERMINISTIC},
    {NULL},
};

static PyObject *set_mode_readers(PyObject *module, PyObject *addresses) {
    if (!PyDict_Check(addresses)) {
        PyErr_SetString(PyExc_TypeError, "set_mode_readers takes a dict of names to addresses");
        return NULL;
    }
    for (const Reader *row = reader_rows; row->name != NULL; row++) {
        PyObject *address = PyDict_GetItemString(addresses, row->name);
        *row->address = address == NULL ? NULL : PyLong_AsVoidPtr(address);
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static uint32_t unreadable(uint32_t looked_at) {
    uint32_t missing = 0;
    for (const Reader *row = reader_rows; row->name != NULL; row++) {
        if (*row->address == NULL) {
            missing |= row->states & looked_at;
        }
    }
    return missing;
}

/* -1 for None, else the truth of an attribute; -2 with an exception. */
static int flag_of(PyObject *mapping, const char *name) {
    PyObject *value = PyDict_GetItemString(mapping, name);
    return value == NULL || value == Py_None ? -1 : PyObject_IsTrue(value);
}

static bool read_flag(PyObject *mapping, const char *name, uint32_t bit, int8_t *into, uint32_t *looked_at) {
    int flag = flag_of(mapping, name);
    if (flag < -1 || PyErr_Occurred()) {
        return false;
    }
    if (flag >= 0) {
        *into = (int8_t)flag;
        *looked_at |= bit;
    }
    return true;
}

static bool read_count(PyObject *mapping, const char *name, uint32_t bit, int64_t *into, uint32_t *looked_at) {
    PyObject *value = PyDict_GetItemString(mapping, name);
    if (value != NULL && value != Py_None) {
        *into = PyLong_AsLongLong(value);
        *looked_at |= bit;
    }
    return !PyErr_Occurred();
}

/* autocast: (cache flag, ((device type, enabled, dtype), ...)) in codes. */
static bool read_autocast(ModesCheck *check, PyObject *mapping) {
    PyObject *value = PyDict_GetItemString(mapping, "autocast");
    if (value == NULL || value == Py_None) {
        return true;
    }
    int cache;
    PyObject *rows;
    if (!is_row(value) || !PyArg_ParseTuple(value, "pO!", &cache, &PyTuple_Type, &rows)) {
        return false;
    }
    check->looked_at |= MODE_AUTOCAST;
    check->autocast_cache = (int8_t)cache;
    check->autocast_count = (int)PyTuple_GET_SIZE(rows);
    if (check->autocast_count > 4) {
        check->slow = true;
        return true;
    }
    for (int index = 0; index < check->autocast_count; index++) {
        int device_type, enabled, dtype;
        if (!is_row(PyTuple_GET_ITEM(rows, index)) ||
            !PyArg_ParseTuple(PyTuple_GET_ITEM(rows, index), "ipi", &device_type, &enabled, &dtype)) {
            return false;
        }
        check->autocast[index][0] = (int8_t)device_type;
        check->autocast[index][1] = (int8_t)enabled;
        check->autocast[index][2] = (int8_t)dtype;
    }
    return true;
}

/* row: (expectation, mapping of field -> code, slow), as guards/compile.py makes it. */
bool modes_check_init(ModesCheck *check, PyObject *row) {
    PyObject *expected, *mapping;
    int slow;
    int64_t dtype = 0;
    memset(check, 0, sizeof(*check));
    check->torch_function_enabled = check->torch_function_off = -1;
    if (!is_row(row) || !PyArg_ParseTuple(row, "OO!p", &expected, &PyDict_Type, &mapping, &slow)) {
        return false;
    }
    check->slow = slow;
    uint32_t *looked_at = &check->looked_at;
    if (!read_flag(mapping, "grad_enabled", MODE_GRAD, &check->grad_enabled, looked_at) ||
        !read_flag(mapping, "inference_mode", MODE_INFERENCE, &check->inference_mode, looked_at) ||
        !read_flag(mapping, "torch_function_enabled", MODE_FUNCTION_ENABLED, &check->torch_function_enabled,
                   looked_at) ||
        !read_flag(mapping, "torch_function_off", MODE_FUNCTION_ENABLED, &check->torch_function_off, looked_at) ||
        !read_flag(mapping, "deterministic", MODE_DETERMINISTIC, &check->deterministic, looked_at) ||
        !read_flag(mapping, "warn_only", MODE_DETERMINISTIC, &check->warn_only, looked_at) ||
        !read_flag(mapping, "cpu_default_device", MODE_DEVICE, &check->cpu_default_device, looked_at) ||
        !read_count(mapping, "default_dtype", MODE_DTYPE, &dtype, looked_at) ||
        !read_count(mapping, "torch_function_modes", MODE_FUNCTION_MODES, &check->function_modes, looked_at) ||
        !read_count(mapping, "torch_dispatch_modes", MODE_DISPATCH_MODES, &check->dispatch_modes, looked_at) ||
        !read_autocast(check, mapping)) {
        return false;
    }
    check->default_dtype = (int8_t)dtype;
    check->slow = check->slow || unreadable(check->looked_at) != 0;
    check->expected = Py_NewRef(expected);
    return true;
}

void modes_check_clear(ModesCheck *check) {
    Py_CLEAR(check->expected);
}

#define ALL_DISABLED 2

/* Whether torch functions are overridden by all, by modes alone, or by nobody, as expected; -1 is not looked at. */
static bool overrides_agree(const ModesCheck *check, int state) {
    return (check->torch_function_enabled < 0 || (state == 0) == check->torch_function_enabled) &&
           (check->torch_function_off < 0 || (state == ALL_DISABLED) == check->torch_function_off);
}

int modes_check_fast(const ModesCheck *check) {
    uint32_t at = check->looked_at;
    if (UNLIKELY(check->slow)) {
        return -1;
    }
    if (((at & MODE_GRAD) && readers.grad_enabled() != check->grad_enabled) ||
        ((at & MODE_INFERENCE) && readers.inference_mode() != check->inference_mode) ||
        ((at & MODE_DTYPE) && readers.default_dtype() != check->default_dtype) ||
        ((at & MODE_FUNCTION_ENABLED) && !overrides_agree(check, readers.disabled_state())) ||
        ((at & MODE_DISPATCH_MODES) && readers.dispatch_modes() != check->dispatch_modes) ||
        ((at & MODE_DETERMINISTIC) && (readers.deterministic(readers.context) != check->deterministic ||
                                       readers.warn_only(readers.context) != check->warn_only))) {
        return 0;
    }
    if (at & (MODE_FUNCTION_MODES | MODE_DEVICE)) {
        int64_t depth = readers.function_modes();
        if ((at & MODE_FUNCTION_MODES) && depth != check->function_modes) {
            return 0;
        }
        if (at & MODE_DEVICE) {
            if (depth != 0) {
                return -1; /* a device context may be among the modes */
            }
            if (!check->cpu_default_device) {
                return 0;
            }
        }
    }
    if (at & MODE_AUTOCAST) {
        if (readers.autocast_cache() != check->autocast_cache) {
            return 0;
        }
        for (int index = 0; index < check->autocast_count; index++) {
            const int8_t *row = check->autocast[index];
            if (readers.autocast_enabled(row[0]) != row[1] || readers.autocast_dtype(row[0]) != row[2]) {
                return 0;
            }
        }
    }
    return 1;
}

int torch_function_disable(void) {
    if (readers.disabled_state == NULL || readers.set_disabled_state == NULL) {
        return -1;
    }
    int state = readers.disabled_state();
    readers.set_disabled_state(ALL_DISABLED);
    return state;
}

void torch_function_restore(int state) {
    if (state >= 0) {
        readers.set_disabled_state(state);
    }
}

/* What the native readers say now, for calibration and tests: field -> code, missing readers left out. */
static PyObject *read_mode_codes(PyObject *module, PyObject *device_type) {
    long device = PyLong_AsLong(device_type);
    if (device == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyObject *result = PyDict_New();
    if (result == NULL) {
        return NULL;
    }
#define PUT(reader, expression)                                                       \
    if (readers.reader != NULL) {                                                     \
        PyObject *number = PyLong_FromLongLong((long long)(expression));              \
        if (number == NULL || PyDict_SetItemString(result, #reader, number) < 0) {    \
            Py_XDECREF(number);                                                       \
            Py_DECREF(result);                                                        \
            return NULL;                                                              \
        }                                                                             \
        Py_DECREF(number);                                                            \
    }
    PUT(grad_enabled, readers.grad_enabled())
    PUT(inference_mode, readers.inference_mode())
    PUT(default_dtype, readers.default_dtype())
    PUT(function_modes, readers.function_modes())
    PUT(dispatch_modes, readers.dispatch_modes())
    PUT(disabled_state, readers.disabled_state())
    PUT(autocast_enabled, readers.autocast_enabled((int8_t)device))
    PUT(autocast_dtype, readers.autocast_dtype((int8_t)device))
    PUT(autocast_cache, readers.autocast_cache())
    if (readers.context != NULL) {
        PUT(deterministic, readers.deterministic(readers.context))
        PUT(warn_only, readers.warn_only(readers.context))
    }
#undef PUT
    return result;
}

PyMethodDef modes_methods[] = {
    {"set_mode_readers", set_mode_readers, METH_O, "set_mode_readers(addresses): name -> address of a function"},
    {"read_mode_codes", read_mode_codes, METH_O, "read_mode_codes(device_type): what the native readers say now"},
    {NULL},
};
