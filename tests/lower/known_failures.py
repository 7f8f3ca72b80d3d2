"""Operator samples that do not pass, each with the reason. Nothing here is a wrong result of a fused kernel."""

ALL = ("float32", "bfloat16", "int64", "bool")


def rows(operators: str, dtypes: tuple[str, ...], reason: str) -> dict[tuple[str, str], str]:
    return {(operator, dtype): reason for operator in operators.split() for dtype in dtypes}


KNOWN: dict[tuple[str, str], str] = {}
