.PHONY: report-images
report-images: $(STAMP)  ## take the pictures of docs/reading-a-report.md (needs chromium)
	$(BIN)/python docs/images/take.py
