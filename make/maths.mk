# Step between the float bit patterns tried; 1 tries all of them, in about half an hour.
MATHS_STEP ?= 17

.PHONY: sweep-maths bench-maths
sweep-maths: $(STAMP)  ## try the CPU maths on float bit patterns and time it; rewrites docs/maths-accuracy.md
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/maths.py sweep --step $(MATHS_STEP)
	$(BIN)/ruff format -q src/stator/emit/cpu/math_measured.py

bench-maths: $(STAMP)  ## time the CPU maths beside eager
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/maths.py bench
