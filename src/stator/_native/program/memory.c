/* Frames, and the arena inside them.
 *
 * Offsets are planned for the sizes of the call and kept until other sizes come, and so are the tensors over arena memory. A small
 * block stays with its frame. A larger one is lent by a cache all programs share, because programs of one model run
 * one after the other; the cache keeps a bounded number of bytes.
 *
 * The plan is the greedy one: slots by falling size, each at the lowest address that is free for its lifetime. Where
 * that, together with the tensors the program allocates apart, would need more than the sum of what is alive at the worst step,
 * large slots are allocated one by one instead, and freed when they die, so a call's peak is never above eager's.
 */
#include "program/program.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 64,
    IDLE_FRAMES = 4,
    CACHED_BLOCKS = 8,
};
static const size_t FRAME_BLOCK = 1 << 20, CACHED_BYTES = 64 << 20;
static const int64_t APART = 1 << 18; /* slots from this size on may be allocated apart */

static struct {
    char *block;
    size_t bytes;
} cache[CACHED_BLOCKS]; /* oldest first; guarded by the GIL */
static int cached;
static size_t cached_bytes;

static void forget_block(int index) {
    cached_bytes -= cache[index].bytes;
    cached--;
    memmove(cache + index, cache + index + 1, (cached - index) * sizeof *cache);
}

/* A block of at least `bytes`, `wanted` itself if it is there. */
static char *borrow_block(size_t bytes, const char *wanted, size_t *got) {
    int best = -1;
    for (int i = 0; i < cached; i++) {
        if (cache[i].bytes < bytes || cache[i].bytes / 2 > bytes)
            continue;
        if (cache[i].block == wanted) {
            best = i;
            break;
        }
        if (best < 0 || cache[i].bytes < cache[best].bytes)
            best = i;
    }
    if (best < 0) {
        *got = bytes;
        return aligned_alloc(ALIGNMENT, bytes);
    }
    char *block = cache[best].block;
    *got = cache[best].bytes;
    forget_block(best);
    return block;
}

static void return_block(char *block, size_t bytes) {
    if (bytes > CACHED_BYTES) {
        free(block);
        return;
    }
    while (cached == CACHED_BLOCKS || cached_bytes + bytes > CACHED_BYTES) {
        free(cache[0].block);
        forget_block(0);
    }
    cache[cached].block = block;
    cache[cached++].bytes = bytes;
    cached_bytes += bytes;
}

Frame *take_frame(Program *program) {
    Frame *frame = program->idle;
    if (frame) {
        program->idle = frame->next;
        program->idle_count--;
        return frame;
    }
    frame = calloc(1, sizeof *frame + program->slot_count * sizeof(Place));
    if (!frame)
        return (Frame *)PyErr_NoMemory();
    frame->integers = calloc(program->row_count + 1, sizeof *frame->integers);
    frame->buffers = calloc(program->most_buffers + 1, sizeof *frame->buffers);
    frame->numbers = calloc(program->most_numbers + 1, sizeof *frame->numbers);
    frame->stack = calloc(program->most_values + 1, sizeof *frame->stack);
    frame->layout = calloc(program->layout_count + 1, sizeof *frame->layout);
    frame->offsets = calloc(program->arena_count + 1, sizeof *frame->offsets);
    if (!frame->integers || !frame->buffers || !frame->numbers || !frame->stack || !frame->layout || !frame->offsets) {
        free_frame(program, frame);
        return (Frame *)PyErr_NoMemory();
    }
    for (int32_t i = 0; i < program->constant_rows; i++)
        frame->integers[i] = program->rows[i].left;
    return frame;
}

static void drop_residents(const Program *program, Frame *frame) {
    for (int32_t i = 0; i < program->slot_count; i++) {
        Place *place = frame->places + i;
        if (place->ownership == RESIDENT && place->handle) {
            torch.aoti_torch_delete_tensor_object(place->handle);
            place->handle = NULL;
            place->ownership = BORROWED;
        }
    }
}

void free_frame(const Program *program, Frame *frame) {
    drop_residents(program, frame);
    if (frame->keeps_block)
        free(frame->block);
    free(frame->integers);
    free(frame->buffers);
    free(frame->numbers);
    free(frame->stack);
    free(frame->layout);
    free(frame->offsets);
    free(frame->failure_text);
    free(frame);
}

void give_frame(Program *program, Frame *frame) {
    if (frame->block && !frame->keeps_block) {
        return_block(frame->block, frame->block_bytes);
        frame->block_bytes = 0; /* the address stays, as the one to ask for again */
    }
    if (program->idle_count == IDLE_FRAMES) {
        free_frame(program, frame);
        return;
    }
    frame->next = program->idle;
    program->idle = frame;
    program->idle_count++;
}

/* What a slot takes in the arena. */
static int64_t rounded(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) & -(int64_t)ALIGNMENT;
}

typedef struct {
    int64_t bytes, offset;
    int32_t slot, first, last;
} Request;

static int by_size(const void *left, const void *right) {
    const Request *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->slot - b->slot;
}

