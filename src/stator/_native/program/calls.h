/* Shared by calls.c, direct.c and run.c. */
#ifndef STATOR_PROGRAM_CALLS_H
#define STATOR_PROGRAM_CALLS_H

#include "program/program.h"

int encode(const Program *program, const Frame *frame, const Value *value, StableValue *word);
int call_direct(const Program *program, Frame *frame, const Step *step, int *unsaid);
int small_product(Tensor out, Tensor added, Tensor left, Tensor right, double beta, double alpha);
int run_out_of_shim(Frame *frame, const char *otherwise); /* -1, with libtorch's message or another */
PyObject *tensor_object(Place *place);
PyObject *list_object(const Place *place);

#endif
