.PHONY: test-bytecode-all
test-bytecode-all: $(STAMP)  ## decode and re-assemble every code object of the standard library, beside dis
	$(BIN)/python -m pytest -m slow tests/bytecode