/* Offsets of all requests of fewer than `limit` bytes; the others get -1. Returns the arena's bytes. */
static int64_t pack(Request *requests, int32_t count, int64_t limit, Request **placed) {
    int32_t done = 0;
    int64_t total = 0;
    for (int32_t i = 0; i < count; i++) {
        Request *request = requests + i;
        if (request->bytes >= limit) {
            request->offset = -1;
            continue;
        }
        int64_t offset = 0;
        for (int32_t j = 0; j < done; j++) { /* in the order of their offsets */
            const Request *other = placed[j];
            if (other->last < request->first || request->last < other->first)
                continue;
            if (other->offset >= offset + request->bytes)
                break;
            if (other->offset + other->bytes > offset)
                offset = other->offset + other->bytes;
        }
        request->offset = offset;
        if (offset + request->bytes > total)
            total = offset + request->bytes;
        int32_t position = done++;
        for (; position > 0 && placed[position - 1]->offset > offset; position--)
            placed[position] = placed[position - 1];
        placed[position] = request;
    }
    return total;
}

/* The most bytes alive at one step, and the most of them outside the arena. */
static void peaks(const Program *program, const Frame *frame, const Request *requests, int64_t *changes, int64_t *all,
                  int64_t *outside) {
    *all = *outside = 0;
    for (int arena = 0; arena < 2; arena++) { /* `changes` goes on from the tensors outside to all of memory */
        int32_t count = arena ? program->arena_count : program->apart_count;
        for (int32_t i = 0; i < count; i++) {
            int64_t bytes = arena ? requests[i].bytes : frame->integers[program->apart[i].bytes];
            changes[arena ? requests[i].first : program->apart[i].first] += bytes;
            changes[(arena ? requests[i].last : program->apart[i].last) + 1] -= bytes;
        }
        int64_t alive = 0, most = 0;
        for (int32_t step = 0; step <= program->step_count; step++) {
            alive += changes[step];
            most = alive > most ? alive : most;
        }
        *(arena ? all : outside) = most;
    }
}

static int plan_arena(const Program *program, Frame *frame) {
    int32_t count = program->arena_count;
    Request *requests = malloc(count * sizeof *requests);
    Request **placed = malloc(count * sizeof *placed);
    int64_t *changes = calloc(program->step_count + 2, sizeof *changes);
    int good = requests && placed && changes;
    if (good) {
        for (int32_t i = 0; i < count; i++) {
            const ArenaSlot *slot = program->arena + i;
            requests[i] = (Request){rounded(frame->integers[slot->bytes]), 0, i, slot->first, slot->last};
        }
        int64_t all, outside;
        peaks(program, frame, requests, changes, &all, &outside);
        qsort(requests, count, sizeof *requests, by_size);
        int64_t total = pack(requests, count, INT64_MAX, placed);
        if (total + outside > all + APART)
            total = pack(requests, count, APART, placed);
        for (int32_t i = 0; i < count; i++)
            frame->offsets[requests[i].slot] = requests[i].offset;
        frame->arena_bytes = total ? total : ALIGNMENT;
    } else
        PyErr_NoMemory();
    free(requests);
    free(placed);
    free(changes);
    return good ? 0 : -1;
}

/* Point every arena slot at its memory, and make the tensors that operators need of them. */
static int place_arena(const Program *program, Frame *frame) {
    for (int32_t i = 0; i < program->arena_count; i++) {
        const ArenaSlot *slot = program->arena + i;
        Place *place = frame->places + slot->slot;
        place->plain = 1;
        if (frame->offsets[i] < 0) {
            place->data = NULL;
            continue;
        }
        place->data = frame->block + frame->offsets[i];
        if (!(program->slots[slot->slot].needs & NEEDS_HANDLE))
            continue;
        const Step *step = program->steps + slot->step;
        int64_t *sizes = frame->numbers, *strides = sizes + step->sizes.count;
        for (int32_t j = 0; j < step->sizes.count; j++) {
            sizes[j] = frame->integers[step->sizes.at[j]];
            strides[j] = frame->integers[step->strides.at[j]];
        }
        if (torch.aoti_torch_create_tensor_from_blob(place->data, step->sizes.count, sizes, strides, 0, step->dtype,
                                                     step->device_type, step->device_index, &place->handle)) {
            PyErr_SetString(PyExc_RuntimeError, "libtorch refused a tensor over the program's scratch memory");
            return -1;
        }
        place->ownership = RESIDENT;
    }
    return 0;
}

int lay_out(const Program *program, Frame *frame) {
    if (!program->arena_count)
        return 0;
    uint8_t inference = torch.inference_mode();
    int same = frame->has_layout && frame->inference == inference;
    for (int32_t i = 0; i < program->layout_count && same; i++)
        same = frame->layout[i] == frame->integers[program->layout_rows[i]];
    if (!same) {
        drop_residents(program, frame);
        frame->has_layout = 0;
        if (plan_arena(program, frame))
            return -1;
        frame->inference = inference;
        for (int32_t i = 0; i < program->layout_count; i++)
            frame->layout[i] = frame->integers[program->layout_rows[i]];
    }
    if (frame->block_bytes < frame->arena_bytes || (!same && frame->block_bytes / 2 > frame->arena_bytes)) {
        char *before = frame->block;
        if (frame->keeps_block)
            free(frame->block);
        frame->keeps_block = frame->arena_bytes <= FRAME_BLOCK;
        if (frame->keeps_block) {
            frame->block_bytes = frame->arena_bytes;
            frame->block = aligned_alloc(ALIGNMENT, frame->arena_bytes);
        } else
            frame->block = borrow_block(frame->arena_bytes, before, &frame->block_bytes);
        if (!frame->block) {
            frame->block_bytes = 0;
            frame->has_layout = 0;
            PyErr_NoMemory();
            return -1;
        }
        if (frame->block != before)
            same = 0;
    }
    if (same)
        return 0;
    drop_residents(program, frame);
    frame->has_layout = 0;
    if (place_arena(program, frame))
        return -1;
    frame->has_layout = 1;
    return 0;
}
