/* Memory of large results, used again once nobody holds it.
 *
 * A fresh block of a megabyte costs more than filling it: the system maps it page by page. So the storage of a large result
 * stays known here by a tensor of its own, and when that is its only holder, the next result of as many bytes is
 * made over it. Nobody can tell: a storage that was resized, shared, copied lazily or referred to weakly is not used again.
 *
 * How a storage counts its holders is no interface of libtorch. `connect_kept` looks for it in samples whose holders are
 * known, and where it does not find it, nothing is kept. Idle memory is bounded; the oldest goes first.
 */
#include "program/calls.h"

#include <stdatomic.h>
#include <string.h>

enum { MOST_KEPT = 64, STATE_WORDS = 4, IMPLEMENTATION_WORDS = 22 };
static const int64_t LARGE = 1 << 18, IDLE_BYTES = 64 << 20;
static const uint64_t ONE_HOLDER = 1ull << 32 | 1; /* one reference; the weak ones count all the others as one */

/* Words of a storage: its counts, its memory with what owns it, and its size. */
enum { COUNTS = 1, DATA = 2, SIZE = 6 };
static const int STATE[STATE_WORDS] = {DATA, DATA + 1, DATA + 2, SIZE};

typedef struct {
    Tensor tensor;
    uint64_t *storage, state[STATE_WORDS];
    int64_t bytes;
    int32_t dtype;
    uint8_t inference;
} Kept;

static Py_ssize_t storage_word; /* of a TensorImpl; 0: nothing is kept */
static Kept kept[MOST_KEPT];    /* oldest use first */
static int count;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static uint64_t *storage_of(Tensor tensor) {
    return (*(uint64_t ***)tensor)[storage_word];
}

/* samples: (tensor, address of its storage, how many hold it, bytes), ...; whether storages are as expected. */
int connect_kept(PyObject *samples) {
    Py_ssize_t found = 0;
    storage_word = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(samples); i++) {
        PyObject *sample = PyList_GET_ITEM(samples, i);
        unsigned long long address, holders, bytes, data;
        PyObject *tensor;
        if (!PyArg_ParseTuple(sample, "OKKKK", &tensor, &address, &holders, &bytes, &data))
            return -1;
        uint64_t *implementation = *(void **)((char *)tensor + tensor_offset), *storage = (uint64_t *)(uintptr_t)address;
        Py_ssize_t word = 1;
        while (word < IMPLEMENTATION_WORDS && implementation[word] != address)
            word++;
        if (word == IMPLEMENTATION_WORDS || (found && word != found) || (uint32_t)storage[COUNTS] != holders ||
            storage[DATA] != data || storage[SIZE] != bytes)
            return 0;
        found = word;
    }
    storage_word = found;
    return found != 0;
}

static int is_idle(const Kept *entry) {
    return atomic_load_explicit((_Atomic uint64_t *)(entry->storage + COUNTS), memory_order_acquire) == ONE_HOLDER;
}

static void forget(int index) {
    torch.aoti_torch_delete_tensor_object(kept[index].tensor);
    count--;
    memmove(kept + index, kept + index + 1, (count - index) * sizeof *kept);
}

static int is_untouched(const Kept *entry) {
    for (int i = 0; i < STATE_WORDS; i++)
        if (entry->storage[STATE[i]] != entry->state[i])
            return 0;
    return 1;
}

/* The latest idle memory of that kind, moved to the end; -1 if there is none. */
static int find(int64_t bytes, int32_t dtype, uint8_t inference) {
    for (int i = count - 1; i >= 0; i--) {
        Kept entry = kept[i];
        if (entry.bytes != bytes || entry.dtype != dtype || entry.inference != inference || !is_idle(&entry))
            continue;
        if (!is_untouched(&entry)) {
            forget(i);
            continue;
        }
        memmove(kept + i, kept + i + 1, (count - 1 - i) * sizeof *kept);
        kept[count - 1] = entry;
        return count - 1;
    }
    return -1;
}

/* Know a fresh tensor's storage from now on. */
static void keep(Tensor tensor, int64_t bytes, int32_t dtype, uint8_t inference, int64_t rank, const int64_t *sizes,
                 const int64_t *strides) {
    Kept entry = {NULL, storage_of(tensor), {0}, bytes, dtype, inference};
    int64_t idle = bytes;
    for (int i = count - 1; i >= 0; i--) {
        idle += is_idle(kept + i) ? kept[i].bytes : 0;
        if (idle > IDLE_BYTES && is_idle(kept + i))
            forget(i);
    }
    if (count == MOST_KEPT)
        forget(0);
    if (torch.aoti_torch__reinterpret_tensor(tensor, rank, sizes, strides, 0, &entry.tensor))
        return;
    for (int i = 0; i < STATE_WORDS; i++)
        entry.state[i] = entry.storage[STATE[i]];
    kept[count++] = entry;
}

int new_tensor(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,
               int32_t device_index, Tensor *result) {
    int64_t elements = 1;
    for (int64_t i = 0; i < rank; i++)
        elements = sizes[i] > 0 && elements ? elements + (sizes[i] - 1) * strides[i] : 0;
    int64_t bytes = elements * (int64_t)torch.aoti_torch_dtype_element_size(dtype);
    int keeps = storage_word && bytes >= LARGE && bytes <= IDLE_BYTES &&
                device_type == torch.aoti_torch_device_type_cpu() && !atomic_flag_test_and_set(&busy);
    uint8_t inference = keeps && torch.inference_mode();
    int place = keeps ? find(bytes, dtype, inference) : -1, failed;
    if (place >= 0)
        failed = torch.aoti_torch__reinterpret_tensor(kept[place].tensor, rank, sizes, strides, 0, result);
    else {
        failed = torch.aoti_torch_empty_strided(rank, sizes, strides, dtype, device_type, device_index, result);
        if (keeps && !failed)
            keep(*result, bytes, dtype, inference, rank, sizes, strides);
    }
    if (keeps)
        atomic_flag_clear(&busy);
    return failed;
}

void forget_kept(void) {
    while (count && !atomic_flag_test_and_set(&busy)) {
        while (count)
            forget(0);
        atomic_flag_clear(&busy);
    }
}
