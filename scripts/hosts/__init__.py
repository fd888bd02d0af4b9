"""Several hosts on one machine, for trying and testing: network namespaces and the cables between them."""
