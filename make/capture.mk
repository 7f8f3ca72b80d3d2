.PHONY: table-models
table-models: native  ## which transformers models are captured whole, in what time, with how many guards; writes docs/models.md (hours)
	$(BIN)/python benchmarks/capture.py

.PHONY: cpython-suite
cpython-suite: native  ## CPython's own tests with every test method compiled, against plain Python (a quarter of an hour)
	$(BIN)/python tools/cpython_suite.py --check $(CPYTHON_TESTS)
