.PHONY: bench-overhead test-sanitize
bench-overhead: native  ## cost of a compiled call beside plain Python and torch.compile
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/overhead.py

# A copy of the package with the native code under the sanitizers. Leaks are the business
# of tests/native/test_leaks.py: Python's own immortal objects would drown them here.
SANITIZE := build/sanitize
test-sanitize: $(STAMP)  ## tests/native and tests/guards under the address and undefined-behaviour sanitizers
	rm -rf $(SANITIZE) && mkdir -p $(SANITIZE)
	cp -r src/stator $(SANITIZE)/ && find $(SANITIZE) -name '*.so' -delete
	STATOR_SANITIZE=1 $(BIN)/python setup.py -q build_ext --build-lib $(SANITIZE) --build-temp build/sanitize-objects
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	PYTHONMALLOC=malloc PYTHONPATH=$(SANITIZE) OMP_NUM_THREADS=1 STATOR_TEST_EXAMPLES=60 \
	$(BIN)/python -m pytest -p no:cacheprovider -x tests/native tests/guards
