.PHONY: fuzz
FUZZ_SEED ?= 1000000
FUZZ_SECONDS ?= 3600
fuzz: native  ## random programs, eager beside compiled: FUZZ_SEED=first FUZZ_SECONDS=how long
	$(BIN)/python tests/capture/fuzzing.py $(FUZZ_SEED) 1000000000 --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/capture/fuzzing.py $(FUZZ_SEED) 1000000000 --seconds $(FUZZ_SECONDS) --breaking
