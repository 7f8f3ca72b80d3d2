# A checkout of PyTorch, for its test/dynamo.
TORCH_CHECKOUT ?= ../pytorch
SUITE ?= test_functions.py
SUITE_FOLDER ?= dynamo

.PHONY: torch-suite
torch-suite: native  ## PyTorch's own tests of torch.compile against stator (SUITE=test_misc.py TORCH_CHECKOUT=...)
	$(BIN)/python tools/torch_suite.py $(TORCH_CHECKOUT)/test/$(SUITE_FOLDER)/$(SUITE)
