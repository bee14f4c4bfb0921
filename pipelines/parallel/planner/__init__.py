"""Choosing a layout before anything runs: what blocks and links cost, what fits, and which layout takes the shortest step. Pure."""
