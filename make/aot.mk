.PHONY: sweep-aot bench-aot table-training
sweep-aot: native  ## every differentiable operator of op_db through aot_eager against eager (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow tests/aot

bench-aot: native  ## ahead-of-time stage beside torch's: stage time, wrapper, kept memory
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/aot.py --json benchmarks/results/aot.json

table-training: native  ## every model of the capture table trained beside eager: gradients, steps, kept memory
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/training.py
