/* stator._native.core: dispatchers, guard programs and tensor reads.
 *
 * Contract. Plain C11 against CPython's C API and the structure facts in versions.h; torch is reached only through
 * addresses that `_native/calibrate.py` resolves and proves. State: the calibration (written once at import), the
 * mode of set_mode, free lists; all guarded by the GIL.
 */
#include "core.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "stator._native.core",
    .m_doc = "Dispatchers, guard programs and tensor reads.",
    .m_size = -1,
};

static bool add_types(PyObject *module) {
    PyTypeObject *const types[] = {&GuardProgram_Type, &Entry_Type,       &EntryTable_Type,
                                   &TailCall_Type,     &Dispatcher_Type, &Continuation_Type};
    for (size_t index = 0; index < sizeof(types) / sizeof(types[0]); index++) {
        if (PyModule_AddType(module, types[index]) < 0) {
            return false;
        }
    }
    return true;
}

PyMODINIT_FUNC PyInit_core(void) {
    PyMethodDef *const tables[] = {tensor_methods, modes_methods, machine_methods, dispatcher_methods};
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    bool ok = constants_init() && storage_init() && machine_init(module) && add_types(module) &&
              tensor_layout_publish(module);
    for (size_t index = 0; ok && index < sizeof(tables) / sizeof(tables[0]); index++) {
        ok = PyModule_AddFunctions(module, tables[index]) == 0;
    }
    if (!ok) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
