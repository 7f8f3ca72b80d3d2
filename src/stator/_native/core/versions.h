/* What differs between CPython versions, once: everything here is a fact about structures, checked by self-tests.
 *
 * DICT_VERSIONS: dicts carry a version tag that no two contents share (3.11, 3.12). Without it each load from a
 * dict is repeated on every call.
 * TYPE_VERSIONS: a type's version tag is zeroed when anything on its MRO changes.
 */
#ifndef STATOR_VERSIONS_H
#define STATOR_VERSIONS_H

#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "no row for this version of CPython"
#elif PY_VERSION_HEX < 0x030C0000 /* 3.11 */
#define DICT_VERSIONS 1
#define TYPE_VERSIONS 1
/* The dict lies three words before the object, its values (while it has not been made) four words before. */
#define MANAGED_DICT_SLOT(value) ((PyObject **)(value) - 3)
#define MANAGED_DICT_IS_MADE(value) (*MANAGED_DICT_SLOT(value) != NULL)
#elif PY_VERSION_HEX < 0x030D0000 /* 3.12 */
#define DICT_VERSIONS 1
#define TYPE_VERSIONS 1
/* One word holds the dict, or its values tagged with the lowest bit. */
#define MANAGED_DICT_SLOT(value) ((PyObject **)(value) - 3)
#define MANAGED_DICT_IS_MADE(value) \
    (*MANAGED_DICT_SLOT(value) != NULL && ((uintptr_t)*MANAGED_DICT_SLOT(value) & 1) == 0)
#else /* 3.13, 3.14: inline values live beside the dict, and dicts have no version */
#define DICT_VERSIONS 0
#define TYPE_VERSIONS 0
#endif

#endif
