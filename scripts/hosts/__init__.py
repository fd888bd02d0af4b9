"""Makes several hosts on one machine, for experiments and tests. The hosts are network namespaces with cables."""
