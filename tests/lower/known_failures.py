"""Operator samples that do not pass, each with the reason. None is a wrong value of a fused kernel."""

KNOWN: dict[tuple[str, str], str] = {
    ("native_layer_norm", "bfloat16"): "torch's meta kernel: float32 statistics; the CPU kernel: bfloat16",
    ("nn.functional.hardtanh", "int64"): "the traced result is float32, the CPU kernel's int64",
    ("native_batch_norm", "float32"): "torch's meta kernel: saved statistics in evaluation too; the CPU kernel: empty",
    ("native_batch_norm", "bfloat16"): "torch's meta kernel: float32 statistics; the CPU kernel: bfloat16",
    ("_native_batch_norm_legit", "float32"): "torch's meta kernel: statistics in evaluation too; the CPU kernel: empty",
    ("_native_batch_norm_legit", "bfloat16"): "torch's meta kernel: float32 statistics; the CPU kernel: bfloat16",
    ("nn.functional.instance_norm", "bfloat16"): "one element is one step from eager's, which rounds in between",
}
