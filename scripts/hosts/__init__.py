"""Several hosts on one machine, for experiments and tests: network namespaces and the cables between them."""
