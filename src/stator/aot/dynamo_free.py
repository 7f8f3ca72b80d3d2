"""Lets torch's own Python kernels run without the compiler beside: see `stator.tensors.dynamo_free`."""

from stator.tensors.dynamo_free import settle, settle_custom_operator, settle_references, settle_transforms

__all__ = ["settle", "settle_custom_operator", "settle_references", "settle_transforms"]
