/* Facts: what a run of stable instructions depended on, as pairs of an address and a word. Their laws are in
 * machine.c. A recording becomes a way, which a later run of the group checks instead of running.
 */
#include "guard_program.h"

void record(Run *run, const void *address, uint64_t expected) {
    Recording *recording = run->recording;
    if (LIKELY(recording == NULL) || recording->spoiled) {
        return;
    }
    for (Py_ssize_t back = recording->count; back-- > 0 && back >= recording->count - 8;) {
        if (recording->facts[back].address == (const Word *)address) {
            return;
        }
    }
    if (recording->count == recording->capacity) {
        Py_ssize_t capacity = recording->capacity ? recording->capacity * 2 : 64;
        Fact *facts = PyMem_Realloc(recording->facts, (size_t)capacity * sizeof(Fact));
        if (facts == NULL) {
            recording->spoiled = true;
            return;
        }
        recording->facts = facts;
        recording->capacity = capacity;
    }
    recording->facts[recording->count++] = (Fact){address, expected};
}

void hold(Run *run, PyObject *value) {
    Recording *recording = run->recording;
    if (recording == NULL || recording->spoiled) {
        return;
    }
    if (recording->held_count == recording->held_capacity) {
        Py_ssize_t capacity = recording->held_capacity ? recording->held_capacity * 2 : 8;
        PyObject **held = PyMem_Realloc(recording->held, (size_t)capacity * sizeof(PyObject *));
        if (held == NULL) {
            recording->spoiled = true;
            return;
        }
        recording->held = held;
        recording->held_capacity = capacity;
    }
    recording->held[recording->held_count++] = Py_NewRef(value);
}

/* Where an object keeps its dict depends on its type, and on its length if it has one. */
void record_slot(Run *run, PyObject *value, PyObject **slot) {
    if (UNLIKELY(run->recording != NULL)) {
        if (Py_TYPE(value)->tp_itemsize != 0) {
            record_pointer(run, &((PyVarObject *)value)->ob_size);
        }
        record_pointer(run, slot);
    }
}

void record_dict(Run *run, const Instruction *instruction, PyObject *dict) {
    if (LIKELY(run->recording == NULL)) {
        return;
    }
#if DICT_VERSIONS
    record_type(run, instruction, dict);
    if (!(instruction->flags & VERSIONED)) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
        record_pointer(run, &((PyDictObject *)dict)->ma_version_tag);
#pragma GCC diagnostic pop
    }
#else
    spoil(run);
#endif
}

/* A class and all its bases are as they were while the version tag stands (a change zeroes it). */
void record_type_version(Run *run, PyTypeObject *type) {
    if (LIKELY(run->recording == NULL)) {
        return;
    }
#if TYPE_VERSIONS
    _Static_assert(offsetof(PyTypeObject, tp_finalize) - offsetof(PyTypeObject, tp_version_tag) == 8,
                   "the version tag fills a word");
    if ((type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) && type->tp_version_tag != 0) {
        record_pointer(run, &type->tp_version_tag);
        record_pointer(run, &type->tp_flags);
        return;
    }
#endif
    spoil(run);
}

void way_free(Way *way) {
    if (way == NULL) {
        return;
    }
    Py_ssize_t count = way->held_count;
    PyObject **held = way->held;
    PyMem_Free(way->facts);
    PyMem_Free(way->saved);
    PyMem_Free(way);
    for (Py_ssize_t index = 0; index < count; index++) {
        Py_DECREF(held[index]);
    }
    PyMem_Free(held);
}

void recording_clear(Recording *recording) {
    PyMem_Free(recording->facts);
    for (Py_ssize_t index = 0; index < recording->held_count; index++) {
        Py_DECREF(recording->held[index]);
    }
    PyMem_Free(recording->held);
    *recording = (Recording){0};
}

void keep_way(Run *run, Group *group, PyObject *root, Recording *recording) {
    Py_ssize_t saved_count = group->saved_stop - group->saved_start;
    Way *way = PyMem_Calloc(1, sizeof(Way));
    PyObject **saved = PyMem_Calloc((size_t)saved_count + 1, sizeof(PyObject *));
    if (way == NULL || saved == NULL) {
        PyMem_Free(way);
        PyMem_Free(saved);
        recording_clear(recording);
        return;
    }
    memcpy(saved, run->registers + group->saved_start, (size_t)saved_count * sizeof(PyObject *));
    Fact *fitted = PyMem_Realloc(recording->facts, (size_t)(recording->count + 1) * sizeof(Fact));
    *way = (Way){.root = root, .count = recording->count, .facts = fitted ? fitted : recording->facts,
                 .saved = saved, .held_count = recording->held_count, .held = recording->held};
    int place = -1;
    for (int index = 0; index < group->way_count; index++) {
        if (group->ways[index]->root == root) {
            place = index;
        }
    }
    if (place < 0) {
        place = group->way_count < WAYS ? group->way_count++ : (group->next_way++) % WAYS;
    }
    Way *old = group->ways[place];
    group->ways[place] = way;
    group->last_way = place;
    way_free(old);
}
