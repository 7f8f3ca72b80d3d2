"""Operator samples that do not pass, each with the reason. None is a wrong value of a fused kernel."""

STATISTICS = "torch's meta kernel: float32 statistics; the CPU kernel: the type of the input"
EVALUATION = "torch's meta kernel: saved statistics in evaluation too; the CPU kernel: empty"
OVERLAP = "eager writes one memory through several elements, which is undefined"

# (operator, dtype) -> reason
KNOWN: dict[tuple[str, str], str] = {
    **{("native_layer_norm", dtype): STATISTICS for dtype in ("bfloat16", "float16")},
    **{
        (operator, dtype): STATISTICS
        for operator in ("native_batch_norm", "_native_batch_norm_legit")
        for dtype in ("bfloat16", "float16")
    },
    **{
        (operator, dtype): EVALUATION
        for operator in ("native_batch_norm", "_native_batch_norm_legit")
        for dtype in ("float32", "float64")
    },
    ("nn.functional.instance_norm", "bfloat16"): "one element is one step from eager's, which rounds in between",
}

# (operator, layout) -> reason; any dtype
KNOWN_LAYOUTS: dict[tuple[str, str], str] = {
    **{
        (operator, "expanded"): OVERLAP
        for operator in (
            "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "nn.functional.batch_norm",
            "nn.functional.embedding", "nn.functional.embedding_bag",
        )
    },
    ("native_group_norm", "expanded"): "the CPU kernel takes its input for contiguous, and reads other memory",
}  # fmt: skip
