.PHONY: bench-cpu sweep-lowering fuzz-lowering
bench-cpu: native  ## compiled CPU code beside torch.compile and eager, 1 and 2 threads
	$(BIN)/python benchmarks/cpu.py prepare
	$(BIN)/python benchmarks/cpu.py run
	$(BIN)/python benchmarks/cpu.py first --threads 2
	$(BIN)/python benchmarks/cpu.py memory --threads 1

sweep-lowering: native  ## every operator sample of torch's own test table through the CPU compiler
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/lower/test_sweep.py

fuzz-lowering: native  ## random ATen graphs through the CPU compiler, compared with eager
	OMP_NUM_THREADS=1 STATOR_FUZZ_EXAMPLES=2000 $(BIN)/python -m pytest -m 'slow or not slow' tests/emit/test_fuzz.py
