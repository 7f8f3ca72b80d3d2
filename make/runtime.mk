.PHONY: test-runtime-sweep bench-program
test-runtime-sweep: native  ## every operator of torch's own test table through a program
	$(BIN)/python -m pytest -m slow tests/runtime

bench-program: native  ## cost of a call of a compiled graph, beside eager and torch.compile
	$(BIN)/python benchmarks/program.py --peer
