.PHONY: table-models
table-models: native  ## which transformers models are captured whole, and in what time
	$(BIN)/python benchmarks/capture.py
