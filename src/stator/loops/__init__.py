"""The loop language: what lowering produces, what fusion rearranges and what an emitter turns into machine code.

Nothing in here knows a target: no vector widths, no thread pools, no instruction names.
"""
