.PHONY: report-images bench-observe
report-images: $(STAMP)  ## take the pictures of docs/reading-a-report.md (needs chromium)
	$(BIN)/python docs/images/take.py

bench-observe: native  ## what logs, traces and reports cost: calls, capture, size of a report
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/observe.py
