.PHONY: table-breaks bench-breaks
table-breaks: native  ## every kind of graph break in every place: docs/break-table.md
	OMP_NUM_THREADS=1 $(BIN)/python tests/resume/table_page.py

bench-breaks: native  ## what a graph break costs when it runs, and to trace by depth, beside torch.compile
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/breaks.py
