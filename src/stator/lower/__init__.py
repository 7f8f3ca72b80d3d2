"""From ATen operators to the loop language: one table, and for what has no row the operator itself."""
