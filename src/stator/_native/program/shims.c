#define _GNU_SOURCE
#include "program/shims.h"

#include <dlfcn.h>

Shims torch;

/* The same function across torch versions; each takes its tensor by a pointer, whatever the C++ signature says:
 * a parameter of class type travels by reference to the caller's object. */
static const char *const WRAP_NAMES[] = {
    "_Z16THPVariable_WrapON2at10TensorBaseE",
    "_Z16THPVariable_WrapRKN2at10TensorBaseE",
    "_Z16THPVariable_WrapN2at10TensorBaseE",
};

static void *find(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    return symbol ? symbol : dlsym(RTLD_DEFAULT, name);
}

const char *resolve_shims(const char *path) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return path;
#define REQUIRE(result, name, parameters)                                                                           \
    *(void **)&torch.name = find(library, #name);                                                                   \
    if (!torch.name)                                                                                                \
        return #name;
    REQUIRED_SHIMS(REQUIRE)
#undef REQUIRE
#define OPTIONAL(result, name, parameters) *(void **)&torch.name = find(library, #name);
    OPTIONAL_SHIMS(OPTIONAL)
#undef OPTIONAL
    for (size_t i = 0; i < sizeof WRAP_NAMES / sizeof *WRAP_NAMES && !torch.wrap; i++)
        *(void **)&torch.wrap = find(library, WRAP_NAMES[i]);
    if (!torch.wrap)
        return "THPVariable_Wrap";
    static const struct {
        void **place;
        const char *name;
    } REST[] = {
        {(void **)&torch.exclude_keys, "_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE"},
        {(void **)&torch.exclude_keys_end, "_ZN3c104impl23ExcludeDispatchKeyGuardD1Ev"},
        {(void **)&torch.inference_mode, "_ZN3c1013InferenceMode10is_enabledEv"},
        {(void **)&torch.operator_new, "_Znwm"},
        {(void **)&torch.operator_delete, "_ZdlPv"},
    };
    for (size_t i = 0; i < sizeof REST / sizeof *REST; i++) {
        *REST[i].place = find(library, REST[i].name);
        if (!*REST[i].place)
            return REST[i].name;
    }
#if defined(__x86_64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ /* elsewhere ATen asks oneDNN or others first */
    *(void **)&torch.context = find(library, "_ZN2at13globalContextEv");
    *(void **)&torch.float32_precision =
        find(library, "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE");
    *(void **)&torch.sgemm_ = dlsym(library, "sgemm_"); /* of libtorch only: another library's may round otherwise */
    *(void **)&torch.dgemm_ = dlsym(library, "dgemm_");
#endif
    return NULL;
}
