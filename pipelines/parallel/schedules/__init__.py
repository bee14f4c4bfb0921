"""Generators of schedules, one a file: what each worker computes, in order. Pure; transfers are put in afterwards."""
