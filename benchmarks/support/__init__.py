"""What the benchmarks share or measure: input files, networks, peers, and the printed result. No figure of its own."""
