.PHONY: sweep-sizes
sweep-sizes: $(STAMP)  ## symbolic sizes through every operator of torch's database, against the checked-in table
	$(BIN)/python tests/sizes/sweep_operators.py
