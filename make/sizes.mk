.PHONY: sweep-sizes
sweep-sizes: $(STAMP)  ## symbolic sizes through every operator of torch's database, against the checked-in table
	$(BIN)/python tests/sizes/sweep_operators.py

.PHONY: table-recompiles
table-recompiles: native  ## how often programs whose values vary compile again, beside torch.compile
	OMP_NUM_THREADS=1 $(BIN)/python tests/sizes/recompile_table.py

.PHONY: table-dynamic
table-dynamic: native  ## recompiles and results of the capture models over batch sizes and lengths
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/dynamic_models.py
